// Package hold keeps count of held jobs: since when one is held, how often it has
// been offered, and when it is offered next.
//
// The count lives in an annotation of the Workload, so that it survives what the
// checks do not: Kueue resets their messages with each eviction, leaders change,
// controllers restart. The package is pure; time is an argument.
package hold

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-admission/dispatch-admission/api/v1alpha1"
)

// Book is what a Workload says of its holds.
type Book struct {
	// Returned is how often the quota was given back because a hook held the
	// Workload. Kueue counts each as an eviction, although nothing had started.
	Returned int `json:"returned,omitempty"`
	// Park is until when the Workload is to stay without quota; zero unless its
	// quota was given back in this hold.
	Park time.Time `json:"park,omitzero"`
	// Queue is the ClusterQueue whose quota was given back last, and Local the
	// LocalQueue that the Workload was in.
	Queue kueue.ClusterQueueReference `json:"queue,omitempty"`
	Local kueue.LocalQueueName        `json:"local,omitempty"`
	// Checks has an entry for each check that is held.
	Checks map[kueue.AdmissionCheckReference]Entry `json:"checks,omitempty"`
}

// Entry is what is kept of one held check. Times are whole seconds.
type Entry struct {
	// Gate is the version of the gate under which the check was last answered.
	// Under another one everything may be different, so the hook is asked anew.
	Gate string `json:"gate"`
	// Since is when the check was first not admitted, for whatever reason.
	Since time.Time `json:"since"`
	// Held is when the hook first held the job; zero while all it gave were no
	// verdicts.
	Held time.Time `json:"held,omitzero"`
	// Offers is how often the hook has been asked since Since.
	Offers int `json:"offers"`
	// Next is when it is asked next.
	Next time.Time `json:"next"`
	// Until is the time that the hook gave; zero if it gave none.
	Until time.Time `json:"until,omitzero"`
	// Message is what people are told, without times.
	Message string `json:"message"`
}

// Read returns the holds of a Workload. They count only while its condition Held
// is True: it is set False in the very write that admits, which saves a write to
// the annotation. Returned counts all the same. A text that cannot be read is
// taken for none, since nobody but the gate has any business writing it, and the
// worst that can come of it is that a hold begins anew.
func Read(wl *kueue.Workload) Book {
	var b Book
	text, ok := wl.Annotations[v1alpha1.HoldAnnotation]
	if !ok || json.Unmarshal([]byte(text), &b) != nil {
		return Book{}
	}
	if !meta.IsStatusConditionTrue(wl.Status.Conditions, v1alpha1.WorkloadHeld) {
		return Book{Returned: b.Returned}
	}
	return b
}

// Annotation is the text that Read reads.
func (b Book) Annotation() (string, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return "", fmt.Errorf("annotation %s: %w", v1alpha1.HoldAnnotation, err)
	}
	return string(text), nil
}

// Detached tells whether a queue, as it is now, names none of the checks that hold the
// Workload.
func (b Book) Detached(cq *kueue.ClusterQueue) bool {
	if cq.Spec.AdmissionChecksStrategy == nil {
		return true
	}
	return !slices.ContainsFunc(cq.Spec.AdmissionChecksStrategy.AdmissionChecks, func(rule kueue.AdmissionCheckStrategyRule) bool {
		_, held := b.Checks[rule.Name]
		return held
	})
}

// With returns a copy of b in which a check has the entry e.
func (b Book) With(check kueue.AdmissionCheckReference, e Entry) Book {
	b.Checks = maps.Clone(b.Checks)
	if b.Checks == nil {
		b.Checks = map[kueue.AdmissionCheckReference]Entry{}
	}
	b.Checks[check] = e
	return b
}

// Without returns a copy of b in which a check is not held.
func (b Book) Without(check kueue.AdmissionCheckReference) Book {
	b.Checks = maps.Clone(b.Checks)
	delete(b.Checks, check)
	return b
}
