// Command app is what the test's containers run.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: app serve FILE | get URL | api PATH | say WORD...")
	}
	switch args[0] {
	case "serve":
		return serve(args[1])
	case "get":
		return get(&http.Client{Timeout: 5 * time.Second}, args[1], "")
	case "api":
		return api(args[1])
	case "say":
		fmt.Println(strings.Join(args[1:], " "))
		return nil
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// serve answers with the content of a file.
func serve(file string) error {
	fmt.Println("serving", file)
	return http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, file)
	}))
}

// api asks the API server as this pod's ServiceAccount.
func api(path string) error {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
	}
	return get(client, "https://kubernetes.default.svc"+path, string(token))
}

func get(client *http.Client, url, token string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Printf("%s\n%s\n", resp.Status, body)
	return err
}
