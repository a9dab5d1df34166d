package commands

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// slowGlob matches by the rules alone: byte by byte, and after a mismatch again from the last star.
func slowGlob(pattern, text []byte, head func(p []byte) (n int, set places)) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(text) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, mark = p, i
				p++
				continue
			}
			if n, set := head(pattern[p:]); set.has(text[i]) {
				p, i = p+n, i+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++ // let the last star take one byte more
		p, i = star+1, mark
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// oldScanByte matches a byte with the head of a pattern, as SCAN does.
func oldScanByte(p []byte, c byte) (n int, ok bool) {
	switch p[0] {
	case '?':
		return 1, true
	case '\\':
		if len(p) > 1 {
			return 2, p[1] == c
		}
	case '[':
		i, not, hit := 1, false, false
		if i < len(p) && p[i] == '^' {
			not = true
			i++
		}
		for ; i < len(p) && p[i] != ']'; i++ {
			lo := p[i]
			if lo == '\\' && i+1 < len(p) {
				i++
				lo = p[i]
			}
			hi := lo
			if i+2 < len(p) && p[i+1] == '-' {
				hi = p[i+2]
				i += 2
			}
			if lo > hi {
				lo, hi = hi, lo
			}
			hit = hit || lo <= c && c <= hi
		}
		return min(i+1, len(p)), hit != not
	}
	return 1, p[0] == c
}

// FuzzGlob: a glob matches the texts that slowGlob matches, and a set the bytes that oldScanByte does.
func FuzzGlob(f *testing.F) {
	for _, c := range [][2]string{
		{"a*b?c*d", "aabxcbycd"}, {"*a?a*a", "aabaxaa"}, {"[a-c]*[^x]*", "bxy"}, {`\**\`, "**\\"}, {"*[a", "xa"}, {"", ""}, {"***", "x"}, {"*?" + strings.Repeat("b", 70) + "*", "ab" + strings.Repeat("b", 80)},
		{"*" + strings.Repeat("ab?", 50) + "*?", strings.Repeat("aba", 70)},
	} {
		f.Add([]byte(c[0]), []byte(c[1]))
	}
	f.Fuzz(func(t *testing.T, pattern, text []byte) {
		if len(pattern)*len(text) > 1<<20 {
			return
		}
		require.Equal(t, slowGlob(pattern, text, scanByte), newGlob(pattern, scanByte).match(text), "%q %q", pattern, text)
		queue := func(p []byte) (int, places) { return queueByte(string(p)) }
		require.Equal(t, slowGlob(pattern, text, queue), newGlob(string(pattern), queueByte).match(text), "%q %q", pattern, text)
		if len(pattern) > 0 {
			n, set := scanByte(pattern)
			for c := range 256 {
				size, ok := oldScanByte(pattern, byte(c))
				require.Equal(t, ok, set.has(byte(c)), "%q %q", pattern, c)
				require.Equal(t, size, n)
			}
		}
	})
}

// soon requires that a function, as a command, takes less than 5 ms of its thread's processor time. On a machine that
// runs other things at the same time, that may take a few attempts.
func soon(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var ts syscall.Timespec
		const thread = 3 // CLOCK_THREAD_CPUTIME_ID
		_, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0)
		require.Zero(t, err)
		return time.Duration(ts.Nano())
	}
	least := time.Hour
	for i := 0; i < 20 && least >= 5*time.Millisecond; i++ {
		runtime.GC()
		began := used()
		f()
		least = min(least, used()-began)
	}
	t.Log(least)
	require.Less(t, least, 5*time.Millisecond)
}

// A queue's name of the greatest length that is matched, and as many patterns as can be set: ADDJOB
// finds soon that none matches.
func TestVeryManyPatterns(t *testing.T) {
	name := bytes.Repeat([]byte("b"), maxMatched)
	for what, pattern := range map[string]string{
		"the end": "*bulk%d", "a text": "*" + strings.Repeat("b", 60) + "%du*", "a long text": "*" + strings.Repeat("b", 900) + "%du*", "many texts": strings.Repeat("*b", 200) + "%du*",
		"with ?": "*?" + strings.Repeat("b", 30) + "%du*", "long, with ?": "*" + strings.Repeat("b?", 400) + "%du*", "many with ?": strings.Repeat("*?b", 200) + "%du*",
	} {
		t.Run(what, func(t *testing.T) {
			var q queueSettings
			for i := 0; ; i++ {
				name := fmt.Sprintf(pattern, i)
				if err := q.room(name); err != nil {
					require.Equal(t, errManyPatterns, err)
					require.NoError(t, q.room("a queue"))
					break
				}
				q.put(&settings{name: name})
			}
			require.GreaterOrEqual(t, len(q.patterns), maxPatterns/patternCosts)
			require.LessOrEqual(t, len(q.patterns), maxPatterns)
			soon(t, func() { require.Nil(t, q.match(name)) })
		})
	}
}

// The settings that were found for a name don't outlast a change of the settings, and aren't kept for any number of names.
func TestFoundSettingsFollowChanges(t *testing.T) {
	var q queueSettings
	name := []byte("a:1")
	require.Nil(t, q.of(name))
	q.put(&settings{name: "z*"})
	require.Nil(t, q.of(name))
	q.put(&settings{name: "a*"})
	require.Equal(t, "a*", q.of(name).name)
	q.put(&settings{name: "a:*"})
	require.Equal(t, "a:*", q.of(name).name)
	q.put(&settings{name: "a*", exclude: true})
	require.Same(t, excluded, q.of(name))
	require.True(t, q.remove("a*"))
	require.Equal(t, "a:*", q.of(name).name)
	q.reset()
	require.Nil(t, q.of(name))
	q.put(&settings{name: "a*"})
	for i := range 3 * mostMatched {
		require.NotNil(t, q.of(fmt.Append(nil, "a", i)))
	}
	require.LessOrEqual(t, len(q.matched), mostMatched)
}

// A former release's settings are loaded, though they have more patterns than can be set now.
func TestMorePatternsAreLoaded(t *testing.T) {
	text := []byte{1}
	for i := range maxPatterns + 10 {
		s := &settings{name: fmt.Sprint("*", i)}
		require.NoError(t, parseSettings(list{[]byte("RETRY"), []byte("5")}, 0, s))
		text = append(text, former(s)[1:]...)
	}
	all, err := formerSettings(text)
	require.NoError(t, err)
	var again queueSettings
	for _, s := range all {
		again.put(s)
	}
	require.Len(t, again.patterns, maxPatterns+10)
	require.NotNil(t, again.of([]byte("q1009")))
}

// A page of LOCK.SCAN ends early where its names take long to match.
func TestVeryManyLongNamesAreMatched(t *testing.T) {
	name := bytes.Repeat([]byte("a"), maxLockKey)
	for what, pattern := range map[string]string{
		"a text": "*" + strings.Repeat("a", 2000) + "b*", "the end": "*" + strings.Repeat("a", 2000) + "b", "with ?": "*" + strings.Repeat("a?", 1000) + "b*",
		"with a set": "*" + strings.Repeat("[^b]", 1000) + "b*", "many texts": strings.Repeat("*a", 1500) + "*b*", "short": "*?b*",
	} {
		t.Run(what, func(t *testing.T) {
			soon(t, func() {
				s, err := parseLockScan(list{nil, []byte("0"), []byte("MATCH"), []byte(pattern)})
				require.NoError(t, err)
				for range 100 {
					require.False(t, s.match.match(name))
					if s.tired() {
						return
					}
				}
			})
		})
	}
	_, err := parseLockScan(list{nil, []byte("0"), []byte("MATCH"), make([]byte, maxMatch+1)})
	require.Equal(t, errLongMatch, err)
}
