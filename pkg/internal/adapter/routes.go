package adapter

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// routes is what one listener serves. There are too few paths for a mux, which
// would also answer some with a redirect.
type routes struct {
	admit, start *endpoint // start is nil without a start gate
	health       *health
	slots        chan struct{} // a place for each request at once
}

// ServeHTTP serves the endpoints and the probes.
func (s *routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case pathAdmit:
		s.bounded(w, r, s.admit)
	case pathStart:
		if s.start == nil {
			fail(w, http.StatusNotFound, "there is no start gate here: the configuration of dispatch-hook has no kueue")
			return
		}
		s.bounded(w, r, s.start)
	case pathHealthz, pathReadyz:
		s.health.ServeHTTP(w, r)
	default:
		fail(w, http.StatusNotFound, fmt.Sprintf("%q is none of %s, %s, %s and %s", r.URL.Path, pathAdmit, pathStart, pathHealthz, pathReadyz))
	}
}

func (s *routes) bounded(w http.ResponseWriter, r *http.Request, e *endpoint) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		e.ServeHTTP(w, r)
	default:
		e.metrics.requests.WithLabelValues(e.name, resultOverload).Inc()
		fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d requests are being answered, which is all this listener takes at once", cap(s.slots)))
	}
}

// fail answers the way package httphook does.
func fail(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, map[string]string{"error": why})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone, or it is not
}
