package release

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// part is a piece of somebody else's work in the image: a module, the standard
// library, or the root certificates.
type part struct {
	path     string
	version  string
	sum      string            // as go.sum has it; empty for the standard library
	licences map[string][]byte // the licences and notices at the top of its sources, by file
	spdx     []string          // the identifiers of those licences that are recognised
	programs []string          // which programs hold it; none for the root certificates
}

const (
	standardLibrary  = "stdlib" // the name that vulnerability databases use
	rootCertificates = "golang.org/x/crypto/x509roots/fallback"
)

// findParts returns all parts in the order of their names. What is in a program
// is read from the program itself, so it is what the linker took and not what
// go.mod lists.
func findParts(ctx context.Context, root string, programs []program) ([]part, error) {
	env, err := goEnv(ctx, root, "GOMODCACHE", "GOROOT")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	known := knownLicences(own)
	found := map[string]*part{}
	add := func(p part, dir, program string) error {
		key := p.path + "@" + p.version
		if found[key] == nil {
			files, err := licences(dir)
			if err != nil {
				return err
			}
			p.licences, p.spdx = files, recognise(files, known)
			found[key] = &p
		}
		if has := found[key]; program != "" && !slices.Contains(has.programs, program) {
			has.programs = append(has.programs, program)
		}
		return nil
	}
	for _, p := range programs {
		std := part{path: standardLibrary, version: strings.TrimPrefix(p.info.GoVersion, "go")}
		if err := add(std, env[1], p.name); err != nil {
			return nil, err
		}
		for _, dep := range p.info.Deps {
			if err := addModule(add, dep, env[0], p.name); err != nil {
				return nil, err
			}
		}
	}
	roots, err := rootsModule()
	if err != nil {
		return nil, err
	}
	if err := addModule(add, roots, env[0], ""); err != nil {
		return nil, err
	}
	var parts []part
	for _, p := range found {
		parts = append(parts, *p)
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version))
	})
	return parts, nil
}

func addModule(add func(part, string, string) error, m *debug.Module, modcache, program string) error {
	if m.Replace != nil {
		m = m.Replace
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return err
	}
	dir := filepath.Join(modcache, filepath.FromSlash(path)+"@"+version)
	return add(part{path: m.Path, version: m.Version, sum: m.Sum}, dir, program)
}

// rootsModule says from which module this very program has its certificates.
func rootsModule() (*debug.Module, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, dep := range info.Deps {
			if dep.Path == rootCertificates {
				return dep, nil
			}
		}
	}
	return nil, fmt.Errorf("this program does not say of which version its %s is; build it with Go modules", rootCertificates)
}
