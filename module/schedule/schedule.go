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

// Schedule says when slots are. The zero Schedule has none. It isn't for several goroutines at once.
type Schedule struct {
	every, offset int64 // seconds; every is 0 for a line

	minute, hour, dom, month, dow uint64 // a bit for each value; Sunday is 0
	allDays                       bool   // the day of the month or the weekday is *, so both must match
	elapsed                       bool   // the hour is * or */n: the slots go by elapsed time through a clock change
	zone                          *time.Location
	span                          span // the last one that was looked at
	spans                         int  // how many were looked at
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
	values uint64 // how many it can have
	option cron.ParseOption
	bits   func(s *cron.SpecSchedule) uint64
}{
	{"minute", 60, cron.Minute, func(s *cron.SpecSchedule) uint64 { return s.Minute }},
	{"hour", 24, cron.Hour, func(s *cron.SpecSchedule) uint64 { return s.Hour }},
	{"day of the month", 31, cron.Dom, func(s *cron.SpecSchedule) uint64 { return s.Dom }},
	{"month", 12, cron.Month, func(s *cron.SpecSchedule) uint64 { return s.Month }},
	{"weekday", 7, cron.Dow, func(s *cron.SpecSchedule) uint64 { return s.Dow }},
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

func wrongField(i int, text string, why any) error {
	return fmt.Errorf("LINE has a wrong %s, %.40q: %v", fields[i].name, text, why)
}

// CheckSteps refuses a line, which [Line] can parse, with a step that is greater than the number of the field's values: minutes of */90 would be
// those of */60. Entries of former releases may have such lines, so Line takes them.
func CheckSteps(line string) error {
	for i, text := range strings.Fields(line) {
		for _, part := range strings.Split(text, ",") {
			_, step, stepped := strings.Cut(part, "/")
			if n, err := strconv.ParseUint(step, 10, 64); stepped && (err != nil || n > fields[i].values) {
				return wrongField(i, text, fmt.Sprintf("a step can't be above %d", fields[i].values))
			}
		}
	}
	return nil
}

// field parses one field of a line.
func field(i int, text string) (parsed uint64, err error) {
	f := &fields[i]
	wrong := func(why any) error { return wrongField(i, text, why) }
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
		return (floorDiv(after-s.offset, s.every)+1)*s.every + s.offset, true
	case s.zone == nil:
		return 0, false
	}
	for last := after + secondsAhead; after < last; after = s.span.end - 1 {
		day, found := s.nextDay(floorDiv(after, dayLong)-1, floorDiv(last, dayLong)+1)
		if !found {
			return 0, false
		}
		after = max(after, (day-2)*dayLong) // no clock is two days ahead; and spans are dear
		s.setSpan(after + 1)
		at, end := s.shown(after+1), min(s.span.end, last)+s.span.offset
		at, ok = s.first(at, end)
		if slot = at - s.span.offset; s.isSkip() {
			if change := minuteFrom(s.span.begin); change > after && (!ok || change < slot) && s.skips() {
				slot, ok = change, true
			}
		}
		if ok {
			return slot, true
		}
	}
	return 0, false
}

// Count is how many slots are after a time and not after another one, unix seconds. It takes less than 1 µs for each year of a line.
func (s *Schedule) Count(after, to int64) (n int64) {
	switch {
	case after >= to:
		return 0
	case s.every > 0:
		return floorDiv(to-s.offset, s.every) - floorDiv(after-s.offset, s.every)
	case s.zone == nil:
		return 0
	}
	for after < to {
		s.setSpan(after + 1)
		last := min(to, s.span.end-1)
		n += s.between(s.shown(after+1), last+1+s.span.offset)
		if s.isSkip() {
			change := minuteFrom(s.span.begin)
			shown := change + s.span.offset
			if change > after && change <= last && s.skips() && (shown%60 != 0 || s.between(shown, shown+1) == 0) {
				n++
			}
		}
		after = last
	}
	return n
}

// Newest are the last slots after a time and not after another one, most of them at most, the oldest first. all is how many there are.
func (s *Schedule) Newest(after, to int64, most int) (slots []int64, all int64) {
	if all = s.Count(after, to); all == 0 || most == 0 {
		return nil, all
	}
	n := all
	for back := int64(3600); n > int64(most) && to-back > after; back *= 2 {
		if some := s.Count(to-back, to); some >= int64(most) {
			after, n = to-back, some
		}
	}
	if s.every > 0 && n > int64(most) {
		after, n = after+(n-int64(most))*s.every, int64(most)
	}
	for ; n > 0; n-- {
		slot, ok := s.Next(after)
		if !ok {
			break
		}
		if after = slot; n <= int64(most) {
			slots = append(slots, slot)
		}
	}
	return slots, all
}

// IsEvery says whether the slots are so many seconds apart, and how many.
func (s *Schedule) IsEvery() (every int64, yes bool) { return s.every, s.every > 0 }

// span is a time in which the clocks of the zone differ from UTC by the same, unix seconds.
type span struct {
	begin, end     int64 // end is no part of it
	before, offset int64 // what the clocks are ahead of UTC before the span, and in it
}

const (
	dayLong      = 86400
	secondsAhead = yearsAhead * 366 * dayLong
	never        = 1 << 60 // beyond all times
)

// setSpan makes s.span the one that includes a time.
func (s *Schedule) setSpan(at int64) {
	if s.span.begin <= at && at < s.span.end {
		return
	}
	s.spans++
	t := time.Unix(at, 0).In(s.zone)
	_, offset := t.Zone()
	s.span = span{begin: -never, end: never, before: int64(offset), offset: int64(offset)}
	begin, end := t.ZoneBounds()
	if !begin.IsZero() {
		s.span.begin = begin.Unix()
		_, before := begin.Add(-time.Second).Zone()
		s.span.before = int64(before)
	}
	switch {
	case end.IsZero():
	case end.Unix() <= at: // package time ends each year after 365 days; it lets all spans end with the year, in UTC
		year, _, _ := civil(floorDiv(at, dayLong))
		s.span.end = daysUntil(year+1, 1) * dayLong
	default:
		s.span.end = end.Unix()
	}
}

// shown is what the clocks show at a time of the span, as if it were UTC. For lines whose slots are local times it leaves out what they have
// shown before, because a time that comes twice counts the first time.
func (s *Schedule) shown(at int64) int64 {
	shown := at + s.span.offset
	if !s.elapsed && s.span.before > s.span.offset {
		shown = max(shown, s.span.begin+s.span.before)
	}
	return shown
}

// isSkip says whether slots may lie in the time that the clocks skip where the span begins. They are due at the first minute after it.
func (s *Schedule) isSkip() bool { return !s.elapsed && s.span.before < s.span.offset }

// skips says whether there are such slots.
func (s *Schedule) skips() bool {
	_, some := s.first(s.span.begin+s.span.before, s.span.begin+s.span.offset)
	return some
}

// first is the first time from one on, and before another one, that matches. They are as clocks show them.
func (s *Schedule) first(from, end int64) (shown int64, ok bool) {
	from = minuteFrom(from)
	day, last := floorDiv(from, dayLong), floorDiv(end-1, dayLong)
	minute := int(from-day*dayLong) / 60
	for {
		next, found := s.nextDay(day, last+1)
		if !found {
			return 0, false
		}
		if next > day {
			minute = 0
		}
		if m, found := s.minuteFrom(minute); found {
			shown = next*dayLong + int64(m)*60
			return shown, shown < end
		}
		day, minute = next+1, 0
	}
}

// between counts the times from one on, and before another one, that match.
func (s *Schedule) between(from, end int64) (n int64) {
	from, end = minuteFrom(from), minuteFrom(end)
	if from >= end {
		return 0
	}
	return s.before(end) - s.before(from) + s.days(floorDiv(from, dayLong), floorDiv(end, dayLong))*s.minutesBefore(dayLong)
}

// before counts the times of a time's day before it that match.
func (s *Schedule) before(shown int64) int64 {
	day := floorDiv(shown, dayLong)
	return s.days(day, day+1) * s.minutesBefore(shown-day*dayLong)
}

// days counts the days from one on, and before another one, that the slots' days include. Days are counted from 1970.
func (s *Schedule) days(day, end int64) (n int64) {
	for m := monthOf(day); m.begin < end; m = m.next() {
		n += int64(bits.OnesCount64(s.inMonth(&m) & daysFrom(day-m.begin) &^ daysFrom(end-m.begin)))
	}
	return n
}

// nextDay is the first day from one on, and before another one, that the slots' days include.
func (s *Schedule) nextDay(day, end int64) (first int64, ok bool) {
	for m := monthOf(day); m.begin < end; m = m.next() {
		if left := s.inMonth(&m) & daysFrom(day-m.begin); left != 0 {
			first = m.begin + int64(bits.TrailingZeros64(left))
			return first, first < end
		}
	}
	return 0, false
}

// daysFrom has a bit for each day of a month from one on, which may lie before the month, or behind it.
func daysFrom(day int64) uint64 { return ^uint64(0) << max(day, 0) }

// month is a month, with the days on which it and the next one begin, counted from 1970.
type month struct{ year, month, begin, end int64 }

func monthOf(day int64) month {
	year, m, dayOfMonth := civil(day)
	return month{year, m, day - dayOfMonth + 1, daysUntil(year+m/12, m%12+1)}
}

func (m *month) next() month {
	year, after := m.year+m.month/12, m.month%12+1
	return month{year, after, m.end, daysUntil(year+after/12, after%12+1)}
}

// inMonth has a bit for each day of a month that the slots' days include; the first day is bit 0. It goes through no days, for
// very many months may lie between two slots, or be missed at once.
func (s *Schedule) inMonth(m *month) uint64 {
	if s.month&(1<<m.month) == 0 {
		return 0
	}
	const weeks = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28 | 1<<35
	weekday := (m.begin%7 + 11) % 7 // 1 January 1970 was a Thursday
	dom, dow := s.dom>>1, s.dow&(1<<7-1)*weeks>>weekday
	matches := dom | dow
	if s.allDays {
		matches = dom & dow
	}
	return matches &^ daysFrom(m.end-m.begin)
}

// minuteFrom is the first minute of a day from one on that matches.
func (s *Schedule) minuteFrom(minute int) (m int, ok bool) {
	hour := minute / 60
	if s.hour&(1<<hour) != 0 {
		if left := s.minute &^ (1<<(minute%60) - 1); left != 0 {
			return hour*60 + bits.TrailingZeros64(left), true
		}
	}
	if left := s.hour &^ (1<<(hour+1) - 1); left != 0 {
		return bits.TrailingZeros64(left)*60 + bits.TrailingZeros64(s.minute), true
	}
	return 0, false
}

// minutesBefore counts the minutes that match in the first seconds of a day.
func (s *Schedule) minutesBefore(seconds int64) int64 {
	hour, minute := seconds/3600, seconds%3600/60
	n := bits.OnesCount64(s.hour&(1<<hour-1)) * bits.OnesCount64(s.minute)
	if s.hour&(1<<hour) != 0 {
		n += bits.OnesCount64(s.minute & (1<<minute - 1))
	}
	return int64(n)
}

// minuteFrom is the first full minute from a time on, in seconds.
func minuteFrom(at int64) int64 { return floorDiv(at+59, 60) * 60 }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// civil is the date of a day that is counted from 1970, and daysUntil the day on which a month begins (Howard Hinnant, "chrono-compatible
// low-level date algorithms"). Package time takes several times as long.
func civil(day int64) (year, month, dayOfMonth int64) {
	day += 719468 // from 1 March of the year 0 on
	era := floorDiv(day, 146097)
	doe := day - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	m := (5*doy + 2) / 153
	year, month, dayOfMonth = yoe+era*400, m+3, doy-(153*m+2)/5+1
	if month > 12 {
		year, month = year+1, month-12
	}
	return year, month, dayOfMonth
}

func daysUntil(year, month int64) int64 {
	if month <= 2 {
		year, month = year-1, month+12
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + (153*(month-3)+2)/5 - 719468
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
