package startgate

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock is the clock of the API server, as its answers tell it.
type serverClock struct {
	last atomic.Pointer[reading]
}

// reading is what the clock of the API server showed at a time of this process.
type reading struct{ server, here time.Time }

// at is what the clock of the API server shows at a time of this process, to a
// second or two; zero when no answer has told.
func (c *serverClock) at(now time.Time) time.Time {
	last := c.last.Load()
	if last == nil {
		return time.Time{}
	}
	return last.server.Add(now.Sub(last.here))
}

// read takes the time from the header of each answer.
func (c *serverClock) read(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			c.last.Store(&reading{server: date, here: time.Now()})
		}
		return answer, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
