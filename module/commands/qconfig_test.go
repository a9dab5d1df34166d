package commands

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzSettings: a text that is loaded is the one that would be saved, and nothing
// else is loaded.
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
			require.Empty(t, q.all())
			return
		}
		q.of([]byte(name))
		saved := bytes.Clone(q.text())
		require.NoError(t, again.load(saved))
		require.Equal(t, saved, again.text())
	})
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
	// A pattern of many stars takes no time in proportion to all ways to match.
	assert.False(t, newGlob(strings.Repeat("*a", 500), queueByte).match(bytes.Repeat([]byte("a"), 499)))
	assert.False(t, isPattern("a\\*b"))
	assert.Equal(t, "a*b", plain("a\\*b"))
	for _, text := range []string{"\x02", "\x00", "\x01\x01\x00\x00", "\x01\x01\x00\x00\x00\xff\x00\x00\x00", "\x01\x00\x00\x00\x00"} {
		var q queueSettings
		assert.Error(t, q.load([]byte(text)), "%q", text)
	}
}

// Patterns count for names up to a length: the time to match grows with it.
func TestPatternsForLongNames(t *testing.T) {
	all := &settings{name: "*"}
	var q queueSettings
	q.put(all)
	name := make([]byte, maxMatched+1)
	assert.Same(t, all, q.of(name[:maxMatched]))
	assert.Nil(t, q.of(name))
}
