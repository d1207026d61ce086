package e2e

import (
	"bufio"
	"encoding/json"
	"strings"
	"testing"
)

// nothingDenied: from its install on the release asked for nothing that the chart
// does not let it do.
func nothingDenied(t *testing.T) {
	f, err := shared.AuditLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	accounts := map[string]int{}     // and how much each asked
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r struct {
			Stage, Verb, RequestURI string
			User                    struct{ Username string }
			ResponseStatus          struct {
				Code    int
				Message string
			}
		}
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.Stage != "ResponseComplete" {
			continue // the last line may not be whole yet
		}
		account, ours := strings.CutPrefix(r.User.Username, "system:serviceaccount:"+namespace+":")
		if !ours {
			continue
		}
		accounts[account]++
		if r.ResponseStatus.Code == 403 && strings.Contains(r.ResponseStatus.Message, r.User.Username) {
			t.Errorf("denied to %s: %s %s: %s", account, r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{release, release + "-wiring", release + "-test"} {
		if accounts[account] == 0 {
			t.Errorf("%s asked for nothing; those who did are %v", account, accounts)
		}
	}
}
