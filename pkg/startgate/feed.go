package startgate

import (
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// kind is one of the kinds of objects that the gate watches.
type kind int

const (
	leases kind = iota
	localQueues
	clusterQueues
	checks
	kinds int = iota
)

// kindNames are for people.
var kindNames = [kinds]string{leases: "Leases", localQueues: "LocalQueues", clusterQueues: "ClusterQueues", checks: "AdmissionChecks"}

// feedState is how current the knowledge about one kind is.
type feedState struct {
	// open says that a watch runs and that all it had to tell first has come.
	open bool
	// fresh is when the knowledge was current, if no watch runs; zero when nothing
	// has been read yet.
	fresh time.Time
	// fault is why no watch runs, if anything has gone wrong.
	fault error
}

// stale tells whether knowledge is too old to be acted on.
func (f feedState) stale(now time.Time, limit time.Duration) bool {
	return !f.open && now.Sub(f.fresh) >= limit
}

// problem is why nothing is known. It names the kind of fault only: the text of an
// error has ports and times in it, and is for the log.
func (f feedState) problem() string {
	const seeLog = "see the log of the start gate"
	switch {
	case f.fault == nil && f.fresh.IsZero():
		return "not read yet: wait, or " + seeLog
	case apierrors.IsNotFound(f.fault):
		return "cannot be watched, the API server does not have them: install Kueue v0.17 or newer"
	case isRefusal(f.fault):
		return "cannot be watched, the API server forbids it: let the start gate list and watch them"
	}
	return "cannot be watched: wait until the API server answers, or " + seeLog
}

// unseen are the kinds that a test is true for, in words, those with the same
// problem together.
func unseen(feeds [kinds]feedState, is func(feedState) bool) []string {
	names := map[string][]string{}
	for k, f := range feeds {
		if is(f) {
			names[f.problem()] = append(names[f.problem()], kindNames[k])
		}
	}
	var all []string
	for problem, of := range names {
		slices.Sort(of)
		all = append(all, strings.Join(of, ", ")+" "+problem)
	}
	slices.Sort(all)
	return all
}
