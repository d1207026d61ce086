package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Toolbox is a directory of built programs and rendered manifests.
type Toolbox struct {
	// Dir holds bin/ and manifests/. Treat it as read-only: it is shared.
	Dir string
	// Versions maps module paths to the versions that were built.
	Versions map[string]string
}

// Bin returns the path of a program, such as "kubectl" or "helm".
func (t *Toolbox) Bin(name string) string { return filepath.Join(t.Dir, "bin", name) }

// manifest returns the path of a rendered bundle.
func (t *Toolbox) manifest(name string) string {
	return filepath.Join(t.Dir, "manifests", name)
}

// toolset is a group of programs that is built, and kept, apart from others.
type toolset struct {
	suffix string   // of the names of its directories
	source []string // files of this module that it is made from beside go.mod and go.sum
	// fill makes what the toolbox holds, from the sources of this module in src.
	fill func(ctx context.Context, src string, t *Toolbox, progress io.Writer) error
}

// controlPlane is what every cluster runs.
var controlPlane = toolset{fill: fillControlPlane}

// Build returns the toolbox for the pinned versions, and builds it first if this
// user's cache has none: once, for about 20 minutes on two cores.
// Progress is told to progress, which may be nil. Two processes do not build the
// same toolbox at once; the second waits.
func Build(ctx context.Context, progress io.Writer) (*Toolbox, error) {
	return controlPlane.build(ctx, progress)
}

// BuildNode does the same for the programs of a node: for about three minutes
// once the others are built.
func BuildNode(ctx context.Context, progress io.Writer) (*Toolbox, error) {
	return nodeTools.build(ctx, progress)
}

func (set toolset) build(ctx context.Context, progress io.Writer) (*Toolbox, error) {
	if progress == nil {
		progress = io.Discard
	}
	src, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	key, err := cacheKey(ctx, src, set.source...)
	if err != nil {
		return nil, err
	}
	root, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, key+set.suffix)
	if t, err := openToolbox(dir); err == nil {
		return t, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache (set %s for another place): %w", CacheEnv, err)
	}
	unlock, err := lockFile(ctx, dir+".lock", "another process is building the programs; waiting for it", progress)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t, err := openToolbox(dir); err == nil {
		return t, nil // the other process made it
	}
	return set.create(ctx, src, dir, progress)
}

// openToolbox reads a finished toolbox. Its directory appears by a rename, so
// that what is there is complete.
func openToolbox(dir string) (*Toolbox, error) {
	data, err := os.ReadFile(filepath.Join(dir, "versions.json"))
	if err != nil {
		return nil, err
	}
	t := &Toolbox{Dir: dir}
	if err := json.Unmarshal(data, &t.Versions); err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	return t, nil
}

func (set toolset) create(ctx context.Context, src, dir string, progress io.Writer) (*Toolbox, error) {
	start := time.Now()
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil { // of a build that was cut short
		return nil, err
	}
	t := &Toolbox{Dir: tmp, Versions: map[string]string{}}
	if err := set.fill(ctx, src, t, progress); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(t.Versions, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, "versions.json"), data, 0o644); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, fmt.Errorf("put the built programs in place: %w", err)
	}
	fmt.Fprintf(progress, "programs built in %s: %s\n", time.Since(start).Round(time.Second), dir)
	t.Dir = dir
	return t, nil
}

func fillControlPlane(ctx context.Context, src string, t *Toolbox, progress io.Writer) error {
	fmt.Fprintln(progress, "building the cluster's programs, once per set of versions: about 20 minutes on two cores")
	mods, err := listModules(ctx, src, programs)
	if err != nil {
		return err
	}
	flags, err := linkerFlags(mods)
	if err != nil {
		return err
	}
	if err := t.compile(ctx, src, programs, flags, progress); err != nil {
		return err
	}
	t.note(mods)
	return render(ctx, t, mods)
}

// note records which versions the toolbox holds.
func (t *Toolbox) note(mods map[string]module) {
	for path, mod := range mods {
		t.Versions[path] = mod.Version
	}
}

// compile builds programs of the module in src with one call of the go command,
// so that the packages they share are compiled side by side and once.
func (t *Toolbox) compile(ctx context.Context, src string, which []program, flags string, progress io.Writer) error {
	pkgs := make([]string, 0, len(which))
	for _, p := range which {
		pkgs = append(pkgs, p.pkg)
	}
	deps, err := runGo(ctx, src, append([]string{"list", "-deps"}, pkgs...)...)
	if err != nil {
		return fmt.Errorf("list the programs' packages: %w", err)
	}
	tmp := t.Bin("new")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	args := []string{"build", "-v", "-buildvcs=false", "-ldflags", flags, "-o", tmp + string(filepath.Separator)}
	total := buildSize{packages: strings.Count(deps, "\n"), programs: len(which)}
	if err := goBuild(ctx, src, tmp, append(args, pkgs...), total, progress); err != nil {
		return fmt.Errorf("build the programs: %w", err)
	}
	for _, p := range which { // the go command names them by their packages
		if err := os.Rename(filepath.Join(tmp, builtName(p.pkg)), t.Bin(p.name)); err != nil {
			return fmt.Errorf("program %s: %w", p.name, err)
		}
	}
	return os.Remove(tmp)
}
