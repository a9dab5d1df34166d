package commands

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/engine"
)

// FuzzSettings: settings that were loaded from any text are saved as a text that loads as the same
// settings. A text that is refused sets nothing.
func FuzzSettings(f *testing.F) {
	for _, line := range []string{
		"SET q UNIQUE window TTL 5 KEY k SCOPE mesh ONCONFLICT reschedule 3 QUORUM any", "SET a:* RETRY 0 TTL 9 DELAY 1 MAXLEN 3 REPLICATE 1", "SET b?\\* EXCLUDE yes",
		"SET q UNIQUE before-and-during-processing LOCKTTL 5 RUNTTL 6 ONBUSY dead", "SET q UNIQUE none",
	} {
		var q queueSettings
		w := words(append([][]byte{nil}, bytes.Split([]byte(line), []byte(" "))...))
		s := &settings{name: string(w.Arg(2))}
		require.NoError(f, parseSettings(w, 3, s))
		q.put(s)
		f.Add(q.text(), "a:b")
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		var q, again queueSettings
		if q.load(text) != nil {
			require.False(t, q.any())
			return
		}
		q.of([]byte(name))
		saved := bytes.Clone(q.text())
		require.NoError(t, again.load(saved))
		require.Equal(t, saved, again.text())
	})
}

// TestSettingsOverSettings: however settings follow one another, they are saved as a text that can be loaded. The loaded
// settings do to each job what those do that were set.
func TestSettingsOverSettings(t *testing.T) {
	lines := []string{
		"UNIQUE until-processed", "UNIQUE before-processing", "UNIQUE during-processing", "UNIQUE before-and-during-processing",
		"UNIQUE window TTL 1", "UNIQUE window TTL 7", "UNIQUE none", "KEY k", "SCOPE mesh", "LOCKTTL 9", "RUNTTL 8", "QUORUM any",
		"ONCONFLICT reschedule 5", "ONCONFLICT drop", "ONCONFLICT raise", "ONBUSY reschedule 6", "ONBUSY wait", "ONBUSY dead",
		"UNIQUE until-processed LOCKTTL 3", "LOCKTTL 4 UNIQUE until-processed", "RETRY 5", "TTL 9", "DELAY 2", "MAXLEN 3", "REPLICATE 2", "EXCLUDE yes", "EXCLUDE no",
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
		require.NoError(t, again.load(q.text()))
		require.Equal(t, q.text(), again.text())
		for _, job := range jobs {
			added := words(bytes.Fields([]byte("ADDJOB q b 0 " + job)))
			var a, b engine.Add
			one, other := parseAdd(added, &a, 0, q.of([]byte("q"))), parseAdd(added, &b, 0, again.of([]byte("q")))
			require.Equal(t, one, other, job)
			require.Equal(t, a, b, job)
		}
	})
}

// Former releases kept the seconds of a rule that was replaced, and saved them behind the new rule.
func TestSettingsOfFormerReleases(t *testing.T) {
	s := &settings{name: "q"}
	require.NoError(t, parseSettings(words(bytes.Fields([]byte("SET q UNIQUE window TTL 5 KEY onconflict ONCONFLICT drop"))), 2, s))
	var q, again, want queueSettings
	q.put(s)
	want.put(s)
	text := string(q.text())
	text = strings.Replace(text, "\x01\x09\x00\x00\x00", "\x01\x0a\x00\x00\x00", 1) + "\x01\x00\x00\x005"
	require.NoError(t, again.load([]byte(text)))
	require.Equal(t, want.text(), again.text())
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
	for _, text := range []string{"\x02", "\x00", "\x01\x01\x00\x00", "\x01\x01\x00\x00\x00\xff\x00\x00\x00", "\x01\x00\x00\x00\x00"} {
		var q queueSettings
		assert.Error(t, q.load([]byte(text)), "%q", text)
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
