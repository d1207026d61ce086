package main

import (
	"io"
	"net"
	"strings"
	"testing"
)

// server answers each connection with what it says, in capitals, when the other
// side has ended its half.
func server(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			said, _ := io.ReadAll(conn)
			_, _ = io.WriteString(conn, strings.ToUpper(string(said)))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// pair returns both ends of a connection.
func pair(t *testing.T) (client *net.TCPConn, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn), accepted
}

// TestRelay checks that both directions pass, and that the end of one does not
// cut the other.
func TestRelay(t *testing.T) {
	client, accepted := pair(t)
	go relay(accepted, server(t))
	if _, err := io.WriteString(client, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); string(got) != "HELLO" {
		t.Errorf("answer %q, %v, want HELLO", got, err)
	}
}

// TestRelayToNobody checks that a client is told at once when nobody listens.
func TestRelayToNobody(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	client, accepted := pair(t)
	relay(accepted, gone)
	if got, _ := io.ReadAll(client); len(got) > 0 {
		t.Errorf("answer %q from nobody", got)
	}
}

func TestUsage(t *testing.T) {
	if err := run(nil); err == nil || !strings.Contains(err.Error(), "usage: forward") {
		t.Errorf("error %v, want the usage", err)
	}
}
