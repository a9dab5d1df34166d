package engine

// A node's time begins as the wall clock's, and goes on with the steady clock: a wall
// clock that is set doesn't move it, for nearly all that it is used for are durations,
// of retries, delays, times to live, silence and questions. Something that was to happen
// in 5 s happens in 5 s.
//
// The difference is given up little by little, so that jobs and tokens of nodes with
// good clocks bear comparable times: the node's time goes slower or faster than it
// should, by one part in slewShare: by less than clocks may be wrong anyway (lock.ClockSlack),
// for a job that runs alone is somebody's for its retry time. A wall clock that is set ahead by more than
// trustAhead was plainly wrong before, as on a machine that asks the network for the
// time after it has started, and is followed at once; so is any at the start.
//
// Any step counts, for servers that keep time set their clocks by half a second as well: of
// what runs alone for a second not more than its share may be lost. So a difference that is
// taken for inaccuracy, and thus followed, is no greater than two clocks that are read in
// whole ms, and go at rates of their own, can show. One that shows because the process was
// stopped between two readings does no harm: the next look takes it back.

const (
	lookEvery  = 20         // ms of the wall clock within which a step isn't looked for
	stepLeast  = 5          // ms that the clocks may differ in between without being set,
	stepShare  = 64         // beside this part of the time between two looks
	slewShare  = 128        // the node's time is wrong by that part of a second in a second
	trustAhead = 86_400_000 // ms
	pauseLeast = 5_000      // ms in one go that make a pause of the process, or a step
	backLeast  = 1_000      // likewise back, where there is no steady clock
)

// clock is what a node's time is made of, ms.
type clock struct {
	monotonic func() int64 // nil: the time that is told doesn't step
	ahead     int64        // of the wall clock
	until     int64        // a wall clock's time before this one, and not before the node's, is the node's
	wall      int64        // at the last look
	even      int64        // the steady clock at the last look
	slewed    int64        // of the time until then, what isn't a whole slewShare yet: a busy node looks at shorter spans
}

// SetNow tells the time of the wall clock, unix ms, before each event. It may jump. The
// effects that were taken before are carried out by now, and what they named is given back.
func (n *Node) SetNow(wall int64) {
	if wall >= n.now && wall < n.clock.until {
		n.now = wall
	} else {
		n.compareClocks(wall)
	}
	if n.sent {
		n.outbox, n.sent = n.outbox[:0], false
		n.memory.turn()
	}
}

// compareClocks is SetNow where the wall clock may have been set.
func (n *Node) compareClocks(wall int64) {
	c, before := &n.clock, n.now
	if c.monotonic == nil {
		if n.now = wall; wall < before-backLeast || wall > before+pauseLeast {
			n.timeJumped(n.now - before)
		}
		return
	}
	even := c.monotonic()
	gone := max(even-c.even, 0)
	step, most := wall-c.wall-gone, stepLeast+gone/stepShare
	set := step < -most || step > most
	if set {
		c.ahead -= step
	}
	if set || gone >= lookEvery/2 {
		c.wall, c.even = wall, even
		c.slewed += gone
		slew := c.slewed / slewShare
		c.slewed %= slewShare
		c.ahead -= max(min(c.ahead, slew), -slew)
		if c.ahead < -trustAhead {
			c.ahead = 0
		}
	}
	n.now = max(before, wall+c.ahead)
	if c.until = 0; c.ahead == 0 {
		c.until = c.wall + lookEvery
	}
	if n.now > before+pauseLeast {
		n.timeJumped(n.now - before)
	}
}

// Ahead is how far the node's time is ahead of the wall clock's, ms: that was set
// back; negative: it was set ahead.
func (n *Node) Ahead() int64 { return n.clock.ahead }

// timeJumped keeps a step of the clock, or a pause of the whole process, from
// looking like everybody's silence, and what was to happen soon from waiting for
// the clock to come back.
func (n *Node) timeJumped(by int64) {
	n.skipped += by
	n.mesh.sweep = 0
	n.tombstones.turned = n.now
	n.mesh.TimeJumped()
	n.askAnew()
}
