package release_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// checkSBOM compares the bill with what the go command reads out of the programs.
func checkSBOM(t *testing.T, sbom []byte, img v1.Image, bin string) {
	t.Helper()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(sbom), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := (*bom.Metadata.Component.Hashes)[0].Value; got != digest.Hex {
		t.Errorf("the bill is of image %s, want %s", got, digest.Hex)
	}
	components := map[string]string{} // bom-ref -> "name version sum"
	for _, c := range *bom.Components {
		if components[c.BOMRef] != "" {
			t.Errorf("%s is listed twice", c.BOMRef)
		}
		components[c.BOMRef] = describe(c)
	}
	for _, c := range *bom.Components {
		if want := licences[c.Name]; want != "" && foundLicences(c) != want {
			t.Errorf("%s: got licences %q, want %q", c.Name, foundLicences(c), want)
		}
	}
	used := map[string]bool{}
	for name := range versionArgs {
		var got []string
		for _, ref := range dependencies(bom, "pkg:golang/github.com/dispatch-admission/dispatch-admission@v0.1.0#cmd/"+name) {
			got, used[ref] = append(got, components[ref]), true
		}
		want := modules(t, filepath.Join(bin, name))
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the bill lists\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for _, ref := range dependencies(bom, "image") {
		used[ref] = true
	}
	for ref := range components {
		if !used[ref] {
			t.Errorf("%s: nothing in the image uses it", ref)
		}
	}
	if !slices.ContainsFunc(*bom.Components, func(c cdx.Component) bool {
		return c.Name == "golang.org/x/crypto/x509roots/fallback" && strings.HasPrefix(c.Version, "v0.0.0-")
	}) {
		t.Error("the root certificates are missing")
	}
}

// licences are those of some modules as their authors tell them.
var licences = map[string]string{
	"stdlib": "BSD-3-Clause", "k8s.io/client-go": "Apache-2.0", "sigs.k8s.io/yaml": "Apache-2.0 BSD-3-Clause MIT",
	"github.com/prometheus/client_golang": "Apache-2.0", "github.com/google/cel-go": "Apache-2.0 BSD-3-Clause", "github.com/google/uuid": "BSD-3-Clause",
}

func foundLicences(c cdx.Component) string {
	if c.Evidence == nil || c.Evidence.Licenses == nil {
		return ""
	}
	var ids []string
	for _, l := range *c.Evidence.Licenses {
		ids = append(ids, l.License.ID)
	}
	return strings.Join(ids, " ")
}

func dependencies(bom cdx.BOM, ref string) []string {
	for _, d := range *bom.Dependencies {
		if d.Ref == ref && d.Dependencies != nil {
			return *d.Dependencies
		}
	}
	return nil
}

func describe(c cdx.Component) string {
	sum := ""
	if c.Properties != nil {
		sum = (*c.Properties)[0].Value
	}
	return strings.TrimSpace(c.Name + " " + c.Version + " " + sum)
}

// modules lists the modules of a program, and the standard library.
func modules(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := []string{"stdlib " + strings.TrimPrefix(runtime.Version(), "go")}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); fields[0] == "dep" {
			found = append(found, strings.Join(fields[1:], " "))
		}
	}
	if len(found) < 2 {
		t.Fatalf("go version -m lists no module: %s", out)
	}
	return found
}
