package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// pace is how long f takes for n and for 8n, each the best of some: what is linear takes
// some 8 times as long, what is quadratic 64 times. What f has to make ready isn't counted.
func pace(t *testing.T, n int, ready func(n int) (f func())) {
	t.Helper()
	best := func(n int) time.Duration {
		least := time.Hour
		for range 5 {
			f := ready(n)
			began := time.Now()
			f()
			least = min(least, time.Since(began))
		}
		return least
	}
	few, many := best(n), best(8*n)
	assert.Less(t, many, 30*max(few, 100*time.Microsecond), "%d take %v, %d take %v", n, few, 8*n, many)
}

func bareName(text string) []byte { return store.AppendBareName(nil, []byte(text)) }

// D3: however many wait for a lock and give up at one time, each costs the same.
func TestManyWaitersGiveUp(t *testing.T) {
	pace(t, 2000, func(waiters int) func() {
		n, _, _ := node(dawn)
		o, pending := n.AcquireLock(bareName("n"), []byte("holder"), 3_600_000, 0, nil)
		require.Nil(t, pending)
		require.Equal(t, engine.Granted, o.Kind)
		for i := range waiters {
			_, pending := n.AcquireLock(bareName("n"), fmt.Append(nil, i), 1000, 5000, i)
			require.NotNil(t, pending)
		}
		require.Equal(t, waiters, n.LockWaiters(bareName("n")))
		n.Effects()
		n.SetNow(dawn + 5000)
		return func() {
			n.Tick()
			require.Zero(t, n.LockWaiters(bareName("n")))
			require.Len(t, n.Effects(), waiters)
		}
	})
}

// D4: whether a job lives is known without looking through all claims.
func TestVerifyWithManyClaims(t *testing.T) {
	verify := func(claims int) func() {
		n, _, _ := node(dawn)
		other := wire.NodeID{1, 2, 3}
		n.AddPeer(other, "b:1")
		n.PeerUp(other, "b:1", true)
		n.TrustLocks()
		for i := range claims {
			_, pending := n.AcquireLock(bareName(fmt.Sprint("n", i)), []byte("a"), 1000, 60_000, i)
			require.NotNil(t, pending)
		}
		n.Effects()
		m := wire.Message{Kind: wire.Verify, ID: wire.JobID{5, 23: 1}, Lock: wire.Lock{Name: []byte("Wmkk"), Owner: []byte{}}}
		raw := m.Append(nil)
		return func() {
			for range 1000 {
				require.NoError(t, n.Receive(other, raw))
			}
			require.Len(t, n.Effects(), 1000)
		}
	}
	few, many := time.Hour, time.Hour
	for range 3 {
		for claims, best := range map[int]*time.Duration{10: &few, 20_000: &many} {
			f := verify(claims)
			began := time.Now()
			f()
			*best = min(*best, time.Since(began))
		}
	}
	assert.Less(t, many, 10*max(few, 100*time.Microsecond), "10 claims: %v, 20000: %v", few, many)
}

// D7: a node that learns the others' votes for an hour doesn't grow by what is freed
// meanwhile.
func TestMemoryWhileAbstaining(t *testing.T) {
	n, _, alloc := node(dawn)
	other, gone := wire.NodeID{1, 2, 3}, wire.NodeID{9}
	n.AddPeer(other, "b:1")
	n.AddPeer(gone, "c:1")
	n.PeerUp(other, "b:1", true)
	n.DistrustLocks()
	before := alloc.Bytes
	for i := range 100_000 {
		if i%50 == 0 {
			n.SetNow(n.Now() + 15)
		}
		m := wire.Message{Kind: wire.Unlock, Round: uint64(i + 1), Lock: wire.Lock{Name: bareName(fmt.Sprint("n", i)), Owner: []byte("a"), Token: uint64(n.Now())<<20 + uint64(i)}}
		require.NoError(t, n.Receive(other, m.Append(nil)))
		n.Effects()
		if i%1000 == 0 {
			n.Tick()
			n.Effects()
		}
	}
	require.True(t, n.Abstains())
	assert.LessOrEqual(t, n.FreedVotes(), 1<<15)
	for range 100 {
		n.SetNow(n.Now() + 1000)
		n.Tick()
		n.Effects()
	}
	assert.LessOrEqual(t, alloc.Bytes, before+100_000)
}

// D10: locks that are over don't stay in memory, whether or not anybody asks for them.
func TestManyShortLocks(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) {
			n, _, _ := node(dawn)
			if !alone {
				other := wire.NodeID{1, 2, 3}
				n.AddPeer(other, "b:1")
				n.PeerUp(other, "b:1", true)
				n.TrustLocks()
			}
			const locks = 50_000
			for i := range locks {
				if alone {
					n.AcquireLock(bareName(fmt.Sprint("n", i)), []byte("a"), 1, 0, nil)
				} else {
					m := wire.Message{Kind: wire.Claim, Round: uint64(i + 1), Lock: wire.Lock{Name: bareName(fmt.Sprint("n", i)), Owner: []byte("a"), Lease: 1, Token: dawn<<20 + uint64(i)}, Members: n.MembersSum()}
					require.NoError(t, n.Receive(wire.NodeID{1, 2, 3}, m.Append(nil)))
				}
				n.Effects()
			}
			require.EqualValues(t, locks, n.Locks())
			for n.Locks() > locks/100 && n.Now() < dawn+5000 {
				before := n.Locks()
				next := n.Tick()
				require.Less(t, before-n.Locks(), uint64(10_000), "one tick")
				n.Effects()
				n.SetNow(next)
			}
			assert.LessOrEqual(t, n.Locks(), uint64(locks/100), "after %d ms", n.Now()-dawn)
		})
	}
}
