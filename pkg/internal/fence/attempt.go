package fence

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Attempt identifies one quota reservation of one Workload.
//
// No single field of a Workload does. Its name returns with a recreated
// Workload, and condition times have a resolution of one second, within which
// quota can be lost and regained. The fields together leave no two attempts
// alike that could both have started pods, see Match.
type Attempt struct {
	// Workload is the UID of the Workload.
	Workload types.UID
	// Reserved is the second in which quota was reserved.
	Reserved int64
	// Evictions is how often Kueue has evicted the Workload so far.
	Evictions int64
	// PendingSince is the second since which our checks are Pending. The gate
	// moves it forward by at least one second whenever it takes an answer
	// back, whatever the clock says.
	PendingSince int64
}

// attemptVersion leads the text form, so that a later form cannot be misread.
const attemptVersion = "v1"

// String is the form kept in the TrainJob's annotation. It is at most 120
// bytes long.
func (a Attempt) String() string {
	return fmt.Sprintf("%s/%s/%d/%d/%d", attemptVersion, a.Workload, a.Reserved, a.Evictions, a.PendingSince)
}

// ParseAttempt reads what String wrote.
func ParseAttempt(s string) (Attempt, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 5 || parts[0] != attemptVersion || parts[1] == "" {
		return Attempt{}, fmt.Errorf("attempt %q is not of the form %s/<uid>/<reserved>/<evictions>/<pending since>", s, attemptVersion)
	}
	var n [3]int64
	for i, p := range parts[2:] {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return Attempt{}, fmt.Errorf("attempt %q: %w", s, err)
		}
		n[i] = v
	}
	return Attempt{Workload: types.UID(parts[1]), Reserved: n[0], Evictions: n[1], PendingSince: n[2]}, nil
}

// SameReservation compares all that a Workload says of its reservation while
// one of our checks may already have been answered.
func (a Attempt) SameReservation(b Attempt) bool {
	return a.Workload == b.Workload && a.Reserved == b.Reserved && a.Evictions == b.Evictions
}

// Second is the whole second of t, the resolution of times in the API.
func Second(t metav1.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
