package engine_test

import (
	"fmt"
	"strings"
	"testing"
)

var faultKinds = map[string]uniqueKind{
	"no fault, long":         {long: true, works: true},
	"crashes":                {crashes: true},
	"crashes, long":          {crashes: true, long: true},
	"crashes, works":         {crashes: true, works: true},
	"crashes, clocks":        {crashes: true, clocks: true, works: true},
	"crashes, put off":       {crashes: true, putOff: true},
	"crashes, busy":          {crashes: true, busy: true},
	"crashes, windows":       {crashes: true, windows: true},
	"crashes, leases":        {crashes: true, leases: true, works: true},
	"crashes, once":          {crashes: true, once: true},
	"cuts":                   {cuts: true},
	"cuts, long":             {cuts: true, long: true},
	"cuts, works":            {cuts: true, works: true},
	"cuts, clocks":           {cuts: true, clocks: true, works: true},
	"cuts, put off":          {cuts: true, putOff: true},
	"cuts, busy":             {cuts: true, busy: true},
	"cuts, windows":          {cuts: true, windows: true},
	"cuts, leases":           {cuts: true, leases: true, works: true},
	"cuts, once":             {cuts: true, once: true},
	"stalls":                 {stalls: true},
	"stalls, long":           {stalls: true, long: true, works: true},
	"stalls, once":           {stalls: true, once: true, leases: true, works: true},
	"crashes, cuts, windows": {crashes: true, cuts: true, windows: true, clocks: true},
	"leaves":                 {leaves: true, putOff: true, works: true},
	"leaves, leases":         {leaves: true, crashes: true, leases: true, once: true, works: true},
	"leaves, windows":        {leaves: true, crashes: true, windows: true, busy: true, putOff: true},
	"everything":             {stalls: true, crashes: true, cuts: true, clocks: true, putOff: true, busy: true, windows: true, leases: true, once: true, works: true},
	"everything, long":       {crashes: true, cuts: true, clocks: true, putOff: true, busy: true, windows: true, once: true, works: true, long: true},
}

// TestUniqueFaultWalks makes clients of a mesh of three do with unique jobs what they do in TestUniqueWalks, while nodes
// crash, stand still or leave, connections are cut, clocks are wrong, workers die, and messages are late. Nodes log each vote before they give
// it (appendfsync always). The judge knows for each job whether it has its locks: yes, no, or maybe. A mesh is "well" while
// each node goes on and is connected with each other node. The rules are:
//
//   - a job never gets a key that another job certainly has, neither when it is added, nor when it is delivered after it was
//     put off;
//   - while the lease of a run lasts, two jobs never run by one key at a time, and one job doesn't run twice. WORKING doesn't say then
//     that the run's lock is lost;
//   - a job with RETRY 0 is delivered at most once. Another job comes again only if its retry time is over, if it was
//     given back, or after a fault. No job comes before its delay is over;
//   - a job that was refused or has ended isn't delivered when the mesh has been well for 5 s;
//   - a key is free when its lease is over, when its job has ended, and when no node knows its job. When the mesh has been
//     well for 8 s, no job is refused or put off because of such a key;
//   - when the mesh has been well for 18 s, no job is refused because too few nodes agree or have a copy;
//   - in a mesh that is well, a job that nothing hinders is delivered within 17 s to a client that waits;
//   - each ADDJOB is answered once, and within 20 s;
//   - in the end some node knows each job that was promised. ACKJOB at one node that knows the job removes it from all
//     nodes, and no copy of a refused job is left. Then each key is free for another job, and that job is delivered.
//
// After faults the judge allows what module/COMMANDS.md allows. A job that a worker had may come twice. A job
// whose client lost its node before the answer may exist or not. FASTACK may be forgotten. A job that was given back at
// another node may wait until its retry time is over. The message about that may be late, and end the run of the next worker;
// so may a late command of a worker whose job another worker has, too. A job that ONBUSY drops or moves in one part of a mesh may
// run in the other part, and its run ends early then. A lease begins anew when a node is started. After that the rest of a
// window goes by the wall clock.
func TestUniqueFaultWalks(t *testing.T) {
	for name, kind := range faultKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walks(t, 3, func(seed uint64) *walk {
				kind.retries = true
				x := &faultWalk{keyedWalk: newKeyedWalk(t, seed, kind)}
				x.walkJudge, x.startsAs, x.lasts = x, "always", []int{100, 3000, 12_000, 25_000}
				x.run(300)
				return x.walk
			})
		})
	}
}

type faultWalk struct {
	*keyedWalk
	leftTill int64 // when the node that is leaving is told to stay
}

// isGone says whether no node knows a job any more, whatever became of it.
func (x *faultWalk) isGone(j *walkJob) bool { return j.goneAt > 0 && x.at > j.goneAt+3000 }

// mayVanish says whether a busy key ends a job.
func (j *walkJob) mayVanish() bool { return j.busy == "drop" || j.busy == "dead" }

// waits says whether a job has its waiting lock.
func (x *faultWalk) waits(j *walkJob) likely {
	switch {
	case j.strategy == "during", j.isDead:
		return no
	case j.strategy == "window":
		return x.windowLasts(j)
	case j.asked != "":
		return maybe
	case j.refused, x.isGone(j), j.ended() && !j.vague && x.settled(j.endedAt):
		return no
	case j.lockTTL > 0 && x.at > max(j.waitOver, x.restarted+j.lockTTL*1060+8000):
		return no
	case j.ended(), !j.answered, j.mayVanish(), j.lockTTL > 0 && x.at > j.waitSure:
		return maybe
	}
	return j.waiting
}

// windowLasts says whether a window lasts. It begins when the job is added, or some time later if the job was put off.
func (x *faultWalk) windowLasts(j *walkJob) likely {
	span := j.lockTTL * 1000
	sure := j.waitSure - 10
	if x.kind.clocks {
		sure = j.waitSure - 2100 // after a restart the rest of the window goes by the wall clock
	}
	switch {
	case j.wasPutOff && !j.refused && (j.given == 0 || x.at < j.firstAt+span+span/20+6000):
		return maybe
	case j.asked != "", j.unheard && j.waitSure == 0:
		return maybe
	case j.waitSure == 0:
		return no
	case x.at < sure:
		return yes
	case x.at < j.waitSure+span/20+8000:
		return maybe
	}
	return no
}

// working says whether a job has its run's lock.
func (x *faultWalk) working(j *walkJob) likely {
	lease := j.lease()
	switch over := max(j.runOver, x.restarted+lease+lease*6/100+3000); {
	case !j.runs(), j.given == 0, x.at >= over, x.isGone(j), j.ended() && !j.vague && x.settled(j.endedAt):
		return no
	case j.ended(), j.refused, x.at >= j.runSure, j.mayVanish() && x.faultSince(j), j.backAt > 0 && !x.settled(j.backAt):
		return maybe
	}
	return max(j.running, maybe)
}

// lease says how long a run lasts, in ms.
func (j *walkJob) lease() int64 {
	seconds := j.retry
	if j.runTTL > 0 && (j.runTTL < seconds || seconds == 0) {
		seconds = j.runTTL
	}
	if seconds == 0 {
		seconds = 100_000 // the job's TTL
	}
	return seconds * 1000
}

func (x *faultWalk) holder(but *walkJob) (*walkJob, likely) {
	return x.likeliest(but.lock(), but, x.waits)
}

func (x *faultWalk) runner(but *walkJob) (*walkJob, likely) {
	return x.likeliest(but.lock(), but, x.working)
}

// nobodyHas says whether a job's key has been free for so long that all nodes know it.
func (x *faultWalk) nobodyHas(j *walkJob) bool {
	_, l := x.holder(j)
	return l == no && x.wellFor() > 8000 && x.at > x.freed[j.lock()]+3000
}

// takes notes that a job has got its waiting lock, and judges whether it may.
func (x *faultWalk) takes(j *walkJob) {
	if h, l := x.holder(j); l == yes {
		x.fail("%s gets the key that %s has", j.name, h.name)
	}
}

// promised judges the answer to an ADDJOB.
func (x *faultWalk) promised(j *walkJob, name string) {
	if j.asked == "" {
		x.fail("ADDJOB of %s is answered twice", j.name)
		return
	}
	j.asked = ""
	if name != j.name {
		if x.deny(j, "for "+name); j.conflict != "return" && j.conflict != "replace" {
			x.fail("ADDJOB of %s answers %s", j.name, name)
		}
		return
	}
	if j.answered = true; j.given > 0 {
		return // its delivery was judged already
	}
	j.dueAt = x.at
	if j.strategy == "during" {
		return
	}
	if j.conflict == "reschedule" {
		j.wasPutOff = true
		for _, n := range x.w.nodes {
			j.isPutOff = j.isPutOff || !n.Down && x.putOffAt(n, j)
		}
	}
	if j.isPutOff {
		j.waiting = maybe
		if x.nobodyHas(j) {
			x.fail("%s is put off though nobody has its key", j.name)
		}
		return
	}
	x.takes(j)
	if j.strategy == "window" {
		j.waitSure = j.addedAt + j.lockTTL*1000
		return
	}
	j.waiting, j.waitSure = yes, max(j.addedAt, j.notBefore)+j.lockTTL*1000
	if j.strategy == "until" {
		j.waitOver = j.waitSure + j.lockTTL*60 + 8000
	}
}

// deny judges the refusal of a job because of another job's key.
func (x *faultWalk) deny(j *walkJob, why string) {
	j.refused, j.refusedAt = true, x.at
	if x.nobodyHas(j) {
		x.fail("%s is refused (%s) though nobody has its key: %s", j.name, why, x.do("locks"))
	}
}

// refused judges an ADDJOB's error.
func (x *faultWalk) refused(j *walkJob, why string) {
	if j.given > 0 {
		x.fail("%s is refused, after its delivery: %s", j.name, why)
	}
	j.asked, j.refused, j.refusedAt = "", true, x.at
	switch {
	case strings.HasPrefix(why, "DUPLICATE"):
		x.deny(j, why)
	case strings.HasPrefix(why, "NOQUORUM"), strings.HasPrefix(why, "NOREPL"):
		if x.wellFor() > 18_000 {
			x.fail("ADDJOB of %s answers %s, though all is well: %s", j.name, why, x.do("locks"))
		}
	default:
		x.fail("ADDJOB of %s answers %s", j.name, why)
	}
}

// got judges a delivery.
func (x *faultWalk) got(w *worker, j *walkJob) {
	again, dead := j.given > 0, strings.HasSuffix(w.queue, ":dead")
	switch {
	case j.refused && x.settled(j.refusedAt):
		x.fail("%s is delivered though it was refused", j.name)
	case j.ended() && !j.vague && x.settled(j.endedAt):
		x.fail("%s is delivered after its end", j.name)
	case j.once && again:
		x.fail("%s is delivered twice, though it has RETRY 0", j.name)
	case x.at < j.notBefore-20 && !x.kind.clocks:
		x.fail("%s is delivered before its delay is over", j.name)
	case x.working(j) == yes && !j.isDead && !dead:
		x.fail("%s is delivered while its run lasts", j.name)
	case again && !x.faultSince(j) && x.wellFor() > 20_000 && x.at < j.mayAt && !j.ended():
		x.fail("%s is delivered twice without a fault, before its retry time is over", j.name)
	}
	if (j.asked != "" || j.unheard) && !j.answered {
		// The job is added; the answer is under way, or won't be heard.
		j.answered, j.unheard, j.waiting = true, false, maybe
		switch {
		case j.strategy == "window":
			j.wasPutOff, j.waitSure = j.conflict == "reschedule", j.addedAt+j.lockTTL*1000
		case !again && j.strategy != "during" && j.conflict != "reschedule":
			x.takes(j)
		}
	}
	x.handed(w, j)
	if dead {
		j.isDead, j.waiting, j.running = true, no, no
	}
	if !again {
		j.firstAt = x.at
	}
	if j.isDead {
		return
	}
	j.runOver = x.at + j.lease()*106/100 + 3000
	if j.ended() {
		return // its end was forgotten, or isn't known here yet: it runs until a node hears of the end
	}
	if j.runs() {
		if h, l := x.runner(j); l == yes {
			x.fail("%s is delivered while %s runs", j.name, h.name)
		}
		j.running, j.runSure = yes, x.at+j.lease()-10
	}
	j.isPutOff = false
	if again {
		return
	}
	if j.wasPutOff && j.strategy != "window" && j.lockTTL == 0 {
		if x.takes(j); j.strategy == "until" {
			j.waiting = yes
		}
	}
	if j.frees() {
		j.waiting = maybe // it may have been given back, and wait again
		x.freed[j.lock()] = x.at
	}
}

func (x *faultWalk) add() *walkJob {
	j := &walkJob{name: fmt.Sprintf("j%d", len(x.list)+1), queue: x.queue()}
	options := x.options(j)
	x.addJob(j, x.up(), options)
	if j.asked != "" && x.IntN(4) > 0 {
		x.do("deliver")
	}
	return j
}

// end makes a client acknowledge or cancel a job.
func (x *faultWalk) end(j *walkJob, verb, node string) {
	uncertain := j.vague || !j.ended()
	if !j.ended() {
		j.acked, j.endedAt = true, x.w.Now
	}
	j.vague, x.freed[j.lock()] = false, x.w.Now
	out := x.do("%s %s %s", verb, node, j.name)
	if known := out[0] == 't' || out[0] >= '1' && out[0] <= '9'; !known && (x.wellFor() < 0 || x.faultSince(j)) {
		j.vague = uncertain
	}
}

// done makes a worker acknowledge its job, give it back, or die.
func (x *faultWalk) done(w *worker) {
	j, where := w.job, w.node
	w.job = nil
	j.hands--
	if where == x.down || x.IntN(3) == 0 {
		where = x.up()
	}
	switch verb := x.pick("ack", "ack", "ack", "ack", "ack", "fastack", "nack", "nack", "enqueue", "die"); {
	case verb == "ack":
		x.end(j, verb, where)
	case verb == "fastack":
		x.end(j, verb, where)
		j.vague = true // no node makes sure that all nodes hear of it
	case verb != "die" && !x.isLate(w, j):
		x.giveBack(w, j, verb, where)
	}
}

func (x *faultWalk) giveBack(w *worker, j *walkJob, verb, where string) {
	// The job is back before its node has told the others: another client can get it at once.
	was, certain := *j, where == w.node && !x.faultSince(j) && j.hands == 0
	if j.runs() {
		j.running = maybe
	}
	if j.waiting == yes && j.strategy != "until" {
		j.waiting = maybe
	}
	j.mayAt, j.dueAt = x.at, x.at
	if !certain {
		j.backAt = x.at
	}
	isBack := strings.HasPrefix(x.do("%s %s %s", verb, where, j.name), "true")
	switch {
	case j.given > was.given: // another client got it meanwhile
	case isBack && !certain:
		j.dueAt = was.dueAt // it comes now, or when its retry time is over
	case !isBack:
		j.dueAt, j.mayAt = was.dueAt, was.mayAt
		if j.running = was.running; x.faultSince(j) {
			j.running = min(j.running, maybe)
		}
	}
}

// works makes a worker say WORKING.
func (x *faultWalk) works(w *worker) {
	j := w.job
	j.runOver = max(j.runOver, x.w.Now+j.lease()*106/100+4000)
	j.dueAt = max(j.dueAt, x.w.Now+j.retry*1000+2500)
	if j.strategy == "until" && j.lockTTL > 0 {
		j.waiting, j.waitOver = maybe, max(j.waitOver, x.w.Now+j.lockTTL*1060+8000)
	}
	x.do("working %s %s", w.node, j.name)
	x.settle()
	w.until = x.w.Now + int64(x.IntN(int(min(j.retry*900, 8000))))
}

// worked judges the answer to a WORKING.
func (x *faultWalk) worked(j *walkJob, err string) {
	switch {
	case err == "<nil>" && j.runs() && !j.ended() && j.running != no:
		j.running, j.runSure = yes, max(j.runSure, x.at-1100+j.lease())
	case strings.HasPrefix(err, "LOCKLOST") && x.working(j) == yes:
		x.fail("WORKING %s answers %s, while its run lasts", j.name, err)
	}
}

// work lets each worker go on.
func (x *faultWalk) work(quiet bool) {
	for _, w := range x.workers {
		switch {
		case w.job != nil && x.w.Now < w.until:
		case w.job != nil && w.node == x.down && x.IntN(2) == 0:
			w.until = x.w.Now + 500
		case w.job != nil && x.kind.works && w.node != x.down && x.IntN(4) == 0 && !x.isLate(w, w.job):
			x.works(w)
		case w.job != nil:
			x.done(w)
			x.settle()
		case w.node == x.down || w.node == x.left || w.waits || quiet || x.IntN(3) > 0:
		default:
			x.ask(w)
			x.settle()
		}
	}
}

// happen plays what a client or chance does next.
func (x *faultWalk) happen() {
	switch k := x.IntN(48); {
	case k < 12:
		x.add()
	case k < 14:
		if j := x.some(); j.answered && !j.ended() && j.asked == "" {
			x.end(j, "cancel", x.up())
			x.settle()
		}
	case k < 16:
		x.dequeue(x.some())
	case k == 16:
		x.delete(x.some())
	case k < 20:
		x.mishap(k - 17)
	case k == 20 && x.kind.leaves && x.left == "" && x.down == "":
		x.leave()
	}
}

// leave makes a node leave.
func (x *faultWalk) leave() {
	x.breaks()
	x.left = x.up()
	x.do("leaving %s yes", x.left)
	for _, w := range x.workers {
		if w.node == x.left {
			w.waits = false
		}
	}
	x.leftTill = x.w.Now + x.someTime()
}

// mend ends what was broken for long enough, or all of it.
func (x *faultWalk) mend(all bool) {
	if x.left != "" && x.left != x.down && (all || x.w.Now >= x.leftTill) {
		x.breaks()
		x.do("leaving %s no", x.left)
		x.left = ""
	}
	if x.walk.mend(all); x.left != "" {
		x.calm = never
	}
}

// delete makes a client say DELJOB at the node that has the only copy of a job.
func (x *faultWalk) delete(j *walkJob) {
	if known := x.known(j); x.wellFor() > 5000 && j.answered && !j.ended() && j.given == 0 && len(known) == 1 && x.copyAt(x.named(known), j).Holders() == 0 { // and the job isn't under way to another node
		x.end(j, "del", known)
	}
}

// due says whether nothing hinders a job's delivery.
func (x *faultWalk) due(j *walkJob) bool {
	if !j.answered || j.ended() || j.asked != "" || x.w.Now < max(j.notBefore, j.dueAt) || x.wellFor() < 0 ||
		j.once && (j.given > 0 || x.faultSince(j)) || j.mayVanish() || j.isDead {
		return false
	}
	return !keyTaken(x, j)
}

// judge looks for ADDJOBs that aren't answered, and for jobs that aren't delivered though clients wait.
func (x *faultWalk) judge() {
	for _, j := range x.list {
		x.answersAdd(j)
		if j.goneAt == 0 && x.wellFor() > 5000 && j.asked == "" && x.known(j) == "" {
			j.goneAt = x.w.Now
		}
		limit := int64(17_000)
		if j.wasPutOff || j.busy == "reschedule" {
			limit = 20_000 + j.retry*1000
		}
		if late := x.lies(j, x.due(j)); late > limit {
			x.fail("%s isn't delivered, for %d ms: %s%s", j.name, late, x.do("show %s", j.name), x.do("locks"))
		}
	}
}

func (x *faultWalk) open() {
	x.walk.open(3)
	if x.kind.busy {
		for _, n := range x.w.nodes {
			x.workers = append(x.workers, &worker{node: n.Name, name: fmt.Sprintf("w%sx", n.Name), queue: x.pick("q:dead", "r:dead")})
		}
	}
	if x.kind.clocks {
		for _, n := range x.w.nodes {
			x.do("crash %s", n.Name)
			x.setClock(n.Name)
			x.do("restart %s always", n.Name)
			x.do("advance 3s deliver")
		}
		x.do("advance 30s deliver")
	}
	x.calm, x.restarted = x.w.Now-100_000, x.w.Now-1_000_000
}

func (x *faultWalk) run(steps int) {
	x.open()
	x.live(steps, x)
	if x.failure == "" {
		x.finish()
	}
}

// finish acknowledges all jobs, and looks for what is missing and what is left.
func (x *faultWalk) finish() {
	x.do("advance 3s deliver")
	for _, j := range x.list {
		known := x.known(j)
		if known == "" {
			if j.answered && !j.ended() && !j.unheard && !j.once && j.busy != "drop" {
				x.fail("in the end nobody knows %s", j.name)
			}
			continue
		}
		if j.refused && x.settled(j.refusedAt+j.retry*1000+10_000) {
			x.fail("in the end %s is at %s, though it was refused", j.name, known)
		}
		x.end(j, "ack", x.pick(strings.Split(known, "")...))
		if x.IntN(3) == 0 {
			x.do("deliver")
		}
	}
	x.do("advance 40s deliver")
	x.empty()
	x.idle()
	if x.kind.windows {
		x.do("advance 60s deliver")
	}
	for _, by := range []struct {
		queue string
		own   bool
	}{{"q", false}, {"q", true}, {"r", true}} {
		for _, key := range []string{"k1", "k2"} {
			x.has(by.queue, key, by.own)
		}
	}
}

// has judges that a job can get a free key and that it runs.
func (x *faultWalk) has(queue, key string, own bool) {
	if x.failure != "" {
		return
	}
	j := &walkJob{name: fmt.Sprintf("j%d", len(x.list)+1), queue: queue, byKey: byKey{key: key, strategy: "both", own: own, retry: 10}}
	options := fmt.Sprintf(" ttl=100000 queue=%s unique=both key=%s retry=10 replicate=%d", queue, key, 1+x.IntN(3))
	if own {
		options += " own"
	}
	x.addJob(j, x.up(), options)
	x.do("deliver")
	x.do("advance 3s deliver")
	if j.refused || !j.answered {
		x.fail("in the end %s isn't added: %s", j.name, x.do("locks"))
		return
	}
	if j.given == 0 {
		x.do("advance 14s deliver")
	}
	if j.given == 0 {
		x.fail("in the end %s isn't delivered: %s%s", j.name, x.do("show %s", j.name), x.do("locks"))
	}
	for _, w := range x.workers {
		if w.job == j {
			w.job = nil
			x.end(j, "ack", w.node)
			x.ask(w)
		}
	}
	x.do("advance 1s deliver")
}
