package bus

// mark remembers what had arrived when Mark was called, be it in a socket, with a reader, or in
// the inbox.
type mark struct {
	behind []behind // connections that still had something to deliver
	target uint64   // the value of Bus.handled that is to be reached; 0 until behind is empty
}

type behind struct {
	conn   *conn
	passes uint64
}

// Mark notes what has arrived by now. [Bus.Reached] says when all of that was handed to the
// owner. Mark costs a system call for each connected peer.
//
// After the process stood still, its timers are due at once, while messages that came long ago
// still lie in the kernel. An owner that follows its timers alone acts on things that, as those
// messages say, are over.
func (b *Bus) Mark() {
	b.mark.behind, b.mark.target = b.mark.behind[:0], 0
	for _, p := range b.peers {
		if c := p.conn; c != nil && !c.wire.quiet() {
			b.mark.behind = append(b.mark.behind, behind{c, c.wire.passes.Load()})
		}
	}
}

// Reached says whether everything that had arrived at the last Mark was drained.
func (b *Bus) Reached() bool {
	m := &b.mark
	for n := len(m.behind) - 1; n >= 0; n-- {
		c := m.behind[n].conn
		if !c.readerEnded.Load() && c.wire.passes.Load() == m.behind[n].passes && !c.wire.quiet() {
			return false
		}
		m.behind = m.behind[:n]
	}
	if m.target == 0 {
		// Before passes grows, a reader has delivered all that it had read.
		m.target = b.delivered.Load()
	}
	return b.handled >= m.target
}
