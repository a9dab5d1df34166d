package rm

import "jobmesh/cgo/api"

// Effect is the name of a command that is replicated.
type Effect struct{ name api.CString }

// NewEffect prepares one; they are never freed.
func NewEffect(command string) Effect { return Effect{api.NewCString(command)} }

// callKind is what a call into the module comes from. It decides whether the call
// may replicate.
type callKind uint8

const (
	// aWrite is a command with the flag write: the server runs it only where the
	// data set may change.
	aWrite callKind = iota
	// aTurn is a timer, or a command without the flag write: it may replicate unless
	// writes are paused.
	aTurn
	// anEvent is a server event, a key's event, or the end of a client's wait: nothing may
	// be replicated. The server counts a change there as the command's that caused the
	// event (REPLICAOF, PSYNC … FAILOVER), and would replicate that command. And what is
	// replicated inside of MOVE, RESTORE or SWAPDB stands before that command in the log,
	// where the data that it changes aren't there yet.
	anEvent
)

// door is the one way by which effects reach the AOF and the replicas. An effect that
// the call at hand may not replicate is kept, and goes out before the next one, by the
// next call that may: so the order in the log is that of the changes.
type door struct {
	late    *api.Frame // kept effects; nil: none
	knock   *Timer     // will look whether they can go out
	loading bool
	listen  listeners
}

// Args are the arguments of an effect.
type Args struct {
	f    *api.Frame
	copy bool
}

// Bulk adds an argument. b must stay as it is until the call returns, unless
// [Ctx.CopyEffects] was called or the effect is kept; it must lie outside the Go heap.
func (a Args) Bulk(b []byte) {
	if a.copy {
		copy(a.f.BulkText(len(b)), b)
	} else {
		a.f.Bulk(b)
	}
}

// Text adds an argument by copy.
func (a Args) Text(s string) { copy(a.f.BulkText(len(s)), s) }

// Buffer adds an argument of n bytes, which the caller writes into the returned
// buffer before it does anything else.
func (a Args) Buffer(n int) []byte { return a.f.BulkText(n) }

// Replicate sends an effect to the AOF and the replicas. Its n arguments follow at
// once. Where this call may not replicate, the effect is kept for the next that may;
// on a replica, whose data are its master's, it is dropped.
func (c *Ctx) Replicate(e Effect, n int) Args {
	f := c.f
	if !c.MayReplicate() {
		f = c.s.keep()
	}
	f.Replicate(e.name, n)
	return Args{f, c.copies || f != c.f}
}

// CopyEffects has the arguments of effects copied from now on, because what they lie
// in may change before the call returns.
func (c *Ctx) CopyEffects() { c.copies = true }

// MayReplicate says whether effects of this call go out with it, rather than later.
func (c *Ctx) MayReplicate() bool { return c.kind == aWrite || c.mayElsewhere() }

// Writes says whether this is a command with the flag write.
func (c *Ctx) Writes() bool { return c.kind == aWrite }

// mayElsewhere is MayReplicate for what is no write command.
func (c *Ctx) mayElsewhere() bool {
	switch {
	case c.kind == anEvent || c.s.door.loading:
		return false
	case !c.asked:
		// Neither changes while the call lasts.
		c.asked, c.may = true, !api.WritesPaused() && !c.s.Replica()
	}
	return c.may
}

// Dirty counts one change of the data set, for "save 60 1000" and the like, where
// nothing else was replicated. Where somebody listens it replicates the command as it
// came; a call that isn't a command's has none, and only counts.
func (c *Ctx) Dirty() {
	if c.MayReplicate() {
		c.f.Verbatim()
	}
}

// Listened says whether anybody takes what is replicated: an AOF or a replica.
// Where nobody does, building effects would be for nothing.
func (c *Ctx) Listened() bool {
	// While it loads, the server turns its AOF off.
	return c.s.door.loading || c.s.door.listen.now(c.f.Context())
}

// EffectsKept says whether effects wait for a call that may replicate: what is logged by
// now isn't all that has happened.
func (s *Server) EffectsKept() bool { return s.door.late != nil }

// keep returns the frame for effects that can't go out now.
func (s *Server) keep() *api.Frame {
	if s.door.late == nil {
		s.door.late = api.NewFrame()
		s.knock()
	}
	return s.door.late
}

// knock looks in a timer whether what was kept can go out: in a server without
// commands no other call would.
func (s *Server) knock() {
	s.door.knock = s.After(knockMS, func(c *Ctx) {
		s.door.knock = nil
		if s.sendLate(c); s.door.late != nil {
			s.knock()
		}
	})
}

// knockMS is how often that is looked at, ms.
const knockMS = 10

// sendLate has what was kept go out by a call that may replicate. A replica's is dropped.
// The log has it for database 0, whatever database the call is in: there timers are, and so is
// what events lead to.
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

// doorEvent follows the events that the door depends on.
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

// listeners knows whether an AOF or a replica takes what is replicated. To ask
// costs microseconds, so it asks only after events that can change the answer:
// an AOF begins, and a new replica is served, with a fork; a partial resync
// needs a backlog that such a fork made. While the server loads, its answer is about
// the time of loading, and [door] doesn't ask.
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
