package sim

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// bereft is a mesh of three of which one node has died with its copies, and was forgotten.
type bereft struct {
	*Sim
	a, b, dead *node
}

func newBereft() *bereft {
	s := newSim(1, Config{Nodes: 3, RepairAfter: 5000, Faults: Faults{MinDelay: 1, MaxDelay: 3}})
	s.run(s.now + 15_000)
	return &bereft{s, s.nodes[0], s.nodes[1], s.nodes[2]}
}

// add adds jobs at the first node, and lists those that the second one has no copy of.
func (m *bereft) add(t *testing.T, jobs, replicate int) (atRisk []store.ID) {
	t.Helper()
	const call = 50
	for range jobs / call {
		bodies := make([][]byte, call)
		a := engine.Add{Queue: []byte("q"), TTL: 80_000, Delay: 60_000, Retry: 70_000, Replicate: replicate, Timeout: 5000, CanWait: true}
		var b *engine.Batch
		m.a.call(func() {
			var wait bool
			var err error
			b, wait, err = m.a.e.AddJobs(&a, bodies, nil)
			require.NoError(t, err)
			require.True(t, wait)
		})
		m.run(m.now + 100)
		for _, answer := range b.Answers {
			require.NoError(t, answer.Err)
			if m.b.e.Job(&answer.ID) == nil {
				atRisk = append(atRisk, answer.ID)
			}
		}
	}
	return atRisk
}

func (m *bereft) die() {
	m.dead.end(true)
	m.dead.dead = true
	m.Sim.dead = append(m.Sim.dead, m.dead.id)
	for _, n := range []*node{m.a, m.b} {
		n.call(func() { n.e.Mesh().Forget(m.dead.id) })
	}
}

// lost counts the jobs that the second node hasn't got since.
func (m *bereft) lost(ids []store.ID) (lost int) {
	for i := range ids {
		if m.b.e.Job(&ids[i]) == nil {
			lost++
		}
	}
	return lost
}

// More jobs lack a copy than one walk finds: all of them get it, at the rate that the documents tell.
func TestRepairOfVeryMany(t *testing.T) {
	m := newBereft()
	atRisk := m.add(t, 24_000, 2)
	require.Greater(t, len(atRisk), 10_000)
	m.die()
	m.run(m.now + 15_000)
	assert.Greater(t, m.a.e.LackingCopies(), 4000)
	m.run(m.now + int64(len(atRisk)/500+10)*1000)
	assert.Zero(t, m.lost(atRisk))
	m.run(m.now + 120_000)
	assert.Zero(t, m.a.e.LackingCopies())
	asked := m.Kinds[wire.AskCopies]
	m.run(m.now + 600_000)
	assert.Equal(t, asked, m.Kinds[wire.AskCopies], "nobody asks any more")
}

// A node that is started again while it repairs goes on.
func TestRepairGoesOnAfterAStart(t *testing.T) {
	m := newBereft()
	atRisk := m.add(t, 12_000, 2)
	m.die()
	m.run(m.now + 15_000)
	require.NotZero(t, m.lost(atRisk))
	m.stop(m.a)
	m.run(m.now + 120_000)
	assert.Zero(t, m.lost(atRisk))
}

// Older jobs, more than one walk finds, can't be repaired, as there are too few nodes. The others are.
func TestRepairBesideWhatCannotBe(t *testing.T) {
	m := newBereft()
	m.add(t, 5500, 3)
	atRisk := m.add(t, 500, 2)
	require.NotEmpty(t, atRisk)
	m.die()
	m.run(m.now + 180_000)
	assert.Zero(t, m.lost(atRisk))
	// Each job is held by the two nodes that are left: one of them looks for a third holder, or both.
	assert.GreaterOrEqual(t, m.a.e.LackingCopies()+m.b.e.LackingCopies(), 5500)
}

// A job names nodes as holders that never had it, since its copies were lost on their way there. Though many of them come before the
// one that has the job, that one makes the lost copy again.
func TestRepairBehindNodesThatNeverHadTheJob(t *testing.T) {
	s := newSim(1, Config{Nodes: 8, RepairAfter: 5000, Faults: Faults{MinDelay: 1, MaxDelay: 3}})
	s.run(s.now + 15_000)
	order := slices.SortedFunc(slices.Values(s.nodes), func(a, b *node) int { return cmp.Compare(a.id.Node(), b.id.Node()) })
	adds, keeps := order[6], order[7]
	s.cut = func(from, to *node) bool { return from == adds && to != keeps }
	var ids []store.ID
	for range 40 {
		adds.call(func() {
			id, wait, err := adds.e.AddJob(&engine.Add{Queue: []byte("q"), TTL: 80_000, Delay: 60_000, Retry: 70_000, Replicate: 2, Timeout: 10_000, CanWait: true})
			require.NoError(t, err)
			require.True(t, wait)
			ids = append(ids, id)
		})
	}
	s.run(s.now + 5000)
	most := 0
	for i := range ids {
		require.NotNil(t, keeps.e.Job(&ids[i]))
		most = max(most, keeps.e.Job(&ids[i]).Holders())
	}
	require.Greater(t, most, 4, "some jobs name many")
	s.cut = func(_, _ *node) bool { return false }
	adds.end(true)
	adds.dead = true
	s.dead = append(s.dead, adds.id)
	for _, n := range s.nodes {
		if n != adds {
			n.call(func() { n.e.Mesh().Forget(adds.id) })
		}
	}
	s.run(s.now + 400_000)
	for i := range ids {
		have := 0
		for _, n := range s.nodes {
			if n != adds && n.e.Job(&ids[i]) != nil {
				have++
			}
		}
		assert.GreaterOrEqual(t, have, 2, "%s", ids[i])
	}
}
