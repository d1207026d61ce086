// Command release makes the parts of a release. See docs/releasing.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dispatch-admission/dispatch-admission/test/release"
)

const usage = `usage: release image -root DIR -out DIR -image NAME -tag TAG -platforms LIST
                     -version X -revision COMMIT -created SECONDS [-ldflags FLAGS]
       release notes -root DIR VERSION

  image  writes the container image and its bill of materials into -out
  notes  prints the section of a version from CHANGELOG.md; Unreleased is one

make image and make release-notes give the flags their values.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	commands := map[string]func(context.Context, []string, io.Writer) error{"image": image, "notes": notes}
	if commands[args[0]] == nil {
		return fmt.Errorf("unknown command %q: it is image or notes", args[0])
	}
	err := commands[args[0]](ctx, args[1:], stdout)
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(stdout, usage)
	}
	return err
}

// flags returns an empty set of flags that leaves it to main to tell of errors.
func flags(command string) *flag.FlagSet {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

func image(ctx context.Context, args []string, stdout io.Writer) error {
	var o release.Options
	f := flags("image")
	f.StringVar(&o.Root, "root", ".", "")
	f.StringVar(&o.Out, "out", "bin", "")
	f.StringVar(&o.Image, "image", "", "")
	f.StringVar(&o.Tag, "tag", "", "")
	f.StringVar(&o.Version, "version", "", "")
	f.StringVar(&o.Revision, "revision", "", "")
	f.StringVar(&o.LDFlags, "ldflags", "", "")
	platforms := f.String("platforms", "", "")
	created := f.Int64("created", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("image: takes no argument such as %q", f.Arg(0))
	}
	o.Platforms = strings.Split(*platforms, ",")
	o.Created = time.Unix(*created, 0)
	if err := release.Make(ctx, o); err != nil {
		return err
	}
	for _, name := range []string{release.ImageFile, release.SBOMFile} {
		fmt.Fprintln(stdout, filepath.Join(o.Out, name))
	}
	return nil
}

func notes(_ context.Context, args []string, stdout io.Writer) error {
	f := flags("notes")
	root := f.String("root", ".", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return errors.New("notes: needs one VERSION, such as v0.1.0 or Unreleased")
	}
	changelog, err := os.ReadFile(filepath.Join(*root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section, err := release.Notes(string(changelog), f.Arg(0))
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, section)
	return err
}
