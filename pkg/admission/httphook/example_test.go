package httphook_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// A hook is served, and asked over the wire.
func Example() {
	hook := admission.HookFunc(func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		return admission.Refuse("no room for " + req.TaskID), nil
	})
	server := httptest.NewServer(httphook.Handler(hook))
	defer server.Close()

	client, err := httphook.NewClient(httphook.Config{URL: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(client.Admit(ctx, &admission.Request{TaskID: "node"}))
	// Output: Refuse {"decision":"Refuse","reason":"no room for node"} <nil>
}

// The kind of an error says why there is no verdict.
func ExampleKindOf() {
	client, err := httphook.NewClient(httphook.Config{UnixSocket: "/no/such/socket"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Admit(context.Background(), &admission.Request{})
	fmt.Println(httphook.KindOf(err))
	fmt.Println("nobody listens:", errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist))
	// Output:
	// Connection
	// nobody listens: true
}

// listen listens on a Unix socket and removes one that a crash left behind,
// but nothing else. The caller of the hook shares the group.
func listen(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		_ = os.Remove(path)
	}
	listener, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o660)
	}
	return listener, err
}

// serve serves hook. Reading has short limits, writing one beyond the longest
// deadline of 30s, and the caller closes idle connections first, after 90s.
func serve(listener net.Listener, hook admission.Hook, logger *slog.Logger) error {
	server := &http.Server{
		Handler: httphook.Handler(hook, httphook.WithErrorLog(func(ctx context.Context, status int, err error) {
			logger.ErrorContext(ctx, "no decision", "status", status, "err", err)
		})),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      40 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
	return server.Serve(listener)
}

// A hook in a sidecar listens on a socket that both containers mount.
func ExampleHandler_unixSocket() {
	dir, err := os.MkdirTemp("", "hook")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	listener, err := listen(filepath.Join(dir, "hook.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	go func() { _ = serve(listener, admission.HookFunc(freeze), slog.New(slog.DiscardHandler)) }()

	client, err := httphook.NewClient(httphook.Config{UnixSocket: filepath.Join(dir, "hook.sock")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	d, err := client.Admit(context.Background(), &admission.Request{TaskID: "node"})
	if err == nil {
		err = d.Validate() // a client passes on what it was told
	}
	fmt.Println(d, err)
	// Output: Hold {"decision":"Hold","reason":"freeze"} <nil>
}

func freeze(context.Context, *admission.Request) (admission.Decision, error) {
	return admission.Hold("freeze"), nil
}
