package chaos

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	nodes  = flag.Int("nodes", 3, "nodes of the mesh")
	lasts  = flag.Duration("time", 0, "how long to go on; 0: not at all")
	seed   = flag.Uint64("seed", 1, "the first plan's; 0 draws one")
	only   = flag.String("faults", "", "these alone: "+faultNames())
	roundd = flag.Duration("round", 12*time.Second, "how long there are faults, before all is healed and accounted for")
)

// rounds is how many rounds the servers of one plan live.
const rounds = 4

func TestChaos(t *testing.T) {
	some, err := chosen(*only)
	require.NoError(t, err)
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000)
	}
	began := time.Now()
	for i := uint64(0); time.Since(began) < *lasts; i++ {
		ok := t.Run(fmt.Sprint("seed=", first+i), func(t *testing.T) {
			play(t, newPlan(first+i, *nodes, rounds, *roundd, some), began.Add(*lasts))
		})
		if !ok {
			return
		}
	}
}

// play plays a plan, until the time is over.
func play(t *testing.T, p plan, end time.Time) {
	folder, err := os.MkdirTemp("", "chaos-")
	require.NoError(t, err)
	var m *mesh
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(folder)
			return
		}
		t.Logf("again: make chaos NODES=%d SEED=%d\nthe servers' logs and append-only files are in %s", len(p.fsync), p.seed, folder)
		if m != nil {
			name := filepath.Join(folder, "diary")
			os.WriteFile(name, []byte(strings.Join(m.diary, "\n")+"\n"), 0o644)
			t.Logf("what was done to them, the last of it:\n%s", strings.Join(m.diary[max(0, len(m.diary)-60):], "\n"))
		}
	})
	m = startMesh(t, p, folder)
	t.Logf("%d nodes, appendfsync %v, aof-use-rdb-preamble %s", len(p.fsync), p.fsync, p.preamble)
	for i, steps := range p.rounds {
		if i > 0 && time.Now().Add(*roundd).After(end) {
			return
		}
		m.round(steps)
		m.logs()
	}
}

// round plays faults under load, heals the mesh, drains it, and judges.
func (m *mesh) round(steps []step) {
	t := m.t
	t.Helper()
	b := newBooks()
	c := startCrowd(m, b)
	defer c.stop()
	began := m.now()
	for _, s := range steps {
		time.Sleep(began + s.at - m.now())
		m.do(s)
	}
	m.heal()
	m.drain(c, b)
	c.stop()
	m.mu.Lock()
	v := judge(b, m.losses, len(steps) > 0)
	m.mu.Unlock()
	var counts []string
	for _, name := range slices.Sorted(maps.Keys(v.note)) {
		counts = append(counts, fmt.Sprint(v.note[name], " ", name))
	}
	t.Logf("%d faults: %s; %v", len(steps), strings.Join(counts, ", "), b.counts)
	for i, text := range v.findings {
		if i == 10 {
			t.Errorf("and %d findings more", len(v.findings)-i)
			break
		}
		t.Error(text)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// drain waits until no node has a job any more.
func (m *mesh) drain(c *crowd, b *books) {
	m.t.Helper()
	c.adds.Store(false)
	for _, s := range m.servers {
		if s.probe != "" {
			s.Do("DELJOB", s.probe)
			s.probe = ""
		}
	}
	end := time.Now().Add(60 * time.Second)
	for {
		m.alive()
		left := map[string]string{}
		for _, s := range m.servers {
			if n := s.Info("jobmesh", "jobmesh_registered_jobs"); n != "0" {
				left[s.name] = n
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.stop()
			m.t.Errorf("jobs are left over after the mesh is healed and drained, at nodes %v", left)
			m.leftovers(b)
			m.t.FailNow()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leftovers tells of some jobs that are left, with their histories.
func (m *mesh) leftovers(b *books) {
	byID := map[string]*job{}
	for _, j := range b.jobs {
		byID[j.id] = j
	}
	told := 0
	for _, s := range m.servers {
		for _, e := range s.Do("JSCAN", 0, "COUNT", 1000, "BUSYLOOP").Elems[1].Elems {
			if told++; told > 10 {
				return
			}
			m.t.Logf("%v", byID[e.Str])
			for _, s := range m.servers {
				m.t.Logf("  at node %s: %.1000v", s.name, s.Do("SHOW", e.Str))
			}
		}
	}
}
