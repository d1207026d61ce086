package policy

import (
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // the image of a program has no time zones
)

// maxDuration bounds how far back the start of an open window can be.
const maxDuration = 366 * 24 * time.Hour

// window opens at every minute of a schedule, by the clocks of a zone, and
// closes after a time.
type window struct {
	cron     cron
	duration time.Duration
	zone     *time.Location
}

// until tells whether the window is open at now, and when it closes. Of
// windows that overlap the latest counts.
//
// It must hold that the start of a later minute on the wall is never earlier:
// then the last minute that can have started is the only one to look at.
func (w *window) until(now time.Time) (time.Time, bool) {
	wall := latestWall(now, w.zone)
	// In two days of slack fits every jump that a zone ever made.
	floor := wall - int64(w.duration/time.Second) - 2*day
	start, found := w.cron.last(wall, floor)
	if !found {
		return time.Time{}, false
	}
	end := firstInstant(start, w.zone).Add(w.duration)
	return end, now.Before(end)
}

// latestWall is the greatest time on the wall, in seconds, whose firstInstant
// is not after t. In an hour that comes twice that is, the second time, the end
// of the hour.
func latestWall(t time.Time, zone *time.Location) int64 {
	local := t.In(zone)
	_, offset := local.Zone()
	wall := t.Unix() + int64(offset)
	start, _ := local.ZoneBounds()
	if start.IsZero() {
		return wall
	}
	_, before := start.Add(-time.Second).In(zone).Zone()
	return max(wall, start.Unix()+int64(before)-1)
}

// firstInstant is when a clock on the wall first shows a time, and for a time
// that clocks skip the moment in which they do. It is not time.Date, which does
// not say what it makes of such times.
func firstInstant(wall int64, zone *time.Location) time.Time {
	// An offset is less than 26 hours, so this is before the instant.
	t := time.Unix(wall-26*60*60, 0).In(zone)
	for {
		_, offset := t.Zone()
		start, end := t.ZoneBounds()
		instant := time.Unix(wall-int64(offset), 0)
		switch {
		case !start.IsZero() && instant.Before(start):
			return start
		case end.IsZero() || instant.Before(end):
			return instant
		}
		t = end.In(zone)
	}
}

// loadZone reads a zone of the IANA database. The zone of the machine is none:
// a policy must mean the same everywhere.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("unknown time zone %q; use an IANA name such as Europe/London", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("unknown time zone %q; use an IANA name such as Europe/London", name)
	}
	return zone, nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration such as 60h or 1h30m; a day is 24h", text)
	case d < time.Second:
		return 0, errors.New("must be a second at least")
	case d > maxDuration:
		return 0, fmt.Errorf("must be %d hours at most", maxDuration/time.Hour)
	}
	return d, nil
}
