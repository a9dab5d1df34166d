package schedule

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Limits of schedules.
const (
	MaxEvery = 1<<31 - 1 // seconds
	MaxLine  = 512       // bytes
)

// yearsAhead is how far ahead a slot is looked for: 29 February is missing for eight years around 2100.
const yearsAhead = 9

// Schedule says when slots are. The zero Schedule has none.
type Schedule struct {
	every, offset int64 // seconds; every is 0 for a line

	minute, hour, dom, month, dow uint64 // a bit for each value; Sunday is 0
	allDays                       bool   // the day of the month or the weekday is *, so both must match
	elapsed                       bool   // the hour is * or */n: the slots go by elapsed time through a clock change
	zone                          *time.Location
}

// Every has a slot each so many seconds (1 to MaxEvery), counted from 1970, plus an offset (0 to every-1).
func Every(every, offset int64) Schedule { return Schedule{every: every, offset: offset} }

// shorthands are lines that have names.
var shorthands = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
}

// fields are those of a line, in their order.
var fields = [...]struct {
	name   string
	option cron.ParseOption
	bits   func(s *cron.SpecSchedule) uint64
}{
	{"minute", cron.Minute, func(s *cron.SpecSchedule) uint64 { return s.Minute }},
	{"hour", cron.Hour, func(s *cron.SpecSchedule) uint64 { return s.Hour }},
	{"day of the month", cron.Dom, func(s *cron.SpecSchedule) uint64 { return s.Dom }},
	{"month", cron.Month, func(s *cron.SpecSchedule) uint64 { return s.Month }},
	{"weekday", cron.Dow, func(s *cron.SpecSchedule) uint64 { return s.Dow }},
}

const star = 1 << 63 // the parser's mark of a *

// Line parses a line of cron: five fields, minutes first, or a shorthand such as @daily. zone is a name of the time zone database; empty:
// UTC. The errors name the field, or the zone, that is wrong.
func Line(line, zone string) (s Schedule, err error) {
	if s.zone, err = zoneNamed(zone); err != nil {
		return s, err
	}
	if len(line) > MaxLine {
		return s, fmt.Errorf("LINE has %d bytes, at most %d are possible", len(line), MaxLine)
	}
	if plain, known := shorthands[strings.ToLower(line)]; known {
		line = plain
	}
	texts := strings.Fields(line)
	if len(texts) != len(fields) {
		return s, fmt.Errorf("LINE must have five fields: minute, hour, day of the month, month, weekday; or be one of @hourly, @daily, @weekly, @monthly and @yearly")
	}
	var parsed [len(fields)]uint64
	for i, text := range texts {
		if parsed[i], err = field(i, text); err != nil {
			return s, err
		}
	}
	s.minute, s.hour, s.dom, s.month, s.dow = parsed[0], parsed[1], parsed[2], parsed[3], parsed[4]
	s.elapsed = strings.HasPrefix(texts[1], "*")
	s.allDays = strings.HasPrefix(texts[2], "*") || strings.HasPrefix(texts[4], "*")
	return s, nil
}

// field parses one field of a line.
func field(i int, text string) (parsed uint64, err error) {
	f := &fields[i]
	wrong := func(why any) error { return fmt.Errorf("LINE has a wrong %s, %.40q: %v", f.name, text, why) }
	for _, c := range []byte(text) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '*' || c == ',' || c == '-' || c == '/') {
			return 0, wrong("only numbers, names and * , - / are possible")
		}
	}
	for _, part := range strings.Split(text, ",") {
		if part == "" {
			return 0, wrong("a part of the list is empty")
		}
		sunday := false
		if f.option == cron.Dow {
			part, sunday = sevenAsSunday(part)
		}
		if part != "" {
			spec, err := cron.NewParser(f.option).Parse(part)
			if err != nil {
				return 0, wrong(err)
			}
			parsed |= f.bits(spec.(*cron.SpecSchedule)) &^ star
		}
		if sunday {
			parsed |= 1
		}
	}
	return parsed, nil
}

// sevenAsSunday takes a 7 out of a weekday, which the parser doesn't know: 7 alone, or at the end of a range. sunday says whether the part
// includes it.
func sevenAsSunday(part string) (rest string, sunday bool) {
	days, step, stepped := strings.Cut(part, "/")
	from, to, ranged := strings.Cut(days, "-")
	first := slices.Index(weekdays, strings.ToLower(from)) % 8
	switch {
	case from == "7" && (!ranged || to == "7"):
		return "", true
	case !ranged || to != "7" || first < 0 || from == "7":
		return part, false
	}
	every := 1
	if stepped {
		every, _ = strconv.Atoi(step)
	}
	return strings.TrimSuffix(from+"-6/"+step, "/"), every > 0 && (7-first)%every == 0
}

var weekdays = []string{"0", "1", "2", "3", "4", "5", "6", "7", "sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// Next is the first slot after a time, both in unix seconds. False: there is none.
func (s *Schedule) Next(after int64) (slot int64, ok bool) {
	switch {
	case s.every > 0:
		n := (after - s.offset) / s.every
		if (after-s.offset)%s.every < 0 {
			n--
		}
		return (n+1)*s.every + s.offset, true
	case s.zone == nil:
		return 0, false
	case s.elapsed:
		return s.nextElapsed(after)
	}
	return s.nextLocal(after)
}

// IsEvery says whether the slots are so many seconds apart, and how many.
func (s *Schedule) IsEvery() (every int64, yes bool) { return s.every, s.every > 0 }

// matches says whether the slots' days include a date.
func (s *Schedule) matches(date time.Time) bool {
	if s.month&(1<<date.Month()) == 0 {
		return false
	}
	dom, dow := s.dom&(1<<date.Day()) != 0, s.dow&(1<<date.Weekday()) != 0
	if s.allDays {
		return dom && dow
	}
	return dom || dow
}

// date is a local date, as midnight UTC.
func date(t time.Time) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// nextDate is the first date from one on that matches.
func (s *Schedule) nextDate(from time.Time) (time.Time, bool) {
	for last := from.Year() + yearsAhead; from.Year() <= last; {
		switch {
		case s.month&(1<<from.Month()) == 0:
			from = time.Date(from.Year(), from.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		case s.matches(from):
			return from, true
		default:
			from = from.AddDate(0, 0, 1)
		}
	}
	return from, false
}

// nextLocal is Next where each slot is a local time: one that comes twice counts the first time, and for one that is skipped the first
// minute after it counts.
func (s *Schedule) nextLocal(after int64) (slot int64, ok bool) {
	// The slots of a date that is skipped as a whole are those of the next one's first minute.
	day := date(time.Unix(after, 0).In(s.zone)).AddDate(0, 0, -1)
	for {
		if day, ok = s.nextDate(day); !ok {
			return 0, false
		}
		for hours := s.hour; hours != 0; hours &= hours - 1 {
			h := bits.TrailingZeros64(hours)
			if s.local(day, h, 63-bits.LeadingZeros64(s.minute)) <= after {
				continue // its last slot is past
			}
			for minutes := s.minute; minutes != 0; minutes &= minutes - 1 {
				if slot = s.local(day, h, bits.TrailingZeros64(minutes)); slot > after {
					return slot, true
				}
			}
		}
		day = day.AddDate(0, 0, 1)
	}
}

// local is when the clocks of the zone show a time first, unix seconds; if they skip it, the first minute after it.
func (s *Schedule) local(date time.Time, hour, minute int) int64 {
	shown := date.Unix() + int64(hour)*3600 + int64(minute)*60 // as if it were UTC
	t := time.Unix(shown, 0).In(s.zone)
	from, to := t.Add(-24*time.Hour), t.Add(24*time.Hour)
	_, before := from.Zone()
	_, after := to.Zone()
	early, late := shown-int64(max(before, after)), shown-int64(min(before, after))
	if before == after {
		return early
	}
	for _, at := range [...]int64{early, late} {
		if _, offset := time.Unix(at, 0).In(s.zone).Zone(); at+int64(offset) == shown {
			return at
		}
	}
	// It is skipped: the clocks are set forward between early and late.
	change, _ := time.Unix(late, 0).In(s.zone).ZoneBounds()
	return (change.Unix() + 59) / 60 * 60
}

// nextElapsed is Next where each moment counts at which the zone's clocks show a time that matches.
func (s *Schedule) nextElapsed(after int64) (slot int64, ok bool) {
	t := time.Unix(after+1, 0).In(s.zone)
	if sec := t.Second(); sec != 0 {
		t = t.Add(time.Duration(60-sec) * time.Second)
	}
	for last := t.Year() + yearsAhead; t.Year() <= last; {
		day, found := s.nextDate(date(t))
		if !found {
			return 0, false
		}
		if today := date(t); day != today {
			// Clocks may be set just then, so the way is cut in two: to an hour before, then by minutes and hours.
			if ahead := day.Sub(today) - 25*time.Hour; ahead > 24*time.Hour {
				t = t.Add(ahead)
				t = t.Add(-time.Duration(t.Minute()) * time.Minute)
				continue
			}
			t = s.nextHour(t)
			continue
		}
		if s.hour&(1<<t.Hour()) == 0 {
			t = s.nextHour(t)
			continue
		}
		if s.minute&(1<<t.Minute()) != 0 {
			return t.Unix(), true
		}
		t = t.Add(time.Minute)
	}
	return 0, false
}

// nextHour is the next moment at which the clocks show a full hour, or are set.
func (s *Schedule) nextHour(t time.Time) time.Time {
	next := t.Add(time.Duration(60-t.Minute()) * time.Minute)
	if _, change := t.ZoneBounds(); !change.IsZero() && change.Before(next) {
		if next = change; next.Second() != 0 {
			next = next.Add(time.Duration(60-next.Second()) * time.Second)
		}
	}
	return next.In(s.zone)
}

// Slots are the first n slots after a time.
func (s *Schedule) Slots(after int64, n int) (slots []int64) {
	for len(slots) < n {
		slot, ok := s.Next(after)
		if !ok {
			break
		}
		slots, after = append(slots, slot), slot
	}
	return slices.Clip(slots)
}
