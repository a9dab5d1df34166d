package migrate

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// run does one part of a move on a connection.
func run(c *harness.Conn, part []any, options ...any) (moved, dropped int64, err error) {
	return step(c, part[0].(string), part[1].(string), part[2].(string), append(part[3:len(part):len(part)], options...)...)
}

// Every layout is moved to jobmesh and back: it has the same bytes, in the same order.
func TestThereAndBack(t *testing.T) {
	for _, l := range layouts() {
		t.Run(l.name, func(t *testing.T) {
			s, c := start(t)
			l.write(t, c)
			before := digest(t, c, "mail")
			require.Equal(t, int64(l.total+l.kept), l.there(c))
			arrived := int64(0)
			for _, part := range l.in {
				n, dropped, err := run(c, part)
				require.NoError(t, err)
				require.Zero(t, dropped)
				arrived += n
			}
			assert.Equal(t, int64(l.total), arrived)
			assert.Equal(t, int64(l.total), l.here(c))
			assert.Equal(t, int64(l.kept), l.there(c))
			require.Equal(t, "OK", c.Do("DEBUG", "RELOAD").Str)
			n, dropped, err := run(c, l.out, "ACTIVE")
			require.NoError(t, err)
			assert.Equal(t, [2]int64{int64(l.total), 0}, [2]int64{n, dropped})
			assert.Zero(t, l.here(c))
			assert.Equal(t, before, digest(t, c, "mail"))
			assert.Equal(t, "0", s.Info("jobmesh", "jobmesh_panics"))
		})
	}
}

// restart starts a server that was killed. If the server writes its log anew since the log was
// cut, restart waits for that.
func restart(t *testing.T, s *harness.Server) *harness.Conn {
	t.Helper()
	logged := len(s.Log())
	s.Restart()
	if strings.Contains(s.Log()[logged:], "it is written anew") {
		harness.Await(t, 20*time.Second, "the log to be written anew", func() bool {
			return strings.Contains(s.Log()[logged:], "Background AOF rewrite finished successfully")
		})
	}
	return s.Dial()
}

// The server is killed again and again while queues are moved. The functions are called again,
// and go on. In the end nothing is lost or doubled.
func TestKilledInTheMiddle(t *testing.T) {
	harness.NotSanitized(t, "it takes too long")
	const kills = 3
	for _, l := range layouts() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t, harness.WithConfig("appendonly yes", "appendfsync always"))
			l.write(t, c)
			before := digest(t, c, "mail")
			interrupted := 0
			// move does the parts, while the server is killed again and again.
			move := func(parts [][]any, options ...any) {
				for round := range kills + 1 {
					done := make(chan error, 1)
					w, err := harness.Dial(s.Addr(), 20*time.Second)
					require.NoError(t, err)
					go func() {
						defer w.Close()
						var err error
						for _, part := range parts {
							if err == nil {
								_, _, err = run(w, part, options...)
							}
						}
						done <- err
					}()
					if round == kills {
						require.NoError(t, <-done)
						return
					}
					time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond) // the kill comes at any moment of the move
					s.Kill()
					<-done
					c = restart(t, s)
					here, there := l.here(c), l.there(c)
					require.Equal(t, int64(l.total+l.kept), here+there, "lost or doubled: %d have arrived, %d not", here, there)
					if here > 0 && there > int64(l.kept) {
						interrupted++
					}
				}
			}
			move(l.in)
			require.Equal(t, int64(l.total), l.here(c))
			move([][]any{l.out}, "ACTIVE")
			assert.Zero(t, l.here(c))
			assert.Equal(t, before, digest(t, c, "mail"))
			t.Logf("%d of %d kills fell into the middle", interrupted, 2*kills)
		})
	}
}
