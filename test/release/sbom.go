package release

import (
	"io"
	"net/url"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ownModule is the project's.
const ownModule = "github.com/dispatch-admission/dispatch-admission"

// writeSBOM writes the bill of materials of the image with that digest. It has no
// serial number: that would have to be another one each time.
func writeSBOM(w io.Writer, o Options, digest v1.Hash, programs []program, parts []part) error {
	image := cdx.Component{
		Type: cdx.ComponentTypeContainer, BOMRef: "image", Name: title, Version: o.Version,
		PackageURL: "pkg:oci/" + title + "@" + url.QueryEscape(digest.String()) + "?tag=" + url.QueryEscape(o.Tag),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	uses := map[string][]string{} // bom-ref -> those of what it is made of
	var components []cdx.Component
	for _, name := range programNames {
		c := cdx.Component{
			Type: cdx.ComponentTypeApplication, Name: name, Version: o.Version,
			PackageURL: purl(ownModule, "v"+o.Version) + "#cmd/" + name,
			Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		}
		c.BOMRef = c.PackageURL
		components = append(components, c)
		uses["image"] = append(uses["image"], c.BOMRef)
		for _, p := range parts {
			if slices.Contains(p.programs, name) {
				uses[c.BOMRef] = append(uses[c.BOMRef], purl(p.path, p.version))
			}
		}
	}
	for _, p := range parts {
		c := partComponent(p)
		components = append(components, c)
		if len(p.programs) == 0 {
			uses["image"] = append(uses["image"], c.BOMRef)
		}
	}
	dependencies := []cdx.Dependency{{Ref: "image", Dependencies: ref(uses["image"])}}
	for _, c := range components {
		dependencies = append(dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: ref(uses[c.BOMRef])})
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: o.Created.UTC().Format(time.RFC3339), Component: &image}
	bom.Components, bom.Dependencies = &components, &dependencies
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

func partComponent(p part) cdx.Component {
	c := cdx.Component{
		Type: cdx.ComponentTypeLibrary, Name: p.path, Version: p.version,
		BOMRef: purl(p.path, p.version), PackageURL: purl(p.path, p.version),
	}
	if p.sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: p.sum}}
	}
	var found cdx.Licenses
	for _, id := range p.spdx {
		found = append(found, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	if found != nil {
		c.Evidence = &cdx.Evidence{Licenses: &found}
	}
	switch p.path {
	case standardLibrary:
		c.CPE = "cpe:2.3:a:golang:go:" + p.version + ":*:*:*:*:*:*:*"
	case rootCertificates:
		c.Description = "the root certificates in /etc/ssl/certs/ca-certificates.crt"
	}
	return c
}

func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + url.QueryEscape(version)
}

// ref is nil for nothing, which leaves the field out.
func ref(of []string) *[]string {
	if len(of) == 0 {
		return nil
	}
	return &of
}
