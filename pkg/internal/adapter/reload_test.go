package adapter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
)

func TestReload(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config()})
	c := f.client(t)
	if !refuses(t, c, "first") {
		t.Fatal("the first policy is not in force")
	}
	f.refuse(t, "second")
	until(t, "the second policy is in force", func() bool { return refuses(t, c, "second") })
	until(t, "it is told", func() bool { return r.logs.count(`msg="configuration loaded" generation=2`) == 1 })
	r.wantMetric(t, `dispatch_hook_config_reload_total{part="config",result="success"}`, "1")
	if status, body := r.get(t, "/readyz"); status != 200 || !strings.Contains(body, `"generation": 2`) {
		t.Errorf("%d %s", status, body)
	}
}

// What is broken changes nothing, is told once for each problem and for as long
// as it lasts, and does not take the adapter out of service.
func TestReloadBroken(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config()})
	c := f.client(t)
	const good, failures = `dispatch_hook_config_last_reload_successful{part="config"}`, `dispatch_hook_config_reload_total{part="config",result="failure"}`
	r.wantMetric(t, good, "1")
	r.wantMetric(t, failures, "0")
	broken := f.listen() + "policy:\n  rules:\n  - {name: one, refus: no}\n"
	for i, text := range []string{broken, broken + "# the same problem\n", broken + "kueu: {}\n"} {
		f.write(t, "config.yaml", text)
		until(t, "the reading is counted", func() bool { return r.metric(t, failures) == fmt.Sprint(i+1) })
		if !refuses(t, c, "first") {
			t.Fatal("the last good policy is gone")
		}
	}
	r.wantMetric(t, good, "0")
	if n := r.logs.count("not reloaded"); n != 2 {
		t.Errorf("told %d times, want 2:\n%s", n, r.logs)
	}
	status, body := r.get(t, "/readyz")
	for _, want := range []string{`"generation": 1`, `:4: rule \"one\": `, `:5: kueu: is no field`} {
		if status != 200 || !strings.Contains(body, want) {
			t.Errorf("%d %s, want %s", status, body, want)
		}
	}
	f.refuse(t, "first") // as it was
	until(t, "it is good again", func() bool { return r.metric(t, good) == "1" })
	if _, body := r.get(t, "/readyz"); strings.Contains(body, "errors") || !strings.Contains(body, `"generation": 1`) {
		t.Error(body)
	}
	if r.logs.count("the configuration in force is back") != 1 {
		t.Error(r.logs)
	}
}

// A file that is gone is a problem like any other.
func TestReloadGone(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config()})
	if err := os.Remove(f.config()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is told", func() bool { return r.logs.count("no such file") == 1 })
	if !refuses(t, f.client(t), "first") {
		t.Error("the last good policy is gone")
	}
}

// TestReloadRestart: where to listen does not change, which nobody must have to
// find out; the policy beside it does.
func TestReloadRestart(t *testing.T) {
	f := newFolder(t)
	r := start(t, Options{Config: f.config(), Start: func(Kueue, admission.Hook) (StartGate, error) { return nil, nil }})
	text := "listen: {unixSocket: /elsewhere}\nkueue: {localQueue: q}\n"
	f.write(t, "config.yaml", text+refusing("second"))
	c := f.client(t)
	until(t, "the second policy is in force", func() bool { return refuses(t, c, "second") })
	want := []string{"listen.unixSocket: " + f.socket() + " is in force, /elsewhere needs a restart", "kueue.localQueue: none is in force, q needs a restart"}
	_, body := r.get(t, "/readyz")
	for _, w := range want {
		if !strings.Contains(body, w) {
			t.Errorf("%s, want %s", body, w)
		}
	}
	r.wantMetric(t, "dispatch_hook_config_restart_needed", "1")
	f.write(t, "config.yaml", text+refusing("third"))
	until(t, "the third policy is in force", func() bool { return refuses(t, c, "third") })
	if n := r.logs.count("these fields hold from start to end"); n != 1 {
		t.Errorf("told %d times:\n%s", n, r.logs)
	}
	f.refuse(t, "fourth")
	until(t, "no restart is needed", func() bool { return r.metric(t, "dispatch_hook_config_restart_needed") == "0" })
}

// TestReloadPolicyFile: the policy may be in a file of its own, and another one
// may be named.
func TestReloadPolicyFile(t *testing.T) {
	f := newFolder(t)
	f.write(t, "p.yaml", ruleOf("first"))
	f.write(t, "config.yaml", f.listen()+"policy: {file: "+f.path("p.yaml")+"}\n")
	r := start(t, Options{Config: f.config()})
	c := f.client(t)
	if !refuses(t, c, "first") {
		t.Fatal("the file is not in force")
	}
	f.write(t, "p.yaml", ruleOf("second"))
	until(t, "the second policy is in force", func() bool { return refuses(t, c, "second") })
	f.write(t, "p.yaml", "rules:\n- {name: a}\n")
	until(t, "it is told", func() bool { return r.logs.count("p.yaml:2: rule ") == 1 })
	f.write(t, "q.yaml", ruleOf("third"))
	f.write(t, "config.yaml", f.listen()+"policy: {file: "+f.path("q.yaml")+"}\n")
	until(t, "the third policy is in force", func() bool { return refuses(t, c, "third") })
	f.write(t, "q.yaml", ruleOf("fourth"))
	until(t, "the new file is watched", func() bool { return refuses(t, c, "fourth") })
}

// volume lays files out as the kubelet does for a ConfigMap or Secret: each is a link
// through ..data, which is a link to a folder and replaced at once.
func (f folder) volume(t *testing.T, version string, files map[string]string) {
	t.Helper()
	folder := f.path("volume/..v" + version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("..data/"+name, f.path("volume/"+name)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("..v"+version, f.path("volume/..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path("volume/..data_tmp"), f.path("volume/..data")); err != nil {
		t.Fatal(err)
	}
}

func TestReloadConfigMap(t *testing.T) {
	f := newFolder(t)
	configMap := func(version, reason string) {
		f.volume(t, version, map[string]string{"config.yaml": f.listen() + refusing(reason)})
	}
	configMap("1", "first")
	start(t, Options{Config: f.path("volume/config.yaml")})
	c := f.client(t)
	for version := 2; version < 5; version++ {
		reason := fmt.Sprint(version)
		configMap(reason, reason)
		until(t, "version "+reason+" is in force", func() bool { return refuses(t, c, reason) })
	}
}

// TestRenewSecret: certificates that are renewed by another Secret are served.
func TestRenewSecret(t *testing.T) {
	f, a := newFolder(t), newAuthority(t)
	secret := func(version string) {
		cert, key := a.pair(t, time.Hour)
		f.volume(t, version, map[string]string{"tls.crt": cert, "tls.key": key})
	}
	secret("1")
	f.write(t, "config.yaml", f.listenSecurely("volume/tls.crt", "volume/tls.key", "")+refusing("first"))
	r := start(t, Options{Config: f.config()})
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AddCert(a.Cert)
	last := r.serial(t, trust)
	for version := 2; version < 5; version++ {
		secret(fmt.Sprint(version))
		until(t, "the new certificate is served", func() bool { return r.serial(t, trust) != last })
		last = r.serial(t, trust)
	}
}

// TestReloadPoll: what no watch tells, the clock does. The file is a link to a
// folder that is a link itself.
func TestReloadPoll(t *testing.T) {
	f := newFolder(t)
	for version, reason := range map[string]string{"1": "first", "2": "second"} {
		if err := os.Mkdir(f.path(version), 0o755); err != nil {
			t.Fatal(err)
		}
		f.write(t, version+"/c", f.listen()+refusing(reason))
	}
	link := func(target, name string) {
		t.Helper()
		_ = os.Remove(f.path(name))
		if err := os.Symlink(target, f.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(f.path("far"), 0o755); err != nil {
		t.Fatal(err)
	}
	link(f.path("1"), "far/now")
	link(f.path("far/now/c"), "config.yaml")
	slow := quick
	slow.poll = 20 * time.Millisecond
	start(t, Options{Config: f.config(), timing: slow})
	link(f.path("2"), "far/now")
	c := f.client(t)
	until(t, "the second version is in force", func() bool { return refuses(t, c, "second") })
}

// TestReloadHalves: a policy that is written slowly and in place is read by
// halves, and its first half would admit what the second refuses.
func TestReloadHalves(t *testing.T) {
	f := newFolder(t)
	patient := quick
	patient.settle = time.Second
	r := start(t, Options{Config: f.config(), timing: patient})
	whole := f.listen() + "policy:\n  rules:\n" + "  - {name: none, when: 'false', refuse: never}\n" + "  - {name: one, refuse: second}\n"
	half, rest, _ := strings.Cut(whole, "  - {name: one")
	if err := os.WriteFile(f.config(), []byte(half), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	file, err := os.OpenFile(f.config(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("  - {name: one" + rest); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	c := f.client(t)
	until(t, "the second policy is in force", func() bool {
		if decide(t, c).Kind() == admission.KindAdmit {
			t.Fatal("half a policy was in force")
		}
		return refuses(t, c, "second")
	})
	if n := r.logs.count("configuration loaded"); n != 1 {
		t.Errorf("loaded %d times", n)
	}
}

// TestReloadUnderLoad asks 10,000 times while the policy changes 100 times. Each
// request is answered, by one of the two policies and never by a mixture.
func TestReloadUnderLoad(t *testing.T) {
	const requests, reloads, callers = 10_000, 100, 8
	f := newFolder(t)
	write := func(i int) {
		v := string(rune('a' + i%2))
		f.write(t, "config.yaml", f.listen()+fmt.Sprintf("policy:\n  rules:\n  - {name: one, refuse: %s1}\n  - {name: two, refuse: %s2}\n# %d\n", v, v, i))
	}
	write(0)
	r := start(t, Options{Config: f.config()})
	c := f.client(t)
	var asked atomic.Int64
	var done atomic.Bool
	var seen [2]atomic.Int64
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for !done.Load() && !t.Failed() {
				asked.Add(1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				d, err := c.Admit(ctx, &admission.Request{TryNumber: 1})
				cancel()
				switch reason, _ := d.Refused(); {
				case err == nil && reason == "a1; a2":
					seen[0].Add(1)
				case err == nil && reason == "b1; b2":
					seen[1].Add(1)
				default:
					t.Errorf("answered %v %v", d, err)
				}
			}
		})
	}
	for i := 1; i <= reloads; i++ {
		write(i)
		until(t, "it is in force and has been asked", func() bool {
			return t.Failed() || r.config.Load().number == i+1 && asked.Load() >= int64(i)*requests/reloads
		})
	}
	done.Store(true)
	group.Wait()
	t.Logf("%d requests, %d by one policy and %d by the other", asked.Load(), seen[0].Load(), seen[1].Load())
	if seen[0].Load() == 0 || seen[1].Load() == 0 || seen[0].Load()+seen[1].Load() < requests {
		t.Error("not enough of each")
	}
	r.wantMetric(t, `dispatch_hook_config_reload_total{part="config",result="success"}`, fmt.Sprint(reloads))
}
