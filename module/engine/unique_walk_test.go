package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"jobmesh/module/store"
)

// uniqueKind is what can happen in a walk of unique jobs, besides that clients add, get, acknowledge and give back jobs of
// all strategies but windows.
type uniqueKind struct {
	windows  bool
	putOff   bool // ONCONFLICT reschedule
	busy     bool // ONBUSY drop, dead, reschedule
	once     bool // some jobs have RETRY 0
	leases   bool // LOCKTTL, RUNTTL
	retries  bool // RETRY is short, and workers die
	families bool
	hasty    bool // a client says the next command before all messages of the last one have arrived

	// for TestUniqueFaultWalks:
	crashes bool
	leaves  bool // a node is leaving for some time, and may crash meanwhile
	cuts    bool
	stalls  bool
	clocks  bool // nodes' clocks are up to a second wrong
	long    bool // with retries: most RETRY are still long
	works   bool // workers say WORKING
}

var uniqueKinds = map[string]uniqueKind{
	"plain":        {},
	"once":         {once: true},
	"put off":      {putOff: true},
	"busy":         {busy: true},
	"families":     {families: true},
	"windows":      {windows: true},
	"leases":       {leases: true, once: true},
	"hasty":        {hasty: true},
	"retries":      {retries: true},
	"all":          {windows: true, putOff: true, busy: true, once: true, families: true},
	"all, hasty":   {windows: true, putOff: true, busy: true, once: true, families: true, hasty: true},
	"all, retries": {windows: true, putOff: true, busy: true, once: true, families: true, retries: true},
}

// TestUniqueWalks makes clients of a healthy mesh add, get and end unique jobs at random, and say the commands of one job's
// life at different nodes. The judge knows for each job whether it has its waiting lock and its run's lock: yes, no,
// or maybe, if COMMANDS.md leaves that open or a message may be under way. The rules are:
//
//   - a job is refused, returned, replaced or put off only if another job may have its key. It gets its key only
//     if no other job has it;
//   - while the lease of a run lasts, two jobs never run by one key at a time, as the strategy and the scope say;
//   - a job is delivered once, and again only if it was given back or its retry time is over. It isn't delivered after its end, nor
//     before its delay, its release, or the end of the jobs that it waits for;
//   - a job that nothing hinders is delivered within 17 s to a client that waits. So a key is free after what frees it;
//   - RELEASEJOB into another queue is refused only if another job may have the key there;
//   - ACKJOB at all nodes leaves no job and no lock.
func TestUniqueWalks(t *testing.T) {
	for name, kind := range uniqueKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walks(t, 4, func(seed uint64) *walk {
				x := &uniqueWalk{keyedWalk: newKeyedWalk(t, seed, kind)}
				x.walkJudge = x
				x.run(300)
				return x.walk
			})
		})
	}
}

// likely is what the judge knows about a question: yes, no or maybe.
type likely int

const (
	no likely = iota
	maybe
	yes
)

const never = 1 << 62

// byKey is what the judge knows of a unique job, besides what it knows of any job.
type byKey struct {
	key, strategy, conflict, busy string
	own                           bool  // SCOPE queue
	retry, lockTTL, runTTL        int64 // s
	since                         int64 // when its ADDJOB was answered
	stage                         stage
	isPutOff, isDead              bool
	outSince                      int64

	waiting, running   likely // whether it has these locks
	waitSure, waitOver int64  // a waiting lock with a lease lasts at least until waitSure, and at most until waitOver
	runSure, runOver   int64
	windowOf           string // the lock name under which its window lasts, which may no longer be the job's
}

type stage int

const (
	inside   stage = iota // in a queue, or on its way there
	outside               // a client has it, or has had it
	stranded              // at most once, and given back: it stays out
)

// runs says whether a job has a lock while it is processed.
func (j *walkJob) runs() bool {
	return !j.isDead && (j.strategy == "during" || j.strategy == "both")
}

// frees says whether a job's waiting lock ends with its delivery.
func (j *walkJob) frees() bool { return j.strategy == "before" || j.strategy == "both" }

// lock is the name under which a job's key is unique.
func (j *walkJob) lock() string {
	if j.own {
		return j.queue + "|" + j.key
	}
	return "*|" + j.key
}

// keyedWalk is a walk of unique jobs, with any judge.
type keyedWalk struct {
	*walk
	kind  uniqueKind
	freed map[string]int64 // when each waiting lock was freed
}

func newKeyedWalk(t *testing.T, seed uint64, kind uniqueKind) *keyedWalk {
	return &keyedWalk{newWalk(t, seed, walkKind{families: kind.families, queues: true, crashes: kind.crashes, cuts: kind.cuts, stalls: kind.stalls, clocks: kind.clocks}), kind, map[string]int64{}}
}

// putOffAt says whether a node has a job as put off.
func (x *keyedWalk) putOffAt(n *actor, j *walkJob) bool {
	c := x.copyAt(n, j)
	return c != nil && c.Unique() != nil && c.Unique().Has(store.UniquePending)
}

// likeliest returns the other job that most likely has a lock, and how likely that is.
func (x *keyedWalk) likeliest(lock string, but *walkJob, has func(*walkJob) likely) (best *walkJob, most likely) {
	for _, j := range x.list {
		if j == but || j.lock() != lock {
			continue
		}
		if l := has(j); l > most {
			best, most = j, l
		}
	}
	return best, most
}

// keyJudge knows which other job waits with a job's key, and which one runs with it.
type keyJudge interface {
	holder(but *walkJob) (*walkJob, likely)
	runner(but *walkJob) (*walkJob, likely)
}

// keyTaken says whether another job may hold back this job's delivery.
func keyTaken(x keyJudge, j *walkJob) bool {
	if j.runs() {
		if _, l := x.runner(j); l != no {
			return true
		}
	}
	if j.isPutOff {
		if _, l := x.holder(j); l != no {
			return true
		}
	}
	return false
}

type uniqueWalk struct {
	*keyedWalk
	adding *walkJob // the job whose ADDJOB waits
	heard  bool     // a WORKING that waited was answered without an error
}

// lasts says whether something still lasts that lasts at least until sure, and at most until over.
func (x *uniqueWalk) lasts(sure, over int64) likely {
	switch {
	case x.w.Now < sure:
		return yes
	case x.w.Now < over:
		return maybe
	}
	return no
}

// waits says whether a job has its waiting lock.
func (x *uniqueWalk) waits(j *walkJob) likely {
	switch {
	case j.strategy == "window" && j.isPutOff:
		return maybe
	case j.strategy == "window":
		return x.lasts(j.waitSure, j.waitOver) // a window lasts whether or not the job is done
	case j.ended() || j.isDead:
		return no
	case j.waiting == yes:
		return x.lasts(j.waitSure, j.waitOver)
	case x.kind.retries && j.stage == outside && x.retried(j) && j.frees():
		return maybe // it may wait again
	}
	return j.waiting
}

// retried says whether a job's retry time may be over.
func (x *uniqueWalk) retried(j *walkJob) bool { return x.w.Now > j.outSince+j.retry*1000-1900 }

// working says whether a job has its run's lock.
func (x *uniqueWalk) working(j *walkJob) likely {
	if !j.runs() || j.ended() || j.isDead {
		return no
	}
	return min(j.running, x.lasts(j.runSure, j.runOver))
}

// holder returns the other job that most likely has a job's waiting lock, and how likely that is.
func (x *uniqueWalk) holder(but *walkJob) (best *walkJob, most likely) {
	return x.holderOf(but.lock(), but)
}

func (x *uniqueWalk) holderOf(lock string, but *walkJob) (best *walkJob, most likely) {
	for _, j := range x.list {
		name := j.lock()
		if j.windowOf != "" {
			name = j.windowOf
		}
		if j == but || j.strategy == "during" || !j.answered || name != lock {
			continue
		}
		if l := x.waits(j); l > most {
			best, most = j, l
		}
	}
	return best, most
}

// runner returns the other job that most likely has the run's lock of a job's key, and how likely that is.
func (x *uniqueWalk) runner(but *walkJob) (best *walkJob, most likely) {
	return x.likeliest(but.lock(), but, x.working)
}

// setWait notes how likely it is that a job has its waiting lock from now on.
func (x *uniqueWalk) setWait(j *walkJob, l likely) {
	if j.isDead || j.strategy == "during" || j.strategy == "window" {
		return
	}
	j.waiting, j.waitSure, j.waitOver = l, never, never
	switch {
	case j.lockTTL == 0:
	case j.isPutOff, j.deferred && !j.released, len(j.parents) > 0, j.blocks != nil:
		j.waitSure = 0 // the judge doesn't know when the job is due
	default:
		j.waitSure, j.waitOver = lease(max(x.w.Now, j.notBefore), j.lockTTL, 0)
	}
}

// setRun notes that a job's run begins, or begins anew.
func (x *uniqueWalk) setRun(j *walkJob, l likely) {
	seconds := j.retry
	if j.runTTL > 0 && (j.runTTL < seconds || seconds == 0) {
		seconds = j.runTTL
	}
	j.running, j.runSure, j.runOver = l, never, never
	if seconds > 0 {
		j.runSure, j.runOver = lease(x.w.Now, seconds, 1600)
	}
}

// lease returns until when a lock certainly lasts, and after which time it certainly doesn't. Nodes' clocks may differ, and the lease may
// have begun somewhat earlier.
func lease(from, seconds, early int64) (sure, over int64) {
	return from + seconds*1000 - early, from + seconds*1060 + 2600
}

// free notes that a waiting lock is free.
func (x *uniqueWalk) free(j *walkJob) {
	if j.strategy != "window" {
		x.freed[j.lock()] = x.w.Now
	}
}

// ends notes that a job is done, or ends undone.
func (x *uniqueWalk) ends(j *walkJob, acked bool) {
	x.free(j)
	if !j.acked {
		j.acked, j.cancelled = acked, !acked
	}
	j.endedAt = x.w.Now
	x.opens(j)
	if !acked {
		x.takeAlong(j)
	}
}

// opens notes that the window of a job that was put off has begun by now, if it ever begins.
func (x *uniqueWalk) opens(j *walkJob) {
	if j.strategy == "window" && j.isPutOff {
		j.isPutOff, j.windowOf, j.waitSure = false, j.lock(), 0
		_, j.waitOver = lease(x.w.Now, j.lockTTL, 0)
	}
}

// takeAlong ends the jobs that wait for a job that ended undone.
func (x *uniqueWalk) takeAlong(j *walkJob) {
	for _, c := range x.list {
		waits := slices.Contains(c.parents, j) && !c.onDead || c.blocks == j && !j.released
		if waits && !c.ended() && c.answered && c.stage == inside {
			x.ends(c, false)
		}
	}
}

// promised judges the answer to an ADDJOB.
func (x *uniqueWalk) promised(j *walkJob, name string) {
	if j != x.adding {
		return
	}
	x.adding = nil
	for _, o := range x.list {
		x.busied(o)
	}
	if name != j.name {
		x.deny(j)
		if j.conflict != "return" && j.conflict != "replace" {
			x.fail("ADDJOB of %s answers %s", j.name, name)
		}
		return
	}
	j.answered, j.since = true, x.w.Now
	if j.strategy == "during" {
		return
	}
	j.isPutOff = slices.ContainsFunc(x.w.nodes, func(n *actor) bool { return x.putOffAt(n, j) })
	switch h, l := x.holder(j); {
	case j.isPutOff:
		j.waiting = maybe
		if l == no && !x.kind.hasty && x.w.Now > x.freed[j.lock()]+50 {
			x.fail("%s is put off though nobody has its key", j.name)
		}
		return
	case l == yes && !(x.kind.hasty && x.w.Now < h.since+50):
		x.fail("%s gets the key that %s has", j.name, h.name)
	}
	if j.strategy == "window" {
		j.windowOf, j.waitSure = j.lock(), x.w.Now+j.lockTTL*1000
		j.waitOver = j.waitSure + j.lockTTL*50 + 100
	}
	x.setWait(j, yes)
}

// deny judges the refusal of a job because of another job's key.
func (x *uniqueWalk) deny(j *walkJob) {
	j.refused = true
	if _, l := x.holder(j); l == no && !x.kind.hasty {
		x.fail("%s is refused though nobody has its key", j.name)
	}
}

// refused judges an ADDJOB's error.
func (x *uniqueWalk) refused(j *walkJob, why string) {
	if j != x.adding {
		return
	}
	x.adding, j.refused = nil, true
	switch {
	case strings.HasPrefix(why, "DUPLICATE"):
		x.deny(j)
	case strings.HasPrefix(why, "NOQUORUM") && x.kind.hasty, strings.HasPrefix(why, "ERR a blocked"):
	case strings.HasPrefix(why, "NOJOB"), strings.HasPrefix(why, "NOTDEFERRED"), strings.HasPrefix(why, "NOREPL"):
	default:
		x.fail("ADDJOB of %s answers %s", j.name, why)
	}
}

// got judges a delivery.
func (x *uniqueWalk) got(w *worker, j *walkJob) {
	if x.adding == j {
		x.promised(j, j.name)
	}
	x.begins(w, j)
	x.busied(j)
	again := j.stage == outside
	switch {
	case !j.answered:
		x.fail("%s is delivered though it isn't added", j.name)
	case j.ended() && !j.free && !(x.kind.hasty && x.w.Now < j.endedAt+100):
		x.fail("%s is delivered after its end", j.name)
	case again && !x.kind.retries && !(x.kind.hasty && j.vague):
		x.fail("%s is delivered twice", j.name)
	case again && (j.once || x.kind.retries && !x.retried(j)):
		x.fail("%s is delivered twice, before its retry time is over", j.name)
	case x.w.Now < j.notBefore-20:
		x.fail("%s is delivered before its delay is over", j.name)
	case j.free:
	case j.stage == stranded:
		x.fail("%s is delivered twice, though it has RETRY 0", j.name)
	case j.deferred && !j.released:
		x.fail("%s is delivered before its release", j.name)
	default:
		for _, p := range x.awaited(j) {
			x.fail("%s is delivered before %s", j.name, p.name)
		}
	}
	j.stage, j.outSince = outside, x.w.Now
	if j.ended() {
		return
	}
	if j.runs() {
		if h, l := x.runner(j); l == yes && !(x.kind.hasty && h.vague) {
			x.fail("%s is delivered while %s runs", j.name, h.name)
		}
		x.setRun(j, yes)
	}
	x.opens(j)
	if j.isPutOff {
		j.isPutOff = false
		if h, l := x.holder(j); l == yes && j.strategy == "until" && !x.kind.hasty {
			x.fail("%s, which was put off, is delivered with the key that %s has", j.name, h.name)
		}
		x.setWait(j, yes)
	}
	if j.frees() {
		j.waiting = no
		x.free(j)
	}
}

// busied notes what ONBUSY has done to a job, because no client hears of it.
func (x *uniqueWalk) busied(j *walkJob) {
	if j.isDead || j.ended() || !j.answered || j.busy == "" {
		return
	}
	known := false
	for _, n := range x.w.nodes {
		if c := x.copyAt(n, j); c != nil {
			known = true
			if queue := string(c.Queue.NameBytes()); strings.HasSuffix(queue, ":dead") {
				x.free(j)
				j.isDead, j.queue, j.waiting, j.running = true, queue, no, no
				return
			}
		}
	}
	if !known && j.busy == "drop" && j.stage == inside {
		x.ends(j, false)
	}
}

// settle delivers the messages that are under way, normally all of them.
func (x *uniqueWalk) settle() {
	if x.kind.hasty {
		switch x.IntN(4) {
		case 0:
			return
		case 1:
			x.do("deliver once")
			return
		}
	}
	x.do("deliver")
}

// add makes a client add a job, and waits for the answer.
func (x *uniqueWalk) add() {
	j := &walkJob{name: fmt.Sprintf("j%d", len(x.list)+1), queue: x.queue()}
	line := fmt.Sprintf("add %s %s%s", x.up(), j.name, x.options(j))
	if x.families {
		switch p := x.some(); x.IntN(5) {
		case 0:
			line += x.after(j)
		case 1:
			if p.deferred && !p.released && !p.ended() && p.answered {
				j.blocks = p
				line += " blockedby=" + p.name
			}
		case 2:
			j.deferred = true
			line += " deferred"
		}
	}
	x.jobs[j.name], x.list, x.adding = j, append(x.list, j), j
	out := x.do("%s", line)
	first, rest, _ := strings.Cut(out, "\n")
	switch {
	case first == "added":
		name := j.name
		if other, is := strings.CutPrefix(rest, "it is "); is {
			name, _, _ = strings.Cut(other, "\n")
		}
		x.promised(j, name)
	case strings.HasPrefix(first, "waits"):
		for i := 0; x.adding != nil && i < 150; i++ {
			x.do("deliver")
			if x.adding != nil {
				x.do("advance 10ms")
			}
		}
		if x.adding != nil {
			x.fail("ADDJOB of %s isn't answered", j.name)
		}
	default:
		x.refused(j, first)
	}
}

// options chooses the options of an ADDJOB.
func (x *keyedWalk) options(j *walkJob) string {
	line := fmt.Sprintf(" ttl=100000 queue=%s", j.queue) + x.unique(j)
	if j.once = x.kind.once && x.IntN(4) == 0; j.once {
		line += " retry=0"
	} else {
		if j.retry = 300; x.kind.retries && !(x.kind.long && x.IntN(4) > 0) {
			j.retry = int64(3 + x.IntN(8))
		}
		line += fmt.Sprintf(" retry=%d replicate=%d", j.retry, 1+x.IntN(len(x.w.nodes)))
	}
	if x.IntN(4) == 0 {
		delay := 1 + x.IntN(6)
		line += fmt.Sprintf(" delay=%d", delay)
		j.notBefore = x.w.Now + int64(delay)*1000
	}
	return line
}

// unique chooses the options by which a job is unique.
func (x *keyedWalk) unique(j *walkJob) (line string) {
	strategies := []string{"before", "during", "both", "both", "until"}
	if x.kind.windows {
		strategies = append(strategies, "window")
	}
	j.strategy, j.key = x.pick(strategies...), x.pick("k1", "k1", "k2")
	line = fmt.Sprintf(" unique=%s key=%s", j.strategy, j.key)
	if j.own = x.IntN(3) == 0; j.own {
		line += " own"
	}
	if j.strategy != "during" {
		conflicts := []string{"", "raise", "return", "replace"}
		if x.kind.putOff {
			conflicts = append(conflicts, "reschedule", "reschedule")
		}
		if j.conflict = x.pick(conflicts...); j.conflict != "" {
			line += " conflict=" + j.conflict
		}
	}
	if j.runs() && x.kind.busy && x.IntN(2) == 0 {
		j.busy = x.pick("drop", "dead", "reschedule")
		line += " busy=" + j.busy
	}
	if j.strategy == "window" || x.kind.leases && j.strategy != "during" && x.IntN(2) == 0 {
		j.lockTTL = int64(1 + x.IntN(20))
		line += fmt.Sprintf(" lockttl=%d", j.lockTTL)
	}
	if x.kind.leases && j.runs() && x.IntN(2) == 0 {
		j.runTTL = int64(1 + x.IntN(10))
		line += fmt.Sprintf(" runttl=%d", j.runTTL)
	}
	return line
}

// done makes a worker acknowledge its job, or give it back, at the node where it got it or at any node.
func (x *uniqueWalk) done(w *worker) {
	j, where := w.job, x.pick(w.node, x.up())
	verb := x.pick("ack", "ack", "ack", "fastack", "nack", "nack", "enqueue")
	w.job = nil
	if x.kind.retries && (x.IntN(4) == 0 || j.stage != outside || verb != "ack" && x.retried(j)) {
		return // the worker dies
	}
	j.vague = x.kind.hasty
	if verb == "nack" || verb == "enqueue" {
		x.giveBack(w, j, verb, where)
		return
	}
	x.ends(j, true)
	x.do("%s %s %s", verb, where, j.name)
	j.vague = j.vague || verb == "fastack"
	x.settle()
}

// giveBack makes a worker give its job back, and keep it if that is refused.
func (x *uniqueWalk) giveBack(w *worker, j *walkJob, verb, where string) {
	// The job is back before its node has told the others: another client can get it at once.
	was, back := *j, j.stage == outside && !j.once
	if back {
		x.back(j)
	}
	switch out := x.do("%s %s %s", verb, where, j.name); {
	case strings.HasPrefix(out, "true"):
		if j.once && verb == "nack" {
			x.back(j)
		}
	case j.ended():
	case back && j.stage == outside: // another client got it meanwhile
		x.fail("%s of %s is refused, and done", verb, j.name)
	default:
		// The job was put off, and has run. A node whose copy doesn't know that still puts it off.
		if n := x.named(where); back && x.copyAt(n, j) != nil && !x.putOffAt(n, j) {
			x.fail("%s of %s is refused by a node that has it", verb, j.name)
		}
		*j = was
		if j.once && verb == "nack" {
			j.running = maybe
		}
		w.job, w.until = j, x.w.Now+50
	}
	x.settle()
}

// back notes that a job has been given back.
func (x *uniqueWalk) back(j *walkJob) {
	if j.stage, j.running = inside, no; j.once {
		j.stage = stranded
	}
	if !j.frees() {
		return
	}
	l := maybe // hasty, or the job stays out of its queue
	if _, other := x.holder(j); !x.kind.hasty && !j.once {
		l = yes - other
	}
	x.setWait(j, l)
}

func (x *uniqueWalk) worked(_ *walkJob, err string) { x.heard = x.heard || err == "<nil>" }

// works makes a worker say WORKING.
func (x *uniqueWalk) works(w *worker) {
	j := w.job
	x.heard = false
	first, _, _ := strings.Cut(x.do("working %s %s", w.node, j.name), "\n")
	x.settle()
	answered := x.heard || first != "" && first[0] >= '0' && first[0] <= '9'
	if !answered && x.kind.retries {
		w.job, j.vague, j.running = nil, true, min(j.running, maybe)
		return
	}
	w.until = x.w.Now + int64(x.IntN(6000))
	if !x.kind.leases && !x.kind.retries {
		return
	}
	if j.stage == inside { // a worker that had the job before takes it out of its queue
		j.stage = outside
		if j.frees() {
			j.waiting = maybe
		}
	}
	j.vague, j.outSince = true, x.w.Now
	if j.lockTTL > 0 && j.strategy == "until" {
		j.waiting = maybe
	}
	x.setRun(j, min(j.running, maybe))
	j.runOver += 10_000
}

// work lets each worker go on.
func (x *uniqueWalk) work() {
	for _, w := range x.workers {
		switch {
		case w.job != nil && x.w.Now < w.until:
		case w.job != nil && w.job.ended():
			w.job = nil
		case w.job != nil && !w.job.once && x.IntN(8) == 0:
			x.works(w)
		case w.job != nil:
			x.done(w)
		case w.waits || x.IntN(3) > 0:
		default:
			x.ask(w)
			x.settle()
		}
	}
}

// happen plays what a client or an operator does next.
func (x *uniqueWalk) happen() {
	j := x.some()
	alive := j.answered && !j.ended()
	switch k := x.IntN(24); {
	case k < 6:
		x.add()
	case k < 9 && x.families && alive && j.deferred && !j.released:
		x.release(j)
		x.do("deliver")
	case k == 9 && alive && !(x.kind.hasty && j.stage == outside):
		at := x.up()
		x.ends(j, false)
		x.do("cancel %s %s", at, j.name)
		x.do("deliver")
		for _, w := range x.workers {
			if w.job == j {
				w.job = nil
			}
		}
	case k == 10 && alive && j.stage != outside:
		if !strings.HasPrefix(x.do("dequeue %s %s", x.up(), j.name), "true") {
			return
		}
		x.do("deliver")
		switch back := strings.HasPrefix(x.do("enqueue %s %s", x.up(), j.name), "true"); {
		case back && x.waits(j) == no:
			x.setWait(j, maybe) // a job that had lost its key takes it again, if the key is free
		case !back && j.stage != outside:
			j.free = true // it stays out of its queue
		}
		x.do("deliver")
	case k == 11 && !x.kind.hasty && alive && j.stage != outside && !j.free:
		x.delete(j)
	}
}

// delete makes a client say DELJOB at the node that has the only copy of a job.
func (x *uniqueWalk) delete(j *walkJob) {
	known := x.known(j)
	if len(known) != 1 {
		return
	}
	x.ends(j, false)
	if out := x.do("del %s %s", known, j.name); !strings.HasPrefix(out, "true") {
		x.fail("DELJOB of %s answers %s", j.name, out)
	}
	x.do("deliver")
}

// release releases a deferred job, sometimes into another queue, where another job may have its key.
func (x *uniqueWalk) release(j *walkJob) {
	was := j.byKey
	if x.waits(j) == yes && j.lockTTL > 0 {
		x.setWait(j, maybe)
	}
	from := j.queue
	released, why, queue := x.walk.release(j)
	switch {
	case !released:
		j.byKey = was
		if strings.HasPrefix(why, "DUPLICATE") {
			there := *j
			there.queue = queue
			if _, l := x.holderOf(there.lock(), j); l == no {
				x.fail("the release of %s is refused though nobody has its key", j.name)
			}
		}
	case from != queue && j.own && j.strategy != "window":
		if h, l := x.holder(j); l == yes && x.waits(j) == yes {
			x.fail("%s is released into %s, where %s has its key", j.name, queue, h.name)
		}
	}
}

// due says whether nothing hinders a job's delivery.
func (x *uniqueWalk) due(j *walkJob) bool {
	if j.stage != inside || !x.walk.due(j) || j.once && slices.ContainsFunc(x.list, func(c *walkJob) bool { return c.blocks == j }) {
		return false
	}
	return !keyTaken(x, j)
}

// judge looks for jobs that aren't delivered though clients wait.
func (x *uniqueWalk) judge() {
	for _, j := range x.list {
		x.busied(j)
		limit := int64(17_000)
		if j.isPutOff || j.busy == "reschedule" || x.kind.hasty {
			limit = 20_000
		}
		if late := x.lies(j, x.due(j)); late > limit {
			x.fail("%s isn't delivered, for %d ms: %s%s", j.name, late, x.do("show %s", j.name), x.do("locks"))
		}
	}
}

func (x *uniqueWalk) run(steps int) {
	x.open(2 + x.IntN(3))
	for _, n := range x.w.nodes {
		x.workers = append(x.workers, &worker{node: n.Name, name: fmt.Sprintf("w%sx", n.Name), queue: x.pick("q:dead", "r:dead")})
	}
	for step := 0; step < steps && x.failure == ""; step++ {
		x.work()
		if step <= steps*3/4 {
			x.happen()
		}
		x.settle()
		switch {
		case x.IntN(3) == 0:
			x.do("deliver")
			x.do("advance %dms deliver", 1+x.IntN(1500))
		case x.kind.hasty:
			x.do("advance %dms", 1+x.IntN(15))
		default:
			x.do("advance %dms deliver", 1+x.IntN(15))
		}
		x.judge()
	}
	if x.failure == "" {
		x.finish()
	}
}

// finish acknowledges all jobs, and looks for what is left.
func (x *uniqueWalk) finish() {
	for _, j := range x.list {
		if j.answered && !j.ended() {
			x.ends(j, true)
			for _, n := range x.w.nodes {
				x.do("ack %s %s", n.Name, j.name)
				x.do("deliver")
			}
		}
		x.do("deliver")
	}
	x.do("advance 40s deliver")
	for l := range strings.SplitSeq(strings.TrimSpace(x.do("locks")), "\n") {
		if len(l) > 2 { // more than a node's name
			x.fail("a lock stays: %s", l)
		}
	}
	x.empty()
}
