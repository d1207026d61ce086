package adapter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

// loadText loads a configuration as the first one.
func loadText(t *testing.T, text string, o Options) (*generation, error) {
	t.Helper()
	o.Config = filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(o.Config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Start = func(Kueue, admission.Hook) (StartGate, error) { return nil, nil }
	return read(o.Config, reading{}).load(o)
}

// problems are the lines of an error, without the folder.
func problems(err error) []string {
	if err == nil {
		return nil
	}
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		lines = append(lines, line[strings.Index(line, "c.yaml")+len("c.yaml"):])
	}
	return lines
}

func TestConfig(t *testing.T) {
	g, err := loadText(t, `
listen:
  unixSocket: /run/h/s
  https: {address: ":8443", certFile: /t/c, keyFile: /t/k, clientCAFile: /t/a}
kueue:
  admissionLease: {namespace: a, name: b.c}
  localQueue: q
  namespace: n
policy:
  rules: [{name: x, refuse: no}]
`, Options{MetricsAddress: ":8082"})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		UnixSocket: "/run/h/s",
		HTTPS:      &HTTPS{Address: ":8443", CertFile: "/t/c", KeyFile: "/t/k", ClientCAFile: "/t/a"},
		Kueue:      &Kueue{LeaseNamespace: "a", LeaseName: "b.c", LocalQueue: "q", Namespace: "n"},
	}
	if diff := cmp.Diff(want, g.config, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
	if g.policy == nil {
		t.Error("there is no policy")
	}
}

const (
	onSocket = "listen: {unixSocket: /s}\n"
	noRules  = "policy: {rules: []}\n"
)

func TestConfigAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"Socket":        onSocket + noRules,
		"HTTPS":         `{listen: {https: {address: "[::1]:8443", certFile: /c, keyFile: /c}}, policy: {rules: []}}`,
		"KueueDefaults": onSocket + noRules + "kueue: {}",
		"Alias":         "listen: &l {unixSocket: /s}\n" + noRules, // an anchor that nothing needs
		"JSON":          `{"listen":{"unixSocket":"/s"},"policy":{"rules":[]}}`,
		"Longest":       "listen: {unixSocket: /" + strings.Repeat("s", 106) + "}\n" + noRules,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := loadText(t, text, Options{MetricsAddress: ":8082"}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigRefuses(t *testing.T) {
	own := hookOf(admission.Admit())
	for name, tc := range map[string]struct {
		text string
		hook admission.Hook
		want []string // beginnings, one for each problem
	}{
		"Empty":           {"", nil, []string{": is empty"}},
		"Comment":         {"# nothing\n", nil, []string{": is empty"}},
		"NotYAML":         {"listen: [", nil, []string{":1: not valid YAML: did not find"}},
		"TwoDocuments":    {onSocket + noRules + "---\na: b\n", nil, []string{":3: a second document begins here"}},
		"SecondIsBroken":  {onSocket + noRules + "---\na: [", nil, []string{":4: not valid YAML"}},
		"NoMapping":       {"- a", nil, []string{":1: must be a mapping with the fields listen, kueue, policy"}},
		"Nothing":         {"{}", nil, []string{":1: listen: is missing; give it unixSocket", ":1: policy: is missing; give it rules"}},
		"NowhereToListen": {"listen: {}\n" + noRules, nil, []string{":1: listen: says nowhere to listen; give it"}},
		"ListenNull":      {"listen:\n" + noRules, nil, []string{":1: listen: must be a mapping"}},
		"SocketNull":      {"listen: {unixSocket: }\n" + noRules, nil, []string{":1: listen.unixSocket: is empty; give it a value"}},
		"SocketList":      {"listen: {unixSocket: [a]}\n" + noRules, nil, []string{":1: listen.unixSocket: must be text"}},
		"SocketRelative":  {"listen: {unixSocket: run/s}\n" + noRules, nil, []string{`:1: listen.unixSocket: "run/s" is relative; write`}},
		"SocketFolder":    {"listen: {unixSocket: /run/}\n" + noRules, nil, []string{`:1: listen.unixSocket: "/run/" names a folder`}},
		"SocketLong": {"listen: {unixSocket: /" + strings.Repeat("s", 107) + "}\n" + noRules, nil,
			[]string{":1: listen.unixSocket: has 108 bytes, and the path of a socket may have 107"}},
		"SocketTwice": {"listen:\n  unixSocket: /a\n  unixSocket: /b\n" + noRules, nil, []string{":3: listen.unixSocket: is there twice"}},
		"Unknown":     {onSocket + noRules + "metrics: 1\n", nil, []string{":3: metrics: is no field; those here are listen, kueue, policy"}},
		"Misspelt": {"listen:\n  unixsocket: s\n" + noRules, nil,
			[]string{":2: listen.unixsocket: is no field; did you mean unixSocket?", `:2: listen.unixSocket: "s" is relative`}},
		"HTTPSEmpty": {"listen:\n  https: {}\n" + noRules, nil, []string{
			":2: listen.https.address: is missing; give it host:port", ":2: listen.https.certFile: is missing", ":2: listen.https.keyFile: is missing",
		}},
		"Port":       {https("host:https", "/c"), nil, []string{`:1: listen.https.address: "host:https" must have a port from 0 to 65535`}},
		"PortHigh":   {https(":70000", "/c"), nil, []string{`:1: listen.https.address: ":70000" must have a port`}},
		"NoPort":     {https("8443", "/c"), nil, []string{`:1: listen.https.address: "8443" is not host:port`}},
		"IPv6":       {https("::1:8443", "/c"), nil, []string{`:1: listen.https.address: "::1:8443" is not host:port; :8443`}},
		"Overlap":    {https(":8082", "/c"), nil, []string{`:1: listen.https.address: ":8082" is in the way of -metrics-bind-address 127.0.0.1:8082; give one`}},
		"SocketFile": {https(":1", "/s"), nil, []string{`:1: listen.https.certFile: "/s" is listen.unixSocket too`}},
		"Lease": {onSocket + noRules + "kueue: {admissionLease: {namespace: a.b, name: A}, localQueue: B, namespace: c.d}\n", nil, []string{
			`:3: kueue.localQueue: "B": `, `:3: kueue.namespace: "c.d": `, `:3: kueue.admissionLease.namespace: "a.b": `, `:3: kueue.admissionLease.name: "A": `,
		}},
		"LongQueue":     {onSocket + noRules + "kueue: {localQueue: " + strings.Repeat("q", 64) + "}\n", nil, []string{":3: kueue.localQueue: "}},
		"LeaseText":     {onSocket + noRules + "kueue: {admissionLease: a/b}\n", nil, []string{":3: kueue.admissionLease: must be a mapping with the fields namespace, name"}},
		"PolicyEmpty":   {onSocket + "policy: {}\n", nil, []string{":2: policy.rules: is missing; give it rules, or a file"}},
		"PolicyFile":    {onSocket + "policy: {file: p}\n", nil, []string{`:2: policy.file: "p" is relative`, ":2: policy.file: open p: no such file"}},
		"PolicyTwice":   {onSocket + "policy: {file: /nowhere/p, rules: []}\n", nil, []string{":2: policy.rules: the rules are in policy.file already", ":2: policy.file: open /nowhere/p: no such file"}},
		"PolicyTyping":  {onSocket + "policy: {rule: []}\n", nil, []string{":2: policy.rule: is no field; did you mean rules?"}},
		"Rules":         {onSocket + "policy:\n  rules:\n  - name: a\n    refus: x\n", nil, []string{`:4: rule "a": `, `:5: rule "a": unknown field "refus"`}},
		"HookAndPolicy": {onSocket + noRules, own, []string{":2: policy: this program has a hook of its own, which decides in place of a policy; remove"}},
		"AllAtOnce": {"listen: {unixSocket: s}\nkueue: 1\npolicy: {rules: [{name: a, when: x, refuse: b}]}\n", nil, []string{
			`:1: listen.unixSocket: "s" is relative`, ":2: kueue: must be a mapping", `:3: rule "a": when: `,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadText(t, tc.text, Options{MetricsAddress: "127.0.0.1:8082", Hook: tc.hook})
			got := problems(err)
			if len(got) != len(tc.want) {
				t.Fatalf("want %d problems, got %q", len(tc.want), got)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func https(address, cert string) string {
	return `{listen: {unixSocket: /s, https: {address: "` + address + `", certFile: ` + cert + `, keyFile: /k}}, policy: {rules: []}}`
}

// A hook of the program needs no policy, and a file that cannot be read is named.
func TestConfigRead(t *testing.T) {
	if _, err := loadText(t, onSocket, Options{Hook: hookOf(admission.Admit())}); err != nil {
		t.Error(err)
	}
	_, err := read("/nowhere/c.yaml", reading{}).load(Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "-config: open /nowhere/c.yaml: ") {
		t.Error(err)
	}
	if _, err := loadText(t, strings.Repeat("# \n", maxFile), Options{}); err == nil || !strings.Contains(err.Error(), "has more than 1048576 bytes") {
		t.Error(err)
	}
}

func TestOverlap(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{":1", ":1", true}, {":1", ":2", false}, {"a:1", "b:1", false}, {"a:1", "a:1", true},
		{"0.0.0.0:1", "127.0.0.1:1", true}, {"127.0.0.1:1", "[::]:1", true}, {":0", ":0", false}, {":1", "0", false},
	} {
		if got := overlap(tc.a, tc.b); got != tc.want {
			t.Errorf("%s and %s: %t", tc.a, tc.b, got)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"Rules", "rules", 0}, {"rule", "rules", 1}, {"ruels", "rules", 2}, {"kitten", "sitting", 3}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: %d", tc.a, tc.b, got)
		}
	}
}

// TestDocumentation: the configuration in the documentation is one, and every
// metric is explained there.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "adapter.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for block := range strings.SplitSeq(string(text), "```yaml\n") {
		if !strings.HasPrefix(block, "listen:") {
			continue
		}
		found++
		config, _, _ := strings.Cut(block, "```")
		g, err := loadText(t, config, Options{MetricsAddress: ":8082"})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range g.config.settings() {
			if s[0] != fieldSpace && s[1] == "" {
				t.Errorf("%s is not shown", s[0])
			}
		}
	}
	if found != 1 {
		t.Errorf("%d configurations", found)
	}
	m := newMetrics()
	newEndpoint("admit", nil, true, m, discard())
	m.rules.WithLabelValues("a", "audit", "Hold")
	m.expiry.WithLabelValues("server").Set(1)
	m.refused.WithLabelValues("https")
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "dispatch_hook_") && !strings.Contains(string(text), "`"+name) {
			t.Errorf("%s is not explained", name)
		}
	}
	for _, result := range results() {
		if !strings.Contains(string(text), "`"+result+"`") {
			t.Errorf("the result %s is not explained", result)
		}
	}
}
