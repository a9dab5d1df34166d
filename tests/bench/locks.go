package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// atLocks measures LOCK.ACQUIRE and LOCK.RELEASE: as many as one node and a mesh
// of three can do, and the time they take at half of that.
func atLocks() {
	for _, n := range []int{1, 3} {
		m := startMesh(n)
		m.locks(n)
		m.stop()
	}
}

func (m *nodes) locks(n int) {
	for _, conns := range m.conns {
		for began := time.Now(); infoText(conns[0], "jobmesh", "jobmesh_locks_abstaining") != "no" && time.Since(began) < 20*time.Second; {
			time.Sleep(20 * time.Millisecond)
		}
	}
	// Each client has a lock of its own, so that clients don't wait for each other.
	pair := func(c *conn, i int) {
		name, owner := "lock"+strconv.Itoa(i), "c"+strconv.Itoa(i)
		token := c.do("LOCK.ACQUIRE", name, owner, "30000")
		if len(token) == 1 {
			c.do("LOCK.RELEASE", name, owner, token[0])
		}
	}
	all := func(seconds float64, rate float64, h *hdrhistogram.Histogram) (pairs int64) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range *clients {
			c := m.conns[i%n][i]
			wg.Go(func() {
				mine, count := hdrhistogram.New(1, 60_000_000, 3), int64(0)
				began := time.Now()
				var each time.Duration
				if rate > 0 {
					each = time.Duration(float64(time.Second) * float64(*clients) / rate)
				}
				for next := began.Add(each * time.Duration(i) / time.Duration(*clients)); time.Since(began).Seconds() < seconds; next = next.Add(each) {
					if rate > 0 {
						time.Sleep(time.Until(next))
					} else {
						next = time.Now()
					}
					pair(c, i)
					mine.RecordValue(time.Since(next).Microseconds() / 2)
					count++
				}
				mu.Lock()
				h.Merge(mine)
				pairs += count
				mu.Unlock()
			})
		}
		wg.Wait()
		return pairs
	}
	h := hdrhistogram.New(1, 60_000_000, 3)
	all(1, 0, h) // warm
	cpu := m.cpu()
	pairs := all(4, 0, h)
	fmt.Printf("%d nodes, %d clients: %d locks taken and released a second, %.1f µs CPU each over all nodes\n", n, *clients, pairs/4, float64((m.cpu()-cpu).Microseconds())/float64(pairs))
	h.Reset()
	all(5, float64(pairs)/8, h)
	show(fmt.Sprintf("  LOCK.ACQUIRE or RELEASE at %d locks a second", pairs/8), h)
}

func infoText(c *conn, section, field string) string {
	for _, text := range c.do("INFO", section) {
		for line := range strings.SplitSeq(text, "\r\n") {
			if v, ok := strings.CutPrefix(line, field+":"); ok {
				return v
			}
		}
	}
	return ""
}
