package rm

import (
	"fmt"
	"runtime/debug"
	"unsafe"

	"jobmesh/cgo/api"
)

func stack() []byte { return debug.Stack() }

// String is a string of the server's (RedisModuleString).
type String struct{ p api.String }

// NewString makes a String; free it with Free.
func NewString(b []byte) String { return String{api.NewString(b)} }

// StringAt wraps a RedisModuleString kept elsewhere.
func StringAt(p unsafe.Pointer) String { return String{p} }

// Pointer returns the RedisModuleString, to be kept in the server's memory.
func (s String) Pointer() unsafe.Pointer { return s.p }

// Bytes views the content; valid as long as the string.
func (s String) Bytes() []byte { return api.StringBytes(s.p) }

// Free frees the string.
func (s String) Free() { api.FreeString(s.p) }

// Ctx is one call into the module: a command, a timer, an event. It carries
// the arguments, takes the reply, and is valid until the call returns.
type Ctx struct {
	f *api.Frame
	s *Server

	kind       callKind
	copies     bool // effects' arguments are copied
	asked, may bool // whether a call of kind aTurn may replicate
}

// Server returns the module's server.
func (c *Ctx) Server() *Server { return c.s }

// NArgs counts the arguments, the command's name included.
func (c *Ctx) NArgs() int { return c.f.NArgs() }

// Arg views argument i (0 is the command's name); valid until the call returns.
func (c *Ctx) Arg(i int) []byte { return c.f.Arg(i) }

// ArgString returns argument i as the server's own string, without copying it.
func (c *Ctx) ArgString(i int) String { return String{c.f.ArgString(i)} }

// Now is the time at which the call began, in unix ms.
func (c *Ctx) Now() int64 { return c.f.Now() }

// DB is the selected database.
func (c *Ctx) DB() int { return c.f.DB() }

// Array starts an array; its n elements follow.
func (c *Ctx) Array(n int) { c.f.Array(n) }

// Map starts a map; its n pairs follow. Clients on RESP2 see an array of 2n.
func (c *Ctx) Map(n int) { c.f.Map(n) }

// Int answers an integer.
func (c *Ctx) Int(v int64) { c.f.Int(v) }

// Bulk answers a bulk string without copying it. b must lie outside the Go
// heap and stay as it is until the call returns: nothing here keeps the collector
// from freeing it before C has read it. What Go has allocated goes by Text.
func (c *Ctx) Bulk(b []byte) { c.f.Bulk(b) }

// Text answers a bulk string by copy.
func (c *Ctx) Text(s string) { copy(c.f.BulkText(len(s)), s) }

// Prose answers a text for people by copy: a verbatim string under RESP3.
func (c *Ctx) Prose(s string) { copy(c.f.Prose(len(s)), s) }

// BulkBuffer answers a bulk string of n bytes, which the caller writes into
// the returned buffer before it does anything else with the Ctx.
func (c *Ctx) BulkBuffer(n int) []byte { return c.f.BulkText(n) }

// Simple answers a simple string (no CR, LF or NUL in it).
func (c *Ctx) Simple(s string) { copy(c.f.Simple(len(s)), s) }

// Room makes room for n bytes of strings that are answered by copy: a large answer is then copied once, and not again each time its buffer grows.
func (c *Ctx) Room(n int) { c.f.Room(n) }

// SimpleBuffer is BulkBuffer for a simple string.
func (c *Ctx) SimpleBuffer(n int) []byte { return c.f.Simple(n) }

// Null answers the null string.
func (c *Ctx) Null() { c.f.Null() }

// NullArray answers the null array; RESP3 has one null for both.
func (c *Ctx) NullArray() { c.f.NullArray() }

// Error answers an error: a code in capitals, a space, a sentence.
func (c *Ctx) Error(text string) { c.f.Error(text) }

// WrongArity answers the server's error for a wrong number of arguments.
func (c *Ctx) WrongArity() { c.f.WrongArity() }

// Touch tells WATCH and client-side caching that a key was modified.
func (c *Ctx) Touch(key String) { c.f.Touch(key.p) }

// Publish publishes a message in a channel, to the subscribers of this server. The server tells neither its replicas nor its AOF.
func (c *Ctx) Publish(channel, message []byte) { api.Publish(c.f.Context(), channel, message) }

// Notify publishes a keyspace event of the module's own, to subscribers of such events
// (notify-keyspace-events with d). See [Server.KeyspaceEvents].
func (c *Ctx) Notify(event string, key []byte) { c.f.Notify(event, key) }

// FromPeer says whether the command comes from the AOF being loaded or from
// this replica's master, rather than from a client.
func (c *Ctx) FromPeer() bool {
	return api.ClientID(c.f.Context()) == ^uint64(0) || api.ContextFlags(c.f.Context())&(api.FlagReplicated|api.FlagLoading) != 0
}

// RESP3 says whether the client speaks RESP3.
func (c *Ctx) RESP3() bool { return api.ContextFlags(c.f.Context())&api.FlagRESP3 != 0 }

// CanBlock says whether this call may block: not in MULTI, a script, or a call
// by another module.
func (c *Ctx) CanBlock() bool {
	return api.ContextFlags(c.f.Context())&(api.FlagDenyBlocking|api.FlagMulti|api.FlagLua) == 0
}

// Client is a blocked client.
type Client struct {
	s     *Server
	b     api.Blocked
	end   func(c *Ctx, gone bool)
	timer *Timer // ends the wait; nil: it has no limit

	answer *api.Frame // on its way to the client; nil: the client waits
}

// answer is what the server hasn't said yet of an answer.
type answer struct {
	cl      *Client
	unheard func(*Ctx) // nil: nothing is to be done if the client doesn't get it
}

// Block suspends the client for at most timeout ms (0: without limit). end is called if the
// wait ends without [Client.Answer]: by timeout or CLIENT UNBLOCK (gone is false, and end
// may reply), or because the client has gone.
func (c *Ctx) Block(timeout int64, end func(c *Ctx, gone bool)) (*Client, error) {
	// The server measures timeouts by the wall clock. If that is set back by an hour, the
	// client would wait an hour longer.
	b := api.Block(c.f.Context(), 0)
	if b == nil {
		return nil, fmt.Errorf("the client can't be blocked: %w", api.ErrRefused)
	}
	cl := &Client{s: c.s, b: b, end: end}
	c.s.blocked[b] = cl
	if timeout > 0 {
		cl.timer = c.s.After(timeout, cl.timeout)
	}
	return cl, nil
}

// timeout ends a wait whose time is over.
func (cl *Client) timeout(*Ctx) {
	cl.Answer(func(c *Ctx) { cl.end(c, false) }, nil)
}

// waits says whether the wait hasn't ended yet.
func (cl *Client) waits() bool {
	// When a client has gone, the server frees its handle, which may belong to another
	// client now.
	return cl.s.blocked[cl.b] == cl && cl.answer == nil
}

// stop stops the timer of a wait that ends.
func (cl *Client) stop() {
	if cl.timer != nil {
		cl.timer.Stop()
	}
}

// BlockOnKeys suspends the client as BLPOP does, for at most timeout ms (0: without limit).
// The keys are the n arguments from first on. The wait ends when one of them holds
// something for which [Command.Ready] returns true; at the timeout the answer is the null
// array. The server itself follows changes of the keys, in whatever database.
func (c *Ctx) BlockOnKeys(first, n int, timeout int64) error {
	if err := c.f.BlockOnKeys(first, n, timeout); err != nil {
		return fmt.Errorf("the client can't be blocked: %w", err)
	}
	return nil
}

// Answer ends the wait with the reply that fill makes. If the client goes before it gets
// the reply, unheard is called soon after, with a Ctx of its own. The bytes that fill
// answers with are copied.
func (cl *Client) Answer(fill func(*Ctx), unheard func(*Ctx)) {
	s := cl.s
	if !cl.waits() {
		return
	}
	cl.stop()
	f := api.NewFrame()
	cl.answer, s.answers[f] = f, answer{cl, unheard}
	fill(&Ctx{f: f, s: s, kind: anEvent})
	api.Unblock(cl.b, f)
}

// Unblocked implements api.Handler.
func (s *Server) Unblocked(f *api.Frame, b api.Blocked, gone bool) *api.Frame {
	cl := s.blocked[b]
	if cl.answer != nil {
		return cl.answer
	}
	delete(s.blocked, b)
	cl.stop()
	cl.end(s.ctxFor(f, anEvent), gone)
	return f
}

// Answered implements api.Handler.
func (s *Server) Answered(answer *api.Frame, heard bool) {
	a := s.answers[answer]
	delete(s.answers, answer)
	delete(s.blocked, a.cl.b)
	if a.unheard != nil && !heard {
		// Not here: with the context of a client that has gone, replicating crashes the
		// server.
		s.After(0, a.unheard)
	}
}
