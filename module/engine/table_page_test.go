package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/wire"
)

// tableReader is a node that asks b for its table of locks. The test answers for the others.
type tableReader struct {
	t      *testing.T
	n      *engine.Node
	now    int64
	b      wire.NodeID
	number uint8 // of the last question to b; pages have it
	former bool  // b is of a former release, which gives its pages no number
}

// newTableReader makes a node that is new.
func newTableReader(t *testing.T) *tableReader {
	l := &tableReader{t: t, now: 1_700_000_000_000, b: wire.NodeID{1, 1}, number: 1}
	l.n, _, _ = node(l.now)
	return l
}

// lacksVotes makes it one that lost votes, in a mesh of b and these nodes, of which all but away are connected.
func (l *tableReader) lacksVotes(others []wire.NodeID, away ...wire.NodeID) {
	all := append([]wire.NodeID{l.b}, others...)
	for _, p := range append(all, away...) {
		l.n.Mesh().Add(p, "10.0.0.1:1")
	}
	l.n.Locks().SetVotes(lock.Votes{Longest: lock.LeasesUpTo(3_600_000), Unleased: true})
	l.n.Effects()
	l.n.Locks().MarkIncomplete()
	for _, p := range all {
		l.n.Mesh().Up(p, "10.0.0.1:1", false)
	}
	l.n.Effects()
}

func (l *tableReader) tell(p wire.NodeID, m wire.Message) {
	m.Kind = wire.LockPage
	if !l.former {
		m.Flags |= wire.TableFlags(l.number)
	}
	require.NoError(l.t, l.n.Receive(p, m.Append(nil)))
}

// questions returns the cursors of the questions to b.
func (l *tableReader) questions() (cursors []uint64) {
	for _, f := range l.n.Effects() {
		if f.Kind != engine.Send || f.Peer.ID != l.b {
			continue
		}
		var m wire.Message
		require.NoError(l.t, m.Parse(l.n.Message(&f)))
		if m.Kind == wire.LockPull {
			l.number, cursors = wire.TableNumber(m.Flags), append(cursors, m.Round)
		}
	}
	return cursors
}

// pulls counts the questions for a page of b.
func (l *tableReader) pulls(cursor uint64) (count int) {
	for _, c := range l.questions() {
		if c == cursor {
			count++
		}
	}
	return count
}

func (l *tableReader) tick(ms int64) {
	l.now += ms
	l.n.SetNow(l.now)
	l.n.Tick()
}

// A node that lost votes asks for a page again if the answer takes more than a second, so the last page of a table comes twice. The first page was told
// while its sender lacked votes itself: the table counts as a part, although the sender was whole when it told the last page, twice.
func TestTheLastPageOfATableComesTwice(t *testing.T) { lastPageTwice(t, newTableReader(t)) }

// The same where b is of a former release, and gives its pages no number.
func TestTheLastPageOfAFormerReleaseComesTwice(t *testing.T) {
	l := newTableReader(t)
	l.former = true
	lastPageTwice(t, l)
}

func lastPageTwice(t *testing.T, l *tableReader) {
	d, e := wire.NodeID{3, 3}, wire.NodeID{4, 4}
	l.lacksVotes([]wire.NodeID{d, e}, wire.NodeID{2, 2})
	l.tell(d, wire.Message{})
	l.tell(e, wire.Message{})
	l.n.Effects()
	const second = 130
	l.tell(l.b, wire.Message{Flags: wire.Partial, Round: second}) // b lacks votes that it gave
	asked := l.pulls(second)
	for range 12 { // the line to b is slow
		l.tick(100)
		asked += l.pulls(second)
	}
	require.Equal(t, 2, asked, "the second page is asked for twice")
	require.True(t, l.n.Locks().Abstains())
	l.tell(l.b, wire.Message{}) // b has learnt its votes meanwhile
	require.True(t, l.n.Locks().Abstains(), "the first page lacks them")
	l.tell(l.b, wire.Message{})
	assert.True(t, l.n.Locks().Abstains(), "the first page lacks them still")
}

// A node that is new to a mesh learns b's table, whose line is slow: the last page is asked for twice. When it has come once the node votes. Then it meets c, and
// learns both tables anew, for b may have voted since. The second answer to the old question isn't b's table.
func TestAPageOfATableThatWasLearntBefore(t *testing.T) {
	l, c := newTableReader(t), wire.NodeID{2, 2}
	keep := func() {
		l.n.Locks().VotesKept(l.n.Locks().Votes())
		l.n.Effects()
	}
	l.n.Mesh().Add(l.b, "10.0.0.1:1")
	keep()
	l.n.Mesh().Up(l.b, "10.0.0.1:1", false)
	require.True(t, l.n.Locks().Abstains())
	require.Equal(t, 1, l.pulls(0))
	const second = 130
	l.tell(l.b, wire.Message{Round: second})
	asked := l.pulls(second)
	for range 12 {
		l.tick(100)
		asked += l.pulls(second)
	}
	require.Equal(t, 2, asked)
	l.tell(l.b, wire.Message{}) // the answer to the first of the two
	former := l.number
	keep()
	require.False(t, l.n.Locks().Abstains(), "it knows the table of b")
	l.n.Mesh().Add(c, "10.0.0.2:1")
	l.n.Mesh().Up(c, "10.0.0.2:1", false)
	require.True(t, l.n.Locks().Abstains(), "it learns both tables")
	asked = l.pulls(0)
	l.tick(10)
	asked += l.pulls(0)
	require.Equal(t, 1, asked, "b's table is asked for from its beginning")
	l.number = 1
	l.tell(c, wire.Message{})
	require.True(t, l.n.Locks().Abstains())
	l.number = former
	l.tell(l.b, wire.Message{}) // the answer to the second of the two
	assert.True(t, l.n.Locks().Abstains(), "b hasn't told the first page of its table, which may have votes of since")
}

// A node that lost votes asks b for its table. b drops the questions of half a minute, as a node does that loads its data (DEBUG RELOAD), or to which
// too much waits to be sent. The connection stays. From then on b answers each question at once: the table's twenty pages come soon.
func TestQuestionsForATableThatWereDropped(t *testing.T) {
	l := newTableReader(t)
	l.lacksVotes([]wire.NodeID{{2, 2}, {3, 3}})
	const last = 20
	began, asked := l.now, 0
	for l.now < began+600_000 {
		l.tick(100)
		for todo := l.questions(); len(todo) > 0; todo = l.questions() {
			for _, cursor := range todo {
				if asked++; l.now < began+30_000 {
					continue // b drops it
				}
				next := cursor + 1
				if next == last {
					next = 0
				}
				l.tell(l.b, wire.Message{Round: next})
				if next == 0 {
					t.Logf("b's last page after %d s, %d questions", (l.now-began)/1000, asked)
					assert.Less(t, l.now, began+45_000)
					return
				}
			}
		}
	}
	t.Errorf("b's last page hasn't come after %d s, %d questions", (l.now-began)/1000, asked)
}
