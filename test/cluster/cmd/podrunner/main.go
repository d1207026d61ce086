// Command podrunner runs the pods of a cluster whose images are known as
// processes of this machine. The package cluster builds and starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/dispatch-admission/dispatch-admission/test/cluster/internal/podrunner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	syscall.Umask(0o022) // users of pods read what this process makes
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podrunner:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	config := podrunner.Config{Programs: podrunner.Programs{}}
	flags := flag.NewFlagSet("podrunner", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "`path` of an administrator's kubeconfig")
	health := flags.String("health-address", "", "`address` that answers once pods are seen")
	flags.StringVar(&config.Dir, "dir", "", "`directory` of the pods")
	flags.StringVar(&config.Logs, "logs", "", "`directory` of their logs")
	flags.Func("program", "`image=directory` of its binaries; may be given again", func(text string) error {
		image, dir, _ := strings.Cut(text, "=")
		config.Programs[image] = dir
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	client, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client.QPS, client.Burst = -1, -1 // the machine is the limit
	server, err := url.Parse(client.Host)
	if err != nil {
		return fmt.Errorf("address of the API server: %w", err)
	}
	config.Client, config.APIHost, config.APIPort = client, server.Hostname(), server.Port()
	for _, dir := range []string{config.Dir, config.Logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return serve(ctx, *health, config)
}

// serve runs pods, and answers whether it does.
func serve(ctx context.Context, health string, config podrunner.Config) error {
	listener, err := net.Listen("tcp", health)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	config.Ready = func() { mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {}) }
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "podrunner:", err)
		}
	}()
	defer func() { _ = server.Close() }()
	return podrunner.Run(ctx, config)
}
