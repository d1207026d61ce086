package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"
)

func mustWindow(tb testing.TB, schedule, duration, zone string) *window {
	tb.Helper()
	c, err := parseCron(schedule)
	if err != nil {
		tb.Fatal(err)
	}
	d, err := parseDuration(duration)
	if err != nil {
		tb.Fatal(err)
	}
	z, err := loadZone(zone)
	if err != nil {
		tb.Fatal(err)
	}
	return &window{c, d, z}
}

func instant(tb testing.TB, text string) time.Time {
	tb.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		tb.Fatal(err)
	}
	return at
}

func TestWindow(t *testing.T) {
	cases := map[string]struct {
		reason                   string
		schedule, duration, zone string
		now                      string
		want                     string // "" for closed
	}{
		"Open":         {"a window is open from its start", "0 18 * * FRI", "60h", "UTC", "2026-01-02T18:00:00Z", "2026-01-05T06:00:00Z"},
		"Before":       {"but not before", "0 18 * * FRI", "60h", "UTC", "2026-01-02T17:59:59Z", ""},
		"Last":         {"up to its last moment", "0 18 * * FRI", "60h", "UTC", "2026-01-05T05:59:59Z", "2026-01-05T06:00:00Z"},
		"Closed":       {"which is not its end", "0 18 * * FRI", "60h", "UTC", "2026-01-05T06:00:00Z", ""},
		"Overlap":      {"of windows that overlap the latest counts", "0 * * * *", "150m", "UTC", "2026-01-01T12:10:00Z", "2026-01-01T14:30:00Z"},
		"Always":       {"a window that lasts as long as its period never closes", "0 0 * * *", "24h", "UTC", "2026-01-01T23:59:59Z", "2026-01-02T00:00:00Z"},
		"Skipped":      {"the skipped hour: it opens when the clocks have jumped", "30 1 * * *", "1h", "Europe/London", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		"SkippedNot":   {"and not before", "30 1 * * *", "1h", "Europe/London", "2026-03-29T00:59:59Z", ""},
		"Doubled":      {"the doubled hour: it opens the first time", "30 1 * * *", "10m", "Europe/London", "2026-10-25T00:30:00Z", "2026-10-25T00:40:00Z"},
		"DoubledOnce":  {"and not a second time", "30 1 * * *", "10m", "Europe/London", "2026-10-25T01:30:00Z", ""},
		"DoubledAfter": {"and goes on with the hour after", "*/30 * * * *", "1m", "Europe/London", "2026-10-25T02:00:00Z", "2026-10-25T02:01:00Z"},
		"Elapsed":      {"a duration is time that passes, whatever the clocks show", "0 18 * * SAT", "12h", "Europe/London", "2026-03-28T20:00:00Z", "2026-03-29T06:00:00Z"},
		"HalfHour":     {"half an hour is skipped on Lord Howe Island", "15 2 * * *", "5m", "Australia/Lord_Howe", "2026-10-03T15:30:00Z", "2026-10-03T15:35:00Z"},
		"Midnight":     {"midnight is skipped in São Paulo", "0 0 * * *", "5m", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:05:00Z"},
		"WholeDay":     {"a day is skipped in Samoa", "0 12 30 12 *", "5m", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:05:00Z"},
		"Quarter":      {"Nepal is 5:45 ahead", "45 5 * * *", "5m", "Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"},
		"LeapDay":      {"the 29th of February comes every four years", "0 0 29 2 *", "24h", "UTC", "2028-02-29T12:00:00Z", "2028-03-01T00:00:00Z"},
		"NoLeapDay":    {"and not in between", "0 0 29 2 *", "24h", "UTC", "2026-03-01T00:00:00Z", ""},
		"MonthEnd":     {"the 31st comes in some months", "0 0 31 * *", "72h", "UTC", "2026-05-02T00:00:00Z", ""},
		"MonthEndIs":   {"such as this", "0 0 31 * *", "72h", "UTC", "2026-06-02T00:00:00Z", "2026-06-03T00:00:00Z"},
		"AcrossMonths": {"a window of another month is open still", "0 0 31 12 *", "72h", "UTC", "2026-01-02T12:00:00Z", "2026-01-03T00:00:00Z"},
		"Year":         {"the longest window", "0 0 1 1 *", "8784h", "UTC", "2026-12-31T23:59:59Z", "2027-01-02T00:00:00Z"},
		"DateOrDay":    {"a date and a weekday: either", "0 0 13 * FRI", "1h", "UTC", "2026-01-13T00:00:00Z", "2026-01-13T01:00:00Z"},
		"DateOrDay2":   {"a date and a weekday: or", "0 0 13 * FRI", "1h", "UTC", "2026-01-16T00:00:00Z", "2026-01-16T01:00:00Z"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			until, open := mustWindow(t, tc.schedule, tc.duration, tc.zone).until(instant(t, tc.now))
			got := ""
			if open {
				got = until.UTC().Format(time.RFC3339)
			}
			if got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// schedules are written for the hours in which clocks are moved.
var schedules = []struct{ schedule, duration string }{
	{"30 1 * * *", "1h"}, {"30 2 * * *", "20m"}, {"0 0 * * *", "24h"}, {"*/20 * * * *", "7m"},
	{"15 1,2,3 * * *", "30h"}, {"0 18 * * FRI", "60h"}, {"59 23 * * *", "2m"}, {"0 0 28,29,31 * *", "25h"},
	{"7-50/9 0-4 * * SUN", "5m"}, {"0 3 * * *", "1h"}, {"0 */5 1 * MON", "90m"}, {"* * * * *", "1s"},
}

// TestWindowAgainstWalk compares the arithmetic with a walk from minute to
// minute, around everything that clocks do in some years of some zones.
func TestWindowAgainstWalk(t *testing.T) {
	years := map[string][]int{
		"Europe/London": {2026}, "America/New_York": {2026, 2027}, "Australia/Lord_Howe": {2026},
		"Asia/Kathmandu": {1986, 2026}, "UTC": {2028}, "America/Sao_Paulo": {2018}, "Africa/Casablanca": {2026},
		"America/St_Johns": {2006}, "Pacific/Apia": {2011}, "Antarctica/Troll": {2026}, "Europe/Dublin": {2026},
	}
	for zone, years := range years {
		for _, year := range years {
			t.Run(fmt.Sprintf("%s/%d", zone, year), func(t *testing.T) {
				location := mustWindow(t, "* * * * *", "1s", zone).zone
				for _, from := range interesting(location, year) {
					for _, s := range schedules {
						checkSpan(t, mustWindow(t, s.schedule, s.duration, zone), s.schedule, from.AddDate(0, 0, -4), from.AddDate(0, 0, 2))
					}
				}
			})
		}
	}
}

// interesting are the ends of two months and every jump of the clocks.
func interesting(zone *time.Location, year int) []time.Time {
	list := []time.Time{time.Date(year, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(year, 12, 31, 0, 0, 0, 0, time.UTC)}
	for at := time.Date(year, 1, 1, 0, 0, 0, 0, zone); ; {
		_, end := at.ZoneBounds()
		if end.IsZero() || end.Year() > year {
			return list
		}
		list = append(list, end.UTC())
		at = end
	}
}

// checkSpan asks about every moment at which something may change, and some
// others.
func checkSpan(t *testing.T, w *window, schedule string, from, to time.Time) {
	t.Helper()
	starts := walk(w, from, to)
	var ask []time.Time
	for _, s := range starts {
		ask = append(ask, s.Add(-time.Second), s, s.Add(w.duration-time.Second), s.Add(w.duration))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		ask = append(ask, from.Add(time.Duration(random.Int64N(int64(to.Sub(from))))))
	}
	for _, now := range ask {
		if now.Before(from.Add(w.duration)) || !now.Before(to) {
			continue // a start before the span may count
		}
		i := sort.Search(len(starts), func(i int) bool { return starts[i].After(now) }) - 1
		wantOpen := i >= 0 && now.Before(starts[i].Add(w.duration))
		until, open := w.until(now)
		if open != wantOpen || open && !until.Equal(starts[i].Add(w.duration)) {
			t.Fatalf("%s for %s at %s: open %t until %s; want %t", schedule, w.duration, now.In(w.zone), open, until.In(w.zone), wantOpen)
		}
	}
}

// walk lists the starts of a window: minutes that match and that a clock on the
// wall shows, or skips, for the first time.
func walk(w *window, from, to time.Time) []time.Time {
	matches := func(wall time.Time) bool {
		return w.cron.minute>>wall.Minute()&1 == 1 && w.cron.hour>>wall.Hour()&1 == 1 &&
			w.cron.month>>wall.Month()&1 == 1 && w.cron.onDay(wall)
	}
	wallAt := func(at time.Time) time.Time {
		_, offset := at.In(w.zone).Zone()
		return at.UTC().Add(time.Duration(offset) * time.Second)
	}
	var starts []time.Time
	shown := wallAt(from.Add(-time.Minute))
	for at := from; at.Before(to); at = at.Add(time.Minute) {
		wall, start := wallAt(at), false
		for shown.Before(wall) {
			shown = shown.Add(time.Minute)
			start = start || matches(shown)
		}
		if start {
			starts = append(starts, at)
		}
	}
	return starts
}

func TestWalkFindsJumps(t *testing.T) {
	london := mustWindow(t, "30 1 * * *", "1h", "Europe/London")
	got := walk(london, instant(t, "2026-03-28T00:00:00Z"), instant(t, "2026-03-31T00:00:00Z"))
	want := []time.Time{instant(t, "2026-03-28T01:30:00Z"), instant(t, "2026-03-29T01:00:00Z"), instant(t, "2026-03-30T00:30:00Z")}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseCron(t *testing.T) {
	cases := map[string]struct {
		text string
		want cron
	}{
		"Stars":   {"* * * * *", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 1<<7 - 1, false}},
		"Numbers": {"5 6 7 8 2", cron{1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 2, true}},
		"Lists":   {"1,2,3 0,23 * * *", cron{0b1110, 1 | 1<<23, 1<<32 - 2, 1<<13 - 2, 1<<7 - 1, false}},
		"Ranges":  {"1-3 * * JAN-mar *", cron{0b1110, 1<<24 - 1, 1<<32 - 2, 0b1110, 1<<7 - 1, false}},
		"Steps":   {"*/20 1-10/4 * * *", cron{1 | 1<<20 | 1<<40, 1<<1 | 1<<5 | 1<<9, 1<<32 - 2, 1<<13 - 2, 1<<7 - 1, false}},
		"Open":    {"50/5 * * * *", cron{1<<50 | 1<<55, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 1<<7 - 1, false}},
		"Sunday":  {"* * * * 7", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 1, false}},
		"Round":   {"* * * * FRI-MON", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 0b1100011, false}},
		"ToSun":   {"* * * * FRI-SUN", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 0b1100001, false}},
		"DowStep": {"* * * * */2", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 0b1010101, false}},
		"Either":  {"* * 13 * fri", cron{1<<60 - 1, 1<<24 - 1, 1 << 13, 1<<13 - 2, 1 << 5, true}},
		"OneStep": {"* * */1 * 1", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 2, false}},
		"Mark":    {"* * ? * ?", cron{1<<60 - 1, 1<<24 - 1, 1<<32 - 2, 1<<13 - 2, 1<<7 - 1, false}},
		"Spaces":  {" 0\t0  1 1 * ", cron{1, 1, 2, 2, 1<<7 - 1, false}},
		"Feb29":   {"0 0 29 2 *", cron{1, 1, 1 << 29, 4, 1<<7 - 1, false}},
		"OrDay":   {"0 0 31 2 MON", cron{1, 1, 1 << 31, 4, 2, true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := parseCron(tc.text); err != nil || got != tc.want {
				t.Errorf("%s: got %+v, %v, want %+v", tc.text, got, err, tc.want)
			}
		})
	}
}

func TestParseCronErrors(t *testing.T) {
	cases := map[string]string{
		"":                             "0 fields",
		"* * * *":                      "4 fields",
		"* * * * * *":                  "6 fields",
		"@daily":                       "1 fields",
		"TZ=UTC 0 0 * * *":             "6 fields",
		"60 * * * *":                   `minute: "60" is not a number from 0 to 59`,
		"* 24 * * *":                   `hour: "24"`,
		"* * 0 * *":                    `day of month: "0"`,
		"* * 32 * *":                   `day of month: "32"`,
		"* * * 13 *":                   `month: "13" is not a number from 1 to 12 or a name such as FEB`,
		"* * * * 8":                    `day of week: "8"`,
		"* * * * FRY":                  `day of week: "FRY"`,
		", * * * *":                    `minute: ""`,
		"1, * * * *":                   `minute: ""`,
		"5-3 * * * *":                  `minute: "5-3" runs backwards`,
		"* * * NOV-FEB *":              `month: "NOV-FEB" runs backwards`,
		"*/0 * * * *":                  `minute: "0" is not a step`,
		"*/60 * * * *":                 `minute: "60" is not a step from 1 to 59`,
		"*/-1 * * * *":                 `minute: "-1" is not a step`,
		"*-5 * * * *":                  `minute: "*"`,
		"1-2-3 * * * *":                `minute: "2-3"`,
		"1/2/3 * * * *":                `minute: "2/3" is not a step`,
		"-1 * * * *":                   `minute: ""`,
		"+1 * * * *":                   `minute: "+1"`,
		"0x1 * * * *":                  `minute: "0x1"`,
		"0 0 31 2 *":                   "no such day exists",
		"0 0 30,31 FEB *":              "no such day exists",
		"0 0 31 4,6,9,11 *":            "no such day exists",
		"61 25 * * *":                  `hour: "25"`,
		"99999999999999999999 * * * *": `minute: "99999999999999999999"`,
	}
	for text, want := range cases {
		if _, err := parseCron(text); err == nil || !contains(err, want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]string{
		"60h": "", "1h30m": "", "1s": "", "8784h": "",
		"": "not a duration", "2d": "a day is 24h", "60": "not a duration", "0s": "at least", "-1h": "at least",
		"999ms": "at least", "8784h1s": "at most", "9999999999h": "not a duration",
	} {
		_, err := parseDuration(text)
		if (err == nil) != (want == "") || err != nil && !contains(err, want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestLoadZone(t *testing.T) {
	for name, known := range map[string]bool{
		"UTC": true, "Europe/London": true, "America/Argentina/Buenos_Aires": true,
		"": false, "Local": false, "Mars/Olympus": false, "../etc/passwd": false, "/etc/localtime": false,
	} {
		if _, err := loadZone(name); (err == nil) != known {
			t.Errorf("%q: %v", name, err)
		}
	}
}
