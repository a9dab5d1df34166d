package bus

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The subjects of large messages are forgotten when those are written, though the link always has something large under way, and though
// nothing small follows.
func TestSubjectsOfLargeMessagesAreForgotten(t *testing.T) {
	for name, idle := range map[string]bool{"always busy": false, "each written before the next": true} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, func(c *Config) { c.MaxFrame, c.MaxQueued, c.Secret = 4<<10, 64<<10, nil })
			b.onFrame = func(*Messages) {}
			p := a.peers[b.cfg.ID]
			large, small := make([]byte, 5000), make([]byte, 40)
			end := time.Now().Add(30 * time.Second)
			for subject := uint64(1); subject < 20_000; subject++ {
				a.SendAbout(b.cfg.ID, subject<<1|1, large)
				if !idle {
					a.SendAbout(b.cfg.ID, (subject-1)<<1|1, small)
				}
				if subject%8 > 0 && !idle {
					continue
				}
				a.Flush()
				for p.conn.bulkQueued.Load() > 32<<10 || idle && p.conn.bulkQueued.Load() > 0 {
					b.Drain(b.handle)
					a.Drain(a.handle)
					runtime.Gosched()
					require.True(t, time.Now().Before(end), "the link stands still")
				}
				require.LessOrEqual(t, len(p.bulkAbout), 200)
			}
		})
	}
}
