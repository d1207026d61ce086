package cluster

import (
	"net"
	"testing"
)

func TestPortsAreHeldUntilReleased(t *testing.T) {
	s := newPortSet()
	t.Cleanup(s.releaseAll)
	if err := s.reserve("a", "b"); err != nil {
		t.Fatal(err)
	}
	if s.get("a") == s.get("b") {
		t.Fatalf("a and b share port %d", s.get("a"))
	}
	if l, err := net.Listen("tcp4", s.address("a")); err == nil {
		_ = l.Close()
		t.Fatalf("port of a is not held")
	}
	before := s.address("a")
	s.release("a")
	l, err := net.Listen("tcp4", s.address("a"))
	if err != nil {
		t.Fatalf("port of a is not free after release: %v", err)
	}
	defer func() { _ = l.Close() }()
	if s.address("a") != before {
		t.Errorf("release changed the port from %s to %s", before, s.address("a"))
	}
	if err := s.reserve("a"); err != nil {
		t.Fatal(err)
	}
	if s.address("a") == before {
		t.Errorf("a second reservation kept %s, which is taken", before)
	}
}

func TestPortsAvoidTheEphemeralRange(t *testing.T) {
	const high = 25000
	for range 20 {
		l, err := listenBelow(high)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port < lowestPort || port >= high {
			t.Errorf("port %d is not in [%d, %d)", port, lowestPort, high)
		}
	}
}

func TestPortsFallBackToTheKernelsChoice(t *testing.T) {
	l, err := listenBelow(lowestPort) // an empty range
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]int{"32768\t60999\n": 32768, "1024 65535": 1024, "": 7, "x y": 7} {
		if got := parsePortRange(text, 7); got != want {
			t.Errorf("parsePortRange(%q) = %d, want %d", text, got, want)
		}
	}
}
