package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"jobmesh/module/engine"
	"jobmesh/module/entries"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

const (
	queues    = 3
	retrySecs = 8
	healSecs  = 900 // until all must be in order again: a few of the longest waits
	ttlSecs   = 2400
	idleSecs  = 300 // for so long an empty queue stays
	afterSecs = 200 // for so long no job that is done may come back
	backSecs  = 20  // after all has healed, in which jobs that were acknowledged may still be delivered
	leftSecs  = 25  // after all has healed, until votes for refused acquisitions are taken back
	holdSecs  = 120 // for the lists of holders to converge

	earlyMS    = 100 // by which a delayed job may come too early: nodes count what is left of the delay by their own clocks
	repairSecs = 60  // until the copies of a node that was forgotten were made again
	byHandSecs = 200 // after all has healed, until the operator settles what is uncertain
)

// Run plays one history. The error is the first rule that was broken. The same
// seed and configuration give the same history.
func Run(seed uint64, c Config) (Report, error) {
	s := newSim(seed, c)
	s.work()
	s.trouble()
	end := s.now + c.Seconds*1000
	began := s.now
	s.run(end)
	if s.Brief {
		return s.conclude(began)
	}
	s.heal()
	if s.Locks != nil {
		s.run(s.now + leftSecs*1000)
		s.noLeftovers()
		s.served()
	}
	if s.Converge {
		s.holding = true
		s.run(s.now + holdSecs*1000)
		s.converged()
		s.holding = false
	}
	for until := s.now + healSecs*1000; s.now < until && !s.done(); {
		s.run(s.now + 10_000)
	}
	s.judge()
	s.judgeLocks()
	s.judgeUniques()
	s.judgeSettings()
	if s.MostExtra > 0 && float64(s.Extra) > s.MostExtra*float64(s.Added) {
		s.fail("%d deliveries of %d jobs were needless", s.Extra, s.Added)
	}
	return s.conclude(began)
}

func (s *Sim) conclude(began int64) (Report, error) {
	if s.locks != nil {
		s.Granted = s.locks.granted
	}
	s.Simulated = s.now - began
	s.PerJob = float64(s.Messages-s.Kinds[wire.NeedJobs]-s.Kinds[wire.Pause]-s.Kinds[wire.Entries]-s.Kinds[wire.EntrySums]-s.Kinds[wire.Flushes]) / float64(max(s.Added, 1))
	if len(s.failures) > 0 {
		return s.Report, fmt.Errorf("seed %d: %s", s.seed, s.failures[0])
	}
	return s.Report, nil
}

func (s *Sim) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.trace("FAILURE: %s", text)
	s.failures = append(s.failures, fmt.Sprintf("%s (%d failures in all)", text, len(s.failures)+1))
}

// --- clients -----------------------------------------------------------------

func (s *Sim) work() {
	s.startLockers()
	s.startUniques()
	s.startCrons()
	for range s.Jobs {
		add := s.add
		if s.Bulk > 0 {
			add = s.addBulk
		}
		s.at(2000+s.r.Int64N(s.Seconds*800), add)
	}
	for range s.Families {
		s.at(2000+s.r.Int64N(s.Seconds*700), s.addFamily)
	}
	for _, n := range s.nodes {
		s.consume(n)
		if s.Lazy {
			break
		}
	}
	var look func()
	look = func() {
		s.safe()
		s.at(5000, look)
	}
	if !s.Brief {
		look()
	}
}

// up picks a node that clients can reach, nil if it finds none.
func (s *Sim) up() *node {
	for range 20 {
		if n := s.nodes[s.r.IntN(len(s.nodes))]; n.serves() && !n.shut {
			return n
		}
	}
	return nil
}

// joined is up for commands that need a majority. A node that knows no other decides alone, so
// clients that want something of the mesh don't ask it. Such a node has still to join, or has
// crashed before its nodes' file was written.
func (s *Sim) joined() *node {
	if n := s.up(); n != nil && (!n.e.Mesh().Alone() || len(s.nodes) == 1) {
		return n
	}
	return nil
}

func (s *Sim) add() {
	if s.chance(s.Named) {
		s.addNamed()
		return
	}
	n := s.up()
	if n == nil {
		return
	}
	a := s.newAdd()
	queue := int(a.Queue[1] - '0')
	n.call(func() {
		if a.Replicate == 0 {
			a.Replicate = n.e.Copies()
		}
		notBefore := s.now + a.Delay*1000
		if s.Failing > 0 && a.Delay > 0 && s.r.IntN(2) == 0 { // by the clock, from which the TTL counts, too
			a.DueAt(n.e.Now()+a.Delay*1000-s.r.Int64N(1000), n.e.Now())
			a.TTL, notBefore = a.TTL+a.Delay, s.now+a.At-n.e.Now()
		}
		id, wait, err := n.e.AddJob(&a)
		if err != nil {
			s.Refused++
			return
		}
		s.Added++
		s.jobs[id] = &job{id: id, queue: queue, once: a.Retry == 0, copies: a.Replicate, delayed: a.Delay > 0, notBefore: notBefore}
		s.order = append(s.order, s.jobs[id])
		if s.flushings[queue] > 0 {
			s.jobs[id].givenUp, s.jobs[id].done = true, true
		}
		s.trace("node %d: ADDJOB %s to q%d", n.i, id, queue)
		if !wait {
			s.jobs[id].heardAt = s.now
		}
		switch {
		case wait:
			n.e.Tie(engine.PendingAdd(id), nil)
		case !a.Async:
			s.at(0, func() { s.promised(n, id) }) // its copy is on disk by then
		default:
			s.barrier(n, []store.ID{id})
		}
	})
}

// newAdd draws the options of a new job.
func (s *Sim) newAdd() engine.Add {
	a := engine.Add{
		Queue: fmt.Append(nil, "q", s.r.IntN(queues)), Body: []byte("body"), TTL: ttlSecs,
		Retry: retrySecs, Replicate: s.Replicate, Timeout: 2000, CanWait: true,
	}
	if s.Patient {
		a.Timeout = 0
	}
	switch {
	case s.DelaySecs > 0:
		a.Delay = 1 + s.r.Int64N(s.DelaySecs)
	case s.r.IntN(10) == 0:
		a.Delay = 1 + s.r.Int64N(10)
	}
	if s.chance(s.Once) {
		a.Retry, a.Replicate = 0, 1
	}
	a.Async = s.chance(s.Async)
	if s.Failing > 0 && s.r.IntN(3) == 0 {
		a.Priority = s.r.IntN(5) - 2
	}
	if s.Failing > 0 && a.Retry > 0 && s.r.IntN(2) == 0 {
		a.Policy = &engine.Policy{
			Set: engine.SetRetries | engine.SetOnExpire, Base: s.r.Int64N(3), Max: 4, Jitter: s.r.Int64N(100),
			MaxNacks: s.r.Int64N(4), MaxDeliveries: s.r.Int64N(5), ExpiredDies: s.r.IntN(2) == 0,
		}
	}
	return a
}

// consume is a worker at a node: it blocks, works, acknowledges, and again.
func (s *Sim) consume(n *node) {
	life := n.life
	s.at(s.r.Int64N(1000), func() {
		if n.life != life || s.closed {
			return
		}
		if !n.serves() {
			s.consume(n)
			return
		}
		n.call(func() {
			names := [][]byte{fmt.Append(nil, "q", s.r.IntN(s.queues())), fmt.Append(nil, "q", s.r.IntN(s.queues()))}
			if s.Uniques != nil && s.Uniques.Harsh || s.FamilyMoved || s.Failing > 0 {
				names = append(names, fmt.Append(nil, "q", s.r.IntN(s.queues()), engine.DeadSuffix))
			}
			var qs []*store.Queue
			for _, name := range names {
				qs = append(qs, n.e.Queue(name))
			}
			most := 1 + s.r.IntN(3)
			if s.Lazy {
				most = 1
			}
			lease := s.term()
			got := n.e.FetchFor(qs, most, true, lease, nil)
			for _, j := range got {
				if s.unheard(n, j) {
					continue
				}
				s.take(n, j)
			}
			if len(got) > 0 {
				s.consume(n)
				return
			}
			done := false
			w, err := n.e.Wait(names, &done)
			if err != nil {
				s.consume(n)
				return
			}
			w.Lease = lease
			s.at(1000+s.r.Int64N(10_000), func() {
				if n.life == life && !done {
					n.call(func() { n.e.Cancel(w) })
					s.consume(n)
				}
			})
		})
	})
}

// delivered is called when a blocked worker is served.
func (s *Sim) delivered(n *node, w *engine.Waiter, j *store.Job) {
	done := w.Client.(*bool)
	first := !*done
	*done = true
	if !s.unheard(n, j) {
		s.take(n, j)
	}
	if first && (s.jobs[j.ID] == nil || s.jobs[j.ID].probe == nil) {
		s.consume(n)
	}
}

// policies are what the settings say of all queues.
func (s *Sim) policies() *engine.Policies {
	limits := engine.Limits{Rate: s.Rate, AtOnce: s.AtOnce}
	return &engine.Policies{LimitsOf: func([]byte) engine.Limits { return limits }, Rated: s.Rate.Count > 0 || s.AtOnce > 0, Generation: 1, AddCron: s.addCron}
}

// inRate notes a delivery, and checks that a queue's rate holds.
func (s *Sim) inRate(n *node, queue string) {
	if s.Rate.Count == 0 {
		return
	}
	if s.deliveries == nil {
		s.deliveries = map[string][]int64{}
	}
	times := append(s.deliveries[queue], s.now)
	s.deliveries[queue] = times
	if before := len(times) - 1 - int(s.Rate.Count); before >= 0 && s.now-times[before] < s.Rate.Seconds*1000 {
		s.fail("node %d delivers job number %d of %s, %d of them in %d ms", n.i, len(times), queue, s.Rate.Count+1, s.now-times[before])
	}
}

func (s *Sim) take(n *node, sj *store.Job) {
	s.inRate(n, string(sj.Queue.NameBytes()))
	s.takesSlot(n, sj)
	j := s.jobs[sj.ID]
	if j == nil {
		s.fail("node %d delivers a job that nobody added: %s", n.i, sj.ID)
		return
	}
	if j.probe != nil {
		j.probe.got = true
		return
	}
	s.Delivered++
	j.delivered++
	j.given = s.now
	s.trace("node %d: delivers %s (%d)", n.i, j.id, j.delivered)
	s.inTurn(n, j, sj)
	if s.now < j.notBefore-earlyMS && s.Faults.Skew == 0 && s.Faults.Steps == 0 {
		s.fail("node %d delivers %s %d ms before its delay is over%s", n.i, j.id, j.notBefore-s.now, s.placement(j))
	}
	if j.unique != nil && sj.Unique() == nil {
		s.deadLetter(j) // it became one by the very call that fetches it
	}
	s.uniqueTaken(n, j)
	s.bodyGiven(n, j, sj)
	if j.settled {
		s.fail("node %d delivers job %s, whose acknowledgement others knew of when all had healed", n.i, j.id)
	}
	if s.over && !j.once && !j.stray {
		s.fail("node %d delivers job %s, which was done with everywhere", n.i, j.id)
	}
	if j.delivered > 1 {
		s.Duplicates++
		if j.once {
			s.fail("at-most-once job %s was delivered %d times", j.id, j.delivered)
		}
	}
	if quiet := s.now - max(j.ackedAt, s.healedAt); j.acked && !j.blurred && s.healed && quiet > backSecs*1000 {
		s.fail("job %s came back %d s after its acknowledgement, %d s after all had healed", j.id, (s.now-j.ackedAt)/1000, quiet/1000)
	}
	share := s.AckShare
	switch {
	case s.holding:
		share = 0
	case s.healed:
		share = 1
	}
	if !s.chance(share) {
		j.excuses++
		if (j.unique != nil || s.AtOnce > 0) && s.r.IntN(2) == 0 {
			at := n
			if s.AtOnce > 0 && s.r.IntN(4) == 0 {
				at = s.nodes[s.r.IntN(len(s.nodes))]
			}
			s.beat(j, at, s.r.Int64N(retrySecs*1000), 1+s.r.IntN(3))
		}
		return // the worker dies with it
	}
	if !s.healed && s.r.IntN(10) == 0 && !s.Loyal {
		j.excuses++
		when := s.r.Int64N(1000)
		s.at(when, func() { s.nack(j, n) })
		if s.r.IntN(2) == 0 { // to be sure, it tells another node at the same time
			j.excuses++
			s.at(when, func() {
				if j.unique != nil {
					j.unique.twice = true
				}
				s.nack(j, s.nodes[s.r.IntN(len(s.nodes))])
			})
		}
		return
	}
	if s.r.IntN(10) == 0 {
		s.beat(j, n, s.r.Int64N(1000), 1)
	}
	when := s.r.Int64N(2000)
	s.at(when, func() { s.ack(j, n) })
	if s.r.IntN(10) == 0 && !s.Loyal {
		s.at(when, func() { s.ack(j, s.nodes[s.r.IntN(len(s.nodes))]) })
	}
}

// beat makes a worker say WORKING after a time, and again after as long, so many times.
func (s *Sim) beat(j *job, n *node, every int64, times int) {
	s.at(every, func() {
		s.command(n, func(e *engine.Node) {
			// If it is too late, or the job is gone, only the worker is concerned.
			j.worked++
			at := s.now
			answer := func(err error) {
				s.trace("node %d: WORKING %s of %d: %v", n.i, j.id, at, err)
				if err == nil {
					s.uniqueWorked(n, j, at)
					s.keepsSlot(n, j.id, at)
				}
			}
			work := engine.Work{Client: answer}
			if j.worked%2 == 0 {
				work.Progress = strconv.AppendInt(nil, at, 10)
			}
			if _, pending, err := e.Working(&j.id, work); !pending {
				answer(err)
			}
		})
		if times > 1 {
			s.beat(j, n, every, times-1)
		}
	})
}

func (s *Sim) nack(j *job, n *node) {
	s.command(n, func(e *engine.Node) {
		before, worked := j.delivered, j.worked
		s.leavesSlot(j.id, false)
		s.uniqueGiven(j)
		f := s.failure()
		if j.unique == nil && (f.Dead || s.Failing > 0 && s.r.IntN(3) == 0) {
			s.reviveLater(j)
		}
		if s.Gone > 0 && s.chance(0.5) {
			if s.chance(0.5) {
				e.EnqueueUnstarted(&j.id)
			} else {
				e.Enqueue(&j.id)
			}
			return
		}
		if done := e.Nack(&j.id, f); !done || !s.Swift || f.Delay > 0 || f.Dead {
			return
		}
		at := s.now
		s.unqueued(j, "given back", func() bool {
			// If three nodes have the job at once, one of them by an import, each can
			// leave it to another: then it waits for its retry time. And a node that
			// has just given it to a client keeps it out of the others' queues.
			near := func(t int64) bool { return t >= at-100 && t <= at+100 }
			handed := near(j.moved) || near(j.given)
			return !handed && !j.done && j.delivered == before && j.worked == worked && s.queued(j) == 0
		})
	})
}

// reviveLater moves a job back from its dead-letter queue, should it be there then, or to another queue.
func (s *Sim) reviveLater(j *job) {
	s.at(s.r.Int64N(20_000), func() {
		n := s.up()
		if n == nil || s.closed || j.done {
			return
		}
		var to engine.Move
		if s.r.IntN(3) == 0 {
			to.To = fmt.Append(nil, "q", s.r.IntN(queues))
		}
		if to.Ranks = s.r.IntN(3) == 0; to.Ranks {
			to.Priority = s.r.IntN(5) - 2
		}
		n.call(func() {
			_, err := n.e.Move(&j.id, &to)
			if err == engine.ErrNotHere {
				n.e.MoveAway([]store.ID{j.id}, &to, 1000)
			}
			s.trace("node %d: MOVEJOB %s to %q, priority %d %v: %v", n.i, j.id, to.To, to.Priority, to.Ranks, err)
		})
	})
}

// mayDie checks that no job is given up before it was delivered as often as it may be.
func (s *Sim) mayDie(j *store.Job) {
	if j == nil || s.Failing == 0 {
		return
	}
	d, dead := engine.DeathOf(j)
	k := s.jobs[j.ID]
	if !dead || k == nil || d.Why != engine.WhyDeliveries {
		return
	}
	if p, ok := engine.PolicyOf(j); !ok || int64(k.delivered) < p.MaxDeliveries {
		s.fail("%s was given up after %d deliveries, but may have %d", j.ID, k.delivered, p.MaxDeliveries)
	}
}

// failure is what a worker says of a job that it gives back.
func (s *Sim) failure() *engine.Failure {
	f := &engine.Failure{}
	if s.Failing == 0 || s.r.Float64() >= s.Failing {
		return f
	}
	switch s.r.IntN(4) {
	case 0:
		f.Dead = true
	case 1, 2:
		f.Delay = 1 + s.r.Int64N(20_000)
	}
	if s.r.IntN(2) == 0 {
		f.Reason = fmt.Append(nil, "failed at ", s.now)
	}
	return f
}

// command runs f at a node, or at another if that is down, and at times if it isn't.
func (s *Sim) command(n *node, f func(*engine.Node)) {
	if !n.serves() || s.r.IntN(4) == 0 {
		if n = s.up(); n == nil {
			return
		}
	}
	n.call(func() { f(n.e) })
}

func (s *Sim) ack(j *job, n *node) {
	if !n.serves() || s.r.IntN(4) == 0 && !s.Loyal {
		if n = s.up(); n == nil {
			s.at(1000, func() { s.ack(j, s.nodes[0]) })
			return
		}
	}
	n.call(func() {
		j.ends++
		if !s.healed && s.chance(s.Fast) {
			s.leavesSlot(j.id, true)
			j.tried = true
			known := n.e.FastAck(&j.id)
			s.trace("node %d: FASTACK %s known %v", n.i, j.id, known)
			j.done, j.fast = true, true
			s.uniqueGiven(j)
			return
		}
		s.uniqueGiven(j)
		s.leavesSlot(j.id, true)
		known := n.e.Finish(&j.id, s.result(j))
		s.trace("node %d: ACKJOB %s known %v", n.i, j.id, known)
		if known && !j.acked {
			j.acked, j.ackedAt = true, s.now
			s.Acked++
		}
		if known {
			j.ackedBy = append(j.ackedBy, n.i)
		}
		j.done = true
		s.uniqueGiven(j)
		if !known && n.e.Job(&j.id) != nil && len(n.e.Mesh().All()) >= len(s.nodes)-1 { // a node that doesn't know all others yet can't tell them
			j.dummies = append(j.dummies, dummy{n, n.life})
		}
		if s.Swift && !j.once { // an at-most-once job isn't looked for at other nodes
			soon := int64(900)
			if !known {
				soon = 2000 // each holder may leave it to another, for a second or two
			}
			s.at(soon, func() {
				if !s.known(j) {
					return
				}
				s.at(100, func() { // another acknowledgement may have just been made
					if s.known(j) {
						s.fail("job %s is still known%s", j.id, s.placement(j))
					}
				})
			})
		}
	})
}

// --- trouble -----------------------------------------------------------------

// every makes something happen at random, so many times an hour on average.
func (s *Sim) every(perHour float64, do func()) {
	if perHour <= 0 {
		return
	}
	var next func()
	next = func() {
		s.at(int64(s.r.ExpFloat64()*3_600_000/perHour)+1, func() {
			if s.healed {
				return
			}
			do()
			next()
		})
	}
	next()
}

func (s *Sim) trouble() {
	f := &s.Faults
	for _, n := range s.nodes {
		s.troubleFor(n)
	}
	s.every(f.Partitions, s.partition)
	s.every(f.Blackouts, s.blackout)
	s.every(f.Joins, s.join)
	s.settings.last = map[string]*entries.Entry{}
	s.every(f.Flushes, s.flush)
	if s.Results > 0 {
		s.every(7200, s.waitForJobs)
		s.every(600, s.askToStop)
	}
	s.every(f.Settings, func() { s.changeSetting(s.nodes[s.r.IntN(len(s.nodes))]) })
}

// troubleFor begins the trouble of a node, or of the node that has its place by then.
func (s *Sim) troubleFor(n *node) {
	f, i := &s.Faults, n.i
	s.every(f.Crashes, func() { s.crash(s.nodes[i], false) })
	s.every(f.Wipes, func() {
		if s.wiped < s.Wiped {
			s.crash(s.nodes[i], true)
		}
	})
	s.every(f.Replaced, func() {
		if s.wiped < s.Wiped {
			s.replace(s.nodes[i])
		}
	})
	s.every(f.Pauses, func() { s.pause(s.nodes[i]) })
	s.every(f.Resets, func() { s.drop(s.nodes[i], s.nodes[s.r.IntN(len(s.nodes))]) })
	s.every(f.Pressure, func() {
		n := s.nodes[i]
		n.e.SetMemory(0.8)
		s.at(s.r.Int64N(20_000), func() { n.e.SetMemory(0) })
	})
	s.every(f.Leaving, func() {
		n := s.nodes[i]
		if n.serves() {
			n.call(func() { n.e.SetLeaving(true) })
			s.at(s.r.Int64N(20_000), func() {
				if !n.down {
					n.call(func() { n.e.SetLeaving(false) })
				}
			})
		}
	})
	s.every(f.Promotions, func() { s.promote(s.nodes[i]) })
	s.every(f.PauseQueue, func() { s.pauseQueue(s.nodes[i]) })
	s.every(f.Renames, func() { s.rename(s.nodes[i]) })
	s.every(f.Stops, func() { s.stop(s.nodes[i]) })
	s.every(f.Rewrites, func() {
		if n := s.nodes[i]; !n.down {
			n.rewrite()
		}
	})
	s.every(f.Steps, func() { s.step(s.nodes[i]) })
}

func (s *Sim) crash(n *node, wipe bool) {
	if n.down {
		return
	}
	s.trace("node %d: crashes, disk lost: %v", n.i, wipe)
	n.end(wipe || s.Fsync != Always)
	switch {
	case wipe:
		s.wiped++
		n.disk.wipe()
		s.unacknowledge(n, s.now-1_000_000)
	case s.Fsync == EverySec:
		n.loseTail()
	}
	s.at(100+s.r.Int64N(20_000), func() { s.restart(n) })
}

// stop is SHUTDOWN: all that was logged is on disk.
func (s *Sim) stop(n *node) {
	if n.down {
		return
	}
	s.trace("node %d: stops", n.i)
	n.endCleanly()
	n.end(false)
	s.at(100+s.r.Int64N(5000), func() { s.restart(n) })
}

func (n *node) end(unsure bool) {
	s := n.s
	n.noteVotes()
	n.down, n.ended = true, s.now
	n.life++
	n.unsure = unsure || s.Locks != nil && s.Locks.Distrust
	n.lockersLose()
	for _, other := range s.nodes {
		s.drop(n, other)
	}
}

// loseTail loses what the disk has not written yet.
func (n *node) loseTail() {
	s := n.s
	after := s.now - s.r.Int64N(lagMS+1)
	had := maps.Clone(n.disk.jobs)
	if lost := n.disk.cut(after); len(lost) > 0 {
		s.trace("node %d: loses the last %d entries of its log", n.i, len(lost))
		s.tear(lost, had, n.disk.jobs)
	}
}

// tear notes what is lost with the end of a log: which jobs it had, and which are left.
func (s *Sim) tear(lost []entry, had, left map[store.ID]saved) {
	s.torn++
	for _, j := range s.order {
		if _, before := had[j.id]; before {
			if _, still := left[j.id]; !still {
				j.torn++
			}
		}
	}
	for i := range lost {
		// The entry may have been an acknowledgement, and the others have heard that this
		// node knows of it.
		if j := s.jobs[lost[i].id]; j != nil {
			j.acked, j.dummies, j.blurred = false, nil, true
			if j.family != nil {
				j.family.torn = true
			}
		}
	}
}

// unacknowledge notes that a node has lost the acknowledgements that it accepted since a time. Other
// nodes may not know of them.
func (s *Sim) unacknowledge(n *node, since int64) {
	for _, j := range s.order {
		if j.ackedAt > since && slices.Contains(j.ackedBy, n.i) {
			j.acked = false
		}
	}
}

// blackout ends all nodes within a moment.
func (s *Sim) blackout() {
	clean := s.r.IntN(2) == 0
	s.trace("blackout, clean: %v", clean)
	for _, n := range s.nodes {
		s.at(s.r.Int64N(300), func() {
			switch {
			case s.healed: // all has healed meanwhile, and nothing goes wrong any more
			case clean:
				s.stop(n)
			default:
				s.crash(n, false)
			}
		})
	}
}

// step sets a node's clock.
func (s *Sim) step(n *node) {
	most := s.Faults.StepMS
	skew := s.r.Int64N(2*most+1) - most
	if s.r.IntN(2) == 0 { // by little, as a time server does
		skew = max(-most, min(most, n.skew+s.r.Int64N(2001)-1000))
	}
	s.trace("node %d: its clock is set by %d ms", n.i, skew-n.skew)
	n.skew, n.setAt = skew, s.now
}

// join makes a new node meet one of the mesh.
func (s *Sim) join() {
	via := s.up()
	if via == nil || len(s.nodes) >= s.Faults.MaxNodes {
		return
	}
	n := s.newNode(len(s.nodes))
	s.nodes = append(s.nodes, n)
	s.trace("node %d joins, through node %d", n.i, via.i)
	n.side = via.side // of a partition
	n.start()
	s.consume(n)
	s.troubleFor(n)
	s.meet(n, via)
}

// meet is CLUSTER MEET.
func (s *Sim) meet(n, other *node) {
	n.call(func() {
		n.met[other] = true
		n.e.Mesh().Meet(other.id, addr(other.i))
	})
}

// replace ends a node for good. The operator makes all others forget it, and
// puts a new node in its place.
func (s *Sim) replace(n *node) {
	if n.down || s.succeeding || !s.agrees(n) {
		return
	}
	s.crash(n, true)
	s.trace("node %d: is replaced", n.i)
	if s.RepairAfter > 0 {
		s.at(repairSecs*1000, s.repaired) // by then its copies were made again
	}
	n.dead = true
	s.dead = append(s.dead, n.id)
	s.forget(n)
	fresh := s.newNode(n.i)
	s.nodes[n.i] = fresh
	fresh.start()
	s.consume(fresh)
	other := s.nodes[(n.i+1)%len(s.nodes)]
	fresh.call(func() { fresh.e.Mesh().Add(other.id, addr(other.i)) })
}

// repaired lets another node be lost. Where the nodes crash again and again that takes until each job has as many copies as it was promised.
func (s *Sim) repaired() {
	if s.Faults.Crashes > 0 && !s.allCopied() {
		s.at(5000, s.repaired)
		return
	}
	s.wiped--
}

// allCopied says whether as many nodes as a job was promised have it on disk, for all jobs that aren't done.
func (s *Sim) allCopied() bool {
	for _, j := range s.order {
		if j.promised && !j.done && !j.once && !j.givenUp && s.disks(j) < j.copies {
			return false
		}
	}
	return true
}

// agrees says whether all nodes but one know each other. If they don't, because a node is just
// joining, an operator waits before another is forgotten. Two changes at a time can make two
// majorities that have no node in common: the old one is of nodes that have heard of neither change.
func (s *Sim) agrees(without *node) bool {
	for _, n := range s.nodes {
		if n == without {
			continue
		}
		known := slices.Clone(n.disk.nodes)
		if !n.down {
			for _, p := range n.e.Mesh().All() {
				known = append(known, p.ID)
			}
		}
		for _, other := range s.nodes {
			if other != without && other != n && !slices.Contains(known, other.id) {
				return false
			}
		}
	}
	return true
}

// forget is CLUSTER FORGET of a dead node at all others, one after the other.
func (s *Sim) forget(n *node) {
	for _, other := range s.nodes {
		tell := func() {
			if !other.down {
				other.call(func() { other.e.Mesh().Forget(n.id) })
			}
		}
		if s.Faults.ForgetSecs == 0 {
			tell()
		} else {
			s.at(s.r.Int64N(s.Faults.ForgetSecs*1000), tell)
		}
	}
}

func (s *Sim) pauseQueue(n *node) {
	if !n.serves() {
		return
	}
	q := fmt.Append(nil, "q", s.r.IntN(queues))
	mask, everywhere := uint8(s.r.IntN(4)), s.r.IntN(3) == 0
	var span int64
	if s.r.IntN(2) == 0 {
		span = 1 + s.r.Int64N(30_000)
	}
	s.trace("node %d: PAUSE %s %d everywhere %v for %d", n.i, q, mask, everywhere, span)
	n.call(func() {
		// A queue that can't be made can't be paused.
		pause := n.e.SetPause
		if everywhere {
			pause = n.e.PauseEverywhere
		}
		_, _ = pause(q, mask, span)
	})
	if span > 0 && everywhere {
		return // it ends by itself
	}
	s.at(s.r.Int64N(30_000), func() {
		for _, n := range s.nodes {
			if !n.down {
				n.call(func() { _, _ = n.e.PauseEverywhere(q, 0, 0) })
			}
		}
	})
}

func (s *Sim) restart(n *node) {
	if !n.down || n.dead {
		return
	}
	s.trace("node %d: restarts with %d jobs", n.i, len(n.disk.jobs))
	if s.locks != nil {
		s.locks.outages = append(s.locks.outages, outage{n.i, n.ended, s.now})
	}
	clear(n.links)
	n.start()
	if other := s.nodes[(n.i+1)%len(s.nodes)]; other != n && n.e.Mesh().Alone() {
		s.meet(n, other) // the operator sees that it is alone
	}
	if !n.shut {
		s.consume(n)
	}
}

func (s *Sim) pause(n *node) {
	if !n.serves() {
		return
	}
	s.trace("node %d: pauses", n.i)
	n.paused = true
	life := n.life
	s.at(100+s.r.Int64N(30_000), func() {
		if n.life == life {
			n.paused = false
		}
	})
}

func (s *Sim) partition() {
	for _, n := range s.nodes {
		n.side = s.r.IntN(2) == 0
	}
	oneWay := s.r.IntN(3) == 0
	s.trace("partition, one way: %v", oneWay)
	s.cut = func(from, to *node) bool { return from.side != to.side && (!oneWay || from.side) }
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if a.side && !b.side {
				s.at(s.r.Int64N(8000), func() { s.drop(a, b) })
			}
		}
	}
	longest := s.Faults.CutSecs * 1000
	if longest == 0 {
		longest = 68_000
	}
	s.at(8000+s.r.Int64N(longest-8000), func() { s.cut = func(_, _ *node) bool { return false } })
}

func (s *Sim) heal() {
	s.trace("all heals")
	s.healed, s.healedAt = true, s.now
	s.cut = func(_, _ *node) bool { return false }
	for _, n := range s.nodes {
		if n.down {
			s.restart(n)
		}
		n.paused = false
		n.skew, n.setAt = s.nodes[0].skew, s.now
		n.call(func() {
			n.e.SetMemory(0)
			n.e.SetLeaving(false)
			for _, id := range s.dead {
				n.e.Mesh().Forget(id) // by gossip it may be known again
			}
		})
	}
	for _, n := range s.nodes[1:] {
		if !n.knows(s.nodes[0]) {
			s.meet(n, s.nodes[0]) // the node that it was to meet is dead, or its nodes' file was an old one
		}
	}
	s.healCrons()
	s.at(2500, s.note)
	s.at(byHandSecs*1000, s.decideUncertain)
	s.unpause()
	// A Pause message may still be on its way.
	s.at(30_000, s.unpause)
}

func (s *Sim) unpause() {
	for _, n := range s.nodes {
		n.call(func() {
			for i := range s.queues() {
				_, _ = n.e.PauseEverywhere(fmt.Append(nil, "q", i), 0, 0)
			}
		})
	}
}

// unheard says whether a client is gone before it hears of its job. The server notices that, and the job comes back.
func (s *Sim) unheard(n *node, j *store.Job) bool {
	f := &s.Faults
	if !s.chance(s.Gone) || s.jobs[j.ID] == nil || s.jobs[j.ID].probe != nil || j.Retry == 0 && f.Crashes+f.Wipes+f.Stops+f.Blackouts+f.Promotions+f.Replaced > 0 {
		return false
	}
	d, life := engine.DeliveryOf(j), n.life
	s.trace("node %d: %s is given to a client that is gone", n.i, j.ID)
	s.jobs[j.ID].excuses++
	if u := s.jobs[j.ID].unique; u != nil && (u.Strategy == store.UniqueBefore || u.Strategy == store.UniqueBoth) {
		u.over = true
	}
	if u := s.jobs[j.ID].unique; u != nil && u.pending {
		u.pending, u.waited = false, true
	}
	s.at(s.r.Int64N(3), func() {
		if n.life == life && !n.down {
			n.call(func() { n.e.Undeliver(d) })
		}
	})
	return true
}
