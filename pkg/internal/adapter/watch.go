package adapter

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch checks the files whenever something happens to them, and now and then
// anyway: what a symbolic link far away leads to is not watched, some file
// systems tell nothing, and the number of watches on a machine is limited.
func (k *keeper) watch(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		k.log.Warn("changes of files are seen late", "after", k.timing.poll, "error", err)
		watcher = &fsnotify.Watcher{} // its channels are nil, so nothing ever comes
	} else {
		defer func() { _ = watcher.Close() }() // it was only read
	}
	poll := time.NewTicker(k.timing.poll)
	defer poll.Stop()
	for {
		paths := k.paths()
		if err == nil {
			follow(watcher, paths)
		}
		// After that, so that no change falls in between. What is new may name
		// other files.
		if k.check(ctx) {
			continue
		}
		if !k.wait(ctx, watcher, poll.C, paths) {
			return
		}
	}
}

// wait returns true when there is reason to look at the files, false when ctx
// has ended.
func (k *keeper) wait(ctx context.Context, w *fsnotify.Watcher, poll <-chan time.Time, paths []string) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-poll:
			return true
		case err := <-w.Errors:
			k.log.Debug("events of files were lost", "error", err)
			return true
		case event := <-w.Events:
			if concerns(event.Name, paths) {
				return true
			}
		}
	}
}

// paths are the files to watch, and what they lead to if they are links. The
// files of a ConfigMap or Secret are links through ..data, which is replaced in
// the folder of the links.
func (k *keeper) paths() []string {
	paths := []string{k.options.Config, k.config.Load().config.PolicyFile}
	if h := k.started.HTTPS; h != nil {
		paths = append(paths, h.CertFile, h.KeyFile, h.ClientCAFile)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool { return p == "" })
	for _, path := range slices.Clone(paths) {
		if target, err := filepath.EvalSymlinks(path); err == nil && target != path {
			paths = append(paths, target)
		}
	}
	return paths
}

// follow watches the folders of the files. A folder survives what happens to its
// files; one that was replaced itself is watched anew by the next call.
func follow(w *fsnotify.Watcher, paths []string) {
	for _, path := range paths {
		_ = w.Add(filepath.Dir(path)) // without it, the ticker has to do
	}
}

// concerns tells whether what happened to name may have changed a file: it has
// the name of one, or it is what the kubelet replaces.
func concerns(name string, paths []string) bool {
	base := filepath.Base(name)
	return strings.HasPrefix(base, "..") || slices.ContainsFunc(paths, func(p string) bool { return filepath.Base(p) == base })
}
