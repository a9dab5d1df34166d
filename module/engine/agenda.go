package engine

// agenda lists queues that are to be looked at some time after something has happened to them. That time is the same for
// all of them, so the queue that came first is due first. Each queue is listed once.
type agenda struct {
	line  []look
	there map[string]struct{} // the queues in line
	now   int                 // line[:now] is looked at without waiting for its time
}

// look says when a queue is looked at.
type look struct {
	queue string
	at    int64 // monotonic, ms
}

// lookAfter adds a queue to an agenda, to be looked at in ms milliseconds, unless it is there already.
func (n *Node) lookAfter(a *agenda, queue string, ms int64) {
	if _, yes := a.there[queue]; yes {
		return
	}
	if a.there == nil {
		a.there = map[string]struct{}{}
	}
	a.there[queue] = struct{}{}
	a.line = append(a.line, look{queue, n.monotonic() + ms})
	n.wake = min(n.wake, n.now+max(ms, 1))
}

// lookNow makes all queues of an agenda due now.
func (n *Node) lookNow(a *agenda) {
	a.now = len(a.line)
	n.hurryTick()
}

// tickAgenda looks at the queues that are due, by calling see, which returns what it has cost beside the look, in units
// of tickBudget. If the budget is used up, the next tick goes on.
func (n *Node) tickAgenda(a *agenda, see func(queue string) (cost int)) {
	if len(a.line) == 0 {
		return
	}
	now := n.monotonic()
	due := func() bool { return a.now > 0 || len(a.line) > 0 && a.line[0].at <= now }
	for budget := tickBudget; budget > 0 && due(); budget-- {
		queue := a.line[0].queue
		a.line, a.now = a.line[1:], max(a.now-1, 0)
		delete(a.there, queue)
		budget -= see(queue)
	}
	switch {
	case due():
		n.hurryTick()
	case len(a.line) > 0:
		n.wake = min(n.wake, n.now+max(a.line[0].at-now, 1))
	}
}
