package release

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// programNames are the folders of cmd/ that an image holds.
var programNames = []string{"dispatch-admission", "dispatch-hook", "dispatchctl"}

// program is one that was built.
type program struct {
	name     string
	platform v1.Platform
	file     string
	info     *buildinfo.BuildInfo
}

// build builds the programs for one platform into dir.
func build(ctx context.Context, o Options, p v1.Platform, dir string) ([]program, error) {
	// -w leaves out what only a debugger reads, which is half of the image.
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-w " + o.LDFlags, "-o", dir + string(filepath.Separator)}
	for _, name := range programNames {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.Root
	// What else a machine may say to the compiler would make other programs.
	cmd.Env = append(os.Environ(), "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOAMD64=v1", "GOARM64=v8.0",
		"CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build for %s: %w\n%s", p, err, out)
	}
	var programs []program
	for _, name := range programNames {
		file := filepath.Join(dir, name)
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, err
		}
		programs = append(programs, program{name: name, platform: p, file: file, info: info})
	}
	return programs, nil
}

// goEnv asks the go command for the values of its variables.
func goEnv(ctx context.Context, dir string, names ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"env"}, names...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
