// Package layout keeps the shape of the repository: who may import whom, which
// packages stay pure, how long a file may be, and what the text may speak of.
//
// The rules are plain functions from input to a list of problems. This file
// applies them to the repository; the files beside it hold each rule together
// with a table of inputs that it must refuse, so that no rule is ever green
// only because it looks at nothing.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository, seen from the folder of this package.
const root = "../.."

func TestImports(t *testing.T) {
	t.Parallel()
	pkgs := listPackages(t)
	if len(pkgs) == 0 {
		t.Fatal("go list found no package: the rules were applied to nothing")
	}
	report(t, checkImports(pkgs))
}

func TestSources(t *testing.T) {
	t.Parallel()
	sources := parseTree(t)
	if len(sources) == 0 {
		t.Fatal("no Go file was found: the rules were applied to nothing")
	}
	for _, src := range sources {
		if ast.IsGenerated(src.file) {
			continue
		}
		report(t, checkLength(src))
		report(t, checkPackageName(src))
		report(t, checkDocs(src))
		report(t, checkSkips(src))
		report(t, checkCleanups(src))
		report(t, checkPurity(src))
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	files := repositoryFiles(t)
	if len(files) == 0 {
		t.Fatal("git lists no file: the rule was applied to nothing")
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the work tree, not yet in the index
		}
		if err != nil {
			t.Fatal(err)
		}
		report(t, checkText(name, content))
	}
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// listPackages asks the go command for every package of the root module. A
// package that does not build is listed too: what is wrong with it is for the
// compiler to say.
func listPackages(t *testing.T) []listed {
	t.Helper()
	out := run(t, "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

// parseTree parses every Go file of the repository, those of the other modules
// below test included.
func parseTree(t *testing.T) []source {
	t.Helper()
	var sources []source
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != root && skippedDir(entry.Name()) {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		src, err := parseSource(filepath.ToSlash(rel), content)
		sources = append(sources, src)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// skippedDir names the folders that the go command skips, and the outputs.
func skippedDir(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") ||
		slices.Contains([]string{"bin", "dist", "testdata", "vendor"}, name)
}

func parseSource(name string, content []byte) (source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
	return source{name: name, lines: bytes.Count(content, []byte("\n")), fset: fset, file: file}, err
}

// repositoryFiles lists what is tracked and what would be tracked next.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, fs.ErrNotExist) {
		t.Skip("not a git checkout: nothing tells which files belong to the repository")
	}
	out := run(t, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	slices.Sort(names)
	return slices.Compact(names)
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	return out
}
