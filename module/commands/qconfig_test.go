package commands

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/engine"
)

// FuzzSettings: settings that were read from any value are told as a value that is read as the same settings. What
// former releases saved is read, or refused.
func FuzzSettings(f *testing.F) {
	for _, line := range []string{
		"SET q UNIQUE window TTL 5 KEY k SCOPE mesh ONCONFLICT reschedule 3 QUORUM any", "SET q UNIQUE until-processed ONCONFLICT debounce 3 DELAY 2", "SET a:* RETRY 0 TTL 9 DELAY 1 MAXLEN 3 REPLICATE 1", "SET b?\\* EXCLUDE yes",
		"SET q UNIQUE before-and-during-processing LOCKTTL 5 RUNTTL 6 ONBUSY dead", "SET q UNIQUE none", "SET q UNIQUE until-processed LIMIT 256 ONCONFLICT raise",
		"SET q BACKOFF 1 8 JITTER 5 MAXNACKS 3 MAXDELIVERIES 65535 MAXLAPSES 7 DEAD d DEADTTL 0 ONEXPIRE dead KEEP 9 DEADMAX 5", "SET q* PRIORITY -100 CONCURRENCY 65535 RATE 1000000 86400 QUORUM any",
	} {
		w := words(append([][]byte{nil}, bytes.Split([]byte(line), []byte(" "))...))
		s := &settings{name: string(w.Arg(2))}
		require.NoError(f, parseSettings(w, 3, s))
		f.Add(s.value(), "a:b")
		f.Add(former(s), "a:b")
		f.Add(append(s.value(), "\x02\x07retries\x019"...), "a:b")
	}
	f.Add([]byte("\x02\x03keY"), "0")
	f.Fuzz(func(t *testing.T, value []byte, name string) {
		s := settingsOf("a*", value)
		var q queueSettings
		q.put(s)
		q.of([]byte(name))
		told := s.value()
		again := settingsOf("a*", told)
		require.Equal(t, told, again.value())
		for _, read := range []*settings{s, again} {
			if len(read.add.Unique.Key) == 0 {
				read.add.Unique.Key = nil // a key that is empty, either way
			}
		}
		require.Equal(t, s.add, again.add)
		if all, err := formerSettings(append([]byte{1}, value...)); err == nil {
			for _, s := range all {
				q.put(s)
			}
		}
	})
}

// former is what a former release saved.
func former(s *settings) []byte {
	words := append([]string{s.name}, s.words(^settingBits(0))...)
	b := binary.LittleEndian.AppendUint32([]byte{1}, uint32(len(words)))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(w)))
		b = append(b, w...)
	}
	return b
}

// A node keeps settings that it doesn't know, or can't use, and tells them to others. The others among them count.
func TestSettingsOfLaterReleases(t *testing.T) {
	known := &settings{name: "q"}
	require.NoError(t, parseSettings(words(bytes.Fields([]byte("SET q UNIQUE until-processed KEY k RETRY 5"))), 2, known))
	later := append([]byte("\x03\x0bconcurrency\x011\x019"), known.value()...)
	later = append(later, "\x03\x0aonconflict\x08whatever\x015"...)
	s := settingsOf("q", later)
	assert.Equal(t, known.add, s.add)
	assert.Len(t, s.unknown, 2)
	told := s.value()
	assert.Contains(t, string(told), "\x0bconcurrency\x011\x019")
	assert.Contains(t, string(told), "\x0aonconflict\x08whatever\x015")
	changed := *s
	require.NoError(t, parseSettings(list{[]byte("ONCONFLICT"), []byte("drop")}, 0, &changed))
	assert.NotContains(t, string(changed.value()), "whatever", "it was set here since")
	assert.Contains(t, string(changed.value()), "concurrency")
	for _, damaged := range []string{"\x05", "\x01\xff", "\x00", "\x01\x05abc", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		assert.Zero(t, settingsOf("q", []byte(damaged)).set)
	}
}

func TestCanonicalNames(t *testing.T) {
	for name, want := range map[string]string{"ab": "ab", `a\b`: "ab", `a\\b`: `a\\b`, `a\*b`: `a\*b`, `a\*\b`: `a\*b`, `a*\b`: `a*\b`, `a\`: `a\\`} {
		assert.Equal(t, want, canonical(name))
		assert.Equal(t, isPattern(name), isPattern(want))
		assert.Equal(t, plain(name), plain(want))
		assert.Equal(t, want, canonical(want))
	}
}

// TestSettingsOverSettings: however settings follow one another, they are saved as a text that can be loaded. The loaded
// settings do to each job what those do that were set.
func TestSettingsOverSettings(t *testing.T) {
	lines := []string{
		"UNIQUE until-processed", "UNIQUE before-processing", "UNIQUE during-processing", "UNIQUE before-and-during-processing",
		"UNIQUE window TTL 1", "UNIQUE window TTL 7", "UNIQUE none", "KEY k", "SCOPE mesh", "LOCKTTL 9", "RUNTTL 8", "LIMIT 1", "LIMIT 3", "ONCONFLICT return", "QUORUM any",
		"ONCONFLICT reschedule 5", "ONCONFLICT debounce 4", "ONCONFLICT drop", "ONCONFLICT raise", "ONBUSY reschedule 6", "ONBUSY wait", "ONBUSY dead",
		"UNIQUE until-processed LOCKTTL 3", "LOCKTTL 4 UNIQUE until-processed", "RETRY 5", "TTL 9", "DELAY 2", "MAXLEN 3", "PRIORITY -7", "PRIORITY 0", "RATE 10 1", "RATE 1000000 86400", "QUORUM any", "REPLICATE 2", "EXCLUDE yes", "EXCLUDE no",
		"BACKOFF 1 8", "BACKOFF 0 0", "BACKOFF 3 3 JITTER 0", "MAXNACKS 3", "MAXDELIVERIES 0", "MAXLAPSES 3", "DEADMAX 0", "DEADMAX 5", "DEAD d", "DEADTTL 0", "ONEXPIRE dead", "ONEXPIRE drop",
	}
	jobs := []string{"", "UNIQUE until-processed KEY j", "KEY j", "UNIQUE before-and-during-processing KEY j ONCONFLICT drop", "UNIQUE window TTL 3", "LOCKTTL 3 UNIQUE until-processed"}
	rapid.Check(t, func(t *rapid.T) {
		var q queueSettings
		for _, line := range rapid.SliceOfN(rapid.SampledFrom(lines), 1, 12).Draw(t, "lines") {
			s := &settings{name: "q"}
			if old := q.find("q"); old != nil {
				*s = *old
			}
			if parseSettings(words(bytes.Split([]byte("SET q "+line), []byte(" "))), 2, s) == nil {
				q.put(s)
			}
		}
		var again queueSettings
		if s := q.find("q"); s != nil {
			again.put(settingsOf("q", s.value()))
			require.Equal(t, s.value(), again.find("q").value())
		}
		for _, job := range jobs {
			added := words(bytes.Fields([]byte("ADDJOB q b 0 " + job)))
			var a, b engine.Add
			one, other := parseAdd(added, &a, &defaults{settings: q.of([]byte("q"))}), parseAdd(added, &b, &defaults{settings: again.of([]byte("q"))})
			require.Equal(t, one, other, job)
			require.Equal(t, a, b, job)
		}
	})
}

// Former releases kept the seconds of a rule that was replaced, and saved them behind the new rule.
func TestSettingsOfFormerReleases(t *testing.T) {
	s := &settings{name: "q"}
	require.NoError(t, parseSettings(words(bytes.Fields([]byte("SET q UNIQUE window TTL 5 KEY onconflict ONCONFLICT drop"))), 2, s))
	text := strings.Replace(string(former(s)), "\x01\x09\x00\x00\x00", "\x01\x0a\x00\x00\x00", 1) + "\x01\x00\x00\x005"
	all, err := formerSettings([]byte(text))
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, s.value(), all[0].value())
}

func TestPatterns(t *testing.T) {
	for pattern, names := range map[string]string{
		"*": " a ab", "a*": "a ab abc", "*a": "a ba", "a*b*c": "abc axbxc aabbcc", "a?": "ab ac", "\\*": "*", "a\\?b": "a?b", "**": " a",
	} {
		for _, name := range strings.Split(names, " ") {
			assert.True(t, newGlob(pattern, queueByte).match([]byte(name)), "%q %q", pattern, name)
		}
	}
	for pattern, names := range map[string]string{"a*": "ba,", "*a": "ab", "a*b*c": "ac,abcd", "a?": "a,abc", "\\*": "a", "\\": "\\,a", "": "a"} {
		for _, name := range strings.Split(names, ",") {
			assert.False(t, newGlob(pattern, queueByte).match([]byte(name)), "%q %q", pattern, name)
		}
	}
	// The time to match many stars doesn't grow with the number of ways in which they could match.
	assert.False(t, newGlob(strings.Repeat("*a", 500), queueByte).match(bytes.Repeat([]byte("a"), 499)))
	assert.False(t, isPattern("a\\*b"))
	assert.Equal(t, "a*b", plain("a\\*b"))
	for _, text := range []string{"\x01\x01\x00\x00", "\x01\x01\x00\x00\x00\xff\x00\x00\x00", "\x01\x00\x00\x00\x00"} {
		_, err := formerSettings([]byte(text))
		assert.Error(t, err, "%q", text)
	}
}

// Patterns match only names up to a length, since the time to match grows with the length.
func TestPatternsForLongNames(t *testing.T) {
	all := &settings{name: "*"}
	var q queueSettings
	q.put(all)
	name := make([]byte, maxMatched+1)
	assert.Same(t, all, q.of(name[:maxMatched]))
	assert.Nil(t, q.of(name))
}
