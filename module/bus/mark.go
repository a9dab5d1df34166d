package bus

// mark is a moment, by which something had arrived: in a socket, in a reader's
// hands, or in the inbox.
type mark struct {
	behind []behind // connections with something that was still to be delivered
	target uint64   // of Bus.handled, once behind is empty; 0 before
}

type behind struct {
	conn   *conn
	passes uint64
}

// Mark begins to look whether all that has arrived by now was handed to the owner;
// [Bus.Reached] tells. It costs a system call for each peer that is connected.
//
// After the process stood still, its timers are due at once, while messages of
// long ago still lie in the kernel: an owner that acts on time alone acts on what
// others have told it is over.
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
		// A reader had delivered all that it had read before it passed.
		m.target = b.delivered.Load()
	}
	return b.handled >= m.target
}
