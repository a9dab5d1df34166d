package schedule_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/schedule"
)

// slots lists the slots of a line on some days, as the zone's clocks show them.
func slots(t *testing.T, line, zone, from, to string) (shown []string) {
	s, err := schedule.Line(line, zone)
	require.NoError(t, err)
	at, end := moment(t, from), moment(t, to)
	loc := location(t, zone)
	for at--; ; {
		slot, ok := s.Next(at)
		if !ok || slot >= end {
			return shown
		}
		require.Greater(t, slot, at)
		shown, at = append(shown, time.Unix(slot, 0).In(loc).Format("02 15:04 -07")), slot
	}
}

func moment(t *testing.T, text string) int64 {
	at, err := time.Parse("2006-01-02 15:04 -0700", text)
	require.NoError(t, err)
	return at.Unix()
}

func location(t testing.TB, zone string) *time.Location {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Skip("this machine has no zones to compare with: ", err)
	}
	return loc
}

// The clocks of Berlin are set forward on 30 March 2025 at 2:00, and back on 26 October at 3:00.
func TestLifeT7(t *testing.T) {
	assert.Equal(t, []string{"29 02:30 +01", "30 03:00 +02", "31 02:30 +02"}, slots(t, "30 2 * * *", "Europe/Berlin", "2025-03-29 00:00 +0100", "2025-04-01 00:00 +0200"))
	assert.Equal(t, []string{"25 02:30 +02", "26 02:30 +02", "27 02:30 +01"}, slots(t, "30 2 * * *", "Europe/Berlin", "2025-10-25 00:00 +0200", "2025-10-28 00:00 +0100"))
	assert.Len(t, slots(t, "0 * * * *", "Europe/Berlin", "2025-03-30 00:00 +0100", "2025-03-31 00:00 +0200"), 23)
	assert.Len(t, slots(t, "0 * * * *", "Europe/Berlin", "2025-10-26 00:00 +0200", "2025-10-27 00:00 +0100"), 25)
	assert.Equal(t, []string{"30 03:00 +02"}, slots(t, "*/10 2 * * *", "Europe/Berlin", "2025-03-30 00:00 +0100", "2025-03-31 00:00 +0200"), "skipped times are one moment")
	assert.Len(t, slots(t, "*/30 0-23 * * *", "Europe/Berlin", "2025-10-26 00:00 +0200", "2025-10-27 00:00 +0100"), 48, "each local time once")
	assert.Equal(t, []string{"31 00:00 +14"}, slots(t, "0 12 30 12 *", "Pacific/Apia", "2011-12-29 00:00 -1000", "2012-01-02 00:00 +1400"), "a date that is skipped")
	assert.Equal(t, []string{"06 02:30 +11"}, slots(t, "15 2 * * *", "Australia/Lord_Howe", "2024-10-06 00:00 +1030", "2024-10-07 00:00 +1100"), "half an hour")
}

func TestLines(t *testing.T) {
	from, to := "2025-01-01 00:00 +0000", "2025-01-20 00:00 +0000"
	for line, days := range map[string][]string{
		"0 0 * * 7":       {"05 00:00 +00", "12 00:00 +00", "19 00:00 +00"},
		"0 0 * * SUN":     {"05 00:00 +00", "12 00:00 +00", "19 00:00 +00"},
		"0 0 * * 6-7":     {"04 00:00 +00", "05 00:00 +00", "11 00:00 +00", "12 00:00 +00", "18 00:00 +00", "19 00:00 +00"},
		"0 0 * * mon-7/6": {"05 00:00 +00", "06 00:00 +00", "12 00:00 +00", "13 00:00 +00", "19 00:00 +00"},
		"0 0 13 * fri":    {"03 00:00 +00", "10 00:00 +00", "13 00:00 +00", "17 00:00 +00"},
		"0 0 */2 1 5":     {"03 00:00 +00", "17 00:00 +00"},
		"5 4 1,8 jan *":   {"01 04:05 +00", "08 04:05 +00"},
		"@weekly":         {"05 00:00 +00", "12 00:00 +00", "19 00:00 +00"},
		"@monthly":        {"01 00:00 +00"},
		"0 1-23/20 7 1 *": {"07 01:00 +00", "07 21:00 +00"},
	} {
		assert.Equal(t, days, slots(t, line, "UTC", from, to), line)
	}
}

func TestWrongLines(t *testing.T) {
	for line, why := range map[string]string{
		"":                 "five fields",
		"* * * *":          "five fields",
		"@every 5m":        "five fields",
		"60 * * * *":       "minute",
		"* 24 * * *":       "hour",
		"* * 0 * *":        "day of the month",
		"* * * 13 *":       "month",
		"* * * * 8":        "weekday",
		"* * * * 5-8":      "weekday",
		"1,,2 * * * *":     "minute",
		", * * * *":        "minute",
		"TZ=x * * * *":     "minute",
		"CRON_TZ= * * * *": "minute",
		"*/0 * * * *":      "minute",
		"? * * * *":        "minute",
		"+5 * * * *":       "minute",
		"5-1 * * * *":      "minute",
		"* * * * 3-7/0":    "weekday",
	} {
		_, err := schedule.Line(line, "")
		assert.ErrorContains(t, err, why, line)
	}
	for _, zone := range []string{"Mars", "Local", "../x", "Europe", "europe/berlin", "Europe/"} {
		_, err := schedule.Line("* * * * *", zone)
		assert.ErrorContains(t, err, "there is no time zone", zone)
	}
}

// A client's line can't have a step that isn't kept. Those that are as great as there are values come once, as they always did.
func TestGreatSteps(t *testing.T) {
	for line, why := range map[string]string{
		"*/60 */24 */31 */12 */7":         "",
		"0,5-50/10 1-5/2 * jan-dec/3 1/7": "",
		"@daily":                          "",
		"*/61 * * * *":                    "minute",
		"*/9223372036854775807 * * * *":   "minute",
		"* 1,5/25 * * *":                  "hour",
		"* * 1-31/32 * *":                 "day of the month",
		"* * * */13 *":                    "month",
		"* * * * mon-7/8":                 "weekday",
	} {
		s, err := schedule.Line(line, "")
		assert.NoError(t, err, line)
		_, comes := s.Next(0)
		assert.True(t, comes, line)
		if err = schedule.CheckSteps(line); why == "" {
			assert.NoError(t, err, line)
		} else {
			assert.ErrorContains(t, err, why, line)
		}
	}
}

// A line that never comes is found out soon, and one of 29 February also over the years without it.
func TestSeldom(t *testing.T) {
	for _, line := range []string{"0 0 30 2 *", "0 * 31 4,6 *"} {
		s, err := schedule.Line(line, "Europe/Berlin")
		require.NoError(t, err)
		_, ok := s.Next(0)
		assert.False(t, ok, line)
	}
	for _, line := range []string{"0 0 29 2 *", "0 * 29 2 *"} {
		s, err := schedule.Line(line, "UTC")
		require.NoError(t, err)
		slot, ok := s.Next(moment(t, "2096-03-01 00:00 +0000"))
		assert.True(t, ok)
		assert.Equal(t, moment(t, "2104-02-29 00:00 +0000"), slot)
	}
}

// The last days of far years, which are those of a rule.
func TestFarYears(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"} {
		for _, line := range []string{"0 */6 * * *", "0 0,6,12,18 * * *"} {
			s, err := schedule.Line(line, zone)
			require.NoError(t, err)
			slots := s.Slots(moment(t, "2048-12-20 00:00 +0000"), 20*4)
			assert.Equal(t, int64(80), s.Count(moment(t, "2048-12-20 00:00 +0000"), slots[79]))
			for i := 1; i < len(slots); i++ {
				require.Equal(t, int64(6*3600), slots[i]-slots[i-1], zone)
			}
		}
	}
}

func TestEvery(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		every := rapid.Int64Range(1, 5000).Draw(r, "every")
		s := schedule.Every(every, rapid.Int64Range(0, every-1).Draw(r, "offset"))
		after, span := rapid.Int64Range(0, 10_000).Draw(r, "after"), rapid.Int64Range(0, 10_000).Draw(r, "span")
		var all []int64
		for at, _ := s.Next(after); at <= after+span; at, _ = s.Next(at) {
			all = append(all, at)
		}
		assert.Equal(r, int64(len(all)), s.Count(after, after+span))
		most := rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(r, "most")
		newest, _ := s.Newest(after, after+span, most)
		assert.Equal(r, fmt.Sprint(all[max(len(all)-most, 0):]), fmt.Sprint(newest))
	})
	s := schedule.Every(60, 5)
	assert.Equal(t, []int64{5, 65, 125}, s.Slots(4, 3))
	assert.Equal(t, []int64{65}, s.Slots(5, 1))
	assert.Equal(t, []int64{-55, 5}, s.Slots(-60, 2))
}

// Each zone can be read, and Next finds each slot that a look at each minute finds.
func TestZones(t *testing.T) {
	names := schedule.ZoneNames()
	require.Greater(t, len(names), 500)
	for _, name := range names {
		_, err := schedule.Line("* * * * *", name)
		require.NoError(t, err)
	}
}

func TestNextFindsEach(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kolkata", "Africa/Casablanca", "America/Havana", "UTC"}
	lines := []string{"*/7 * * * *", "0 */3 * * *", "15,45 0-3 * * *", "30 2 * 3,10,11 *", "0 0 * * *", "59 23 1-7 * sun", "1 1,2,3 * * *"}
	rapid.Check(t, func(r *rapid.T) {
		zone, line := rapid.SampledFrom(zones).Draw(r, "zone"), rapid.SampledFrom(lines).Draw(r, "line")
		s, err := schedule.Line(line, zone)
		require.NoError(r, err)
		// Days around the changes of the clocks are the likeliest.
		day := rapid.Int64Range(13000, 20500).Draw(r, "day")
		loc := location(t, zone)
		if _, change := time.Unix(day*86400, 0).In(loc).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(r, "change") {
			day = change.Unix()/86400 - 1
		}
		from, to := day*86400, (day+3)*86400
		var all []int64
		for at := from; ; {
			slot, ok := s.Next(at)
			if !ok || slot > to {
				break
			}
			all, at = append(all, slot), slot
		}
		assert.Equal(r, all, slow(loc, line, from, to))
		after := rapid.Int64Range(from, to).Draw(r, "after")
		until := rapid.Int64Range(after-1, to).Draw(r, "until")
		some := slices.DeleteFunc(all, func(at int64) bool { return at <= after || at > until })
		assert.Equal(r, int64(len(some)), s.Count(after, until))
		most := rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(r, "most")
		newest, count := s.Newest(after, until, most)
		assert.Equal(r, int64(len(some)), count)
		assert.Equal(r, fmt.Sprint(some[max(len(some)-most, 0):]), fmt.Sprint(newest))
	})
}

// slow finds the slots of a line by a look at each minute that the clocks show, and at each that they skip.
func slow(loc *time.Location, line string, from, to int64) (all []int64) {
	plain, err := schedule.Line(line, "UTC")
	if err != nil {
		panic(err)
	}
	matches := func(shown int64) bool { s, ok := plain.Next(shown - 1); return ok && s == shown }
	elapsed := line[:4] == "*/7 " || line == "0 */3 * * *"
	seen := map[int64]bool{}
	begin := from - 3*86400
	_, before := time.Unix(begin, 0).In(loc).Zone()
	for at := begin; at <= to; at += 60 {
		_, offset := time.Unix(at, 0).In(loc).Zone()
		hit := false
		for shown := at + int64(before); !elapsed && shown < at+int64(offset); shown += 60 {
			hit = hit || matches(shown) && !seen[shown]
			seen[shown] = true
		}
		before = offset
		shown := at + int64(offset)
		hit = hit || matches(shown) && (elapsed || !seen[shown])
		if seen[shown] = true; hit && at > from {
			all = append(all, at)
		}
	}
	return all
}

// The days of a line, month by month and over many years, against a look at each day. Count and Newest say what Next finds.
func TestDays(t *testing.T) {
	for line, matches := range map[string]func(at time.Time) bool{
		"0 0 31 * *":       func(at time.Time) bool { return at.Day() == 31 },
		"0 0 29 2 *":       func(at time.Time) bool { return at.Month() == 2 && at.Day() == 29 },
		"0 0 * * 1-5":      func(at time.Time) bool { return at.Weekday()%6 != 0 },
		"0 0 * 2,12 sun":   func(at time.Time) bool { return at.Month()%10 == 2 && at.Weekday() == 0 },
		"0 0 1,30 * fri":   func(at time.Time) bool { return at.Day() == 1 || at.Day() == 30 || at.Weekday() == 5 },
		"0 0 */10 1-6 sat": func(at time.Time) bool { return at.Month() <= 6 && at.Day()%10 == 1 && at.Weekday() == 6 },
		"0 0 1 1 *":        func(at time.Time) bool { return at.YearDay() == 1 },
		"0 0 * * *":        func(time.Time) bool { return true },
	} {
		s, err := schedule.Line(line, "")
		require.NoError(t, err)
		from, to := moment(t, "1999-12-30 00:00 +0000"), moment(t, "2101-03-02 00:00 +0000")
		var want []int64
		for at := from; at <= to; at += 86400 {
			if matches(time.Unix(at, 0).UTC()) {
				want = append(want, at)
			}
		}
		require.Equal(t, want, s.Slots(from-1, len(want)), line)
		for after := 0; after < len(want); after += 1 + len(want)/50 {
			for _, n := range []int{1, 7, 365, len(want) / 2} {
				if last := after + n; last < len(want) {
					assert.Equal(t, int64(n), s.Count(want[after], want[last]), line)
					assert.Equal(t, int64(n-1), s.Count(want[after], want[last]-1), line)
					assert.Equal(t, int64(n+1), s.Count(want[after]-1, want[last]), line)
					newest, _ := s.Newest(want[after], want[last], 3)
					assert.Equal(t, want[last+1-min(n, 3):last+1], newest, line)
				}
			}
		}
	}
}

// A zone's clocks are asked a few times for each year, however far it is, also on the last day of a leap year.
func TestFarYearsTakeLittle(t *testing.T) {
	s, err := schedule.Line("0 0 1 1 *", "Europe/Berlin")
	require.NoError(t, err)
	at := moment(t, "2026-06-01 00:00 +0200")
	for range 1000 {
		at, _ = s.Next(at)
	}
	assert.Equal(t, "3026-01-01 00:00 +0100", time.Unix(at, 0).In(location(t, "Europe/Berlin")).Format("2006-01-02 15:04 -0700"))
	assert.Less(t, schedule.Spans(&s), 4000)
	before := schedule.Spans(&s)
	s.Count(moment(t, "2026-06-01 00:00 +0200"), moment(t, "2126-06-01 00:00 +0200"))
	assert.Less(t, schedule.Spans(&s)-before, 400)
}

func FuzzLine(f *testing.F) {
	f.Add("*/5 0-6 * jan-mar mon-7/2", "Europe/Berlin")
	f.Add("@daily", "")
	f.Add("0 0 29 2 *", "America/Havana")
	f.Fuzz(func(t *testing.T, line, zone string) {
		s, err := schedule.Line(line, zone)
		if err != nil {
			return
		}
		if slot, ok := s.Next(1_700_000_000); ok && slot <= 1_700_000_000 {
			t.Fatal("a slot that is past", slot)
		}
	})
}

func BenchmarkNext(b *testing.B) {
	for _, line := range []string{"30 2 * * *", "*/5 * * * *", "0 0 29 2 *", "0 0 30 2 *", "59 0-23 * * *"} {
		s, err := schedule.Line(line, "Europe/Berlin")
		require.NoError(b, err)
		b.Run(line, func(b *testing.B) {
			for i := range b.N {
				s.Next(1_700_000_000 + int64(i)*61)
			}
		})
	}
}
