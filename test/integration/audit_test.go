package integration

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// account is how the audit log names the gate.
const account = "system:serviceaccount:" + namespace + ":" + release

// request is one finished request in the API server's audit log.
type request struct {
	Stage      string `json:"stage"`
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
	RequestObject  json.RawMessage `json:"requestObject"`
	ResponseObject json.RawMessage `json:"responseObject"`
}

func (r request) resource() string {
	return strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}

func (r request) write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, r.Verb)
}

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
	f, err := os.Open(shared.cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(mark, 0); err != nil {
		t.Fatal(err)
	}
	var out []request
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Logf("a torn line in the audit log: %v", err)
			continue
		}
		if r.Stage == "ResponseComplete" && keep(r) {
			out = append(out, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// writesTo tells whether the gate wrote to an object, and was let.
func writesTo(resource, namespace string) func(request) bool {
	return func(r request) bool {
		return r.own() && r.write() && r.resource() == resource && r.ObjectRef.Namespace == namespace && r.ResponseStatus.Code < 300
	}
}
