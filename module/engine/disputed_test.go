package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// askedBehind says after how many ms a node gets a job that lies behind jobs that it has deleted; 0 if it doesn't in ten minutes.
// The node asks as for clients that wait: at once, then after 2 s, doubling to 30 s.
func askedBehind(t *testing.T, shunned int, quiet int64) (given int64) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.Mesh().Up(mate, "10.0.0.1:1", false)
	add := func() store.ID {
		id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 1000, TTL: 86400})
		require.NoError(t, err)
		return id
	}
	for range shunned {
		add()
	}
	n.Effects()
	refused := 0
	var last store.ID
	got := false
	answer := func() {
		for again := true; again; {
			again = false
			for _, m := range said(t, n, wire.YourJob) {
				if store.ID(m.ID) == last {
					got = true
					continue
				}
				again = true
				refused++
				no := wire.Message{Kind: wire.Refused, Flags: wire.NotQueued, ID: m.ID, Count: wire.Deleted}
				require.NoError(t, n.Receive(mate, no.Append(nil)))
			}
		}
	}
	ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
	next, wait, began := now, int64(2000), now
	run := func(ms int64) {
		for end := now + ms; now < end && !got; {
			if now >= next {
				next, wait = now+wait, min(2*wait, 30_000)
				require.NoError(t, n.Receive(mate, ask.Append(nil)))
				answer()
			}
			now += 1
			n.SetNow(now)
			if now%1000 == 0 {
				beats(t, n, mate)
			}
			n.Tick()
			answer()
		}
	}
	for refused < shunned {
		run(100)
	}
	t.Log("all refused after ms", now-began)
	run(quiet)
	last = add()
	added := now
	answer()
	run(600_000)
	require.Equal(t, shunned, refused)
	if !got {
		return -1
	}
	return now - added
}

// beats makes a node hear another one's heartbeat.
func beats(t *testing.T, n *engine.Node, from wire.NodeID) {
	beat := wire.Message{Kind: wire.Heartbeat}
	require.NoError(t, n.Receive(from, beat.Append(nil)))
}

// A node whose clients wait gets the job behind the jobs that it has deleted.
func TestBehindDeletedJobs(t *testing.T) {
	for _, shunned := range []int{0, 1, 900, 3500, 100_000} {
		for _, quiet := range []int64{1000, 75_000} {
			t.Run(fmt.Sprint(shunned, " ", quiet), func(t *testing.T) {
				got := askedBehind(t, shunned, quiet)
				t.Log("it is given after ms", got)
				require.True(t, got >= 0 && got < 1000)
			})
		}
	}
}

// A malformed name of a lock, from a node of the mesh, does nothing while jobs are in per-key queues.
func TestMalformedLockName(t *testing.T) {
	now := int64(1_700_000_000_000)
	n, _, _ := node(now)
	n.Mesh().Add(mate, "10.0.0.1:1")
	n.Mesh().Up(mate, "10.0.0.1:1", false)
	n.Effects()
	_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 10, TTL: 600, CanWait: true, Unique: engine.Unique{Strategy: store.UniqueDuring}})
	require.NoError(t, err)
	n.Effects()
	n.Locks().Trust()
	n.Effects()
	l := wire.Lock{Name: []byte("Rxyz"), Job: wire.JobID{1}, Token: uint64(now+5) << 20, Lease: 1000}
	m := wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: l}
	require.NoError(t, n.Receive(mate, m.Append(nil)))
	for _, e := range n.Effects() {
		if e.Kind == engine.KeepVotes {
			n.Locks().VotesKept(n.Locks().Votes())
		}
	}
	require.NoError(t, n.Receive(mate, m.Append(nil)))
	t.Log(len(said(t, n, wire.Grant)))
	m = wire.Message{Kind: wire.Unlock, Round: 2, Lock: l}
	require.NoError(t, n.Receive(mate, m.Append(nil)))
}

// abstaining makes a node that is connected to others, and may have lost votes that it gave.
func abstaining(t *testing.T, now int64, votes lock.Votes, others []wire.NodeID) *engine.Node {
	n, _, _ := node(now)
	n.Locks().SetVotes(votes)
	for _, id := range others {
		n.Mesh().Add(id, "10.0.0.1:1")
		n.Mesh().Up(id, "10.0.0.1:1", false)
	}
	n.Effects()
	n.Locks().MarkIncomplete()
	n.Tick()
	n.Effects()
	require.True(t, n.Locks().Abstains())
	return n
}

// A node in dispute hears of one rival by two tokens. When one token is taken back, because its round failed, the node
// remembers the holder, and votes for no third one.
func TestRivalOfTwoTokens(t *testing.T) {
	for _, order := range []string{"greater first", "lower first", "greater first, and ends", "lower first, and greater ends"} {
		t.Run(order, func(t *testing.T) {
			now := int64(1_700_000_000_000)
			nodes := []wire.NodeID{{1}, {2}, {3}, {4}}
			n := abstaining(t, now, lock.Votes{Longest: lock.LeasesUpTo(600_000)}, nodes)
			name := store.AppendLockName(nil, store.LockWait, nil, []byte("k"))
			tok := func(i int64) uint64 { return uint64(now+i) << 20 }
			lock := func(job byte, i, left int64) wire.Lock {
				return wire.Lock{Name: name, Job: wire.JobID{job, 23: 1}, Token: tok(i), Lease: 100_000, Left: left}
			}
			page := func(from int, l wire.Lock) {
				m := wire.Message{Kind: wire.LockPage, Lock: wire.Lock{Token: tok(3)}, Locks: []wire.Lock{l}}
				require.NoError(t, n.Receive(nodes[from], m.Append(nil)))
				n.Effects()
			}
			// h2 has c's vote from a round that fails. h1 has a's vote by T1, from a round that fails, and b's by T2. e and this node
			// voted for T2, too, so h1 has the lock by it.
			page(2, lock(2, 3, 100_000))
			if strings.HasPrefix(order, "greater") {
				page(1, lock(1, 2, 90_000))
				page(0, lock(1, 1, 100_000))
			} else {
				page(0, lock(1, 1, 100_000))
				page(1, lock(1, 2, 90_000))
			}
			t.Log("abstains", n.Locks().Abstains(), "disputed", n.Disputed())
			unlock := func(from int, l wire.Lock) {
				m := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 9, Lock: l}
				require.NoError(t, n.Receive(nodes[from], m.Append(nil)))
				n.Effects()
			}
			if strings.HasSuffix(order, "ends") { // the later round is the one that fails: h1 has the lock by T1
				unlock(1, lock(1, 2, 0))
			} else {
				unlock(0, lock(1, 1, 0))
			}
			unlock(2, lock(2, 3, 0))
			t.Log("abstains", n.Locks().Abstains(), "disputed", n.Disputed())
			claim := wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: lock(3, 10_000, 0)}
			for range 2 {
				require.NoError(t, n.Receive(nodes[0], claim.Append(nil)))
				for _, e := range n.Effects() {
					switch e.Kind {
					case engine.KeepVotes:
						n.Locks().VotesKept(n.Locks().Votes())
					case engine.Send:
						var m wire.Message
						require.NoError(t, m.Parse(n.Message(&e)))
						t.Log("kind", m.Kind, "count", m.Count, m.Lock.Job[0])
						require.NotEqual(t, wire.Grant, m.Kind, "h1 has the lock by its other token")
					}
				}
			}
		})
	}
}

// Other nodes' clients get jobs that lie behind a thousand at-most-once jobs which aren't handed over because others wait
// for them.
func TestBehindAtMostOnceParents(t *testing.T) {
	for _, parents := range []int{900, 1001} {
		t.Run(fmt.Sprint(parents), func(t *testing.T) {
			now := int64(1_700_000_000_000)
			n, _, _ := node(now)
			n.Mesh().Add(mate, "10.0.0.1:1")
			n.SetLife(mate, 7)
			n.Mesh().Up(mate, "10.0.0.1:1", false)
			for range parents {
				id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 0, TTL: 86400})
				require.NoError(t, err)
				_, _, err = n.AddJob(&engine.Add{Queue: []byte("r"), Body: []byte("b"), Replicate: 1, Retry: 1000, TTL: 86400, Members: engine.Members{After: []store.ID{id}}})
				require.NoError(t, err)
				n.Effects()
			}
			_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Body: []byte("b"), Replicate: 1, Retry: 1000, TTL: 86400})
			require.NoError(t, err)
			n.Effects()
			given := 0
			ask := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: 1}
			for i := range 6000 {
				if i%200 == 0 {
					require.NoError(t, n.Receive(mate, ask.Append(nil)))
					given += len(said(t, n, wire.YourJob))
				}
				now += 100
				n.SetNow(now)
				beats(t, n, mate)
				n.Tick()
				given += len(said(t, n, wire.YourJob))
			}
			require.Equal(t, 1, given)
		})
	}
}

// In a dispute between jobs' locks without a lease, one rival has released its lock. The other rival isn't forgotten,
// however long nobody asks.
func TestDisputeOfEndlessLocks(t *testing.T) {
	for _, gap := range []int64{1_000, 3_590_000, 3_800_000} {
		for _, both := range []bool{false, true} {
			t.Run(fmt.Sprint(gap/1000, " s, both stay ", both), func(t *testing.T) {
				now := int64(1_700_000_000_000)
				nodes := []wire.NodeID{{1}, {2}}
				n := abstaining(t, now, lock.Votes{Longest: lock.LeasesUpTo(600_000), Unleased: true}, nodes)
				name := store.AppendLockName(nil, store.LockWait, nil, []byte("k"))
				lock := func(job byte, i int64) wire.Lock {
					return wire.Lock{Name: name, Job: wire.JobID{job, 23: 1}, Token: uint64(now+i) << 20}
				}
				start := [4]wire.Lock{1: lock(1, 1), 2: lock(2, 2)}
				page := func(from int, l wire.Lock) {
					m := wire.Message{Kind: wire.LockPage, Lock: wire.Lock{Token: start[2].Token}, Locks: []wire.Lock{l}}
					require.NoError(t, n.Receive(nodes[from], m.Append(nil)))
					n.Effects()
				}
				page(1, start[2]) // of a round that fails
				page(0, start[1]) // its job has the lock by this vote and by this node's vote, which is lost
				t.Log("abstains", n.Locks().Abstains(), "disputed", n.Disputed())
				if !both {
					m := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 9, Lock: start[2]}
					require.NoError(t, n.Receive(nodes[1], m.Append(nil)))
					n.Effects()
				}
				for end := now + gap; now < end; {
					now += 500
					n.SetNow(now)
					n.Tick()
					n.Effects()
				}
				t.Log("abstains", n.Locks().Abstains(), "disputed", n.Disputed())
				claim := wire.Message{Kind: wire.Claim, Round: 1, Members: n.MembersSum(), Lock: lock(3, 0)}
				for range 2 {
					require.NoError(t, n.Receive(nodes[1], claim.Append(nil)))
					for _, e := range n.Effects() {
						switch e.Kind {
						case engine.KeepVotes:
							n.Locks().VotesKept(n.Locks().Votes())
						case engine.Send:
							var m wire.Message
							require.NoError(t, m.Parse(n.Message(&e)))
							require.NotEqual(t, wire.Grant, m.Kind, "j1 has the lock")
						}
					}
				}
			})
		}
	}
}

// A node that has lost its votes hears of two holders of a lock, and of one of them by two claims, which both fail. When both claims are
// taken back, that holder is no rival any more: the node tells no other node of it.
func TestRivalOfTwoClaims(t *testing.T) {
	const now = int64(1_700_000_000_000)
	name := store.AppendBareName(nil, []byte("n"))
	older, later := uint64(now)<<20+1<<20, uint64(now)<<20+2<<20
	lock := func(owner string, token uint64) wire.Lock {
		return wire.Lock{Name: name, Owner: []byte(owner), Token: token, Lease: 60_000, Left: 60_000}
	}
	for _, order := range [][]uint64{{older, later}, {later, older}} {
		n, peers := learner(t, now, []wire.Lock{lock("y", later+1<<20), lock("x", order[0]), lock("x", order[1])})
		told := func() (tokens []uint64) {
			require.NoError(t, n.Receive(peers[2], (&wire.Message{Kind: wire.LockPull}).Append(nil)))
			for _, e := range n.Effects() {
				if e.Kind == engine.Send && n.Message(&e)[0] == byte(wire.LockPage) {
					var m wire.Message
					require.NoError(t, m.Parse(n.Message(&e)))
					for _, l := range m.Locks {
						if string(l.Owner) == "x" {
							tokens = append(tokens, l.Token)
						}
					}
				}
			}
			return tokens
		}
		require.Equal(t, []uint64{older, later}, told())
		for i, token := range order {
			unlock := wire.Message{Kind: wire.Unlock, Flags: wire.Fresh, Round: 1, Lock: wire.Lock{Name: name, Owner: []byte("x"), Token: token}}
			require.NoError(t, n.Receive(peers[2], unlock.Append(nil)))
			n.Effects()
			assert.Len(t, told(), 1-i)
		}
	}
}
