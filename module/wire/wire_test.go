package wire

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// allKinds lists the kinds that there are.
func allKinds() (all []Kind) {
	for k := Kind(1); k < kinds; k++ {
		if parts[k] != 0 {
			all = append(all, k)
		}
	}
	return all
}

func gen(t *rapid.T) Message {
	m := Message{Kind: rapid.SampledFrom(allKinds()).Draw(t, "kind"), Flags: rapid.Uint8().Draw(t, "flags")}
	has := parts[m.Kind]
	bytesOf := rapid.SliceOfN(rapid.Byte(), 0, 40)
	if has&hasID != 0 {
		copy(m.ID[:], rapid.SliceOfN(rapid.Byte(), 24, 24).Draw(t, "id"))
	}
	if has&hasCount != 0 {
		m.Count = rapid.Uint32().Draw(t, "count")
	}
	if has&hasSpan != 0 {
		m.Span = rapid.Int64Range(0, 1<<50).Draw(t, "span")
	}
	if has&hasHolders != 0 {
		for range rapid.IntRange(0, 5).Draw(t, "holders") {
			m.Holders = append(m.Holders, Node(rapid.Uint64Range(1, 1<<63-1).Draw(t, "holder")<<1))
		}
	}
	if has&hasQueue != 0 {
		m.Queue = bytesOf.Draw(t, "queue")
	}
	if has&hasJob != 0 {
		m.Job = Job{
			CTime: rapid.Uint64Min(1).Draw(t, "ctime"), Left: rapid.Int64Range(0, 1<<50).Draw(t, "left"),
			Delay: rapid.Uint32Range(0, 1<<31-1).Draw(t, "delay"), Repl: rapid.Uint16Min(1).Draw(t, "repl"),
			Nacks: rapid.Uint16().Draw(t, "nacks"), Deliveries: rapid.Uint16().Draw(t, "deliveries"), Body: bytesOf.Draw(t, "body"),
		}
		if m.ID[23]&1 != 0 {
			m.Job.Retry = rapid.Uint32Range(1, 1<<31-1).Draw(t, "retry")
		}
	}
	if has&hasPeers != 0 {
		n := 1
		if m.Kind == Heartbeat {
			n = rapid.IntRange(0, 4).Draw(t, "peers")
		}
		for range n {
			p := Peer{Addr: rapid.StringN(0, 20, 60).Draw(t, "addr"), State: rapid.Uint8Range(0, 2).Draw(t, "state")}
			copy(p.ID[:], rapid.SliceOfN(rapid.ByteRange(1, 255), 20, 20).Draw(t, "node"))
			m.Peers = append(m.Peers, p)
		}
	}
	lock := func() (l Lock) {
		l = Lock{Name: bytesOf.Draw(t, "name"), Token: rapid.Uint64Range(0, 1<<63-1).Draw(t, "token"), Flags: rapid.Uint8().Draw(t, "lock flags")}
		l.Lease, l.Left = rapid.Int64Range(0, 1<<50).Draw(t, "lease"), rapid.Int64Range(0, 1<<50).Draw(t, "left")
		if rapid.Bool().Draw(t, "a job's") {
			copy(l.Job[:], rapid.SliceOfN(rapid.ByteRange(1, 255), 24, 24).Draw(t, "job"))
		} else {
			l.Owner = bytesOf.Draw(t, "owner")
		}
		return l
	}
	if has&hasMembers != 0 {
		m.Members = rapid.Uint64().Draw(t, "members")
	}
	if has&hasRound != 0 {
		m.Round = rapid.Uint64().Draw(t, "round")
	}
	if has&hasLock != 0 {
		m.Lock = lock()
	}
	if has&hasLocks != 0 {
		for range rapid.IntRange(0, 4).Draw(t, "locks") {
			m.Locks = append(m.Locks, lock())
		}
	}
	if has&hasMore != 0 {
		for range rapid.IntRange(0, 4).Draw(t, "more") {
			s := Sibling{ID: m.ID, CTime: rapid.Uint64Min(1).Draw(t, "its ctime"), Body: bytesOf.Draw(t, "its body")}
			copy(s.ID[siblingFrom:siblingTo], rapid.SliceOfN(rapid.Byte(), 18, 18).Draw(t, "its id"))
			m.More = append(m.More, s)
		}
	}
	if has&mayReturns != 0 && rapid.Bool().Draw(t, "told") {
		m.Returns = Returns{Nacks: rapid.Uint16().Draw(t, "its nacks"), Deliveries: rapid.Uint16().Draw(t, "its deliveries"), Told: true}
	}
	return m
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := gen(t)
		b := m.Append(nil)
		got := Message{Holders: make([]Node, 3), Peers: make([]Peer, 3)}
		require.NoError(t, got.Parse(b))
		assert.Equal(t, b, got.Append(nil))
		plain := m
		plain.Returns = Returns{}
		whole := len(plain.Append(nil)) // what a node of a former release sends
		for n := range b {
			if n != whole {
				assert.ErrorIs(t, got.Parse(b[:n]), ErrMessage, "cut after %d", n)
			}
		}
		assert.ErrorIs(t, got.Parse(append(b, 0)), ErrMessage)
	})
}

func TestHostileLengths(t *testing.T) {
	var m Message
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}
	for _, k := range []Kind{NeedJobs, Pause, SetAck, Claim, Deny, Unlock, LockPage, ReplJobs} {
		for at := 2; at < 40; at++ {
			b := append(make([]byte, at), huge...)
			b[0] = byte(k)
			assert.ErrorIs(t, m.Parse(b), ErrMessage)
		}
	}
}

// FuzzMessage: a message that can be parsed is the same after it is written and parsed again.
func FuzzMessage(f *testing.F) {
	for _, k := range allKinds() {
		m := Message{Kind: k, Holders: []Node{2}, Queue: []byte("q"), Job: Job{CTime: 1, Repl: 1, Body: []byte("b")},
			Lock: Lock{Name: []byte("Ln"), Token: 1, Owner: []byte("o")}, Locks: []Lock{{Name: []byte("Ln"), Token: 1, Job: JobID{1}}},
			More: []Sibling{{CTime: 2, Body: []byte("c")}, {CTime: 3}}}
		if k == Heartbeat || k == Failed {
			m.Peers = []Peer{{ID: NodeID{1}, Addr: "127.0.0.1:1"}}
		}
		f.Add(m.Append(nil))
		if parts[k]&mayReturns != 0 {
			m.Returns = Returns{Nacks: 300, Deliveries: 1<<16 - 1, Told: true}
			f.Add(m.Append(nil))
		}
		if parts[k]&mayBounds != 0 {
			m.Bounds = Bounds{Line: 1<<63 + 1, Told: 1_700_000_000_000_000_000, Made: 1_700_000_000_000_000_001}
			f.Add(m.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Message
		if m.Parse(b) != nil {
			return
		}
		require.NoError(t, again.Parse(m.Append(nil)))
		require.Equal(t, m.Append(nil), again.Append(nil))
	})
}

// The numbers in PROTOCOL.md are those of the code.
func TestNumbersOfTheProtocol(t *testing.T) {
	names := []string{
		"ReplJob", "GotJob", "Refused", "Holders", "Enqueue", "WillQueue", "Queued", "Working", "SetAck", "GotAck", "DelJob", "NeedJobs", "YourJob", "Pause",
		"Heartbeat", "Failed", "AskWork", "Work", "Claim", "Grant", "Deny", "Unlock", "Verify", "Verified", "LockPull", "LockPage", "ClearLocks", "LockLost",
		"Release", "Released", "AskOutcome", "Outcome", "Offer", "Taken", "Declined", "Settled", "PutOff", "MovedTo", "AskIdle", "Idle", "ReplJobs", "GotJobs",
		"AskCounts", "Counts", "AskQueues", "Queues", "Entries", "EntrySums", "AskCopies", "Copies", "AskFlush", "Flushed", "AskJobs", "Jobs",
		"Whereabouts", "AskMove", "MovedJobs", "SetEnd", "GotEnd", "Watch", "Ended", "Cancel", "Marks", "Do", "Did", "NewCopy", "AskName", "Named", "Publish",
		"AskDelayed", "DelayedJobs", "AskGiven", "Given", "Flushes", "FlushReady",
	}
	all := allKinds()
	require.Len(t, names, len(all))
	for name, kind := range map[string]Kind{"ReplJob": ReplJob, "Heartbeat": Heartbeat, "AskWork": AskWork, "Claim": Claim, "LockLost": LockLost, "Release": Release, "Offer": Offer, "Settled": Settled, "PutOff": PutOff, "MovedTo": MovedTo, "Idle": Idle, "GotJobs": GotJobs, "AskCounts": AskCounts, "Queues": Queues, "EntrySums": EntrySums, "Copies": Copies, "Marks": Marks, "Do": Do, "NewCopy": NewCopy, "Publish": Publish, "DelayedJobs": DelayedJobs, "Flushes": Flushes} {
		require.Equal(t, name, names[slices.Index(all, kind)])
	}
	page, err := os.ReadFile("../bus/PROTOCOL.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(page), "| kind | name | parts |")
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \|`).FindAllStringSubmatch(table, -1)
	require.GreaterOrEqual(t, len(rows), len(names))
	for i, name := range names {
		require.Equal(t, []string{strconv.Itoa(int(all[i])), name}, rows[i][1:])
	}
}

// A message of a former release ends where the returns would be. Counts above 65535 are refused.
func TestReturns(t *testing.T) {
	var m Message
	for k := Kind(1); k < kinds; k++ {
		told := k == WillQueue || k == Queued || k == Working || k == PutOff
		require.Equal(t, told, parts[k]&mayReturns != 0, "kind %d", k)
		if !told {
			continue
		}
		former := (&Message{Kind: k, ID: JobID{1}}).Append(nil)
		require.NoError(t, m.Parse(former))
		require.Equal(t, Returns{}, m.Returns)
		most := append(former, 0xff, 0xff, 3, 0xff, 0xff, 3)
		require.NoError(t, m.Parse(most))
		require.Equal(t, Returns{Nacks: 1<<16 - 1, Deliveries: 1<<16 - 1, Told: true}, m.Returns)
		require.NoError(t, m.Parse(former), "the memory is used again")
		require.Equal(t, Returns{}, m.Returns)
		for _, bad := range [][]byte{{0}, {0x80, 0x80, 4, 0}, {0, 0x80, 0x80, 4}, {0, 0, 0}, {0xff, 0xff}} {
			require.ErrorIs(t, m.Parse(append(former[:len(former):len(former)], bad...)), ErrMessage, "kind %d with % x", k, bad)
		}
	}
	for _, c := range []struct {
		Message
		count uint16
		more  uint8
	}{
		{Message{Kind: WillQueue, Flags: WasQueued}, 300, DeliveriesFlags(70)},
		{Message{Kind: Working, Flags: InHands | CountNack}, 300, 0},
		{Message{Kind: Queued, Flags: Kept | InHands}, 300, 0},
		{Message{Kind: Queued, Flags: CountNack}, 370, 0},
		{Message{Kind: PutOff, Flags: CountNack}, 370, 0},
	} {
		flags := c.Flags
		c.SetReturns(300, 70)
		require.Equal(t, flags|CountFlags(c.count)|c.more, c.Flags, "a former release reads the flags")
		require.Equal(t, Returns{Nacks: 300, Deliveries: 70, Told: true}, c.Returns)
	}
}

// The other flags of a message don't change its count, and counts above 15 compare as well.
func TestCountsInFlags(t *testing.T) {
	for _, other := range []uint8{0, CountNack, CountMore, WasQueued | DeliveriesFlags(3)} {
		for mine := range uint16(40) {
			for theirs := range uint16(40) {
				if apart := int(theirs) - int(mine); -8 <= apart && apart < 8 {
					require.Equal(t, apart, Ahead(other|CountFlags(theirs), mine), "%d %d", mine, theirs)
				}
			}
		}
	}
	assert.True(t, SameDeliveries(WasQueued|CountFlags(5)|DeliveriesFlags(6), 2))
	assert.False(t, SameDeliveries(WasQueued|CountFlags(5)|DeliveriesFlags(6), 5))
}
