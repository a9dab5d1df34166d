package uniquequeue_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	c "jobmesh/cgo/unique"
	"jobmesh/module/store/storetest"
	"jobmesh/module/uniquequeue"
)

func TestLayoutIsTheSameInC(t *testing.T) {
	want := c.Layout()
	got := uniquequeue.Layout()
	require.Equal(t, len(want), len(got))
	for i := range want {
		assert.Equal(t, fmt.Sprint(want[i]), fmt.Sprint(got[i]))
	}
}

type entry struct {
	item  string
	start int64
}

// world is a queue beside its model.
type world struct {
	alloc *storetest.Alloc
	s     *uniquequeue.Queues
	q     *uniquequeue.Queue
	model []entry
}

func newWorld() *world {
	w := &world{alloc: storetest.New()}
	w.s = uniquequeue.New(w.alloc)
	w.q = w.s.NewQueue()
	return w
}

func (w *world) index(item string) int {
	return slices.IndexFunc(w.model, func(e entry) bool { return e.item == item })
}

func (w *world) push(t require.TestingT, item string, start int64) {
	known := w.index(item) >= 0
	require.Equal(t, !known, w.s.Push(w.q, []byte(item), start))
	if !known {
		w.model = append(w.model, entry{item, start})
	}
}

func (w *world) remove(t require.TestingT, item string) {
	i, k := w.s.Find(w.q, []byte(item)), w.index(item)
	require.Equal(t, k >= 0, i != nil)
	if i == nil {
		return
	}
	w.s.Take(w.q, i)
	require.Equal(t, w.model[k], entry{string(i.Bytes()), i.Start()}, "what was taken stays readable")
	w.free(i)
	w.model = slices.Delete(w.model, k, k+1)
}

func (w *world) free(i *uniquequeue.Item) { i.Free(w.alloc) }

func same(t require.TestingT, q *uniquequeue.Queue, model []entry) {
	require.Equal(t, len(model), int(q.Len()))
	i := q.Front()
	for _, e := range model {
		require.Equal(t, e, entry{string(i.Bytes()), i.Start()})
		i = i.Next()
	}
	require.Nil(t, i)
}

func (w *world) check(t require.TestingT) {
	same(t, w.q, w.model)
	require.NoError(t, w.s.Check(w.q))
}

// Any operations in any order, against a slice.
func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		items := rapid.OneOf(
			rapid.StringMatching(`[a-c]{0,3}`),
			rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("item ", rapid.IntRange(0, 200).Draw(t, "n")) }),
			rapid.Custom(func(t *rapid.T) string {
				return strings.Repeat("x", rapid.IntRange(250, 260).Draw(t, "len")) + string(rapid.Byte().Draw(t, "end"))
			}))
		starts := rapid.Int64Range(0, uniquequeue.MaxStart)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) { w.push(t, items.Draw(t, "item"), starts.Draw(t, "start")) },
			"many": func(t *rapid.T) {
				for n := range rapid.IntRange(1, 100).Draw(t, "n") {
					w.push(t, fmt.Sprint(len(w.model), " and ", n), int64(n))
				}
			},
			"remove": func(t *rapid.T) { w.remove(t, items.Draw(t, "item")) },
			"pop": func(t *rapid.T) {
				for range min(rapid.IntRange(1, 100).Draw(t, "n"), len(w.model)) {
					i := w.q.Front()
					require.Equal(t, w.model[0], entry{string(i.Bytes()), i.Start()})
					w.s.Take(w.q, i)
					w.free(i)
					w.model = w.model[1:]
				}
			},
			"copy": func(t *rapid.T) {
				blocks := w.alloc.Blocks()
				q := w.s.Copy(w.q)
				same(t, q, w.model)
				require.NoError(t, w.s.Check(q))
				w.s.Free(q)
				require.Equal(t, blocks, w.alloc.Blocks())
			},
			"": func(t *rapid.T) { w.check(t) },
		})
		w.s.Free(w.q)
		require.Zero(t, w.alloc.Blocks())
	})
}

// Segments come and go.
func TestTableGrowsAndShrinks(t *testing.T) {
	w := newWorld()
	const n = 40_000
	for i := range n {
		require.True(t, w.s.Push(w.q, fmt.Append(nil, i), int64(i)))
	}
	require.NoError(t, w.s.Check(w.q))
	for i := range n {
		require.NotNil(t, w.s.Find(w.q, fmt.Append(nil, i)))
		require.False(t, w.s.Push(w.q, fmt.Append(nil, i), 0))
	}
	full := w.alloc.Bytes
	for i := range n {
		front := w.q.Front()
		require.Equal(t, int64(i), front.Start())
		w.s.Take(w.q, front)
		w.free(front)
	}
	require.NoError(t, w.s.Check(w.q))
	assert.Less(t, w.alloc.Bytes, full/100)
	w.s.Free(w.q)
	assert.Zero(t, w.alloc.Blocks())
}

func TestStartTimes(t *testing.T) {
	w := newWorld()
	for _, start := range []int64{0, 1, 1<<16 - 1, 1 << 16, 1370213794, 1 << 32, 0x7fff_ffff_ffff, uniquequeue.MaxStart} {
		w.push(t, fmt.Sprint(start), start)
	}
	w.check(t)
	for _, start := range []int64{-1, uniquequeue.MaxStart + 1} {
		assert.Panics(t, func() { w.s.Push(w.q, []byte("x"), start) })
	}
	w.check(t)
}

// reader reads a saved queue the way the server hands it out.
type reader struct {
	b   *bytes.Reader
	err error
}

func (r *reader) Err() error { return r.err }

func (r *reader) Uint() (v uint64) {
	if r.err == nil {
		v, r.err = binary.ReadUvarint(r.b)
	}
	return v
}

func (r *reader) Bytes(use func([]byte) error) error {
	n := r.Uint()
	if r.err == nil && n > uint64(r.b.Len()) {
		r.err = io.ErrUnexpectedEOF
	}
	if r.err != nil {
		return r.err
	}
	b := make([]byte, n)
	_, r.err = io.ReadFull(r.b, b)
	return use(b)
}

func saved(count uint64, entries ...entry) []byte {
	b := binary.AppendUvarint(nil, count)
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(e.start))
		b = binary.AppendUvarint(b, uint64(len(e.item)))
		b = append(b, e.item...)
	}
	return b
}

func TestLoad(t *testing.T) {
	a, b := entry{"a", 7}, entry{"", uniquequeue.MaxStart}
	s := uniquequeue.New(storetest.New())
	q, err := s.Load(&reader{b: bytes.NewReader(saved(2, a, b))})
	require.NoError(t, err)
	same(t, q, []entry{a, b})
	for name, bad := range map[string][]byte{
		"nothing": {}, "empty": saved(0), "twice": saved(2, a, a), "too late": saved(1, entry{"x", uniquequeue.MaxStart + 1}),
	} {
		_, err := s.Load(&reader{b: bytes.NewReader(bad)})
		assert.Error(t, err, name)
		assert.Equal(t, name != "nothing", errors.Is(err, uniquequeue.ErrDamaged), name)
	}
	_, err = s.Load(&reader{b: bytes.NewReader(saved(3, a, b))})
	assert.ErrorIs(t, err, io.EOF, "too few")
}

// FuzzLoad: whatever is loaded, the queue is consistent, its items load as the same queue again, and
// no memory is lost.
func FuzzLoad(f *testing.F) {
	f.Add(saved(1, entry{"x", 1}))
	f.Add(saved(3, entry{"x", 1}, entry{"", 2}, entry{strings.Repeat("long", 100), uniquequeue.MaxStart}))
	f.Add(saved(2, entry{"x", 1}, entry{"x", 2}))
	f.Add(saved(1<<63, entry{"x", -1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		alloc := storetest.New()
		s := uniquequeue.New(alloc)
		q, err := s.Load(&reader{b: bytes.NewReader(b)})
		require.NoError(t, s.Check(q))
		if err == nil {
			var entries []entry
			for i := q.Front(); i != nil; i = i.Next() {
				entries = append(entries, entry{string(i.Bytes()), i.Start()})
			}
			again, err := s.Load(&reader{b: bytes.NewReader(saved(q.Len(), entries...))})
			require.NoError(t, err)
			same(t, again, entries)
			s.Free(again)
		}
		s.Free(q)
		require.Zero(t, alloc.Blocks())
	})
}

func TestNothingAllocatesOnTheGoHeap(t *testing.T) {
	alloc := &slab{}
	s := uniquequeue.New(alloc)
	q := s.NewQueue()
	item := bytes.Repeat([]byte("x"), 100)
	n := 0
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		n++
		binary.LittleEndian.PutUint64(item, uint64(n))
		s.Push(q, item, 1)
		if s.Find(q, item) == nil || s.Push(q, item, 2) {
			t.Fatal("not found")
		}
		i := q.Front()
		s.Take(q, i)
		i.Free(alloc)
	}))
}
