package integration

import (
	"os"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/test/integration/internal/harness"
)

// account is how the audit log names the gate.
const account = "system:serviceaccount:" + namespace + ":" + release

// request is one finished request in the API server's audit log.
type request struct{ harness.Request }

// own tells whether the gate sent the request for its work: watches and the
// Lease are the price of running at all.
func (r request) own() bool {
	return r.User.Username == account && r.Verb != "watch" && r.ObjectRef.Resource != "leases"
}

// auditMark is where the audit log ends now.
func auditMark(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(shared.cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// audit reads the requests since a mark that keep wants.
func audit(t *testing.T, mark int64, keep func(request) bool) []request {
	t.Helper()
	var out []request
	torn, err := harness.Audit(shared.cluster.AuditLog(), mark, func(r harness.Request) {
		if keep(request{r}) {
			out = append(out, request{r})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if torn > 0 {
		t.Logf("%d torn lines in the audit log", torn)
	}
	return out
}

// writesTo tells whether the gate wrote to an object, and was let.
func writesTo(resource, namespace string) func(request) bool {
	return func(r request) bool {
		return r.own() && r.Writes() && r.Target() == resource && r.ObjectRef.Namespace == namespace && r.ResponseStatus.Code < 300
	}
}
