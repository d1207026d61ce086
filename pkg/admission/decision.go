package admission

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxReasonBytes is how much of a reason is kept.
const MaxReasonBytes = 900

// noReason stands in for an empty reason of a Hold or a Refuse.
const noReason = "the admission hook gave no reason"

// maxUntil is the latest time that JSON can carry.
var maxUntil = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// Kind says which of the four decisions a [Decision] is.
type Kind uint8

// The kinds of decisions. Exactly one holds for every Decision.
const (
	KindAdmit Kind = iota
	KindAdmitWith
	KindHold
	KindRefuse
)

var kindNames = [...]string{
	KindAdmit:     "Admit",
	KindAdmitWith: "AdmitWith",
	KindHold:      "Hold",
	KindRefuse:    "Refuse",
}

// String returns the name of k on the wire, such as "AdmitWith".
func (k Kind) String() string {
	if int(k) >= len(kindNames) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Decision is the answer of a hook. The zero value admits unchanged. A
// Decision cannot be changed and shares no memory with what it was made from.
type Decision struct {
	kind    Kind
	reason  string
	until   time.Time
	changes *Changes // never nil for KindAdmitWith
}

// Admit starts the work unchanged.
func Admit() Decision { return Decision{} }

// AdmitWith starts the work with c. Zero changes are allowed and change
// nothing. Whether c is valid is checked by the caller of the hook, which
// treats invalid changes as no verdict; see [Changes.Validate].
func AdmitWith(c Changes) Decision {
	return Decision{kind: KindAdmitWith, changes: new(c.clone())}
}

// Hold keeps the work waiting; it is offered again after a while.
//
// The reason is shown to the owner of the job. It is trimmed, made valid
// UTF-8, cut to [MaxReasonBytes] at a character, and replaced by a default
// when empty. It should not contain what changes from one call to the next,
// such as a time or a counter.
func Hold(reason string) Decision {
	return Decision{kind: KindHold, reason: cleanReason(reason)}
}

// HoldUntil is [Hold] with the time of the next offer, to the nanosecond. The
// offer may come later, and it comes earlier when the caller has a reason to
// ask again, so a hook must check the time by itself. A zero time makes it a
// plain Hold; a time that has passed asks for an offer as soon as possible.
func HoldUntil(until time.Time, reason string) Decision {
	d := Hold(reason)
	d.until = cleanUntil(until)
	return d
}

// Refuse fails the work for good, without retries. The reason is treated as
// that of [Hold].
func Refuse(reason string) Decision {
	return Decision{kind: KindRefuse, reason: cleanReason(reason)}
}

// Kind says which decision d is.
func (d Decision) Kind() Kind { return d.kind }

// Held returns the reason, never empty, when d was made by [Hold] or
// [HoldUntil].
func (d Decision) Held() (reason string, held bool) {
	return d.reasonOf(KindHold)
}

// Refused returns the reason, never empty, when d was made by [Refuse].
func (d Decision) Refused() (reason string, refused bool) {
	return d.reasonOf(KindRefuse)
}

// Changes returns a copy of the changes when d was made by [AdmitWith], even
// if they change nothing.
func (d Decision) Changes() (Changes, bool) {
	if d.kind != KindAdmitWith {
		return Changes{}, false
	}
	return d.changes.clone(), true
}

// Until returns the time of the next offer, in UTC, when d was made by
// [HoldUntil] with a time.
func (d Decision) Until() (time.Time, bool) {
	return d.until, !d.until.IsZero()
}

// Equal reports whether d and o are the same decision.
func (d Decision) Equal(o Decision) bool {
	if d.kind != o.kind || d.reason != o.reason || !d.until.Equal(o.until) {
		return false
	}
	return d.kind != KindAdmitWith || d.changes.equal(*o.changes)
}

// Validate reports invalid changes as a [*FieldError]; every other decision
// is valid.
func (d Decision) Validate() error {
	if d.kind != KindAdmitWith {
		return nil
	}
	return d.changes.Validate()
}

// String describes d for logs and tests. Changes appear as JSON.
func (d Decision) String() string {
	switch b, err := d.MarshalJSON(); {
	case d.kind == KindAdmit:
		return d.kind.String()
	case err != nil:
		return d.kind.String() + " " + err.Error()
	default:
		return d.kind.String() + " " + string(b)
	}
}

func (d Decision) reasonOf(k Kind) (string, bool) {
	if d.kind != k {
		return "", false
	}
	return d.reason, true
}

func cleanReason(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s, string(utf8.RuneError)))
	s = strings.TrimSpace(cut(s, MaxReasonBytes))
	if s == "" {
		return noReason
	}
	return s
}

// cut returns the longest prefix of s that has at most n bytes and ends at a
// character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func cleanUntil(t time.Time) time.Time {
	t = t.Round(0).UTC()
	switch {
	case t.Year() > maxUntil.Year():
		return maxUntil
	case t.Year() < 1:
		return time.Time{}
	}
	return t
}
