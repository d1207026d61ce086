package app

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker for releases.
var (
	buildVersion = ""
	buildCommit  = ""
)

// Build says what program this is.
type Build struct{ Version, Commit, Go string }

func version() Build {
	b := Build{Version: buildVersion, Commit: buildCommit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && b.Commit == "" {
				b.Commit = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

// String is the line of -version.
func (b Build) String() string {
	return fmt.Sprintf("%s commit %s %s", b.Version, b.Commit, b.Go)
}
