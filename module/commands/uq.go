package commands

import (
	"fmt"
	"math"
	"strconv"
	"unsafe"

	cunique "jobmesh/cgo/unique"
	"jobmesh/module/engine"
	"jobmesh/module/uniquequeue"
	"jobmesh/rm"
)

// Errors of the unique queues' commands. UQ.BPOP has BLPOP's errors where the two do the
// same.
const (
	errAt           engine.Refusal = "ERR AT must be a unix time in seconds, 0 to 281474976710655"
	errItem         engine.Refusal = "ERR the item is too long"
	errSeconds      engine.Refusal = "ERR timeout is not a float or out of range"
	errSecondsRange engine.Refusal = "ERR timeout is out of range"
)

// uniqueEncoding is the version of a saved unique queue.
const uniqueEncoding = 1

// uniqueQueues are the commands of the unique queues. They have nothing to do with jobs: a
// key of their type is a plain value, in any database.
type uniqueQueues struct {
	kind   *rm.DataType
	queues *uniquequeue.Queues
	effect struct{ push, pop rm.Effect }
}

func newUniqueQueues() *uniqueQueues {
	u := &uniqueQueues{queues: uniquequeue.New(rm.Memory{})}
	u.kind = &rm.DataType{
		Name:    "jobmesh-u",
		Version: uniqueEncoding,
		Drop:    cunique.FreeValue,
		Load: func(r *rm.Reader, version int) (unsafe.Pointer, error) {
			if version != uniqueEncoding {
				return nil, fmt.Errorf("this jobmesh reads version %d: was it saved by a newer one?", uniqueEncoding)
			}
			q, err := u.queues.Load(r)
			return unsafe.Pointer(q), err
		},
		Copy: func(value unsafe.Pointer) unsafe.Pointer {
			return unsafe.Pointer(u.queues.Copy((*uniquequeue.Queue)(value)))
		},
	}
	return u
}

// before makes the parts that need the server.
func (u *uniqueQueues) before(symbol func(string) unsafe.Pointer) {
	c := cunique.Init(symbol)
	u.kind.Methods = rm.Methods{Save: c.Save, Rewrite: c.Rewrite, MemUsage: c.MemUsage, Digest: c.Digest, Free: c.Free, FreeEffort: c.FreeEffort}
	u.effect.push, u.effect.pop = rm.NewEffect("UQ.PUSH"), rm.NewEffect("UQ.POP")
}

func (u *uniqueQueues) commands() []rm.Command {
	item := rm.Arg{Name: "item", Kind: rm.ArgString}
	count := number("COUNT", "count")
	list := []rm.Command{
		{Name: "uq.push", Run: u.push, Flags: "write deny-oom fast", Categories: "write fast", Info: rm.Info{
			Summary: "Puts an item at the end of a unique queue, unless it waits there already.", Complexity: "O(1)", Arity: -3, Keys: firstKey(rm.KeyInsert),
			Args: []rm.Arg{keyArg(), item, number("AT", "unix-seconds")}}},
		{Name: "uq.pop", Run: u.pop, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Takes the oldest items from a unique queue.", Complexity: "O(N) with N items taken", Arity: -2, Keys: firstKey(rm.KeyModify),
			Args: []rm.Arg{keyArg(), count}}},
		{Name: "uq.bpop", Run: u.blockingPop, Ready: u.ready, Flags: "write blocking", Categories: "write slow blocking", Info: rm.Info{
			Summary: "Takes the oldest item from the first unique queue that has one, waiting for it where there is none.", Complexity: "O(N) with N queues named", Arity: -3,
			Keys: []rm.KeySpec{{Flags: rm.KeyModify, Position: 1, Last: -2, Step: 1}},
			Args: []rm.Arg{{Name: "queue", Kind: rm.ArgKey, Multiple: true}, {Name: "timeout", Kind: rm.ArgDouble}}}},
		{Name: "uq.len", Run: u.length, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Counts a unique queue's items.", Complexity: "O(1)", Arity: 2, Keys: firstKey(rm.KeyRead), Args: []rm.Arg{keyArg()}}},
		{Name: "uq.has", Run: u.has, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Tells whether an item waits in a unique queue.", Complexity: "O(1)", Arity: 3, Keys: firstKey(rm.KeyRead), Args: []rm.Arg{keyArg(), item}}},
		{Name: "uq.rem", Run: u.remove, Flags: "write fast", Categories: "write fast", Info: rm.Info{
			Summary: "Removes items from a unique queue, wherever they stand.", Complexity: "O(N) with N items named", Arity: -3, Keys: firstKey(rm.KeyModify),
			Args: []rm.Arg{keyArg(), {Name: "item", Kind: rm.ArgString, Multiple: true}}}},
		{Name: "uq.peek", Run: u.peek, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Shows the oldest items of a unique queue.", Complexity: "O(N) with N items shown", Arity: -2, Keys: firstKey(rm.KeyRead),
			Args: []rm.Arg{keyArg(), count}}},
		{Name: "uq.stat", Run: u.stat, Flags: "readonly fast", Categories: "read fast", Info: rm.Info{
			Summary: "Tells a unique queue's length, and how often an item was pushed that waited already.", Complexity: "O(1)", Arity: 2, Keys: firstKey(rm.KeyRead), Args: []rm.Arg{keyArg()}}},
	}
	for i := range list {
		list[i].Key, list[i].Type, list[i].Info.Since = 1, u.kind, since
	}
	return list
}

// held returns the queue in the command's key, nil if there is none.
func held(c *rm.Ctx) (*uniquequeue.Queue, error) {
	value, err := c.Held()
	return (*uniquequeue.Queue)(value), err
}

// logPop replicates that one item was taken. If there is neither an AOF nor a replica, it
// only counts the change.
func (u *uniqueQueues) logPop(c *rm.Ctx, queue []byte) {
	if !c.Listened() {
		c.Dirty()
		return
	}
	c.Replicate(u.effect.pop, 1).Bulk(queue)
}

// parseStart reads UQ.PUSH's option AT. Without it the start time is the time of the call.
func parseStart(c args, now int64) (start int64, given bool, err error) {
	switch {
	case c.NArgs() == 3:
		return min(max(now/1000, 0), uniquequeue.MaxStart), false, nil
	case c.NArgs() != 5 || !is(c.Arg(3), "AT"):
		return 0, false, errSyntax
	}
	start, ok := between(c.Arg(4), 0, uniquequeue.MaxStart)
	if !ok {
		return 0, false, errAt
	}
	return start, true, nil
}

func (u *uniqueQueues) push(c *rm.Ctx) {
	start, given, err := parseStart(c, c.Now())
	if err != nil {
		fail(c, err)
		return
	}
	item := c.Arg(2)
	if len(item) > uniquequeue.MaxItem {
		fail(c, errItem)
		return
	}
	q, err := held(c)
	if err != nil {
		fail(c, err)
		return
	}
	fresh := q == nil
	if fresh {
		q = u.queues.NewQueue()
	}
	if !u.queues.Push(q, item, start) {
		c.Null()
		return
	}
	if fresh {
		u.kind.Put(c, c.Key(), unsafe.Pointer(q))
	} else {
		c.Touch(c.Key())
	}
	c.Int(int64(q.Len()))
	// A replica's clock may differ, so the start time is replicated with AT.
	if given || !c.Listened() {
		c.Dirty()
		return
	}
	args := c.Replicate(u.effect.push, 4)
	args.Bulk(c.Arg(1))
	args.Bulk(item)
	args.Text("AT")
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], start, 10)
	copy(args.Buffer(len(text)), text)
}

// parseCount reads the option COUNT after the queue; one says that it wasn't given.
func parseCount(c args) (count uint64, one bool, err error) {
	switch {
	case c.NArgs() == 2:
		return 1, true, nil
	case c.NArgs() != 4 || !is(c.Arg(2), "COUNT"):
		return 0, false, errSyntax
	}
	n, ok := between(c.Arg(3), 1, math.MaxInt64)
	if !ok {
		return 0, false, errCount
	}
	// A reply can't have more elements than this.
	return min(uint64(n), 1<<28), false, nil
}

// some is the common beginning of UQ.POP and UQ.PEEK. It returns the queue, and how many
// items the reply has. It returns nil if it has answered the command completely.
func some(c *rm.Ctx) (*uniquequeue.Queue, uint64) {
	n, one, err := parseCount(c)
	if err != nil {
		fail(c, err)
		return nil, 0
	}
	q, err := held(c)
	switch {
	case err != nil:
		fail(c, err)
		return nil, 0
	case q == nil || q.Len() == 0:
		c.NullArray()
		return nil, 0
	}
	n = min(n, q.Len())
	if !one {
		c.Array(int(n))
	}
	return q, n
}

func putItem(c *rm.Ctx, i *uniquequeue.Item) {
	c.Array(2)
	c.Bulk(i.Bytes())
	c.Int(i.Start())
}

// take takes an item out. The item is freed when the call returns, because the reply may
// point into it.
func (u *uniqueQueues) take(c *rm.Ctx, q *uniquequeue.Queue, i *uniquequeue.Item) {
	u.queues.Take(q, i)
	c.Free(unsafe.Pointer(i), i.Size())
}

// changed ends a command that took items out: the key of an empty queue is removed.
func changed(c *rm.Ctx, q *uniquequeue.Queue, key rm.String) {
	if q.Len() == 0 {
		c.Remove(key)
	} else {
		c.Touch(key)
	}
}

func (u *uniqueQueues) pop(c *rm.Ctx) {
	q, n := some(c)
	if q == nil {
		return
	}
	for ; n > 0; n-- {
		i := q.Front()
		putItem(c, i)
		u.take(c, q, i)
	}
	changed(c, q, c.Key())
	c.Dirty()
}

func (u *uniqueQueues) peek(c *rm.Ctx) {
	q, n := some(c)
	if q == nil {
		return
	}
	for i := q.Front(); n > 0; n-- {
		putItem(c, i)
		i = i.Next()
	}
}

// parseSeconds reads UQ.BPOP's timeout as BLPOP does: in seconds, with or without a
// fraction; 0 means for ever. It returns ms, and rounds up.
func parseSeconds(b []byte) (ms int64, err error) {
	for _, d := range b {
		if d-'0' > 9 && d != '.' && d != '-' && d != '+' && d|0x20 != 'e' {
			return 0, errSeconds // words and hexadecimal numbers
		}
	}
	seconds, err := strconv.ParseFloat(string(b), 64)
	switch {
	case err != nil:
		return 0, errSeconds
	case seconds < 0:
		return 0, errTimeoutNeg
	case seconds > maxTimeout/1000:
		return 0, errSecondsRange
	}
	return int64(math.Ceil(seconds * 1000)), nil
}

func (u *uniqueQueues) blockingPop(c *rm.Ctx) {
	last := c.NArgs() - 1
	timeout, err := parseSeconds(c.Arg(last))
	if err != nil {
		fail(c, err)
		return
	}
	for i := 1; i < last; i++ {
		q, err := held(c)
		if i > 1 {
			var value unsafe.Pointer
			value, err = u.kind.Value(c, c.ArgString(i))
			q = (*uniquequeue.Queue)(value)
		}
		if err != nil {
			fail(c, err)
			return
		}
		if q != nil && q.Len() > 0 {
			u.serve(c, q, c.ArgString(i), c.Arg(i))
			return
		}
	}
	if !c.CanBlock() {
		c.NullArray()
		return
	}
	if err := c.BlockOnKeys(1, last-1, timeout); err != nil {
		c.Error("ERR " + err.Error())
	}
}

// ready answers a client that waits in UQ.BPOP, and returns false if there is no item for
// it.
func (u *uniqueQueues) ready(c *rm.Ctx) bool {
	q, err := held(c)
	if err != nil || q == nil || q.Len() == 0 {
		return false
	}
	u.serve(c, q, c.Key(), c.Key().Bytes())
	return true
}

func (u *uniqueQueues) serve(c *rm.Ctx, q *uniquequeue.Queue, key rm.String, name []byte) {
	i := q.Front()
	c.Array(3)
	c.Bulk(name)
	c.Bulk(i.Bytes())
	c.Int(i.Start())
	u.take(c, q, i)
	u.logPop(c, name)
	changed(c, q, key)
}

func (u *uniqueQueues) length(c *rm.Ctx) {
	q, err := held(c)
	switch {
	case err != nil:
		fail(c, err)
	case q == nil:
		c.Int(0)
	default:
		c.Int(int64(q.Len()))
	}
}

func (u *uniqueQueues) stat(c *rm.Ctx) {
	q, err := held(c)
	switch {
	case err != nil:
		fail(c, err)
	case q == nil:
		c.NullArray()
	default:
		c.Map(2)
		c.Text("len")
		c.Int(int64(q.Len()))
		c.Text("duplicates")
		c.Int(int64(q.Duplicates()))
	}
}

func (u *uniqueQueues) has(c *rm.Ctx) {
	q, err := held(c)
	switch {
	case err != nil:
		fail(c, err)
	case q == nil || u.queues.Find(q, c.Arg(2)) == nil:
		c.Int(0)
	default:
		c.Int(1)
	}
}

func (u *uniqueQueues) remove(c *rm.Ctx) {
	q, err := held(c)
	if err != nil {
		fail(c, err)
		return
	}
	var n int64
	for i := 2; q != nil && i < c.NArgs(); i++ {
		if item := u.queues.Find(q, c.Arg(i)); item != nil {
			u.take(c, q, item)
			n++
		}
	}
	c.Int(n)
	if n > 0 {
		changed(c, q, c.Key())
		c.Dirty()
	}
}
