package engine_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// spent is how long f takes, of this thread's own time, at best: other processes don't
// count. What f needs is made ready before.
func spent(t *testing.T, ready func() (f func())) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		const thread = 1 // RUSAGE_THREAD
		require.NoError(t, syscall.Getrusage(thread, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	least := time.Hour
	for range 5 {
		f := ready()
		began := used()
		f()
		least = min(least, used()-began)
	}
	return max(least, 100*time.Microsecond)
}

func bareName(text string) []byte { return store.AppendBareName(nil, []byte(text)) }

// D3: however many wait for a lock and give up at one time, each costs the same.
func TestManyWaitersGiveUp(t *testing.T) {
	giveUp := func(waiters int) func() {
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
	}
	few, many := spent(t, func() func() { return giveUp(1000) }), spent(t, func() func() { return giveUp(16_000) })
	assert.Less(t, many, 120*few, "1000: %v, 16000: %v; were it quadratic, 256 times", few, many)
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
	few, many := spent(t, func() func() { return verify(10) }), spent(t, func() func() { return verify(20_000) })
	assert.Less(t, many, 10*few, "10 claims: %v, 20000: %v", few, many)
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

// A node that doesn't know how long its votes last goes by the longest that there may be,
// as it is set at that time.
func TestMaxLeaseIsSetWhileAbstaining(t *testing.T) {
	n, _, _ := node(dawn)
	n.AddPeer(wire.NodeID{1, 2, 3}, "b:1")
	n.SetVotes(engine.Votes{Longest: -1, Unleased: true})
	n.DistrustLocks()
	require.EqualValues(t, 3_690_010, n.Abstaining().Left)
	n.SetMaxLease(10_000)
	require.EqualValues(t, 10_260, n.Abstaining().Left)
	require.False(t, n.Abstaining().Jobs)
	n.SetNow(dawn + 10_260)
	require.True(t, n.Abstaining().Jobs, "for jobs' locks the other's table is awaited")
	require.Len(t, n.Abstaining().Awaited, 1)
	require.True(t, n.Forget(wire.NodeID{1, 2, 3}))
	require.Nil(t, n.Abstaining())
}
