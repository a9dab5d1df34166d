package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

func TestLocksEndWithTheirLease(t *testing.T) {
	now := int64(1_000_000)
	n := New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	name := store.AppendLockName(nil, store.LockBare, []byte("q"), []byte("k"))
	a, b := store.ID{1}, store.ID{2}

	first, holder := n.Locks().Take(name, &a, 1000)
	assert.Nil(t, holder)
	_, holder = n.Locks().Take(name, &b, 0)
	assert.Equal(t, a, holder.Job)
	again, _ := n.Locks().Take(name, &a, 1000)
	assert.Equal(t, first, again, "who has it keeps the token")
	assert.False(t, n.Locks().Free(name, &b))

	now += 1000
	assert.Nil(t, n.Locks().Live(name))
	second, holder := n.Locks().Take(name, &b, 0)
	assert.Nil(t, holder)
	assert.Greater(t, second, first)
	assert.False(t, n.Locks().Free(name, &a))
	assert.True(t, n.Locks().Free(name, &b))
	third, _ := n.Locks().Take(name, &a, 1000)
	assert.Greater(t, third, second, "also where the lock was forgotten meanwhile")

	now += 2000
	n.SetNow(n.now + 2000)
	for range 64 {
		n.Tick()
	}
	assert.Zero(t, n.store.Locks().Len, "what is over is removed")
}

// A log that is written anew has no window that a flush has ended, also before the window's lock is removed.
// Its token stays written off.
func TestLogAfterAFlush(t *testing.T) {
	now := int64(1_000_000)
	start := func() *Node {
		return New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	}
	n := start()
	window := func(key string) (name []byte, token uint64) {
		name = store.AppendLockName(nil, store.LockWait, []byte("q"), []byte(key))
		token, _ = n.Locks().Take(name, &store.ID{1}, 1_000_000)
		l := n.store.Lock(name)
		n.Locks().SetFlags(l, lock.FlagOutlives)
		l.Era = n.store.Locks().Epoch
		return name, token
	}
	ended, token := window("ended")
	n.Flush()
	lasts, _ := window("lasts")
	n.Effects()
	n.Locks().Relog()
	reader := start()
	for _, e := range n.Effects() {
		switch b := n.Message(&e); e.Kind {
		case LogLock:
			require.NoError(t, reader.Locks().Apply(b))
		case LogUnlock:
			reader.Locks().ApplyEnd(lock.UnlockParts(b))
		}
	}
	assert.NotNil(t, n.store.Lock(ended), "it isn't removed yet")
	for _, n := range []*Node{n, reader} {
		assert.Nil(t, n.Locks().Live(ended))
		assert.NotNil(t, n.Locks().Live(lasts))
	}
	again, _ := reader.Locks().Take(ended, &store.ID{2}, 1)
	assert.Greater(t, again, token)
}

// However often a lock changes hands, one timer awaits its end.
func TestWatchedLocksTakeNoMoreMemory(t *testing.T) {
	now := int64(1_000_000)
	n := New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	name := store.AppendBareName(nil, []byte("n"))
	owners := [2][]byte{[]byte("a"), []byte("b")}
	o, _ := n.Locks().Acquire(name, owners[0], 3_600_000, 0, nil)
	assert.Equal(t, lock.Granted, o.Kind)
	for i := range 100 {
		_, pending := n.Locks().Acquire(name, owners[1-i%2], 3_600_000, 60_000, nil)
		assert.NotNil(t, pending)
		n.Effects()
		o, _ = n.Locks().Release(name, owners[i%2], o.Token, nil)
		assert.Equal(t, lock.Granted, o.Kind)
		for _, e := range n.Effects() {
			if e.Kind == LockDone {
				o = *e.Outcome
			}
		}
	}
	assert.LessOrEqual(t, n.Locks().Sizes().Watched, 1)
}

// A node may hear of a lock's end before it hears the claim. It keeps the lock's token, and saves it
// with the others: the server must be able to load it.
func TestLockThatEndedBeforeItsClaimCanBeLoaded(t *testing.T) {
	now := int64(1_000_000)
	fresh := func() *Node {
		return New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	}
	n, peer := fresh(), wire.NodeID{0: 7, 19: 1}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	token := uint64(now) << lock.TokenShift
	m := wire.Message{Kind: wire.Unlock, Round: 1, Lock: wire.Lock{Name: store.AppendLockName(nil, store.LockRun, nil, []byte("k")), Job: wire.JobID{1}, Token: token}}
	require.NoError(t, n.Receive(peer, m.Append(nil)))
	l := n.Locks().Table().Head
	require.NotNil(t, l)
	again := fresh()
	require.NoError(t, again.Locks().Apply(l.Record()))
	assert.Nil(t, again.Locks().Table().Head)
	assert.Equal(t, token, again.Locks().Table().Floor)
}

// No token is given twice even if a log lost its last two seconds. A restart skips at most six
// seconds of tokens, because tokens tell the older of two locks.
func TestTokensAreWrittenOffShortlyAhead(t *testing.T) {
	now := int64(1_000_000)
	fresh := func() *Node {
		return New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	}
	n, again := fresh(), fresh()
	type record struct{ at, token int64 }
	var saved []record
	for end := now + 20_000; now < end; now += 100 {
		n.SetNow(now)
		o, _ := n.Locks().Acquire(store.AppendBareName(nil, fmt.Append(nil, now)), []byte("a"), 1000, 0, nil)
		require.Equal(t, lock.Granted, o.Kind)
		for _, e := range n.Effects() {
			if e.Kind != LogUnlock {
				continue
			}
			if name, floor := lock.UnlockParts(n.Message(&e)); len(name) == 0 {
				saved = append(saved, record{now, lock.BegunAt(floor)})
			}
		}
		covered := int64(0)
		for _, r := range saved {
			if r.at <= now-2_000 || r == saved[0] {
				covered = r.token
			}
		}
		assert.Greater(t, covered, lock.BegunAt(o.Token))
	}
	assert.LessOrEqual(t, len(saved), 7, "not each token is logged")
	last := saved[len(saved)-1]
	again.Locks().ApplyEnd(nil, uint64(last.token)<<lock.TokenShift)
	again.SetNow(now)
	o, _ := again.Locks().Acquire(store.AppendBareName(nil, []byte("n")), []byte("a"), 1000, 0, nil)
	assert.LessOrEqual(t, lock.BegunAt(o.Token)-now, int64(6_000))
}

// A node that has said that it doesn't count on votes up to a token claims by greater ones, also
// after a restart, because those votes are about to be taken back.
func TestTokenOfVotesThatAreLeftIsNotClaimedAgain(t *testing.T) {
	now := int64(1_000_000)
	fresh := func() *Node {
		return New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	}
	n, again, peer := fresh(), fresh(), wire.NodeID{0: 7, 19: 1}
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	n.Effects()
	token := uint64(now+20_000) << lock.TokenShift
	m := wire.Message{Kind: wire.Verify, ID: wire.JobID{1}, Lock: wire.Lock{Name: store.AppendLockName(nil, store.LockWait, nil, []byte("k")), Token: token}}
	require.NoError(t, n.Receive(peer, m.Append(nil)))
	for _, e := range n.Effects() {
		if e.Kind == LogUnlock {
			again.Locks().ApplyEnd(lock.UnlockParts(n.Message(&e)))
		}
	}
	o, _ := again.Locks().Acquire(store.AppendBareName(nil, []byte("n")), []byte("a"), 1000, 0, nil)
	assert.Greater(t, o.Token, token)
}

// A node that was a replica for hours is promoted. It abstains, because its master may have voted a moment ago, for the longest lease that there is.
func TestPromotedAfterHoursAbstains(t *testing.T) {
	now := int64(1_700_000_000_000)
	n := New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Monotonic: func() int64 { return now }})
	peers := []wire.NodeID{{0: 7, 19: 1}, {0: 8, 19: 1}}
	for _, id := range peers {
		n.Mesh().Add(id, "10.0.0.1:1")
	}
	n.Locks().SetVotes(lock.Votes{})
	n.SetPassive(true)
	now += 3 * lock.DefaultMaxLease
	n.SetNow(now)
	n.Tick()
	n.SetPassive(false)
	for _, id := range peers {
		n.Mesh().Up(id, "10.0.0.1:1", false)
	}
	for range 10 {
		now += 1000
		n.SetNow(now)
		n.Tick()
	}
	a := n.Locks().Abstaining()
	require.NotNil(t, a)
	assert.Greater(t, a.Left, int64(lock.DefaultMaxLease/2))
}
