package api

// #include "frame.h"
// static void r_free_raw(void *p) { redis.Free(p); }
// static int r_keyspace_events(void) { return redis.GetNotifyKeyspaceEvents(); }
import "C"

import "unsafe"

// Frame is one call: its arguments and the answer being built (struct frame).
type Frame C.struct_frame

func (f *Frame) c() *C.struct_frame { return (*C.struct_frame)(f) }

// NewFrame makes a frame for an answer that is given later ([Unblock]).
func NewFrame() *Frame { return (*Frame)(C.frame_new()) }

// Release frees a frame from NewFrame that was not passed to [Unblock].
func (f *Frame) Release() { C.frame_free(f.c()) }

// Context returns the RedisModuleCtx of the call.
func (f *Frame) Context() Context { return Context(f.ctx) }

// NArgs counts the arguments, the command's name included.
func (f *Frame) NArgs() int { return int(f.argc) }

// Arg views argument i; valid until the call returns.
func (f *Frame) Arg(i int) []byte {
	// Each command calls this several times. unsafe.Slice would check far more than the
	// index.
	if uint(i) >= uint(f.argc) {
		panic("the call has no such argument")
	}
	a := (*C.struct_slice)(unsafe.Add(unsafe.Pointer(f.args), uintptr(i)*unsafe.Sizeof(*f.args)))
	return unsafe.Slice((*byte)(unsafe.Pointer(a.p)), int(a.n))
}

// ArgString returns argument i as the server's own string.
func (f *Frame) ArgString(i int) String { return String(unsafe.Slice(f.argv, int(f.argc))[i]) }

// Now is the time of the call, in unix ms.
func (f *Frame) Now() int64 { return int64(f.now) }

// Now is the time at this moment, as the server tells it, in unix ms.
func Now() int64 { return int64(C.frame_now()) }

// DB is the selected database.
func (f *Frame) DB() int { return int(f.db) }

// Held returns what the command's key ([SetKey]) holds, with the value if it is [KeyOurs].
func (f *Frame) Held() (unsafe.Pointer, KeyHolds) { return f.value, KeyHolds(f.held) }

// Key returns the key that was looked up for this call.
func (f *Frame) Key() String { return String(f.key) }

// BlockOnKeys suspends the calling client for at most timeout ms (0: without limit). The
// keys are the n arguments from first on. The wait ends when one of them holds something
// and [Handler.Ready] answers. At the timeout, and by CLIENT UNBLOCK, the answer is the
// null array. The server's own rules apply, as for BLPOP: the client that came first is
// served first.
func (f *Frame) BlockOnKeys(first, n int, timeout int64) error {
	if C.api_block_on_keys(f.c(), C.int(first), C.int(n), C.int64_t(timeout)) == 0 {
		return ErrRefused
	}
	return nil
}

// Depth is 0 for a call from a client, one more for each call within a call.
func (f *Frame) Depth() int { return int(f.depth) }

// Reset drops the operations that were added so far.
func (f *Frame) Reset() { f.nops, f.ntext = 0, 0 }

func (f *Frame) op(code C.uint32_t, n int, v int64) {
	if f.nops == f.opcap && C.frame_grow_ops(f.c(), 1) == 0 {
		panic("reply has too many parts")
	}
	o := (*C.struct_op)(unsafe.Add(unsafe.Pointer(f.ops), uintptr(f.nops)*unsafe.Sizeof(C.struct_op{})))
	o.code, o.n, o.v = code, C.uint32_t(n), C.int64_t(v)
	f.nops++
}

// reserve takes n bytes of the frame's text buffer. Fill them before anything else is
// added. The operation that uses them needs the offset.
func (f *Frame) reserve(n int) (buf []byte, offset int64) {
	if n > int(f.textcap-f.ntext) && (n > 1<<31 || C.frame_grow_text(f.c(), C.uint32_t(n)) == 0) {
		panic("reply is too long")
	}
	offset = int64(f.ntext)
	f.ntext += C.uint32_t(n)
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(f.text), offset)), n), offset
}

// Room makes room for n bytes of strings that are answered by copy.
func (f *Frame) Room(n int) {
	_, at := f.reserve(n)
	f.ntext = C.uint32_t(at)
}

// Array starts an array of n elements.
func (f *Frame) Array(n int) { f.op(C.OP_ARRAY, 0, int64(n)) }

// Map starts a map of n pairs; clients on RESP2 see an array of 2n.
func (f *Frame) Map(n int) { f.op(C.OP_MAP, 0, int64(n)) }

// Int answers an integer.
func (f *Frame) Int(v int64) { f.op(C.OP_INT, 0, v) }

// Bulk answers a string that lies outside the Go heap and stays valid until
// the call returns.
func (f *Frame) Bulk(b []byte) {
	f.op(C.OP_BULK, len(b), int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))))
}

// BulkText reserves n bytes for a bulk string that is answered by copy. The caller fills
// them at once.
func (f *Frame) BulkText(n int) []byte {
	buf, at := f.reserve(n)
	f.op(C.OP_BULK_TEXT, n, at)
	return buf
}

// Prose is BulkText for people to read: a verbatim string under RESP3.
func (f *Frame) Prose(n int) []byte {
	buf, at := f.reserve(n)
	f.op(C.OP_PROSE, n, at)
	return buf
}

// Simple reserves n bytes for a simple string, which may hold no CR, LF or NUL.
func (f *Frame) Simple(n int) []byte {
	buf, at := f.reserve(n + 1)
	buf[n] = 0
	f.op(C.OP_SIMPLE, n, at)
	return buf[:n]
}

// Error answers an error: its code, a space, and what is wrong.
func (f *Frame) Error(text string) {
	buf, at := f.reserve(len(text) + 1)
	copy(buf, text)
	buf[len(text)] = 0
	f.op(C.OP_ERROR, len(text), at)
}

// Null answers the null bulk string.
func (f *Frame) Null() { f.op(C.OP_NULL, 0, 0) }

// NullArray answers the null array (RESP3 has one null for both).
func (f *Frame) NullArray() { f.op(C.OP_NULL_ARRAY, 0, 0) }

// WrongArity answers the server's error for a wrong number of arguments.
func (f *Frame) WrongArity() { f.op(C.OP_WRONG_ARITY, 0, 0) }

// Replicate sends a command to the AOF and the replicas. Its n arguments must follow at
// once, by [Frame.Bulk] or [Frame.BulkText]. command comes from [NewCString].
func (f *Frame) Replicate(command CString, n int) {
	f.op(C.OP_REPLICATE, n, int64(uintptr(command)))
}

// Verbatim replicates the command as it came, and counts one change. In a call that isn't a
// command's it only counts the change.
func (f *Frame) Verbatim() { f.op(C.OP_VERBATIM, 0, 0) }

// Play carries out another frame's operations at once, in this call and in database 0.
func (f *Frame) Play(other *Frame) { C.frame_play_home(other.c(), f.ctx) }

// Touch tells WATCH and client-side caching that a key changed.
func (f *Frame) Touch(key String) { f.op(C.OP_TOUCH, 0, int64(uintptr(key))) }

// Notify publishes a keyspace event of the module's own ("d") for the key of that name.
func (f *Frame) Notify(event string, key []byte) {
	buf, at := f.reserve(len(event) + 1 + len(key))
	copy(buf, event)
	buf[len(event)] = 0
	copy(buf[len(event)+1:], key)
	f.op(C.OP_NOTIFY, int(at), int64(len(key)))
}

// Stream adds an entry to a stream in database 0, of which about most entries are kept. Its n arguments must follow at once, by
// [Frame.BulkText]: the command that replicates the entry and its subcommand, each with a NUL behind it; the stream's key; the names and
// values of at most 29 fields.
func (f *Frame) Stream(most int64, n int) { f.op(C.OP_STREAM, n, most) }

// ApplyToStream adds an entry to the stream in database 0 that argument key names. Its ID is ms-seq, and its fields are the arguments from first on. Then the
// stream is trimmed to length entries; 0: it isn't. It returns false if the key holds something else, or the ID isn't the greatest.
func (f *Frame) ApplyToStream(key, first int, ms, seq uint64, length int64) bool {
	return C.api_stream_apply(f.c(), C.int(key), C.int(first), C.uint64_t(ms), C.uint64_t(seq), C.int64_t(length)) != 0
}

// Streamed tells how many entries [Frame.Stream] has written and lost since the start, and whether the last one was lost because the key
// holds something else.
func Streamed() (written, lost uint64, refused bool) {
	return uint64(C.streamed.written), uint64(C.streamed.lost), C.streamed.refused != 0
}

// KeyspaceEvents says whether somebody may get what [Frame.Notify] publishes: notify-keyspace-events has "d", and "K" or "E".
func KeyspaceEvents() bool {
	v := C.r_keyspace_events()
	return v&C.NOTIFY_MODULE != 0 && v&(C.NOTIFY_KEYSPACE|C.NOTIFY_KEYEVENT) != 0
}

// Put sets a key's value, of the type in a slot, when the call returns.
func (f *Frame) Put(key String, typeSlot int, value unsafe.Pointer) {
	f.op(C.OP_PUT, typeSlot, int64(uintptr(key)))
	f.op(C.OP_PUT, 0, int64(uintptr(value)))
}

// Remove removes a key when the call returns.
func (f *Frame) Remove(key String) { f.op(C.OP_REMOVE, 0, int64(uintptr(key))) }

// Free frees what [Alloc] returned for the same size, after the earlier answers, which may
// point into it, are copied.
func (f *Frame) Free(p unsafe.Pointer, size int) { f.op(C.OP_FREE, size, int64(uintptr(p))) }

// CString is a NUL-terminated text in C memory that is never freed.
type CString unsafe.Pointer

// NewCString makes a CString.
func NewCString(s string) CString { return CString(C.CString(s)) }

// Alloc returns size bytes of the server's memory, uninitialised. Small sizes
// come from the pool without a crossing. Main thread only.
func Alloc(size int) unsafe.Pointer {
	if k := (size + 15) >> 4; k <= C.POOL_CLASSES {
		c := &C.pool.c[k]
		if c.n > 0 {
			c.n--
			if c.n < C.POOL_LOW {
				C.pool.uneven[k>>6] |= 1 << (k & 63)
			}
			return c.block[c.n]
		}
		return C.pool_refill(C.int(k))
	}
	return C.fresh_block(C.size_t(size))
}

// Free frees what Alloc returned for the same size. Main thread only.
func Free(p unsafe.Pointer, size int) {
	if k := (size + 15) >> 4; k <= C.POOL_CLASSES {
		c := &C.pool.c[k]
		if c.n < C.POOL_DEPTH {
			c.block[c.n] = p
			c.n++
			if c.n == C.POOL_DEPTH {
				C.pool.uneven[k>>6] |= 1 << (k & 63)
			}
			return
		}
		C.pool.uneven[k>>6] |= 1 << (k & 63)
	}
	C.r_free_raw(p)
}

// FreeRaw frees memory that the server allocated ([LoadBytes]).
func FreeRaw(p unsafe.Pointer) { C.r_free_raw(p) }
