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

// Build returns the toolbox for the pinned versions, and builds it first if this
// user's cache has none: once, for about 20 minutes on two cores.
// Progress is told to progress, which may be nil. Two processes do not build the
// same toolbox at once; the second waits.
func Build(ctx context.Context, progress io.Writer) (*Toolbox, error) {
	if progress == nil {
		progress = io.Discard
	}
	src, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	key, err := cacheKey(ctx, src)
	if err != nil {
		return nil, err
	}
	root, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, key)
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
	return createToolbox(ctx, src, dir, progress)
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

func createToolbox(ctx context.Context, src, dir string, progress io.Writer) (*Toolbox, error) {
	start := time.Now()
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil { // of a build that was cut short
		return nil, err
	}
	t := &Toolbox{Dir: tmp, Versions: map[string]string{}}
	mods, err := compile(ctx, src, t, progress)
	if err != nil {
		return nil, err
	}
	for path, mod := range mods {
		t.Versions[path] = mod.Version
	}
	if err := render(ctx, t, mods); err != nil {
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

// compile builds every program with one call of the go command, so that the
// packages they share are compiled side by side and once.
func compile(ctx context.Context, src string, t *Toolbox, progress io.Writer) (map[string]module, error) {
	fmt.Fprintln(progress, "building the cluster's programs, once per set of versions: about 20 minutes on two cores")
	pkgs := make([]string, 0, len(programs))
	for _, p := range programs {
		pkgs = append(pkgs, p.pkg)
	}
	deps, err := runGo(ctx, src, append([]string{"list", "-deps"}, pkgs...)...)
	if err != nil {
		return nil, fmt.Errorf("list the programs' packages: %w", err)
	}
	mods, err := listModules(ctx, src)
	if err != nil {
		return nil, err
	}
	flags, err := linkerFlags(mods)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(t.Dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	args := []string{"build", "-v", "-buildvcs=false", "-ldflags", flags, "-o", bin + string(filepath.Separator)}
	if err := goBuild(ctx, src, bin, append(args, pkgs...), strings.Count(deps, "\n"), progress); err != nil {
		return nil, fmt.Errorf("build the programs: %w", err)
	}
	return mods, nameBinaries(bin)
}

// nameBinaries gives the built files the names of their programs.
func nameBinaries(bin string) error {
	for _, p := range programs {
		if err := os.Rename(filepath.Join(bin, builtName(p.pkg)), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("program %s: %w", p.name, err)
		}
	}
	return nil
}
