package rm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"jobmesh/cgo/api"
)

// Effect is the name of a command that is replicated.
type Effect struct{ name api.CString }

// NewEffect prepares an Effect. Effects are never freed.
func NewEffect(command string) Effect { return Effect{api.NewCString(command)} }

// callKind says where a call into the module comes from. It decides whether the call may
// replicate.
type callKind uint8

const (
	// aWrite is a command with the flag write. The server runs it only when the data set may
	// change.
	aWrite callKind = iota
	// aTurn is a timer, or a command without the flag write. It may replicate unless writes
	// are paused.
	aTurn
	// anEvent is a server event, a key's event, or the end of a client's wait: it must not
	// replicate. The server counts a change in an event as a change by the command that
	// caused the event (REPLICAOF, PSYNC … FAILOVER), and would replicate that command. And
	// an effect that is replicated inside MOVE, RESTORE or SWAPDB stands before that command
	// in the log, where the data that it changes aren't there yet.
	anEvent
)

// door is the only way by which effects reach the AOF and the replicas. An effect that the
// present call may not replicate is kept. The next call that may replicate sends it before
// its own effects: so the log has the order of the changes.
type door struct {
	late    *api.Frame // kept effects; nil: none
	knock   *Timer     // checks whether they can be sent
	loading bool
	listen  listeners
}

// Args are the arguments of an effect.
type Args struct {
	f    *api.Frame
	copy bool
}

// Bulk adds an argument. b must lie outside the Go heap, and stay unchanged until the call
// returns, unless [Ctx.CopyEffects] was called or the effect is kept. What Go has allocated
// goes by Text: the collector may free it before C has read it.
func (a Args) Bulk(b []byte) {
	if a.copy {
		copy(a.f.BulkText(len(b)), b)
	} else {
		a.f.Bulk(b)
	}
}

// Text adds an argument by copy.
func (a Args) Text(s string) { copy(a.f.BulkText(len(s)), s) }

// Buffer adds an argument of n bytes. The caller writes it into the returned buffer before
// it does anything else.
func (a Args) Buffer(n int) []byte { return a.f.BulkText(n) }

// Replicate sends an effect to the AOF and the replicas. The caller adds its n arguments at
// once. If this call may not replicate, the effect is kept for the next call that may. On a
// replica, whose data are its master's, it is dropped.
func (c *Ctx) Replicate(e Effect, n int) Args {
	f := c.f
	if !c.MayReplicate() {
		f = c.s.keep()
	}
	f.Replicate(e.name, n)
	return Args{f, c.copies || f != c.f}
}

// Stream is a stream in database 0 to which a module adds entries.
type Stream struct {
	Key  string
	Most int64 // about so many entries are kept
	// Command and Sub are the module's own command, and its subcommand, by which an entry is replicated, with five arguments and more: Sub, the
	// key, the ID, the length to which the stream was trimmed (0: it wasn't), and the fields. It calls [Ctx.ApplyEntry].
	Command, Sub string
}

// AddEntry adds an entry to a stream, in the order of the effects of this call, and replicates it. fields are names and values, at most 29 of each. If
// this call may not replicate, the entry is kept with the effects. On a replica it is dropped. What became of entries tells
// [Server.Entries].
func (c *Ctx) AddEntry(s *Stream, fields []string) {
	f := c.f
	if !c.MayReplicate() {
		f = c.s.keep()
	}
	f.Stream(s.Most, 3+len(fields))
	a := Args{f: f}
	a.Text(s.Command + "\x00")
	a.Text(s.Sub + "\x00")
	a.Text(s.Key)
	for _, text := range fields {
		a.Text(text)
	}
}

// ApplyEntry adds the entry that this command replicates, whose arguments are as [Stream] says, with the command's name and Sub as the first two. It
// fails if they are damaged, or the entry doesn't fit the stream.
func (c *Ctx) ApplyEntry() error {
	const key, id, length, fields = 2, 3, 4, 5
	if n := c.NArgs() - fields; n < 2 || n%2 != 0 {
		return errors.New("the entry has no fields, or a name without a value")
	}
	ms, seq, ok := strings.Cut(string(c.Arg(id)), "-")
	a, err1 := strconv.ParseUint(ms, 10, 64)
	b, err2 := strconv.ParseUint(seq, 10, 64)
	left, err3 := strconv.ParseInt(string(c.Arg(length)), 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil || !ok || a|b == 0 || left < 0 {
		return errors.New("the entry's ID or the stream's length is damaged")
	}
	if !c.f.ApplyToStream(key, fields, a, b, left) {
		return fmt.Errorf("the key %.64q holds no stream, or one with a later entry", c.Arg(key))
	}
	return nil
}

// Entries says how many entries [Ctx.AddEntry] has written and lost since the start, and whether the last one was lost because its key holds
// something else.
func (s *Server) Entries() (written, lost uint64, refused bool) { return api.Streamed() }

// KeyspaceEvents says whether somebody may get what [Ctx.Notify] publishes. It asks the server.
func (s *Server) KeyspaceEvents() bool { return api.KeyspaceEvents() }

// CopyEffects makes this call copy the arguments of effects from now on, because the memory
// that they lie in may change before the call returns.
func (c *Ctx) CopyEffects() { c.copies = true }

// MayReplicate says whether effects of this call are sent with it, rather than later.
func (c *Ctx) MayReplicate() bool { return c.kind == aWrite || c.mayElsewhere() }

// Writes says whether this is a command with the flag write.
func (c *Ctx) Writes() bool { return c.kind == aWrite }

// mayElsewhere is MayReplicate for a call that is no write command.
func (c *Ctx) mayElsewhere() bool {
	switch {
	case c.kind == anEvent || c.s.door.loading:
		return false
	case !c.asked:
		// Neither of the two changes while the call lasts.
		c.asked, c.may = true, !api.WritesPaused() && !c.s.Replica()
	}
	return c.may
}

// Dirty counts one change of the data set, for "save 60 1000" and the like. Call it if
// nothing else was replicated. If there is an AOF or a replica, it replicates the command
// as it came; a call that isn't a command's has none, so it only counts.
func (c *Ctx) Dirty() {
	if c.MayReplicate() {
		c.f.Verbatim()
	}
}

// Listened says whether there is an AOF or a replica. If there is none, the caller need not
// build effects.
func (c *Ctx) Listened() bool {
	// While the server loads data, its AOF is turned off.
	return c.s.door.loading || c.s.door.listen.now(c.f.Context())
}

// EffectsKept says whether effects are kept for a later call: then the log doesn't have all
// that has happened yet.
func (s *Server) EffectsKept() bool { return s.door.late != nil }

// keep returns the frame for effects that can't be sent now.
func (s *Server) keep() *api.Frame {
	if s.door.late == nil {
		s.door.late = api.NewFrame()
		s.knock()
	}
	return s.door.late
}

// knock checks in a timer whether the kept effects can be sent. In a server that gets no
// commands, no other call would send them.
func (s *Server) knock() {
	s.door.knock = s.After(knockMS, func(c *Ctx) {
		s.door.knock = nil
		if s.sendLate(c); s.door.late != nil {
			s.knock()
		}
	})
}

// knockMS is the time between two checks of knock, ms.
const knockMS = 10

// sendLate sends the kept effects, if this call may replicate. On a replica it drops them.
// The log has them for database 0, whatever database the call is in, because timers and the
// work after events are in database 0.
func (s *Server) sendLate(c *Ctx) {
	if s.door.late == nil || s.door.loading {
		return
	}
	if !s.Replica() {
		if !c.MayReplicate() {
			return
		}
		c.f.Play(s.door.late)
	}
	s.door.late.Release()
	s.door.late = nil
	if s.door.knock != nil {
		s.door.knock.Stop()
		s.door.knock = nil
	}
}

// doorEvent handles the events on which the door depends.
func (s *Server) doorEvent(event, sub int) {
	switch event {
	case api.EventLoading:
		phase := LoadPhase(sub)
		s.door.loading = phase != LoadEnded && phase != LoadFailed
		s.door.listen.forget()
	case api.EventRole, api.EventFork, api.EventReplica, api.EventConfig:
		s.door.listen.forget()
	}
}

// listeners remembers whether there is an AOF or a replica. A look costs microseconds, so
// it looks only after events that can change the answer. An AOF begins with a fork, and so
// does the service of a new replica; a partial resync needs a backlog that such a fork
// made. While the server loads data, the answer holds only for that time, and [door]
// doesn't ask.
type listeners struct {
	known, any bool
}

func (l *listeners) forget() { l.known = false }

func (l *listeners) now(ctx api.Context) bool {
	if !l.known {
		flags := api.ContextFlags(ctx)
		l.any = flags&api.FlagAOF != 0
		for _, field := range []string{"connected_slaves", "repl_backlog_active"} {
			if v, ok := api.ServerInfo(ctx, "replication", field); !ok || v != "0" {
				l.any = true
			}
		}
		l.known = flags&api.FlagLoading == 0
	}
	return l.any
}
