package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// NodeName is the name of the real node of a cluster that has one.
const NodeName = "node"

// The addresses of a cluster with a node. Each has a network of its own, so that
// all can have the same ones.
const (
	nodeIP        = "10.99.0.1"
	podRange      = "10.88.0.0/24"
	clusterDomain = "cluster.local"
)

// networkSetup makes the network of a node, as a batch of the program ip. The
// node's interface is a bridge without ports: it leads nowhere. The range of
// Services gets a route because a process of the node that calls one would find
// its network unreachable before kube-proxy's rules send it elsewhere.
const networkSetup = "link set lo up\n" +
	"link add node0 type bridge\n" +
	"address add " + nodeIP + "/24 dev node0\n" +
	"link set node0 up\n" +
	"route add " + serviceRange + " dev node0\n"

// ownDirs are the directories that a node's programs write to on any machine.
// Inside, directories of the cluster hide them.
var ownDirs = map[string]string{"/run": "run", "/var/lib": "lib", "/var/log": "log"}

// kernelSettings are what a kubelet sets for the whole machine unless it finds
// them set. Inside, files with these values hide the real ones.
var kernelSettings = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// node is what a cluster with a real node has beside its processes.
type node struct {
	id     string
	dir    string // what stands for the machine's directories inside
	group  *cgroup
	inside *enclosure
	door   *os.File // listens outside for the API server
}

const cniPlugins = "/usr/lib/cni"

// CheckNode returns an error if this process cannot start a cluster with a node,
// and says what to do about it: it needs root and a few packages.
func CheckNode() error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root, for containers and networks of their own; run this as root, or do without the node")
	}
	var missing []string
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "iptables", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if path := filepath.Join(cniPlugins, plugin); !isFile(path) {
			missing = append(missing, path)
		}
	}
	if missing != nil {
		return fmt.Errorf("a node needs %s; `make node-deps` installs the Debian packages", strings.Join(missing, ", "))
	}
	return nil
}

// checkVisible refuses places that the node's programs would not see.
func checkVisible(paths ...string) error {
	for _, path := range paths {
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		for hidden := range ownDirs {
			if resolved == hidden || strings.HasPrefix(resolved, hidden+"/") {
				return fmt.Errorf("%s is below %s, which a node hides from its programs; "+
					"put it elsewhere: TMPDIR and %s say where", path, hidden, CacheEnv)
			}
		}
	}
	return nil
}

// newNode makes room for a node: the control group, the network, and the view of
// the file system. What an earlier process left because it was killed goes first.
func newNode(ctx context.Context, dir string, detached bool) (*node, error) {
	if err := sweepNodes(ctx); err != nil {
		return nil, fmt.Errorf("remove what is left of nodes whose process is gone: %w", err)
	}
	n := &node{id: newNodeID(), dir: filepath.Join(dir, "node")}
	var err error
	if n.group, err = newCgroup(n.id); err != nil {
		return nil, err
	}
	if err := recordNode(nodeRecord{ID: n.id, Dir: dir, Detached: detached}); err != nil {
		return nil, err
	}
	err = n.group.create()
	if err == nil {
		n.inside, err = newEnclosure(n.furnish)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// furnish makes the enclosure's network and directories. It runs inside.
func (n *node) furnish() error {
	for path, sub := range ownDirs {
		own := filepath.Join(n.dir, sub)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	if err := n.hideKernelSettings(); err != nil {
		return err
	}
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(networkSetup)
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("set up the node's network: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *node) hideKernelSettings() error {
	for name, value := range kernelSettings {
		setting := "/proc/sys/" + name
		if _, err := os.Stat(setting); errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without it
		}
		own := filepath.Join(n.dir, "sys", name)
		if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(own, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(own, setting, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hide %s: %w", setting, err)
		}
	}
	return nil
}

// close ends the containers and removes what the node took of the machine. The
// processes of the cluster must have ended.
func (n *node) close() error {
	if n.door != nil {
		_ = n.door.Close() // nobody is behind it any more
	}
	if err := endNode(n.id); err != nil {
		return err
	}
	if n.inside != nil {
		n.inside.close()
	}
	return nil
}

// snapshotter returns which of containerd's ways to store root file systems works
// in dir: overlays do not stack.
func snapshotter(dir string) (string, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return "", fmt.Errorf("ask for the file system of %s: %w", dir, err)
	}
	if stat.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}
