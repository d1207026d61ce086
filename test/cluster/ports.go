package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

const (
	loopback     = "127.0.0.1"
	lowestPort   = 20000
	portAttempts = 200
)

// portSet gives every listener of a cluster a port and holds it, by listening on
// it, until the component that uses it is about to start.
//
// Ports are picked below the range the kernel hands out to outgoing connections:
// while a component is down for a restart, a client that keeps dialling it could
// otherwise be given that very port, and the restart would find it taken.
type portSet struct {
	mu   sync.Mutex
	port map[string]int
	held map[string]net.Listener
	high int
}

func newPortSet() *portSet {
	return &portSet{port: map[string]int{}, held: map[string]net.Listener{}, high: ephemeralStart()}
}

// reserve gives each name a port and holds it.
func (s *portSet) reserve(names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		l, err := listenBelow(s.high)
		if err != nil {
			return fmt.Errorf("reserve a port for %s: %w", name, err)
		}
		if old := s.held[name]; old != nil {
			_ = old.Close() // it only held the place
		}
		s.held[name], s.port[name] = l, l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

// file returns the socket that holds the port of name, which goes on listening
// when the port is released.
func (s *portSet) file(name string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.held[name].(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("the port of %s is not held", name)
	}
	return l.File()
}

// release frees the names' ports for the component that starts now. The numbers
// stay: a restart uses the same ones.
func (s *portSet) release(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if l := s.held[name]; l != nil {
			_ = l.Close() // it only held the place
			delete(s.held, name)
		}
	}
}

// releaseAll frees every port that is still held.
func (s *portSet) releaseAll() {
	s.mu.Lock()
	names := make([]string, 0, len(s.held))
	for name := range s.held {
		names = append(names, name)
	}
	s.mu.Unlock()
	s.release(names...)
}

// get returns the port of name, 0 if it has none.
func (s *portSet) get(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.port[name]
}

// address returns the loopback address of name, host and port.
func (s *portSet) address(name string) string {
	return net.JoinHostPort(loopback, strconv.Itoa(s.get(name)))
}

// listenBelow listens on a random free port between lowestPort and high, or on
// any port the kernel chooses if that range is too small or full.
func listenBelow(high int) (net.Listener, error) {
	if high-lowestPort >= portAttempts {
		for range portAttempts {
			port := lowestPort + rand.IntN(high-lowestPort)
			l, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
			if err == nil {
				return l, nil
			}
		}
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, errors.Join(errors.New("no free port on loopback"), err)
	}
	return l, nil
}

// ephemeralStart reads where the kernel's range for outgoing connections begins.
func ephemeralStart() int {
	const usual = 32768
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	return parsePortRange(string(data), usual)
}

// parsePortRange returns the first number of "LOW HIGH", or fallback.
func parsePortRange(text string, fallback int) int {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return fallback
	}
	low, err := strconv.Atoi(fields[0])
	if err != nil {
		return fallback
	}
	return low
}
