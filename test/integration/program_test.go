package integration

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

// program is one running dispatch-admission.
type program struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	out  lines
	done chan struct{}
	code int
}

// lines collects standard error.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.buf.String()), "\n")
}

// run is how a test starts the program.
type run struct {
	// name is the identity in the Lease, unique in the test.
	name string
	// via is where to send requests; the API server itself if nil.
	via *cluster.Endpoint
	// account is the ServiceAccount, the product's own if empty.
	account string
	// flags come after the test's own.
	flags []string
}

// brisk makes a change of leaders short enough for a test, and leaves a leader time to
// renew on an API server that stalls for a second or two; the proportions are
// those of the defaults.
var brisk = []string{"-lease-duration=5s", "-renew-deadline=4s", "-retry-period=500ms"}

// start starts the program; it is ended with the test.
func start(tb testing.TB, r run) *program {
	tb.Helper()
	via := shared.cluster.Endpoint()
	if r.via != nil {
		via = *r.via
	}
	account := r.account
	if account == "" {
		account = release
	}
	kubeconfig, err := shared.cluster.ServiceAccountKubeconfigVia(tb.Context(), via, namespace, account)
	if err != nil {
		tb.Fatal(err)
	}
	p := &program{t: tb, name: r.name, done: make(chan struct{})}
	args := append([]string{"-kubeconfig", kubeconfig, "-identity", r.name,
		"-metrics-bind-address=0", "-health-probe-bind-address=0"}, r.flags...)
	p.cmd = exec.Command(shared.program("dispatch-admission"), args...)
	p.cmd.Stderr = &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	tb.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		if tb.Failed() {
			p.signal(syscall.SIGQUIT) // shows what every goroutine is at
		} else {
			p.signal(syscall.SIGKILL)
		}
		<-p.done
		if tb.Failed() {
			tb.Logf("log of %s:\n%s", p.name, strings.Join(p.out.all(), "\n"))
		}
	})
	return p
}

// startLeading starts the program and waits until it leads.
func startLeading(tb testing.TB, r run) *program {
	tb.Helper()
	freeLease(tb)
	p := start(tb, r)
	p.await(30*time.Second, "leading", "identity="+r.name)
	return p
}

// freeLease takes the Lease of an earlier test's leader away, which nobody
// releases.
func freeLease(tb testing.TB) {
	tb.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.DefaultLeaseName}}
	if err := client.IgnoreNotFound(shared.admin.Delete(tb.Context(), lease)); err != nil {
		tb.Fatal(err)
	}
}

// signal sends a signal to the process, unless it has ended.
func (p *program) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(sig)
	}
}

// kill ends the program as a crash would.
func (p *program) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// exit waits for the end of the program and returns its exit code.
func (p *program) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.code
	case <-time.After(within):
		p.t.Fatalf("%s still runs after %s", p.name, within)
		return -1
	}
}

// await waits for a log line that has all the words.
func (p *program) await(within time.Duration, words ...string) string {
	p.t.Helper()
	deadline := time.Now().Add(within)
	for {
		if found := p.find(words...); len(found) > 0 {
			return found[0]
		}
		select {
		case <-p.done:
			p.t.Fatalf("%s ended with code %d before it logged %q", p.name, p.code, words)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s did not log %q within %s", p.name, words, within)
		}
	}
}

// find returns the log lines that have all the words.
func (p *program) find(words ...string) []string {
	return slices.DeleteFunc(p.out.all(), func(line string) bool {
		return !hasAll(line, words)
	})
}

var errorLevel = regexp.MustCompile(`level=(ERROR|WARN)`)

// noNoise fails the test for every warning or error in the log.
func (p *program) noNoise() {
	p.t.Helper()
	for _, line := range p.out.all() {
		if errorLevel.MatchString(line) {
			p.t.Errorf("%s logged: %s", p.name, line)
		}
	}
}

// execute runs the program to its end and returns its exit code and output.
func execute(tb testing.TB, env []string, args ...string) (code int, stdout, stderr string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shared.program("dispatch-admission"), args...)
	cmd.Env = env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}
