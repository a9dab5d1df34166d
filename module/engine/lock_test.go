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
