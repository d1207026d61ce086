package startgate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/pkg/admission"
	"github.com/dispatch-admission/dispatch-admission/pkg/admission/httphook"
)

// openGate is a gate in a world in which nothing holds.
func openGate(o Options) *Gate {
	w := newWorld("dispatch-system/dispatch-admission", slog.New(slog.DiscardHandler))
	w.known = good(time.Now())
	return &Gate{options: o, world: w}
}

func answers(d admission.Decision, err error) admission.Hook {
	return admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) { return d, err })
}

func TestPolicyIsPassedOn(t *testing.T) {
	broken := errors.New("broken")
	label := map[string]string{QueueLabel: "lq"}
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		policy admission.Hook
		want   admission.Decision
		err    error
	}{
		"none":           {nil, admission.AdmitWith(admission.Changes{Labels: label}), nil},
		"admits":         {answers(admission.Admit(), nil), admission.AdmitWith(admission.Changes{Labels: label}), nil},
		"changes none":   {answers(admission.AdmitWith(admission.Changes{}), nil), admission.AdmitWith(admission.Changes{Labels: label}), nil},
		"holds":          {answers(admission.HoldUntil(until, "freeze"), nil), admission.HoldUntil(until, "freeze"), nil},
		"refuses":        {answers(admission.Refuse("never"), nil), admission.Refuse("never"), nil},
		"is broken":      {answers(admission.Admit(), broken), admission.Decision{}, broken},
		"holds, broken":  {answers(admission.Hold("x"), broken), admission.Decision{}, broken},
		"names no queue": {answers(admission.AdmitWith(admission.Changes{Labels: map[string]string{QueueLabel: "fast"}}), nil), admission.Decision{}, &admission.FieldError{}},
		"changes all": {answers(admission.AdmitWith(admission.Changes{
			NodeSelector: map[string]string{"pool": "a"}, Labels: map[string]string{"team": "b"}, Annotations: map[string]string{"c": "d"},
			Tolerations: []admission.Toleration{{Key: "e"}}, PriorityClassName: "f", ServiceAccount: "g"}), nil),
			admission.AdmitWith(admission.Changes{
				NodeSelector: map[string]string{"pool": "a"}, Labels: map[string]string{"team": "b", QueueLabel: "lq"}, Annotations: map[string]string{"c": "d"},
				Tolerations: []admission.Toleration{{Key: "e"}}, PriorityClassName: "f", ServiceAccount: "g"}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := openGate(Options{Policy: tc.policy}).Admit(t.Context(), fromTeam())
			if !d.Equal(tc.want) {
				t.Errorf("%s, want %s", d, tc.want)
			}
			var field *admission.FieldError
			switch {
			case tc.err == nil && err == nil, tc.err != nil && errors.Is(err, tc.err):
			case errors.As(tc.err, &field) && errors.As(err, &field) && strings.Contains(field.Field, QueueLabel):
			default:
				t.Errorf("error %v, want %v", err, tc.err)
			}
		})
	}
}

// TestPolicyIsToldTheQueue: the policy knows where the attempt would queue, and the
// request of the caller stays as it was.
func TestPolicyIsToldTheQueue(t *testing.T) {
	var told *admission.Request
	policy := admission.HookFunc(func(_ context.Context, req *admission.Request) (admission.Decision, error) {
		told = req.Clone()
		req.Execution.Labels["mine"] = "changed"
		req.LocalQueue = "elsewhere"
		return admission.Admit(), nil
	})
	req := &admission.Request{TenantID: "t", Execution: admission.Execution{Labels: map[string]string{"mine": "kept"}}}
	d, err := openGate(Options{Policy: policy, Namespace: "team", LocalQueue: "lq"}).Admit(t.Context(), req)
	changes, _ := d.Changes()
	if err != nil || changes.Labels[QueueLabel] != "lq" {
		t.Errorf("%s, %v", d, err)
	}
	want := &admission.Request{TenantID: "t", Namespace: "team", LocalQueue: "lq", ClusterQueue: "cq", Execution: admission.Execution{Labels: map[string]string{"mine": "kept"}}}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if req.LocalQueue != "" || req.Namespace != "" || req.Execution.Labels["mine"] != "kept" {
		t.Errorf("the caller's request was changed: %+v", req)
	}
}

// TestPolicyIsNotAskedInVain: while the gate holds nobody is asked, and what happens
// while the policy thinks counts.
func TestPolicyIsNotAskedInVain(t *testing.T) {
	asked := 0
	var g *Gate
	stop := func() {
		g.world.known.editQueue(func(q *clusterQueue) { q.stop = kueue.Hold })
	}
	g = openGate(Options{Policy: admission.HookFunc(func(context.Context, *admission.Request) (admission.Decision, error) {
		asked++
		stop()
		return admission.Admit(), nil
	})})
	for range 2 {
		d, err := g.Admit(t.Context(), fromTeam())
		if reason, held := d.Held(); err != nil || !held || !strings.Contains(reason, "stopPolicy") {
			t.Errorf("%s, %v", d, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestWhichQueue(t *testing.T) {
	labelled := admission.Execution{Labels: map[string]string{QueueLabel: "labelled"}}
	defaults := Options{LocalQueue: "default", Namespace: "home"}
	for name, tc := range map[string]struct {
		options Options
		req     admission.Request
		want    target
		refused string
	}{
		"named":              {defaults, admission.Request{Namespace: "team", LocalQueue: "lq", Execution: labelled}, target{"team", "lq"}, ""},
		"by label":           {defaults, admission.Request{Namespace: "team", Execution: labelled}, target{"team", "labelled"}, ""},
		"by default":         {defaults, admission.Request{}, target{"home", "default"}, ""},
		"queue by default":   {defaults, admission.Request{Namespace: "team"}, target{"team", "default"}, ""},
		"no queue":           {Options{Namespace: "home"}, admission.Request{}, target{}, "localQueue: the request names no queue"},
		"no namespace":       {Options{LocalQueue: "default"}, admission.Request{}, target{}, "namespace: the request names none"},
		"not a queue":        {defaults, admission.Request{LocalQueue: "My Queue"}, target{}, `localQueue: "My Queue" cannot be the name`},
		"too long a queue":   {defaults, admission.Request{LocalQueue: strings.Repeat("q", 64)}, target{}, "cannot be the name of a LocalQueue"},
		"not a label":        {defaults, admission.Request{Execution: admission.Execution{Labels: map[string]string{QueueLabel: "-"}}}, target{}, "cannot be the name of a LocalQueue"},
		"not a namespace":    {defaults, admission.Request{Namespace: "a/b"}, target{}, `namespace: "a/b" cannot be`},
		"nothing by default": {Options{}, admission.Request{}, target{}, "kueue.localQueue"},
	} {
		t.Run(name, func(t *testing.T) {
			g := openGate(tc.options)
			got, refused := g.target(&tc.req)
			if (tc.refused == "") != (refused == "") || !strings.Contains(refused, tc.refused) || tc.refused == "" && got != tc.want {
				t.Errorf("%v, %q, want %v, %q", got, refused, tc.want, tc.refused)
			}
			d, err := g.Admit(t.Context(), &tc.req)
			if reason, isRefused := d.Refused(); err != nil || isRefused != (tc.refused != "") || !strings.Contains(reason, tc.refused) {
				t.Errorf("%s, %v", d, err)
			}
		})
	}
}

// TestRefusesBeforeItHolds: what is wrong with a request is told whatever the state
// of the cluster.
func TestRefusesBeforeItHolds(t *testing.T) {
	g := openGate(Options{})
	g.world.known = snapshot{}
	if d, err := g.Admit(t.Context(), &admission.Request{}); err != nil || d.Kind() != admission.KindRefuse {
		t.Errorf("%s, %v", d, err)
	}
}

// TestReadyStays: a gate that has judged once has an answer for ever.
func TestReadyStays(t *testing.T) {
	g := openGate(Options{})
	unknown := func() {
		g.world.known.lease.seen, g.world.known.lease.waiting = time.Time{}, time.Now()
	}
	unknown()
	if err := g.Ready(); err == nil || !strings.Contains(err.Error(), "a renewal of Lease dispatch-system/dispatch-admission") {
		t.Errorf("nothing is known of the holder, but %v", err)
	}
	g.world.known.lease.seen = time.Now()
	if err := g.Ready(); err != nil {
		t.Error(err)
	}
	unknown()
	if err := g.Ready(); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		options Options
		err     string
		lease   string
	}{
		"defaults":        {Options{}, "", "dispatch-system/dispatch-admission"},
		"lease":           {Options{AdmissionLease: types.NamespacedName{Namespace: "a", Name: "b"}}, "", "a/b"},
		"half a lease":    {Options{AdmissionLease: types.NamespacedName{Namespace: "a"}}, "", "a/dispatch-admission"},
		"bad lease":       {Options{AdmissionLease: types.NamespacedName{Name: "a/b"}}, `AdmissionLease.Name: "a/b"`, ""},
		"bad namespace":   {Options{AdmissionLease: types.NamespacedName{Namespace: "A"}}, `AdmissionLease.Namespace: "A"`, ""},
		"bad queue":       {Options{LocalQueue: "a b"}, `LocalQueue: "a b"`, ""},
		"long queue":      {Options{LocalQueue: strings.Repeat("q", 64)}, "LocalQueue: ", ""},
		"queue namespace": {Options{Namespace: "a.b"}, `Namespace: "a.b"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, tc.options)
			switch {
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("%v, want %q", err, tc.err)
			case tc.err == "" && err != nil:
				t.Error(err)
			case tc.err == "" && g.world.known.leaseName != tc.lease:
				t.Errorf("Lease %q, want %q", g.world.known.leaseName, tc.lease)
			}
		})
	}
	if _, err := New(&rest.Config{Host: "://"}, Options{}); err == nil {
		t.Error("an address that is none was taken")
	}
}

// TestConfigIsLeftAlone: the configuration belongs to the caller, and its timeout
// would cut the watches off.
func TestConfigIsLeftAlone(t *testing.T) {
	cfg := &rest.Config{Host: "https://127.0.0.1:1", Timeout: time.Second}
	want := rest.CopyConfig(cfg)
	if _, err := New(cfg, Options{}); err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout != want.Timeout || cfg.WrapTransport != nil || cfg.UserAgent != "" || cfg.APIPath != "" {
		t.Errorf("%+v", cfg)
	}
}

// TestQueueLabelTravels: the reserved key of the gate's answer passes the server
// and the client of package httphook, which leave the judging to the caller.
func TestQueueLabelTravels(t *testing.T) {
	server := httptest.NewServer(httphook.Handler(openGate(Options{})))
	defer server.Close()
	client, err := httphook.NewClient(httphook.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	d, err := client.Admit(t.Context(), fromTeam())
	changes, _ := d.Changes()
	if err != nil || changes.Labels[QueueLabel] != "lq" {
		t.Fatalf("%s, %v", d, err)
	}
	if err := d.Validate(); err == nil {
		t.Error("the answer is valid as it stands, so the documentation is wrong about it")
	}
	delete(changes.Labels, QueueLabel)
	if err := changes.Validate(); err != nil {
		t.Error(err)
	}
}

// TestRequestsOfTheWatches: what the gate asks of an API server is what the
// documentation says that it needs the right to.
func TestRequestsOfTheWatches(t *testing.T) {
	type ask struct{ Path, Selector string }
	asked := make(chan ask, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.Contains(r.Header.Get("Accept"), "application/json") {
			t.Errorf("%s %s, accepts %q", r.Method, r.URL, r.Header.Get("Accept"))
		}
		select {
		case asked <- ask{r.URL.Path, r.URL.Query().Get("fieldSelector")}:
		default:
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	g, err := New(&rest.Config{Host: server.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Run(ctx)
	}()
	want := map[ask]bool{
		{"/apis/coordination.k8s.io/v1/namespaces/dispatch-system/leases", "metadata.name=dispatch-admission"}: true,
		{"/apis/kueue.x-k8s.io/v1beta2/localqueues", ""}:                                                       true,
		{"/apis/kueue.x-k8s.io/v1beta2/clusterqueues", ""}:                                                     true,
		{"/apis/kueue.x-k8s.io/v1beta2/admissionchecks", ""}:                                                   true,
	}
	got := map[ask]bool{}
	for len(got) < len(want) {
		select {
		case a := <-asked:
			got[a] = true
		case <-time.After(20 * time.Second):
			t.Fatalf("asked for %v only", got)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	cancel()
	<-ended
}
