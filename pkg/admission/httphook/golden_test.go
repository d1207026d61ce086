package httphook

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

var update = flag.Bool("update", false, "write the golden files instead of reading them")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "v1", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the wire changed\ngot  %q\nwant %q", got, want)
	}
}

// TestGolden pins every byte of an exchange, headers included.
func TestGolden(t *testing.T) {
	req := &admission.Request{TenantID: "team-a", DagID: "nightly", RunID: "1", TaskID: "node", TryNumber: 1}
	exchanges := map[string]http.Handler{
		"admit":  Handler(hookOf(admission.Admit(), nil)),
		"hold":   Handler(hookOf(admission.HoldUntil(time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC), "freeze"), nil)),
		"broken": Handler(hookOf(admission.Decision{}, os.ErrPermission)),
	}
	for name, handler := range exchanges {
		t.Run(name, func(t *testing.T) {
			inBubble(t, handler, func(t *testing.T, c *Client, p *pipe) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, _ = c.Admit(ctx, req)
				golden(t, "request.http", p.sent.Bytes())
				golden(t, "response-"+name+".http", p.received.Bytes())
			})
		})
	}
}
