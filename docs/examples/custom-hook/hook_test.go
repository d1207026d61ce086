package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/hooktest"
)

// service knows the budgets of the test.
func service(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/poor":
			fmt.Fprint(w, `{"left": 0}`)
		case "/unknown":
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, `{"left": 12.5}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestContract(t *testing.T) { hooktest.Run(t, budgets{url: service(t)}) }

func TestBudgets(t *testing.T) {
	hook := budgets{url: service(t)}
	for tenant, want := range map[string]admission.Kind{"rich": admission.KindAdmit, "poor": admission.KindHold} {
		d, err := hook.Admit(t.Context(), &admission.Request{TenantID: tenant})
		if err != nil || d.Kind() != want {
			t.Errorf("%s: %v %v, want %v", tenant, d, err, want)
		}
	}
	if d, err := hook.Admit(t.Context(), &admission.Request{TenantID: "unknown"}); err == nil {
		t.Errorf("unknown: %v, want an error", d)
	}
}
