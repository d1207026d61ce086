package hooktest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// Main is the suite as a command, for servers in any language. It writes one
// line per check to out and returns the exit code: 0 when all checks passed, 1
// when one failed, 2 when args are wrong or nothing listens where they say.
// Args do not include the name of the command.
func Main(ctx context.Context, args []string, out io.Writer) int {
	c, err := parse(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(out, "hooktest:", err)
		return 2
	}
	results, err := CheckServer(ctx, c.server, c.options)
	if err != nil {
		fmt.Fprintln(out, "hooktest:", inFlags(err))
		return 2
	}
	return write(out, results)
}

// flagOf gives the flag for a field that an error of package httphook names.
var flagOf = map[string]string{
	"url":               "-url",
	"unixSocket":        "-unix-socket",
	"caBundle":          "-ca-file",
	"serverName":        "-server-name",
	"clientCertificate": "-cert-file, -key-file",
}

// inFlags is the text of err with flags for the fields at its beginning.
func inFlags(err error) string {
	fields, problem, _ := strings.Cut(err.Error(), ": ")
	names := strings.Split(fields, ", ")
	for i, name := range names {
		flag, ok := flagOf[name]
		if !ok {
			return err.Error()
		}
		names[i] = flag
	}
	return strings.Join(names, ", ") + ": " + problem
}

func write(out io.Writer, results []Result) int {
	code := 0
	for _, r := range results {
		if r.Err != nil {
			code = 1
			fmt.Fprintf(out, "FAIL  %s: %v\n", r.Check, r.Err)
			continue
		}
		fmt.Fprintf(out, "ok    %s\n", r.Check)
	}
	return code
}

// command is the parsed command line.
type command struct {
	server  httphook.Config
	options Options
}

func parse(args []string, out io.Writer) (command, error) {
	var c command
	var caFile, certFile, keyFile string
	flags := flag.NewFlagSet("hooktest", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.server.URL, "url", "", "base `URL` of the server, without /v1/admit")
	flags.StringVar(&c.server.UnixSocket, "unix-socket", "", "absolute `path` of the server's socket, instead of -url")
	flags.StringVar(&c.server.ServerName, "server-name", "", "`name` in the server's certificate, if not the host of -url")
	flags.StringVar(&caFile, "ca-file", "", "PEM `file` of authorities to trust instead of the system's")
	flags.StringVar(&certFile, "cert-file", "", "PEM `file` of the client certificate")
	flags.StringVar(&keyFile, "key-file", "", "PEM `file` of the client key")
	flags.DurationVar(&c.options.Timeout, "timeout", 2*time.Second, "deadline of one call")
	flags.Func("request", "JSON `file` of a request to ask about instead of the built-in ones; may be repeated", c.addRequest)
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	err := c.readFiles(caFile, certFile, keyFile)
	return c, err
}

func (c *command) addRequest(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	req := new(admission.Request)
	if err := json.Unmarshal(data, req); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	c.options.Samples = append(c.options.Samples, Sample{Name: file, Request: req})
	return nil
}

func (c *command) readFiles(caFile, certFile, keyFile string) error {
	if c.options.Timeout <= 0 {
		return fmt.Errorf("-timeout: %v is not positive", c.options.Timeout)
	}
	if caFile != "" {
		var err error
		if c.server.CABundle, err = os.ReadFile(caFile); err != nil {
			return fmt.Errorf("-ca-file: %w", err)
		}
	}
	if certFile == "" && keyFile == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return fmt.Errorf("-cert-file, -key-file: %w", err)
	}
	c.server.ClientCertificate = func() (*tls.Certificate, error) { return &cert, nil }
	return nil
}
