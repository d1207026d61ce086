package adapter

import (
	"net/http"
	"sync/atomic"
	"time"
)

// The probes.
const (
	pathHealthz = "/healthz"
	pathReadyz  = "/readyz"
)

// health answers probes. It is the same everywhere.
type health struct {
	keeper    *keeper
	listeners []string
	startGate StartGate // nil without one
	draining  atomic.Bool
}

// readiness is the body of /readyz.
type readiness struct {
	Ready        bool                `json:"ready"`
	Reason       string              `json:"reason,omitempty"` // why not
	Config       configReport        `json:"config"`
	Certificates *certificatesReport `json:"certificates,omitempty"`
	Listeners    []string            `json:"listeners"`
	StartGate    string              `json:"startGate"`
}

type configReport struct {
	File       string    `json:"file"`
	Generation int       `json:"generation"`
	Digest     string    `json:"digest"`
	Loaded     time.Time `json:"loaded"`
	Errors     []string  `json:"errors,omitempty"` // of what has changed since
	Restart    []string  `json:"restartNeeded,omitempty"`
}

type certificatesReport struct {
	Expiry time.Time `json:"expiry"`
	Errors []string  `json:"errors,omitempty"`
}

// ServeHTTP answers /healthz, and everything else as /readyz.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, "method: "+r.Method+" is neither GET nor HEAD")
		return
	}
	if r.URL.Path == pathHealthz {
		writeJSON(w, http.StatusOK, map[string]bool{"alive": true})
		return
	}
	report, status := h.report(), http.StatusOK
	if !report.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}

// report says how the adapter is. A broken reload is told, but the last good
// configuration serves as well as it did, so that it does not take the adapter
// out of service.
func (h *health) report() readiness {
	state, g := h.keeper.state(), h.keeper.config.Load()
	r := readiness{
		Ready: true, Listeners: h.listeners, StartGate: "off",
		Config: configReport{h.keeper.options.Config, g.number, g.digest, g.loaded.UTC(), state.configErrors, state.restart},
	}
	if id := h.keeper.identity.Load(); id != nil {
		r.Certificates = &certificatesReport{id.expiry.UTC(), state.certificateErrors}
	}
	if h.startGate != nil {
		r.StartGate = "synced"
		if err := h.startGate.Ready(); err != nil {
			r.StartGate, r.Ready, r.Reason = err.Error(), false, "the start gate has not seen the cluster yet"
		}
	}
	if h.draining.Load() {
		r.Ready, r.Reason = false, "this process is about to end"
	}
	return r
}
