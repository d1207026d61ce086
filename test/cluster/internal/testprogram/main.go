// Command testprogram is what the containers of test pods run. It does what its
// flags say, in their order of the usage, and ends.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testprogram:", err)
		os.Exit(1)
	}
}

func run() error {
	about := flag.Bool("about", false, "print who and where this process is")
	write := flag.String("write", "", "write `FILE=TEXT`")
	await := flag.String("await", "", "wait until `FILE=TEXT` holds")
	get := flag.String("get", "", "get `path` of the API server as the pod's account, and print the status")
	serve := flag.String("serve", "", "serve /ok and the files below /files at `address` until SIGTERM")
	linger := flag.Duration("linger", 0, "how long to go on after SIGTERM")
	exit := flag.Int("exit", 0, "exit `code`")
	flag.Parse()
	if *about {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		fmt.Printf("host=%s uid=%d ip=%s expanded=%s\n", host, os.Getuid(), os.Getenv("POD_IP"), os.Getenv("EXPANDED"))
	}
	if file, text, ok := strings.Cut(*write, "="); ok {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if file, text, ok := strings.Cut(*await, "="); ok {
		for {
			if have, err := os.ReadFile(file); err == nil && string(have) == text {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if *get != "" {
		if err := request(*get); err != nil {
			return err
		}
	}
	if *serve != "" {
		if err := listen(*serve, *linger); err != nil {
			return err
		}
	}
	if *exit != 0 {
		fmt.Fprintf(os.Stderr, "exiting with %d as asked\n", *exit)
		os.Exit(*exit)
	}
	return nil
}

// request asks the API server as client-go's in-cluster configuration does.
func request(path string) error {
	ca, err := os.ReadFile(filepath.Join(serviceAccount, "ca.crt"))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(serviceAccount, "token"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
	}
	server := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+server+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	fmt.Printf("%s %d\n", path, resp.StatusCode)
	return resp.Body.Close()
}

// listen serves until SIGTERM.
func listen(address string, linger time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("serving at", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir("/"))))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }()
	<-ctx.Done()
	fmt.Println("asked to end")
	time.Sleep(linger)
	return nil
}
