package entries_test

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"jobmesh/module/entries"
	"jobmesh/module/wire"
)

const day = 24 * 3600 * 1000

// copyOf is an entry as it arrives at another node.
func copyOf(t require.TestingT, e *entries.Entry) (c *entries.Entry) {
	require.NoError(t, entries.Parse(e.Append(nil), func(e *entries.Entry) error { c = e; return nil }))
	return c
}

func texts(tables ...*entries.Table) (all []string) {
	for _, t := range tables {
		all = append(all, string(t.Text()))
	}
	return all
}

// Nodes that have heard of the same changes have the same entries, in whatever order they heard of them, and however
// often.
func TestTheOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := make([]entries.Table, 4)
		var all []*entries.Entry
		for i := range rapid.IntRange(1, 40).Draw(t, "changes") {
			n := rapid.IntRange(0, len(nodes)-1).Draw(t, "node")
			name, now := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "name")), int64(1000+rapid.IntRange(-20, 20).Draw(t, "clock"))
			value := fmt.Append(nil, i)
			if rapid.Bool().Draw(t, "delete") && nodes[n].Get(1, name) != nil {
				value = nil
			}
			all = append(all, nodes[n].Change(1, name, value, wire.Node(2*n+2), now, 0))
			if rapid.IntRange(0, 3).Draw(t, "twin") == 0 {
				// The node lost the change in a crash, its clock was set back, and it makes another one.
				twin := copyOf(t, all[len(all)-1])
				twin.Value = fmt.Append(nil, rapid.IntRange(0, 50).Draw(t, "value"))
				if twin.Deleted = rapid.Bool().Draw(t, "deletes"); twin.Deleted {
					twin.Value = nil
				}
				twin.Replaced.Count = uint32(rapid.IntRange(0, 1).Draw(t, "replaced"))
				all = append(all, twin)
			}
			if len(all) > 1 && rapid.Bool().Draw(t, "hears") {
				heard := all[rapid.IntRange(0, len(all)-1).Draw(t, "heard")]
				nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "hearer")].Learn(copyOf(t, heard), now, 0)
			}
		}
		for i := range nodes {
			order := rapid.Permutation(slices.Concat(all, all)).Draw(t, "order")
			for _, e := range order {
				nodes[i].Learn(copyOf(t, e), 1000, 0)
			}
		}
		got := texts(&nodes[0], &nodes[1], &nodes[2], &nodes[3])
		for i := range nodes {
			require.Equal(t, got[0], got[i])
			require.Equal(t, nodes[0].Sum(), nodes[i].Sum())
		}
		// Each name has its last change.
		for _, e := range nodes[0].All() {
			for _, made := range all {
				if made.Name == e.Name {
					require.LessOrEqual(t, made.Stamp.Compare(e.Stamp), 0)
				}
			}
		}
	})
}

// The entries are in order however many come and go.
func TestOrderOfVeryMany(t *testing.T) {
	var table entries.Table
	names := map[string]bool{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		name := fmt.Sprint(r.IntN(8000))
		if value := []byte("v"); i%3 == 2 || i > 15_000 {
			table.Forget(2, name)
			delete(names, name)
		} else {
			table.Change(2, name, value, 2, int64(i), 0)
			names[name] = true
		}
	}
	table.Change(1, "before", []byte("v"), 2, 0, 0)
	table.Change(3, "after", []byte("v"), 2, 0, 0)
	want := slices.Sorted(maps.Keys(names))
	require.Greater(t, len(want), 1500)
	got := func(all iter.Seq[*entries.Entry]) (list []string) {
		for e := range all {
			list = append(list, e.Name)
		}
		return list
	}
	assert.Equal(t, want, got(table.AllOf(2)))
	for _, from := range []string{"", "0", "4", "4321", "5x", "9", "a"} {
		at, _ := slices.BinarySearch(want, from)
		assert.Equal(t, fmt.Sprint(want[at:]), fmt.Sprint(got(table.From(2, from))))
	}
	assert.Len(t, table.All(), len(want)+2)
	assert.Len(t, table.Text(), table.Bytes())
}

// Two entries have one stamp: their node lost the first one in a crash, and its clock was set back. Nodes that know different ones have
// different sums, and agree on one of them when they meet.
func TestTwoEntriesWithOneStamp(t *testing.T) {
	stamp := entries.Stamp{MS: 1000, Node: 2}
	a := &entries.Entry{Kind: 1, Name: "q", Value: []byte("a"), Stamp: stamp}
	b := &entries.Entry{Kind: 1, Name: "q", Value: []byte("b"), Stamp: stamp}
	for _, pair := range [][2]*entries.Entry{{a, b}, {{Kind: 1, Name: "q", Deleted: true, Stamp: stamp}, b}} {
		var one, other entries.Table
		one.Load(copyOf(t, pair[0]), 0)
		other.Load(copyOf(t, pair[1]), 0)
		require.NotEqual(t, one.Sum(), other.Sum())
		took, lost := one.Learn(copyOf(t, pair[1]), 1000, 0)
		assert.True(t, took)
		assert.False(t, one.Known(1, "q").Saw(lost), "a conflict")
		took, lost = other.Learn(copyOf(t, pair[0]), 1000, 0)
		assert.False(t, took)
		assert.NotNil(t, lost, "its sender is told")
		assert.Equal(t, one.Sum(), other.Sum())
		assert.Equal(t, "b", string(one.Get(1, "q").Value))
	}
}

// Whatever stamps a node has taken, those of its own changes can be read. Its later changes count more, unless it has taken the greatest
// stamp for the very entry.
func TestTheGreatestStamps(t *testing.T) {
	const greatest = 1 << 48
	for _, at := range []entries.Stamp{
		{MS: greatest, Count: math.MaxUint32, Node: math.MaxUint64}, {MS: greatest, Count: math.MaxUint32 - 1, Node: 7}, {MS: greatest - 1, Count: math.MaxUint32, Node: 7},
		{MS: greatest / 2, Count: math.MaxUint32, Node: 7}, {MS: 1000, Count: math.MaxUint32, Node: 7},
	} {
		for _, now := range []int64{1000, greatest - 1, greatest, greatest + 1, math.MaxInt64} {
			var table entries.Table
			took, _ := table.Learn(copyOf(t, &entries.Entry{Kind: 1, Name: "x", Value: []byte("v"), Stamp: at}), 1000, 0)
			require.True(t, took)
			for i := range 5 {
				before := table.Known(1, "x").Stamp
				e := table.Change(1, "x", fmt.Append(nil, i), 8, now, 0)
				other := table.Change(1, "y", fmt.Append(nil, i), 8, now, 0)
				if before.MS < greatest || before.Count < math.MaxUint32 {
					assert.Positive(t, e.Stamp.Compare(before))
				}
				if now == 1000 {
					assert.Less(t, other.Stamp.MS, int64(greatest/2+2))
				}
			}
			var again entries.Table
			require.NoError(t, entries.Parse(table.Text(), func(e *entries.Entry) error { again.Load(e, 0); return nil }))
			assert.Equal(t, table.Text(), again.Text())
		}
	}
}

// A change counts more than all that its node knew, though that came from a clock that was a day ahead.
func TestAChangeCountsMoreThanAWrongClock(t *testing.T) {
	var wrong, right entries.Table
	ahead := wrong.Change(1, "q", []byte("a"), 2, day, 0)
	right.Learn(copyOf(t, ahead), 1000, 0)
	last := right.Change(1, "q", []byte("b"), 4, 1000, 0)
	assert.True(t, last.Saw(ahead))
	assert.False(t, ahead.Saw(last))
	took, lost := wrong.Learn(copyOf(t, last), day, 0)
	assert.True(t, took)
	assert.Equal(t, "a", string(lost.Value))
	assert.Equal(t, "b", string(wrong.Get(1, "q").Value))
	took, lost = wrong.Learn(copyOf(t, ahead), day, 0)
	assert.False(t, took)
	assert.Equal(t, "a", string(lost.Value), "its sender is behind")
}

// Two changes whose makers didn't know of each other are a conflict. A later change of the same maker is none.
func TestConflicts(t *testing.T) {
	var a, b entries.Table
	first := a.Change(1, "q", []byte("1"), 2, 1000, 0)
	other := b.Change(1, "q", []byte("2"), 4, 1001, 0)
	second := a.Change(1, "q", []byte("3"), 2, 1002, 0)
	assert.False(t, other.Saw(first))
	assert.False(t, second.Saw(other))
	assert.True(t, second.Saw(first))
}

// A tombstone lasts a day, and longer while a node is away. The sums don't count it after a day.
func TestTombstones(t *testing.T) {
	var table, never entries.Table
	table.Change(1, "q", []byte("v"), 2, 1000, 10)
	table.Change(1, "q", nil, 2, 1001, 20)
	assert.Zero(t, table.Len())
	assert.Equal(t, 1, table.Tombstones())
	table.Sweep(1001+day-1, 1000)
	assert.NotEqual(t, never.Sum(), table.Sum())
	table.Sweep(1001+day, 20)
	assert.Equal(t, 1, table.Tombstones(), "a node may still have the entry")
	assert.Equal(t, never.Sum(), table.Sum())
	assert.Empty(t, in(&table))
	table.Sweep(1001+day, 21)
	assert.True(t, table.Empty())

	// A node that hasn't the entry doesn't take so old a tombstone, and one that has it does.
	old := &entries.Entry{Kind: 1, Name: "q", Deleted: true, Stamp: entries.Stamp{MS: 1001, Node: 2}}
	took, _ := table.Learn(copyOf(t, old), 1001+day, 0)
	assert.False(t, took)
	table.Change(1, "q", []byte("v"), 4, 900, 0)
	var late entries.Table
	late.Change(1, "q", []byte("v"), 4, 900, 0)
	took, _ = late.Learn(copyOf(t, old), 1001+day, 0)
	assert.True(t, took)
	assert.Nil(t, late.Get(1, "q"))
}

// in are all entries that two nodes would exchange.
func in(t *entries.Table) (all []*entries.Entry) {
	var walk func(entries.Part)
	walk = func(p entries.Part) {
		if p.Level == entries.Levels {
			all = append(all, t.In(p)...)
			return
		}
		for i := range entries.Fan {
			walk(p.Child(i))
		}
	}
	walk(entries.Part{})
	return all
}

// A node's own entries aren't told, and leave no tombstone.
// A clock that was a day ahead has taken a tombstone out of the sums. When it is right again the tombstone counts as at other nodes.
func TestTombstonesAndAClockThatWasAhead(t *testing.T) {
	var table entries.Table
	table.Change(1, "q", []byte("v"), 2, 1000, 10)
	table.Change(1, "q", nil, 2, 1001, 20)
	sum := table.Sum()
	table.Sweep(1001+day, 20)
	assert.NotEqual(t, sum, table.Sum())
	table.Sweep(1001+3600_000, 20)
	assert.Equal(t, sum, table.Sum())
	assert.Len(t, in(&table), 1)
}

func TestOwnEntries(t *testing.T) {
	var table entries.Table
	own := entries.OwnKinds | 1
	table.Change(own, "q", []byte("v"), 2, 1000, 0)
	assert.Zero(t, table.Sum())
	assert.Empty(t, in(&table))
	assert.Len(t, slices.Collect(table.AllOf(own)), 1)
	gone := table.Change(own, "q", nil, 2, 1001, 0)
	assert.True(t, table.Empty())
	table.Force(&entries.Entry{Kind: own, Name: "q", Value: []byte("w")}, 0)
	took, _ := table.Learn(gone, 1002, 0)
	assert.True(t, took, "from the log")
	assert.True(t, table.Empty())
}

// The sums of parts add up to those of the whole, and change with each entry.
func TestSums(t *testing.T) {
	var table entries.Table
	seen := map[uint64]bool{0: true}
	for i := range 500 {
		table.Change(1, fmt.Sprint("q", i%100), fmt.Append(nil, i), 2, int64(i), 0)
		require.False(t, seen[table.Sum()])
		seen[table.Sum()] = true
	}
	for _, p := range []entries.Part{{}, {Level: 1, Prefix: 7}, {Level: 1, Prefix: 15}} {
		for i, sum := range table.Sums(p) {
			var all uint64
			for _, s := range table.Sums(p.Child(i)) {
				all += s
			}
			require.Equal(t, sum, all)
		}
	}
	assert.Len(t, in(&table), 100)
	assert.False(t, entries.Part{Level: 1, Prefix: 16}.Valid())
	assert.True(t, entries.Part{Level: 3, Prefix: 4095}.Valid())
	assert.False(t, entries.Part{Level: 4}.Valid())
}

// A node's own log may have a tombstone that is older than a day: a node that is away may still have the entry.
func TestOldTombstonesAreLoaded(t *testing.T) {
	var table entries.Table
	old := &entries.Entry{Kind: 1, Name: "q", Deleted: true, Stamp: entries.Stamp{MS: 1001, Node: 2}}
	assert.True(t, table.Load(old, 0))
	took, lost := table.Learn(&entries.Entry{Kind: 1, Name: "q", Stamp: entries.Stamp{MS: 1000, Node: 4}}, 1001+2*day, 0)
	assert.False(t, took)
	assert.NotNil(t, lost)
	assert.False(t, table.Load(copyOf(t, old), 0))
}

// Where tombstones fill the table, the oldest go, so that changes and others' entries are taken all the same.
func TestTombstonesMakeRoom(t *testing.T) {
	var table entries.Table
	for i := range entries.Most {
		table.Change(1, fmt.Sprint(i), []byte("v"), 2, int64(i), 0)
		table.Change(1, fmt.Sprint(i), nil, 2, int64(i), 0)
	}
	assert.Equal(t, entries.Most, table.Tombstones())
	table.Change(1, "mine", []byte("v"), 2, 1<<30, 0)
	took, _ := table.Learn(&entries.Entry{Kind: 1, Name: "theirs", Stamp: entries.Stamp{MS: 1 << 30, Node: 4}}, 0, 0)
	assert.True(t, took)
	assert.Equal(t, 2, table.Count(1))
	assert.Equal(t, entries.Most-2, table.Tombstones(), "no more go than have to")
	assert.Nil(t, table.Known(1, "0"), "the oldest")
	assert.Nil(t, table.Known(1, "1"))
	assert.NotNil(t, table.Known(1, "2"))
	assert.Equal(t, len(table.Text()), table.Bytes())
	assert.Len(t, table.All(), entries.Most)
}

// However many tombstones have to go, no call takes long.
func TestTombstonesGoAtOnce(t *testing.T) {
	processor := func() time.Duration {
		var ts syscall.Timespec
		const thread = 3 // CLOCK_THREAD_CPUTIME_ID
		_, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0)
		require.Zero(t, err)
		return time.Duration(ts.Nano())
	}
	for _, tc := range []struct {
		name  string
		large int // entries that are as long as can be
		do    func(table *entries.Table, i int)
	}{
		{"a new one", 0, func(table *entries.Table, i int) { table.Change(1, fmt.Sprint("new", i), nil, 2, day, 0) }},
		{"one as long as very many", 213, func(table *entries.Table, i int) {
			table.Change(1, fmt.Sprint("new", i), make([]byte, entries.MaxValue), 2, day, 0)
		}},
		{"a sweep", 0, func(table *entries.Table, i int) { table.Sweep(2*day, 1) }},
		{"none is needed", 0, func(table *entries.Table, i int) { table.DropTombstones() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			var table entries.Table
			for i := range tc.large {
				table.Change(1, fmt.Sprint("large", i), make([]byte, entries.MaxValue), 2, 1, 0)
			}
			for i := range entries.Most {
				table.Change(1, fmt.Sprint(i*7919%10_000_000), nil, 2, int64(i), 0)
			}
			var took []time.Duration
			for i := range 20 {
				began := processor()
				tc.do(&table, i)
				took = append(took, processor()-began)
			}
			slices.Sort(took)
			assert.Less(t, took[0], 5*time.Millisecond) // 2 ms on a machine at rest
			assert.Less(t, took[19], 20*time.Millisecond)
			assert.Equal(t, len(table.Text()), table.Bytes())
			assert.Equal(t, table.Len()+table.Tombstones(), len(table.All()))
		})
	}
}

func TestLimits(t *testing.T) {
	var table entries.Table
	for i := range entries.Most {
		took, _ := table.Learn(&entries.Entry{Kind: 1, Name: fmt.Sprint(i), Stamp: entries.Stamp{MS: 1, Node: 2}}, 0, 0)
		require.True(t, took)
	}
	took, _ := table.Learn(&entries.Entry{Kind: 1, Name: "more", Stamp: entries.Stamp{MS: 1, Node: 2}}, 0, 0)
	assert.False(t, took)
	took, _ = table.Learn(&entries.Entry{Kind: 1, Name: "7", Stamp: entries.Stamp{MS: 2, Node: 2}}, 0, 0)
	assert.True(t, took)
	for _, long := range []entries.Entry{{Name: string(make([]byte, entries.MaxName+1))}, {Value: make([]byte, entries.MaxValue+1)}} {
		assert.ErrorIs(t, entries.Parse(long.Append(nil), nil), entries.ErrDamaged)
	}
}

// FuzzParse: other nodes' entries may have any content.
func FuzzParse(f *testing.F) {
	e := entries.Entry{Kind: 1, Name: "q", Value: []byte("v"), Stamp: entries.Stamp{MS: 1 << 40, Count: 3, Node: 2}, Replaced: entries.Stamp{MS: 5}}
	f.Add(e.Append(e.Append(nil)))
	f.Add([]byte{1, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var table, again entries.Table
		if entries.Parse(b, func(e *entries.Entry) error { table.Learn(e, 1<<41, 0); return nil }) != nil {
			return
		}
		require.NoError(t, entries.Parse(table.Text(), func(e *entries.Entry) error { again.Load(e, 0); return nil }))
		require.Equal(t, table.Text(), again.Text())
		require.Equal(t, table.Sum(), again.Sum())
	})
}
