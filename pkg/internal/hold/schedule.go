package hold

import (
	"hash/fnv"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// MaxInterval is the longest time between two offers, unless the hook gave a time.
const MaxInterval = 5 * time.Minute

// soonest is the least time between two offers, when a hook gives a time that has
// passed: it is asked again soon, but not in a busy loop.
const soonest = 5 * time.Second

// Terms are what a gate says about holds.
type Terms struct {
	// Reoffer is the time between two offers at first.
	Reoffer time.Duration
	// KeepQuota is how long a held Workload may sit on quota that others wait
	// for.
	KeepQuota time.Duration
	// Window is how long a job may be held; 0 means for ever.
	Window time.Duration
}

// Hold returns the entry after the hook held the job at now. until is the time
// that it gave, zero if it gave none.
func (e Entry) Hold(t Terms, job types.UID, gate, message string, until, now time.Time) Entry {
	e = e.offered(gate, message, now)
	if e.Held.IsZero() {
		e.Held = e.now(now)
	}
	e.Until = until
	switch {
	case until.IsZero():
		e.Next = now.Add(jittered(interval(t.Reoffer, e.Offers), job, e.Offers))
	case until.Before(now.Add(soonest)):
		e.Next = now.Add(min(soonest, t.Reoffer))
	default:
		e.Next = until
	}
	if end, ok := e.End(t); ok && e.Next.After(end) {
		e.Next = end
	}
	e.Next = ceil(e.Next)
	return e
}

// NoVerdict returns the entry after the hook gave none at now. The interval does
// not grow, so that jobs go on soon after the hook is mended.
func (e Entry) NoVerdict(t Terms, job types.UID, gate, message string, now time.Time) Entry {
	e = e.offered(gate, message, now)
	e.Until = time.Time{}
	e.Next = ceil(now.Add(jittered(t.Reoffer, job, e.Offers)))
	return e
}

// End is when the window is spent; false if that is never.
func (e Entry) End(t Terms) (time.Time, bool) {
	if t.Window <= 0 || e.Held.IsZero() {
		return time.Time{}, false
	}
	return e.Held.Add(t.Window), true
}

// Spent tells whether a Hold at now comes after the end of the window.
func (e Entry) Spent(t Terms, now time.Time) bool {
	end, ok := e.End(t)
	return ok && !now.Before(end)
}

// QuotaDue is when quota that others wait for has to be given back.
func (e Entry) QuotaDue(t Terms) time.Time { return e.Since.Add(t.KeepQuota) }

func (e Entry) offered(gate, message string, now time.Time) Entry {
	if e.Since.IsZero() {
		e.Since = e.now(now)
	}
	e.Gate, e.Message = gate, message
	e.Offers++
	return e
}

func (Entry) now(now time.Time) time.Time { return now.UTC().Truncate(time.Second) }

// ceil keeps an offer from coming before its time.
func ceil(t time.Time) time.Time {
	whole := t.UTC().Truncate(time.Second)
	if whole.Before(t) {
		return whole.Add(time.Second)
	}
	return whole
}

// interval doubles with each offer, up to MaxInterval.
func interval(base time.Duration, offers int) time.Duration {
	for range offers - 1 {
		if base >= MaxInterval {
			break
		}
		base *= 2
	}
	return min(base, MaxInterval)
}

// jittered takes up to a tenth off d, so that jobs that were held together are
// not offered together for ever. It depends on the job and the offer alone.
func jittered(d time.Duration, job types.UID, offer int) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(job))
	_, _ = h.Write(strconv.AppendInt(nil, int64(offer), 10))
	return d - time.Duration(h.Sum32()%1000)*d/10000
}
