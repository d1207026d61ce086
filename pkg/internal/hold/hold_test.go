package hold

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

var epoch = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

var terms = Terms{Reoffer: 30 * time.Second, KeepQuota: time.Minute, Window: 24 * time.Hour}

const job = types.UID("job")

// TestIntervalGrows: the offers of a job that is held for long come further and
// further apart, up to five minutes, each up to a tenth early.
func TestIntervalGrows(t *testing.T) {
	now, e := epoch, Entry{}
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, MaxInterval, MaxInterval, MaxInterval} {
		e = e.Hold(terms, job, "g", "m", time.Time{}, now)
		got := e.Next.Sub(now)
		if got > want || got < want*9/10 {
			t.Errorf("offer %d: the next comes after %s, want %s less a tenth at most", i+1, got, want)
		}
		if e.Offers != i+1 || !e.Since.Equal(epoch) || !e.Held.Equal(epoch) {
			t.Errorf("offer %d: %+v", i+1, e)
		}
		now = e.Next
	}
}

// TestIntervalOfManyOffers: a job that is held for ever does not overflow.
func TestIntervalOfManyOffers(t *testing.T) {
	if got := interval(time.Second, 1_000_000); got != MaxInterval {
		t.Error(got)
	}
}

// TestJitterSpreads: jobs that were held in the same second are not offered in
// the same second for ever.
func TestJitterSpreads(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 100 {
		seen[jittered(MaxInterval, types.UID(string(rune('a'+i))), 1)] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 jobs have %d different intervals", len(seen))
	}
}

func TestDetached(t *testing.T) {
	book := Book{Checks: map[kueue.AdmissionCheckReference]Entry{"ours": {}, "other": {}}}
	for name, tc := range map[string]struct {
		checks []kueue.AdmissionCheckReference
		want   bool
	}{
		"none":        {nil, true},
		"another one": {[]kueue.AdmissionCheckReference{"theirs"}, true},
		"one of them": {[]kueue.AdmissionCheckReference{"theirs", "other"}, false},
	} {
		cq := &kueue.ClusterQueue{}
		if tc.checks != nil {
			cq.Spec.AdmissionChecksStrategy = &kueue.AdmissionChecksStrategy{}
			for _, c := range tc.checks {
				cq.Spec.AdmissionChecksStrategy.AdmissionChecks = append(cq.Spec.AdmissionChecksStrategy.AdmissionChecks, kueue.AdmissionCheckStrategyRule{Name: c})
			}
		}
		if got := book.Detached(cq); got != tc.want {
			t.Errorf("a queue with %s: %v", name, got)
		}
	}
}

func TestNext(t *testing.T) {
	held := Entry{Since: epoch, Held: epoch, Offers: 1}
	for name, tc := range map[string]struct {
		entry      Entry
		terms      Terms
		until, now time.Time
		want       time.Time
	}{
		"the hook's time": {terms: terms, until: epoch.Add(3 * time.Hour), now: epoch, want: epoch.Add(3 * time.Hour)},
		"never before the hook's time, which has a fraction": {
			terms: terms, until: epoch.Add(time.Hour + time.Millisecond), now: epoch, want: epoch.Add(time.Hour + time.Second)},
		"a time that has passed is soon, not at once": {terms: terms, until: epoch.Add(-time.Hour), now: epoch, want: epoch.Add(5 * time.Second)},
		"the end of the window comes first":           {entry: held, terms: terms, until: epoch.Add(48 * time.Hour), now: epoch.Add(time.Hour), want: epoch.Add(24 * time.Hour)},
		"no window": {
			entry: held, terms: Terms{Reoffer: time.Second}, until: epoch.Add(4800 * time.Hour), now: epoch.Add(time.Hour), want: epoch.Add(4800 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.entry.Hold(tc.terms, job, "g", "m", tc.until, tc.now).Next; !got.Equal(tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestNoVerdict: a broken hook neither makes the interval grow nor spends the
// window, and it does not count as a Hold.
func TestNoVerdict(t *testing.T) {
	e := Entry{}
	for range 10 {
		e = e.NoVerdict(terms, job, "g", "m", epoch)
	}
	if got := e.Next.Sub(epoch); got > terms.Reoffer || got < terms.Reoffer*9/10 {
		t.Errorf("after ten offers the next comes after %s", got)
	}
	if !e.Held.IsZero() || e.Spent(terms, epoch.Add(1000*time.Hour)) {
		t.Errorf("no verdict counts as a hold: %+v", e)
	}
	if h := e.Hold(terms, job, "g", "m", time.Time{}, epoch.Add(time.Hour)); !h.Held.Equal(epoch.Add(time.Hour)) || !h.Since.Equal(epoch) {
		t.Errorf("the first hold after it: %+v", h)
	}
}

func TestSpent(t *testing.T) {
	e := Entry{Held: epoch}
	if e.Spent(terms, epoch.Add(24*time.Hour-time.Second)) {
		t.Error("spent too early")
	}
	if !e.Spent(terms, epoch.Add(24*time.Hour)) {
		t.Error("not spent at its end")
	}
	if e.Spent(Terms{}, epoch.Add(1e6*time.Hour)) {
		t.Error("a window of 0 is for ever")
	}
}

// TestBook: what is written is read again, and counts only while the Workload
// says that it is held.
func TestBook(t *testing.T) {
	e := Entry{}.Hold(terms, job, "g/1", "weekly freeze", epoch.Add(time.Hour), epoch)
	b := Book{Returned: 2, Park: epoch.Add(time.Hour)}.With("policy", e)
	text, err := b.Annotation()
	if err != nil {
		t.Fatal(err)
	}
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.HoldAnnotation: text}}}
	if got := Read(wl); !cmp.Equal(got, Book{Returned: 2}) {
		t.Errorf("without the condition: %+v", got)
	}
	wl.Status.Conditions = []metav1.Condition{{Type: v1alpha1.WorkloadHeld, Status: metav1.ConditionTrue}}
	if diff := cmp.Diff(b, Read(wl)); diff != "" {
		t.Errorf("read something else (-want +got):\n%s", diff)
	}
	again, _ := Read(wl).Annotation()
	if again != text {
		t.Errorf("written anew it is %s, not %s", again, text)
	}
	wl.Annotations[v1alpha1.HoldAnnotation] = "{"
	if got := Read(wl); !cmp.Equal(got, Book{}) {
		t.Errorf("of a text that cannot be read: %+v", got)
	}
}

func TestWithAndWithoutCopy(t *testing.T) {
	b := Book{}.With("a", Entry{Offers: 1})
	c := b.With("b", Entry{Offers: 2})
	if len(b.Checks) != 1 || len(c.Checks) != 2 || len(c.Without("a").Checks) != 1 || len(c.Checks) != 2 {
		t.Errorf("%v %v", b, c)
	}
}
