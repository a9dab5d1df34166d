package engine

// agenda has queues that are to be looked at some time after something has happened to them, which is the same time for
// all of them: so the first that came is the first that is due. Each is there once.
type agenda struct {
	line  []look
	there map[string]struct{} // the same
	now   int                 // of the line, from the first on, without waiting for their time
}

// look is when a queue is looked at.
type look struct {
	queue string
	at    int64 // steady, ms
}

// lookAfter has a queue be looked at after a time, unless it is to be looked at already.
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

// lookNow has all of them be looked at now.
func (n *Node) lookNow(a *agenda) {
	a.now = len(a.line)
	n.hurryTick()
}

// tickAgenda looks at the queues that are due, by calling see, which says what it has cost beside the look. The next
// tick goes on with what is over the budget.
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
