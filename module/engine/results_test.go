package engine

import (
	"bytes"
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Bytes that another node sends as ends of jobs are read, or refused.
func FuzzReadEnd(f *testing.F) {
	f.Add((&JobEnd{ID: store.ID{1}, Outcome: OutcomeDone, HasDetail: true, Detail: []byte("r")}).append(nil))
	f.Add((&JobEnd{ID: store.ID{1}, Outcome: OutcomeWaiting}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, rest, err := readEnd(b)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrMessage)
			return
		}
		require.True(t, e.Outcome > 0 && e.Outcome < outcomes && len(e.Detail) <= MaxResult && (e.HasDetail || e.Detail == nil))
		again, left, err := readEnd(e.append(nil))
		require.NoError(t, err)
		require.Empty(t, left)
		require.True(t, again.ID == e.ID && again.Outcome == e.Outcome && again.HasDetail == e.HasDetail && bytes.Equal(again.Detail, e.Detail))
		require.Less(t, len(rest), len(b))
	})
}

// All nodes prefer the same one of two outcomes that aren't the same, and the order has no circles.
func TestOutcomesAreOrdered(t *testing.T) {
	var all []Ending
	for _, o := range []Outcome{OutcomeDone, OutcomeCancelled, OutcomeExpired} {
		for _, at := range []int64{1, 2} {
			for _, node := range []wire.Node{2, 4} {
				all = append(all, Ending{Outcome: o, At: at, node: node}, Ending{Outcome: o, At: at, node: node, own: true})
			}
		}
	}
	for i := range all {
		for k := range all {
			a, b := &all[i], &all[k]
			require.Equal(t, i == k, a.same(b))
			require.Equal(t, !a.same(b), a.better(b) != b.better(a))
			for l := range all {
				require.False(t, a.better(b) && b.better(&all[l]) && all[l].better(a))
			}
			read, ok := readEnding(a.append(nil))
			require.True(t, ok && read.same(a))
		}
	}
	// An outcome that is told counts more than one that a node found by itself; done more than the rest; then the earlier.
	require.True(t, (&Ending{Outcome: OutcomeExpired, At: 9}).better(&Ending{Outcome: OutcomeDone, At: 1, own: true}))
	require.True(t, (&Ending{Outcome: OutcomeDone, At: 9}).better(&Ending{Outcome: OutcomeCancelled, At: 1}))
	require.Negative(t, cmp.Compare(OutcomeDone, OutcomeCancelled))
}

// The memory of a very large message is given up when messages are small again, and not before.
func TestOutboxShrinks(t *testing.T) {
	n := &Node{outbox: make([]byte, outboxMost+1)}
	for range 3 * outboxCalm {
		n.emptyOutbox()
		n.outbox = n.outbox[:cap(n.outbox)/2]
	}
	require.Greater(t, cap(n.outbox), outboxMost)
	for range outboxCalm + 1 {
		n.emptyOutbox()
	}
	require.Zero(t, cap(n.outbox))
}
