package policy

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const day = 24 * 60 * 60 // seconds

// cron is a schedule of minutes by the clock on the wall. Each mask has a bit
// for every value that matches.
type cron struct {
	minute, hour, dom, month, dow uint64

	// either: a day matches by its date or by its weekday, for both are
	// restricted.
	either bool
}

// cronField says how a field of a schedule is written.
type cronField struct {
	name     string
	min, max int
	names    []string // of the values from min
}

var cronFields = [5]cronField{
	{name: "minute", max: 59},
	{name: "hour", max: 23},
	{name: "day of month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", max: 7, names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// weekday is the index of the field whose values go round.
const weekday = 4

// parseCron reads the five fields of a schedule: what the CronJobs of
// Kubernetes take, and 7 for Sunday and FRI-MON beside it.
func parseCron(text string) (cron, error) {
	words := strings.Fields(text)
	if len(words) != len(cronFields) {
		return cron{}, fmt.Errorf("%d fields instead of 5: minute, hour, day of month, month, day of week", len(words))
	}
	var masks [5]uint64
	var all [5]bool
	var errs []error
	for i, word := range words {
		var err error
		if masks[i], all[i], err = cronFields[i].parse(word, i == weekday); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", cronFields[i].name, err))
		}
	}
	if len(errs) > 0 {
		return cron{}, errors.Join(errs...)
	}
	c := cron{masks[0], masks[1], masks[2], masks[3], masks[weekday]&0x7f | masks[weekday]>>7, !all[2] && !all[weekday]}
	if !c.possible() {
		return cron{}, errors.New("no such day exists in any year")
	}
	return c, nil
}

// parse returns the mask, and whether it is that of a star. In a field that goes
// round, what is above the greatest value starts again.
func (f cronField) parse(text string, round bool) (mask uint64, all bool, err error) {
	for item := range strings.SplitSeq(text, ",") {
		lo, hi, step, err := f.parseItem(item)
		if err != nil {
			return 0, false, err
		}
		if hi < lo && round {
			hi += 7
		}
		if hi < lo {
			return 0, false, fmt.Errorf("%q runs backwards", item)
		}
		for v := lo; v <= hi; v += step {
			if v > f.max {
				mask |= 1 << (v % 7)
			} else {
				mask |= 1 << v
			}
		}
		all = all || step == 1 && isStar(item)
	}
	return mask, all, nil
}

// isStar tells whether an item stands for every value, less those that a step
// leaves out.
func isStar(item string) bool { return item[0] == '*' || item[0] == '?' }

// parseItem reads "*", "3", "3-5", each with a step behind a slash or without.
// With a step, "3" reaches up to the greatest value.
func (f cronField) parseItem(text string) (lo, hi, step int, err error) {
	span, every, stepped := strings.Cut(text, "/")
	step = 1
	if stepped {
		if step, err = strconv.Atoi(every); err != nil || step < 1 || step > f.max {
			return 0, 0, 0, fmt.Errorf("%q is not a step from 1 to %d", every, f.max)
		}
	}
	if span == "*" || span == "?" {
		return f.min, f.top(), step, nil
	}
	first, last, isSpan := strings.Cut(span, "-")
	if lo, err = f.value(first); err != nil {
		return 0, 0, 0, err
	}
	switch {
	case isSpan:
		hi, err = f.value(last)
	case stepped:
		hi = max(lo, f.top())
	default:
		hi = lo
	}
	return lo, hi, step, err
}

// top is the greatest value, without the second number of Sunday.
func (f cronField) top() int {
	if f.max == 7 {
		return 6
	}
	return f.max
}

func (f cronField) value(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(name, text) {
			return f.min + i, nil
		}
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < f.min || v > f.max || text[0] == '+' {
		what := fmt.Sprintf("a number from %d to %d", f.min, f.max)
		if f.names != nil {
			what += fmt.Sprintf(" or a name such as %s", f.names[1])
		}
		return 0, fmt.Errorf("%q is not %s", text, what)
	}
	return v, nil
}

// longest has the days of each month in a leap year.
var longest = [...]int{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// possible is false for the 31st of February and the like.
func (c cron) possible() bool {
	if c.either {
		return true
	}
	for month := 1; month <= 12; month++ {
		if c.month&(1<<month) != 0 && c.dom&(1<<(longest[month]+1)-1) != 0 {
			return true
		}
	}
	return false
}

// last returns the latest minute of the schedule from floor to wall, both in
// seconds of the clock on the wall.
func (c cron) last(wall, floor int64) (int64, bool) {
	today := floorDiv(wall, day)
	hour, minute := int(wall-today*day)/3600, int(wall-today*day)/60%60
	for d := today; d >= floorDiv(floor, day); {
		date := time.Unix(d*day, 0).UTC()
		switch {
		case c.month&(1<<date.Month()) == 0:
			d -= int64(date.Day()) // to the end of the month before
			hour, minute = 23, 59
			continue
		case c.onDay(date):
			if m, found := c.lastMinute(hour, minute); found {
				start := d*day + m*60
				return start, start >= floor
			}
		}
		d--
		hour, minute = 23, 59
	}
	return 0, false
}

func (c cron) onDay(date time.Time) bool {
	dom := c.dom&(1<<date.Day()) != 0
	dow := c.dow&(1<<date.Weekday()) != 0
	if c.either {
		return dom || dow
	}
	return dom && dow
}

// lastMinute returns the latest minute of a day that is not after hour:minute.
func (c cron) lastMinute(hour, minute int) (int64, bool) {
	if c.hour&(1<<hour) != 0 {
		if m := upTo(c.minute, minute); m >= 0 {
			return int64(hour*60 + m), true
		}
	}
	h := upTo(c.hour, hour-1)
	if h < 0 {
		return 0, false
	}
	return int64(h*60 + upTo(c.minute, 59)), true
}

// upTo returns the greatest value in mask that is not above n, or -1.
func upTo(mask uint64, n int) int {
	return bits.Len64(mask&(1<<(n+1)-1)) - 1
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
