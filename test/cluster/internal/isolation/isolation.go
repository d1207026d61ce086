// Package isolation runs programs in a root directory of their own, as a user of
// their own.
package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// User is whom a process runs as.
type User struct {
	UID, GID uint32
	// Groups are the supplementary ones; only root can give them.
	Groups []uint32
}

// Attributes put a process into root, as the user. Only root may do so directly;
// others get a user namespace in which they have that user's number. The process
// has a group of its own, and dies with the thread that starts it.
func Attributes(root string, user User) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Chroot: root, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		attr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
		return attr
	}
	attr.Cloneflags = syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(user.UID), HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(user.GID), HostID: gid, Size: 1}}
	return attr
}

// Check returns an error unless this process may isolate others so.
func Check() error {
	const nothing = "/.no-such-program" // all but its execution succeeds
	err := (&exec.Cmd{Path: nothing, SysProcAttr: Attributes("/", User{UID: 1, GID: 1})}).Start()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("run a program in a root of its own: %w; it takes root, or unprivileged user namespaces", err)
}
