// Command forward is the one way into the network of a cluster with a node. It
// runs in there and relays connections to the API server from a socket that it
// inherits, which listens on loopback outside.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// listener is the file descriptor of the inherited socket.
const listener = 3

func main() {
	fmt.Fprintln(os.Stderr, "forward:", run(os.Args[1:]))
	os.Exit(1)
}

// run serves until it is ended; it returns what keeps it from serving.
func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: forward HOST:PORT, with a listening socket as file descriptor 3")
	}
	l, err := net.FileListener(os.NewFile(listener, "listener"))
	if err != nil {
		return fmt.Errorf("file descriptor %d: %w", listener, err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go relay(conn, args[0])
	}
}

// relay joins a connection to one to address until either side has ended it. The
// other side sees that as an end of its own, half-closed or not.
func relay(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "forward:", err)
		return
	}
	defer to.Close()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		copyHalf(from, to)
	}()
	copyHalf(to, from)
	<-answered
}

// copyHalf passes on one direction and its end.
func copyHalf(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite() // a side that is gone needs no end
		return
	}
	_ = to.Close() // a broken connection ends both directions
	_ = from.Close()
}
