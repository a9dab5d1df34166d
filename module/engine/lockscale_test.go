package engine_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// spent is how long f takes, of this thread's own time, in the best of five runs: other processes don't
// count. ready prepares what f needs; its time doesn't count either.
func spent(t *testing.T, ready func() (f func())) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := time.Hour
	for range 5 {
		f := ready()
		began := threadTime(t)
		f()
		least = min(least, threadTime(t)-began)
	}
	return max(least, 100*time.Microsecond)
}

// threadTime is the processor time of this thread, to which the caller is locked.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var ts syscall.Timespec
	const thread = 3 // CLOCK_THREAD_CPUTIME_ID
	_, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0)
	require.Zero(t, err)
	return time.Duration(ts.Nano())
}

func bareName(text string) []byte { return store.AppendBareName(nil, []byte(text)) }

// However many clients wait for a lock and give up at one time, each costs the same.
func TestManyWaitersGiveUp(t *testing.T) {
	giveUp := func(waiters int) func() {
		n, _, _ := node(dawn)
		o, pending := n.Locks().Acquire(bareName("n"), []byte("holder"), 3_600_000, 0, nil)
		require.Nil(t, pending)
		require.Equal(t, lock.Granted, o.Kind)
		for i := range waiters {
			_, pending := n.Locks().Acquire(bareName("n"), fmt.Append(nil, i), 1000, 5000, i)
			require.NotNil(t, pending)
		}
		require.Equal(t, waiters, n.Locks().Waiters(bareName("n")))
		n.Effects()
		n.SetNow(dawn + 5000)
		return func() {
			// The clients are answered bit by bit.
			told := 0
			for now := int64(dawn + 5000); n.Locks().Waiters(bareName("n")) > 0; now++ {
				n.SetNow(now)
				n.Tick()
				answered := 0
				for _, e := range n.Effects() {
					if e.Kind == engine.LockDone {
						answered++
					}
				}
				require.Positive(t, answered)
				require.LessOrEqual(t, answered, mostAtOnce)
				told += answered
			}
			require.Equal(t, waiters, told)
		}
	}
	few, many := spent(t, func() func() { return giveUp(1000) }), spent(t, func() func() { return giveUp(16_000) })
	few = max(few, time.Millisecond) // the resolution of the clock
	assert.Less(t, many, 60*few, "1000: %v, 16000: %v; it was 685 ms", few, many)
}

// A node knows whether a job lives without looking through all claims.
func TestVerifyWithManyClaims(t *testing.T) {
	verify := func(claims int) func() {
		n, _, _ := node(dawn)
		other := wire.NodeID{1, 2, 3}
		n.Mesh().Add(other, "b:1")
		n.Mesh().Up(other, "b:1", true)
		n.Locks().Trust()
		for i := range claims {
			_, pending := n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 1000, 60_000, i)
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

// A node that learns the others' votes for an hour doesn't grow by the votes that are freed
// meanwhile.
func TestMemoryWhileAbstaining(t *testing.T) {
	n, _, alloc := node(dawn)
	other, gone := wire.NodeID{1, 2, 3}, wire.NodeID{9}
	n.Mesh().Add(other, "b:1")
	n.Mesh().Add(gone, "c:1")
	n.Mesh().Up(other, "b:1", true)
	n.Locks().MarkIncomplete()
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
	require.True(t, n.Locks().Abstains())
	assert.LessOrEqual(t, n.FreedVotes(), 1<<15)
	for range 100 {
		n.SetNow(n.Now() + 1000)
		n.Tick()
		n.Effects()
	}
	assert.LessOrEqual(t, alloc.Bytes, before+100_000)
}

// Locks that are over don't stay in memory, whether or not anybody asks for them.
func TestManyShortLocks(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) {
			n, _, _ := node(dawn)
			if !alone {
				other := wire.NodeID{1, 2, 3}
				n.Mesh().Add(other, "b:1")
				n.Mesh().Up(other, "b:1", true)
				n.Locks().Trust()
			}
			const locks = 50_000
			for i := range locks {
				if alone {
					n.Locks().Acquire(bareName(fmt.Sprint("n", i)), []byte("a"), 1, 0, nil)
				} else {
					m := wire.Message{Kind: wire.Claim, Round: uint64(i + 1), Lock: wire.Lock{Name: bareName(fmt.Sprint("n", i)), Owner: []byte("a"), Lease: 1, Token: dawn<<20 + uint64(i)}, Members: n.MembersSum()}
					require.NoError(t, n.Receive(wire.NodeID{1, 2, 3}, m.Append(nil)))
				}
				n.Effects()
			}
			require.EqualValues(t, locks, n.Locks().Count())
			for n.Locks().Count() > locks/100 && n.Now() < dawn+5000 {
				before := n.Locks().Count()
				next := n.Tick()
				require.Less(t, before-n.Locks().Count(), uint64(10_000), "one tick")
				n.Effects()
				n.SetNow(next)
			}
			assert.LessOrEqual(t, n.Locks().Count(), uint64(locks/100), "after %d ms", n.Now()-dawn)
		})
	}
}

// A node that doesn't know how long its votes last uses the longest possible lease,
// as it is set at that time.
func TestMaxLeaseIsSetWhileAbstaining(t *testing.T) {
	n, _, _ := node(dawn)
	n.Mesh().Add(wire.NodeID{1, 2, 3}, "b:1")
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true})
	n.Locks().MarkIncomplete()
	require.EqualValues(t, 3_690_010, n.Locks().Abstaining().Left)
	n.Locks().SetMaxLease(10_000)
	require.EqualValues(t, 10_260, n.Locks().Abstaining().Left)
	require.False(t, n.Locks().Abstaining().Jobs)
	n.SetNow(dawn + 10_260)
	require.True(t, n.Locks().Abstaining().Jobs, "for jobs' locks the other's table is awaited")
	require.Len(t, n.Locks().Abstaining().Awaited, 1)
	require.True(t, n.Mesh().Forget(wire.NodeID{1, 2, 3}))
	require.Nil(t, n.Locks().Abstaining())
}

// LOCK.CLEAR frees very many locks at once for everybody who looks, and removes
// them bit by bit. A lock that is taken anew meanwhile isn't cleared.
func TestTheClearingOfVeryManyLocks(t *testing.T) {
	const locks = 20_000
	name := func(i int) []byte { return bareName(fmt.Sprint("n", i)) }
	acquire := func(n *engine.Node, i int, owner string) lock.ResultKind {
		o, pending := n.Locks().Acquire(name(i), []byte(owner), 3_600_000, 0, nil)
		require.Nil(t, pending)
		return o.Kind
	}
	filled := func() *engine.Node {
		n, _, _ := node(dawn)
		for i := range locks {
			require.Equal(t, lock.Granted, acquire(n, i, "old"))
		}
		require.Equal(t, lock.Granted, func() lock.ResultKind {
			o, _ := n.Locks().Acquire(bareName("other"), []byte("old"), 3_600_000, 0, nil)
			return o.Kind
		}())
		n.Effects()
		return n
	}
	// play ticks, and returns the answers that came.
	play := func(n *engine.Node, ticks int) (answers []engine.Effect) {
		for range ticks {
			n.SetNow(n.Now() + 1)
			n.Tick()
			count := 0
			for _, e := range n.Effects() {
				count++
				if e.Kind == engine.Cleared {
					answers = append(answers, e)
				}
			}
			require.LessOrEqual(t, count, mostAtOnce)
		}
		return answers
	}

	n := filled()
	count, pending, err := n.Locks().Clear(bareName("n"), true, true)
	require.NoError(t, err)
	require.NotNil(t, pending)
	assert.Zero(t, count)
	pending.Client = "client"
	assert.LessOrEqual(t, len(n.Effects()), mostAtOnce)
	assert.Empty(t, play(n, 3))
	assert.Greater(t, n.Locks().Count(), uint64(locks/2))
	for i := range locks {
		require.Nil(t, n.Locks().Live(name(i)), "it is free at once")
	}
	assert.NotNil(t, n.Locks().Live(bareName("other")))
	// The clearing comes to the last lock last.
	require.Equal(t, lock.Granted, acquire(n, locks-1, "new"))
	require.Equal(t, lock.Conflict, acquire(n, locks-1, "old"))
	// A second clearing, of another prefix, doesn't touch that lock either.
	_, second, err := n.Locks().Clear(bareName("o"), true, true)
	require.NoError(t, err)
	require.NotNil(t, second)
	second.Client = "second"
	answers := play(n, 200)
	require.Len(t, answers, 2)
	assert.Equal(t, "client", answers[0].Client)
	assert.Equal(t, locks, answers[0].Nodes)
	assert.NoError(t, answers[0].Err)
	assert.Equal(t, "second", answers[1].Client)
	assert.Equal(t, 1, answers[1].Nodes)
	assert.Equal(t, uint64(1), n.Locks().Count())
	assert.NotNil(t, n.Locks().Live(name(locks-1)))

	// If no client can wait, all locks are cleared at once.
	n = filled()
	count, pending, err = n.Locks().Clear(bareName(""), true, false)
	require.NoError(t, err)
	require.Nil(t, pending)
	assert.Equal(t, int64(locks+1), count)
	assert.Zero(t, n.Locks().Count())

	// The locks of a replica are those of its master.
	n = filled()
	_, pending, err = n.Locks().Clear(bareName(""), true, true)
	require.NoError(t, err)
	pending.Client = "client"
	n.SetPassive(true)
	var told []error
	for _, e := range n.Effects() {
		if e.Kind == engine.Cleared {
			told = append(told, e.Err)
		}
	}
	assert.Equal(t, []error{engine.ErrReplica}, told)

	// A node that hears of the clearing from another node votes anew at once.
	n = filled()
	other := wire.NodeID{1, 2, 3}
	n.Mesh().Add(other, "b:1")
	n.Mesh().Up(other, "b:1", true)
	n.Locks().Trust()
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000)})
	n.Effects()
	clear := wire.Message{Kind: wire.ClearLocks, Flags: wire.Prefix, Lock: wire.Lock{Name: bareName("n")}}
	require.NoError(t, n.Receive(other, clear.Append(nil)))
	assert.LessOrEqual(t, len(n.Effects()), mostAtOnce)
	require.Nil(t, n.Locks().Live(name(locks-1)))
	m := wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: wire.Lock{
		Name: name(locks - 1), Owner: []byte("new"), Token: uint64(n.Now()+4_000) << 20, Lease: 1000}}
	require.NoError(t, n.Receive(other, m.Append(nil)))
	granted := false
	for _, e := range n.Effects() {
		granted = granted || e.Kind == engine.Send && wire.Kind(n.Message(&e)[0]) == wire.Grant
	}
	assert.True(t, granted)
	play(n, 200)
	require.NotNil(t, n.Locks().Live(name(locks-1)))
	assert.Equal(t, "new", string(n.Locks().Live(name(locks-1)).Owner()))
	assert.NotNil(t, n.Locks().Live(bareName("other")))
	for i := range locks - 1 {
		require.Nil(t, n.Locks().Live(name(i)))
	}
}

// Very many leases that end at one time, with a client that waits for each lock, end bit by bit.
func TestVeryManyLeasesEnd(t *testing.T) {
	const locks = 5000
	n, _, _ := node(dawn)
	for i := range locks {
		name := bareName(fmt.Sprint("n", i))
		_, pending := n.Locks().Acquire(name, []byte("a"), 5000, 0, nil)
		require.Nil(t, pending)
		_, pending = n.Locks().Acquire(name, []byte("b"), 5000, 60_000, i)
		require.NotNil(t, pending)
	}
	n.Effects()
	granted, ticks := 0, 0
	for ; granted < locks && ticks < 200; ticks++ {
		n.SetNow(int64(dawn + 5000 + ticks))
		n.Tick()
		granted += counted(t, n)[engine.LockDone]
	}
	assert.Equal(t, locks, granted)
	assert.Greater(t, ticks, 5)
	for i := range locks {
		l := n.Locks().Live(bareName(fmt.Sprint("n", i)))
		require.NotNil(t, l)
		require.Equal(t, "b", string(l.Owner()))
	}
}

// A claim that is sent again, because a voter's disk is slow, costs the voter no second write.
func TestVoteIsLoggedOnce(t *testing.T) {
	peer := wire.NodeID{1, 2, 3}
	n, _, _ := node(1_700_000_000_000)
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(100_000)})
	n.SetLife(peer, 1)
	n.Mesh().Up(peer, "10.0.0.1:1", false)
	n.Locks().Trust()
	n.Locks().VotesKept(n.Locks().Votes()) // the node isn't new to the mesh any more
	round := uint64(0)
	ask := func(token uint64, lease int64, change func(*wire.Message)) (logged, granted int) {
		n.Effects()
		round++
		m := wire.Message{Kind: wire.Claim, Round: round, Members: n.MembersSum(), Lock: wire.Lock{
			Name: store.AppendBareName(nil, []byte("n")), Owner: []byte("o"), Token: token, Lease: lease}}
		if change != nil {
			change(&m)
		}
		require.NoError(t, n.Receive(peer, m.Append(nil)))
		for _, e := range n.Effects() {
			switch e.Kind {
			case engine.LogLock:
				logged++
			case engine.Send:
				var answer wire.Message
				require.NoError(t, answer.Parse(n.Message(&e)))
				if answer.Kind == wire.Grant {
					granted++
				}
			}
		}
		return logged, granted
	}
	const token = 1_700_000_001_000 << 20
	kept := func(m *wire.Message) { m.Lock.Flags |= 1 << 3 }
	for _, c := range []struct {
		what   string
		token  uint64
		lease  int64
		change func(*wire.Message)
		logged int
	}{
		{"asked for", token, 1000, nil, 1},
		{"again", token, 1000, nil, 0},
		{"again", token, 1000, nil, 0},
		{"for longer", token, 2000, nil, 1},
		{"by a greater token", token + 1, 2000, nil, 1},
		{"extended", token + 1, 2000, func(m *wire.Message) { kept(m); m.Flags |= wire.Extend }, 1},
		{"and again: replicas are to know how long it lasts", token + 1, 2000, func(m *wire.Message) { kept(m); m.Flags |= wire.Extend }, 1},
	} {
		logged, granted := ask(c.token, c.lease, c.change)
		assert.Equal(t, 1, granted, c.what)
		assert.Equal(t, c.logged, logged, c.what)
	}
}

// A node claims a lock for a holder who has just got it through another node, and the claim
// fails. It takes back its own claim's votes, and not those of the other node: its tokens
// lie around the other's, and differ in the bits of the node.
func TestTwoNodesClaimForOneHolder(t *testing.T) {
	first, second, third := wire.NodeID{7: 2, 19: 1}, wire.NodeID{7: 4, 19: 2}, wire.NodeID{7: 6, 19: 3}
	n, _, _ := node(1_700_000_000_000)
	n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(100_000)})
	for i, id := range []wire.NodeID{first, second, third} {
		n.SetLife(id, 1)
		n.Mesh().Up(id, fmt.Sprintf("10.0.0.%d:1", i), false)
	}
	n.Locks().Trust()
	n.Locks().VotesKept(n.Locks().Votes()) // the node isn't new to the mesh any more
	n.Effects()
	round := uint64(0)
	send := func(from wire.NodeID, kind wire.Kind, flags uint8, owner string, token, above uint64) wire.Kind {
		round++
		m := wire.Message{Kind: kind, Flags: flags, Round: round, Members: n.MembersSum(), Lock: wire.Lock{
			Name: store.AppendBareName(nil, []byte("n")), Owner: []byte(owner), Token: token, Left: int64(above)}}
		if kind == wire.Claim {
			m.Lock.Lease = 10_000
		}
		require.NoError(t, n.Receive(from, m.Append(nil)))
		var answer wire.Message
		for _, e := range n.Effects() {
			if e.Kind == engine.Send && len(n.Message(&e)) > 0 {
				require.NoError(t, answer.Parse(n.Message(&e)))
			}
		}
		return answer.Kind
	}
	const began = 1_700_000_000_000 << 20
	own := func(id wire.NodeID, i uint64) uint64 { return began + i<<16 | uint64(id.Node())&(1<<16-1) }
	require.Equal(t, wire.Grant, send(first, wire.Claim, 0, "x", own(first, 2), 0))
	require.Equal(t, wire.Grant, send(second, wire.Claim, 0, "x", own(second, 3), own(second, 3)-own(second, 1)))
	send(second, wire.Unlock, wire.Fresh, "x", own(second, 3), 0)
	assert.Equal(t, wire.Deny, send(third, wire.Claim, 0, "y", own(third, 4), 0), "x has it, through the first")

	// The vote for its own earlier round goes.
	n.Locks().Trust()
	send(first, wire.Unlock, 0, "x", own(first, 2), 0)
	require.Equal(t, wire.Grant, send(second, wire.Claim, 0, "x", own(second, 5), 0))
	require.Equal(t, wire.Grant, send(second, wire.Claim, 0, "x", own(second, 6), own(second, 6)-own(second, 5)))
	send(second, wire.Unlock, wire.Fresh, "x", own(second, 6), 0)
	assert.Equal(t, wire.Grant, send(third, wire.Claim, 0, "y", own(third, 7), 0))
}

// A node that may have lost votes keeps very many locks until another node has told its whole table. Then it forgets those that aren't
// in that at once for everybody who looks, and removes them bit by bit. When all are gone the log says that the table is whole.
func TestDistrustOfVeryManyLocks(t *testing.T) {
	const locks = 20_000
	name := func(i int) []byte { return bareName(fmt.Sprint("n", i)) }
	other := wire.NodeID{1, 2, 3}
	distrusting := func() (n *engine.Node, ends int) {
		n, _, _ = node(dawn)
		for i := range locks {
			o, _ := n.Locks().Acquire(name(i), []byte("old"), 3_600_000, 0, nil)
			require.Equal(t, lock.Granted, o.Kind)
		}
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, Unique: engine.Unique{Strategy: store.UniqueBefore}})
		require.NoError(t, err)
		n.Mesh().Add(other, "b:1")
		n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
		n.Effects()
		n.Locks().MarkIncomplete()
		c := counted(t, n)
		return n, c[engine.LogUnlock]
	}
	count := func(n *engine.Node) (others int) {
		live, cursor := 0, uint64(0)
		for {
			var list []*store.Lock
			cursor = n.Locks().Scan(cursor, &list)
			for _, l := range list {
				if l.Space() == store.LockWait {
					live++
				} else {
					others++
				}
			}
			if cursor == 0 {
				break
			}
		}
		require.Equal(t, 1, live, "that of a job that is known stays")
		return others
	}
	check := func(n *engine.Node) { require.Zero(t, count(n)) }
	told := func(n *engine.Node) { // the other node's table, which is empty
		n.Mesh().Up(other, "b:1", true)
		n.Effects()
		page := wire.Message{Kind: wire.LockPage}
		require.NoError(t, n.Receive(other, page.Append(nil)))
		n.Effects()
	}
	tick := func(n *engine.Node) int {
		n.SetNow(n.Now() + 1)
		n.Tick()
		return counted(t, n)[engine.LogUnlock]
	}

	n, ends := distrusting()
	require.Equal(t, locks, count(n))
	told(n)
	ticks := 0
	for ; n.Locks().Count() > locks/100 && ticks < 1000; ticks++ {
		ends += tick(n)
		if n.Locks().Count() < locks {
			check(n)
		}
	}
	assert.Greater(t, ticks, 20)
	assert.True(t, n.Locks().IsComplete())
	assert.GreaterOrEqual(t, ends, locks, "all ends are logged before that is")

	// A change of role in between brings no lock back.
	n, _ = distrusting()
	told(n)
	for n.Locks().Count() >= locks {
		tick(n)
	}
	n.SetPassive(true)
	tick(n)
	check(n)
	n.SetPassive(false)
	check(n)
	for n.Locks().Count() > locks/100 && n.Now() < dawn+20_000 {
		tick(n)
	}
	check(n)
	assert.LessOrEqual(t, n.Locks().Count(), uint64(locks/100))
}

// A job waits until the run of its key that another node gave to its client is over. That node was alone then, so the
// lock has no end, and it tells the lock without one. Perhaps no node hears of the run's end.
// The job's run is still asked for again when its retry time is over.
func TestAnEndlessRunElsewhereIsOverAfterTheRetryTime(t *testing.T) {
	for name, voted := range map[string]bool{"told of": false, "voted for, then told of": true} {
		t.Run(name, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			peers := []wire.NodeID{{1, 2, 3, 0}, {1, 2, 3, 1}}
			for i := range peers {
				n.Mesh().Up(peers[i], fmt.Sprintf("10.0.0.%d:1", i), false)
			}
			n.Locks().Trust()
			n.Locks().VotesKept(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
			id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 6000, Unique: engine.Unique{Strategy: store.UniqueDuring}})
			require.NoError(t, err)
			n.Effects()
			receive := func(m wire.Message) {
				require.NoError(t, n.Receive(peers[0], m.Append(nil)))
			}
			u := n.Job(&id).Unique()
			lock := wire.Lock{Name: n.Job(&id).AppendLock(nil, u, store.LockRun), Job: wire.JobID(id), Token: uint64(now) << 20}
			if voted {
				claim := lock
				claim.Lease = 10_000
				receive(wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: claim})
				require.Positive(t, counted(t, n)[engine.LogLock], "the vote is given")
			}
			wait := func() {
				require.Empty(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil))
				_, err = n.Wait([][]byte{[]byte("q")}, "client")
				require.NoError(t, err)
			}
			if voted {
				wait()
				n.Tick()
				n.Effects()
			}
			lock.Token++
			lock.Flags = 1 << 1 // the other node was alone
			receive(wire.Message{Kind: wire.LockPage, Flags: wire.Told, Locks: []wire.Lock{lock}})
			if !voted {
				wait()
			}
			claims := func() (asked int) {
				n.SetNow(now)
				n.Tick()
				for _, e := range n.Effects() {
					if m := n.Message(&e); e.Kind == engine.Send && wire.Kind(m[0]) == wire.Claim {
						asked++
					}
				}
				return asked
			}
			n.Effects()
			for from := now; now < from+9_000; now += 1000 {
				require.Zero(t, claims(), "the other node's client works on it")
			}
			for until := now + 13_000; claims() == 0; now += 1000 {
				require.Less(t, now, until)
			}
		})
	}
}
