package engine

// A node's time begins as the wall clock's, and goes on with the monotonic clock: a wall
// clock that is set doesn't move it. Nearly everything that the time is used for is a
// duration: of retries, delays, times to live, silence and questions. Something that was to
// happen in 5 s happens in 5 s.
//
// The node's time returns to the wall clock's little by little, so that jobs and tokens of
// nodes with good clocks bear comparable times. Meanwhile it goes slower or faster than it
// should, by one part in slewShare. This part is smaller than the error that clocks may have
// anyway (lock.ClockSlack), because a job that runs alone belongs to its worker for the whole
// retry time. A wall clock that is set ahead by more than trustAhead was plainly wrong before, as on
// a machine that asks the network for the time after it has started. The node follows such a
// clock at once; at its start it follows any.
//
// Even a small step has to be noticed, because servers that keep time also set their clocks by
// as little as half a second: a job that runs alone for a second may lose no more than its
// share. So the node takes a difference for inaccuracy, and follows it, only if it is no
// greater than two clocks can show that are read in whole ms and go at rates of their own. A
// difference that shows because the process was stopped between the two readings does no harm:
// the next look takes it back.

const (
	lookEvery  = 20         // ms of the wall clock within which a step isn't looked for
	stepLeast  = 5          // ms that the clocks may differ between two looks without a step,
	stepShare  = 64         // beside this part of the time between the looks
	slewShare  = 128        // the node's time is wrong by that part of a second in a second
	trustAhead = 86_400_000 // ms
	pauseLeast = 5_000      // ms; a greater jump ahead is a pause of the process, or a step
	backLeast  = 1_000      // ms; a greater jump back is a step, where there is no monotonic clock
)

// clock is what a node's time is made of, ms.
type clock struct {
	monotonic func() int64 // nil: the node's time is what SetNow tells
	ahead     int64        // the node's time less the wall clock's
	until     int64        // a wall clock's time before this one, and not before the node's, is taken as the node's
	wall      int64        // the wall clock at the last look
	even      int64        // the monotonic clock at the last look
	slewed    int64        // ms until then that don't make a whole slewShare yet: a busy node looks at shorter spans
}

// SetNow tells the node the time of the wall clock, unix ms, before each event. That time may
// jump. The effects that were taken before are carried out by now, so SetNow gives back the
// memory that they named.
func (n *Node) SetNow(wall int64) {
	if wall >= n.now && wall < n.clock.until {
		n.now = wall
	} else {
		n.compareClocks(wall)
	}
	if n.sent {
		n.emptyOutbox()
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

// Ahead returns how far the node's time is ahead of the wall clock's, ms. Positive: the wall
// clock was set back; negative: it was set ahead.
func (n *Node) Ahead() int64 { return n.clock.ahead }

// timeJumped follows a step of the clock, or a pause of the whole process. Without it the jump
// would look as if all other nodes had been silent, and after a step back what was to happen
// soon would wait until the clock is there again.
func (n *Node) timeJumped(by int64) {
	n.skipped += by
	n.mesh.sweep = 0
	n.tombstones.Began(n.now)
	n.mesh.TimeJumped()
	n.askAnew()
}
