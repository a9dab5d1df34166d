package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
)

func TestLocksEndWithTheirLease(t *testing.T) {
	now := int64(1_000_000)
	n := New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Steady: func() int64 { return now }})
	name := store.AppendLockName(nil, store.LockBare, []byte("q"), []byte("k"))
	a, b := store.ID{1}, store.ID{2}

	first, holder := n.takeLock(name, &a, 1000)
	assert.Nil(t, holder)
	_, holder = n.takeLock(name, &b, 0)
	assert.Equal(t, a, holder.Job)
	again, _ := n.takeLock(name, &a, 1000)
	assert.Equal(t, first, again, "who has it keeps the token")
	assert.False(t, n.freeLock(name, &b))

	now += 1000
	assert.Nil(t, n.liveLock(name))
	second, holder := n.takeLock(name, &b, 0)
	assert.Nil(t, holder)
	assert.Greater(t, second, first)
	assert.False(t, n.freeLock(name, &a))
	assert.True(t, n.freeLock(name, &b))
	third, _ := n.takeLock(name, &a, 1000)
	assert.Greater(t, third, second, "also where the lock was forgotten meanwhile")

	now += 2000
	n.SetNow(n.now + 2000)
	for range 64 {
		n.Tick()
	}
	assert.Zero(t, n.store.Locks().Len, "what is over is removed")
}

// However often a lock changes hands, its end is awaited once.
func TestWatchedLocksTakeNoMoreMemory(t *testing.T) {
	now := int64(1_000_000)
	n := New(Config{Alloc: storetest.New(), Random: rand.NewPCG(1, 2), NodeID: "0123456789abcdef0123456789abcdef01234567", Now: now, Steady: func() int64 { return now }})
	name := store.AppendBareName(nil, []byte("n"))
	owners := [2][]byte{[]byte("a"), []byte("b")}
	o, _ := n.AcquireLock(name, owners[0], 3_600_000, 0, nil)
	assert.Equal(t, Granted, o.Kind)
	for i := range 100 {
		_, pending := n.AcquireLock(name, owners[1-i%2], 3_600_000, 60_000, nil)
		assert.NotNil(t, pending)
		n.Effects()
		o, _ = n.ReleaseLock(name, owners[i%2], o.Token, nil)
		assert.Equal(t, Granted, o.Kind)
		for _, e := range n.Effects() {
			if e.Kind == LockDone {
				o = *e.Outcome
			}
		}
	}
	assert.LessOrEqual(t, len(n.deadlines), 1)
}
