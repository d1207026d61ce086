package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// nodeRecord says which control group belongs to a cluster, in a place that a
// later process looks at: when a test process is killed, the kernel ends the
// cluster's processes with it, but not the containers.
type nodeRecord struct {
	ID    string   `json:"id"`
	Dir   string   `json:"dir"` // of the cluster
	Owner Identity `json:"owner"`
	// Detached says that the cluster may go on without its owner.
	Detached bool `json:"detached"`
}

const nodePrefix = "dispatch-cluster-"

var validNodeID = regexp.MustCompile(`^` + nodePrefix + `[0-9a-f]{8}$`)

func newNodeID() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return nodePrefix + hex.EncodeToString(random[:])
}

// recordsDir is where the records of all nodes of this user are.
func recordsDir() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nodes")
	return dir, os.MkdirAll(dir, 0o755)
}

// recordNode writes a record with this process as the owner.
func recordNode(r nodeRecord) error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	if r.Owner, err = Identify(os.Getpid(), exe); err != nil {
		return err
	}
	return r.write()
}

func (r nodeRecord) write() error {
	dir, err := recordsDir()
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, r.ID+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("record the node: %w", err)
	}
	return os.Rename(tmp, filepath.Join(dir, r.ID+".json"))
}

// alive reports whether the node's cluster may still be in use.
func (r nodeRecord) alive() bool {
	if r.Owner.Alive() {
		return true
	}
	if !r.Detached {
		return false
	}
	s, err := ReadState(r.Dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(s.Components, func(comp ComponentState) bool { return comp.Identity.Alive() })
}

// sweepNodes removes what is left of recorded nodes whose cluster is gone.
func sweepNodes(ctx context.Context) error {
	dir, err := recordsDir()
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), "another process sweeps nodes; waiting for it", io.Discard)
	if err != nil {
		return err
	}
	defer unlock()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, sweepNode(file))
	}
	return errors.Join(errs...)
}

func sweepNode(file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its owner has just removed it
	}
	if err != nil {
		return err
	}
	var r nodeRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if r.alive() {
		return nil
	}
	return endNode(r.ID)
}

// endNode ends the containers of a node whose other processes have ended, removes
// its control group, and then the record of it.
func endNode(id string) error {
	if !validNodeID.MatchString(id) {
		return fmt.Errorf("%q is no name of a node's control group", id)
	}
	group, err := newCgroup(id)
	if err != nil {
		return err
	}
	if err := group.end(); err != nil {
		return err
	}
	dir, err := recordsDir()
	if err != nil {
		return err
	}
	err = os.Remove(filepath.Join(dir, id+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
