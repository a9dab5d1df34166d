package commands

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/cgo/record"
	"jobmesh/module/lock"
	"jobmesh/module/store"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"a*c", "abbc", true}, {"a*c", "abb", false},
		{"?", "a", true}, {"?", "", false}, {"[a-c]x", "bx", true}, {"[^a-c]x", "bx", false}, {"[c-a]", "b", true}, {`\*`, "*", true}, {`\*`, "a", false},
		{"[", "[", false}, {"[a", "a", true}, {`[\]]`, "]", true}, {`a\`, `a\`, true}, {"**a**", "bab", true}, {"*a*b*", "xaxbx", true}, {"*a*b*", "xbxa", false},
	} {
		assert.Equal(t, c.want, newGlob([]byte(c.pattern), scanByte).match([]byte(c.text)), "%q %q", c.pattern, c.text)
	}
}

// C knows by these flags which locks a flush has ended.
func TestFlagsOfLocksInC(t *testing.T) {
	assert.EqualValues(t, lock.FlagOutlives, record.LockOutlives)
	assert.EqualValues(t, lock.FlagForeign, record.LockForeign)
}

// FuzzLocks gives the parsers of the LOCK commands the same arguments: none may
// panic, and what one accepts is within its bounds.
func FuzzLocks(f *testing.F) {
	for _, line := range []string{
		"LOCK.ACQUIRE n o 1000 WAIT 5", "LOCK.EXTEND n o 7 1000", "LOCK.RELEASE n o 7", "LOCK.CLEAR PREFIX p TYPE waiting QUEUE q",
		"LOCK.CLEAR ALL", "LOCK.CLEAR NAME ALL", "LOCK.SCAN 0 MATCH *[a-c]\\? PREFIX p COUNT 10 TYPE running", "LOCK.ACQUIRE n o 18446744073709551616",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		w := words(bytes.Split(line, []byte(" ")))
		for _, call := range []lockCall{{hasTTL: true}, {hasTTL: true, hasToken: true}, {hasToken: true}} {
			if len(w) < 4 || call.hasTTL && call.hasToken && len(w) < 5 {
				continue
			}
			got, err := parseLock(w, call, lock.DefaultMaxLease)
			if err != nil {
				continue
			}
			assert.True(t, len(got.name) >= 1 && len(got.name) <= maxLockKey && len(got.owner) >= 1 && len(got.owner) <= store.MaxOwner)
			assert.True(t, !call.hasTTL || got.lease >= 1 && got.lease <= lock.DefaultMaxLease)
			assert.True(t, !call.hasToken || got.token >= 1 && got.token <= lock.BareToken(lock.MaxShownToken))
			assert.GreaterOrEqual(t, got.wait, int64(0))
		}
		if len(w) < 2 {
			return
		}
		if names, _, _, err := parseClear(w); err == nil {
			assert.NotEmpty(t, names)
			for _, name := range names {
				assert.NotEmpty(t, name)
			}
		}
		if s, err := parseLockScan(w); err == nil {
			assert.Positive(t, s.count)
			assert.True(t, s.match == nil || s.match.least <= maxMatch)
		}
	})
}
