package engine_test

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"jobmesh/module/store"
)

var walkShrink = flag.Bool("walk.shrink", false, "leave steps out of a fault walk as long as it fails")

var plainFaultKinds = map[string]walkKind{
	"crashes":             {crashes: true, queues: true, long: true},
	"crashes, retries":    {crashes: true},
	"crashes, families":   {crashes: true, families: true, long: true, queues: true},
	"crashes, cancels":    {crashes: true, families: true, long: true, cancels: true},
	"crashes, once":       {crashes: true, once: true},
	"crashes, clocks":     {crashes: true, clocks: true, long: true, families: true},
	"every second":        {crashes: true, everySec: true, once: true, long: true},
	"every second, kin":   {crashes: true, everySec: true, families: true, long: true},
	"cuts":                {cuts: true, long: true, queues: true},
	"cuts, retries":       {cuts: true},
	"cuts, families":      {cuts: true, families: true, long: true, queues: true},
	"cuts, cancels":       {cuts: true, families: true, cancels: true},
	"cuts, once":          {cuts: true, once: true},
	"stalls":              {stalls: true, long: true},
	"stalls, families":    {stalls: true, families: true, queues: true},
	"stalls, once":        {stalls: true, once: true, families: true},
	"leaving":             {leaving: true, cuts: true, crashes: true, long: true},
	"leaving, families":   {leaving: true, cuts: true, families: true, long: true},
	"leaving, once":       {leaving: true, crashes: true, once: true},
	"pauses":              {pauses: true, crashes: true, cuts: true, families: true, long: true},
	"pauses, once":        {pauses: true, cuts: true, once: true},
	"losses":              {losses: true, long: true, queues: true},
	"losses, families":    {losses: true, families: true, long: true},
	"losses, once, cuts":  {losses: true, once: true, cuts: true},
	"reloads":             {reloads: true, long: true, queues: true},
	"reloads, families":   {reloads: true, families: true, long: true, cuts: true},
	"reloads, once":       {reloads: true, once: true, crashes: true},
	"deletes":             {deletes: true, crashes: true, long: true, queues: true},
	"deletes, families":   {deletes: true, cuts: true, families: true},
	"everything":          {families: true, pauses: true, cuts: true, crashes: true, stalls: true, cancels: true, leaving: true, queues: true, clocks: true, once: true, losses: true, reloads: true, deletes: true},
	"everything, long":    {families: true, pauses: true, cuts: true, crashes: true, stalls: true, cancels: true, leaving: true, long: true, losses: true, reloads: true},
	"everything, one sec": {families: true, cuts: true, crashes: true, everySec: true, stalls: true, once: true, long: true, reloads: true},
}

// TestFaultWalks makes clients of a mesh do with jobs that aren't unique what they do in TestWalks, while nodes crash or stand
// still, connections are cut, clocks are wrong, workers die, nodes leave or are lost, queues are paused or deleted, and messages
// are late. A mesh is "well" while each node goes on and is connected with each other node. The rules are:
//
//   - a job with RETRY 0 is delivered at most once. Another job comes again only if its retry time is over, if it was
//     given back, or after a fault. No job comes before its delay is over;
//   - a job comes neither before its release nor before the end of the jobs that it waits for;
//   - a job that was refused or has ended isn't delivered when the mesh has been well for 5 s;
//   - in a mesh that is well, a job that nothing hinders is delivered within 17 s to a client that waits. A long
//     retry time hinders a job only while a client has it;
//   - in a mesh that is well, some node knows each job that was promised, until the job has ended;
//   - each ADDJOB is answered once, and within 20 s. The answer isn't NOREPL if the mesh has been well for 18 s;
//   - in the end ACKJOB at one node that knows the job removes the job from all nodes. No dependencies are left, and nothing
//     that nodes had to do for each other. Nodes don't speak of jobs any more.
//
// After faults the judge allows what module/COMMANDS.md allows, as in TestUniqueFaultWalks. Whatever one node alone knows, of jobs or of
// their ends, is lost with that node, or with the end of its log.
func TestFaultWalks(t *testing.T) {
	for name, kind := range plainFaultKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(seed uint64, without map[int]bool) *walk {
				x := &plainFaultWalk{walk: newWalk(t, seed, kind)}
				x.lasts = []int{10, 300, 3000, 15_000}
				x.walkJudge, x.stepwise, x.seed, x.without = x, true, seed, without
				if kind.everySec {
					x.startsAs = "inexact"
				}
				x.run(300)
				return x.walk
			}
			walks(t, 1, func(seed uint64) *walk {
				x := play(seed, nil)
				if x.failure != "" && *walkShrink {
					return shrunk(x, 300, func(without map[int]bool) *walk { return play(seed, without) })
				}
				return x
			})
		})
	}
}

// shrunk leaves out of a walk that fails as many steps as it can, while the walk still fails in the same way.
func shrunk(x *walk, steps int, play func(without map[int]bool) *walk) *walk {
	kind := func(x *walk) string { return walkNumber.ReplaceAllString(strings.SplitN(x.failure, ":", 2)[0], "") }
	without := map[int]bool{}
	for size := steps / 2; size > 0; size = size * 2 / 3 {
		for from := 0; from < steps; from += size {
			next := map[int]bool{}
			for i := range steps {
				next[i] = without[i] || i >= from && i < from+size
			}
			if y := play(next); y.failure != "" && kind(y) == kind(x) {
				x, without = y, next
			}
		}
	}
	return x
}

var (
	walkNumber = regexp.MustCompile(`[0-9]+`)
	walkLoses  = regexp.MustCompile(`(?m)^ +\w loses what it logged of (\w+)$`)
)

type plainFaultWalk struct {
	*walk
	nodes  int
	isBusy bool // few clients ask for many jobs, so that there are jobs in queues
}

func (x *plainFaultWalk) promised(j *walkJob, _ string) {
	if j.asked == "" {
		x.fail("ADDJOB of %s is answered twice", j.name)
	}
	j.asked, j.answered, j.answeredAt = "", true, x.at
	if j.given == 0 {
		j.dueAt = x.at
	}
}

func (x *plainFaultWalk) refused(j *walkJob, why string) {
	if j.given > 0 && !x.reloads { // a job whose ADDJOB waits isn't saved
		x.fail("%s is refused, after its delivery: %s", j.name, why)
	}
	j.asked, j.refused, j.refusedAt = "", true, x.at
	switch first, _, _ := strings.Cut(why, " "); first {
	case "NOREPL":
		if x.wellFor() > 18_000 && x.left == "" {
			x.fail("ADDJOB of %s answers %s, though all is well", j.name, why)
		}
	case "ERR", "NOJOB", "NOTDEFERRED", "PAUSED":
	default:
		x.fail("ADDJOB of %s answers %s", j.name, why)
	}
}

func (x *plainFaultWalk) worked(*walkJob, string) {}

// waitsFor lists the jobs that a job still waits for.
func (x *plainFaultWalk) waitsFor(j *walkJob) (list []*walkJob) {
	for _, p := range x.awaited(j) {
		if j.last && p.blocks == j && (p.isAsync || p.answeredAt > j.releasedAt-3000) {
			continue // the node where it was released may not have known p
		}
		if j.last && p.blocks == j && p.once && (x.everySec || x.lost != "") {
			continue // p can be uncertain
		}
		list = append(list, p)
	}
	return list
}

// got judges a delivery.
func (x *plainFaultWalk) got(w *worker, j *walkJob) {
	again := j.given > 0
	switch {
	case j.refused && x.settled(j.refusedAt):
		x.fail("%s is delivered though it was refused", j.name)
	case j.ended() && !j.vague && !j.free && x.settled(j.endedAt):
		x.fail("%s is delivered %d ms after its end", j.name, x.at-j.endedAt)
	case j.once && again:
		x.fail("%s is delivered twice, though it has RETRY 0", j.name)
	case x.at < j.notBefore-20 && !x.clocks:
		x.fail("%s is delivered before its delay is over", j.name)
	case again && !x.faultSince(j) && !x.letGoTwice(j) && x.wellFor() > 20_000 && x.at < j.mayAt && !j.ended():
		x.fail("%s is delivered twice without a fault, before its retry time is over", j.name)
	case j.free:
	case j.deferred && !j.released:
		x.fail("%s is delivered before its release", j.name)
	case !again:
		for _, p := range x.waitsFor(j) {
			x.fail("%s is delivered before %s", j.name, p.name)
		}
	}
	if (j.asked != "" || j.unheard) && !j.answered {
		j.answered, j.unheard, j.answeredAt = true, false, x.at // the answer is under way, or won't be heard
	}
	x.handed(w, j)
}

// letGoTwice says whether two clients acknowledged what a job waits for: both ends unblock it.
func (x *plainFaultWalk) letGoTwice(j *walkJob) bool {
	twice := func(p *walkJob) bool { return p.ends > 1 }
	return slices.ContainsFunc(j.parents, twice) || j.blocks != nil && twice(j.blocks) ||
		j.last && slices.ContainsFunc(x.list, func(c *walkJob) bool { return c.blocks == j && twice(c) })
}

// frees notes that a job is no longer promised, and that nothing is known of when its dependents come.
func (x *plainFaultWalk) frees(j *walkJob) {
	if j.free {
		return
	}
	j.free = true
	for _, c := range x.list {
		if c.blocks == j || slices.Contains(c.parents, j) || j.blocks == c && c.last {
			x.frees(c)
		}
	}
}

// broke notes the effects of a mishap: what a node that has crashed doesn't know any more, and what its log lost.
func (x *plainFaultWalk) broke(out string) {
	x.unsaid()
	if out == "" {
		return // no crash
	}
	x.forgets(x.down)
	for _, m := range walkLoses.FindAllStringSubmatch(out, -1) {
		if j := x.jobs[m[1]]; j != nil {
			x.torn(j)
		}
	}
}

// forgets notes that a node knows nothing any more but its data: it forgets that it refused a job, and the ends of jobs
// that it didn't have.
func (x *plainFaultWalk) forgets(node string) {
	for _, j := range x.list {
		if j.refused && j.adder == node {
			j.refused, j.unheard = false, true
		}
		j.vague = j.vague || j.ended() && j.hearsayAt == node
	}
	x.unsaid()
}

// unsaid notes that the message about a job that was given back may be lost. Then the job comes when its retry time is over.
func (x *plainFaultWalk) unsaid() {
	for _, j := range x.list {
		if j.backAt > 0 && x.at < j.backAt+2000 {
			j.dueAt = max(j.dueAt, j.backDue)
		}
	}
}

// torn notes that a node has lost some of what it knew of a job.
func (x *plainFaultWalk) torn(j *walkJob) {
	j.vague = j.vague || j.ended()
	j.dueAt = max(j.dueAt, x.at+j.retry*1000+1500)
	if j.copies--; j.copies <= 0 || j.deferred || j.blocks != nil || len(j.parents) > 0 {
		x.frees(j)
	}
	for _, c := range x.list {
		if c.blocks == j || slices.Contains(c.parents, j) {
			x.frees(c)
		}
	}
}

func (x *plainFaultWalk) add() {
	j := &walkJob{name: fmt.Sprintf("j%d", len(x.list)+1), queue: x.queue()}
	line := fmt.Sprintf(" ttl=100000 queue=%s", j.queue)
	node := x.up()
	if j.once = x.once && x.IntN(3) == 0 || x.IntN(12) == 0; j.once {
		line += " retry=0"
		j.copies = 1
	} else {
		if j.retry = int64(3 + x.IntN(8)); x.long && x.IntN(4) > 0 {
			j.retry = 300
		}
		j.copies = 1 + x.IntN(min(3, x.nodes))
		line += fmt.Sprintf(" retry=%d replicate=%d", j.retry, j.copies)
		if x.IntN(8) == 0 {
			line += " async"
			j.isAsync, j.copies = true, 1
		}
	}
	if x.IntN(4) == 0 {
		delay := 1 + x.IntN(6)
		line += fmt.Sprintf(" delay=%d", delay)
		j.notBefore = x.w.Now + int64(delay)*1000
	}
	kind := x.IntN(8)
	if x.families {
		kind = x.IntN(4)
	}
	switch p := x.some(); {
	case kind <= 1:
		line += x.after(j)
		for _, p := range j.parents {
			node = x.holderOf(p, node)
		}
	case kind == 2 && p.answered && p.deferred && !p.released && !p.ended() && x.IntN(4) > 0:
		j.blocks, j.deferred = p, x.IntN(8) == 0
		line += " blockedby=" + p.name
		node = x.holderOf(p, node)
	case kind == 2:
		j.deferred = true
	}
	if j.deferred {
		line += " deferred"
	}
	j.free = j.isAsync && node == x.left // a leaving node keeps no copy itself, and promises nothing
	x.addJob(j, node, line)
	for _, p := range append(slices.Clone(j.parents), j.blocks) {
		if p != nil && (p.free || p.anyTime) {
			j.free = true
		}
	}
	if j.asked != "" && x.IntN(4) > 0 {
		x.do("deliver")
	}
}

// holderOf returns a node that is up and has a copy of a job, or else the other node.
func (x *plainFaultWalk) holderOf(j *walkJob, other string) string {
	nodes := strings.Trim(strings.ReplaceAll(x.known(j), x.down, ""), " ")
	if x.down == "" {
		nodes = x.known(j)
	}
	if nodes == "" || strings.Contains(nodes, other) {
		return other
	}
	return x.pick(strings.Split(nodes, "")...)
}

// end makes a client acknowledge, delete or cancel a job.
func (x *plainFaultWalk) end(j *walkJob, verb, node string) {
	uncertain := j.vague || !j.ended()
	if uncertain {
		j.endedAt = x.w.Now
	}
	if !j.ended() {
		if verb == "cancel" || verb == "del" {
			x.cancel(j)
		} else {
			j.acked = true
		}
	}
	j.vague = false
	j.ends++
	out := x.do("%s %s %s", verb, node, j.name)
	if known := out[0] == 't' || out[0] >= '1' && out[0] <= '9'; !known {
		j.vague, j.hearsayAt = uncertain && (x.wellFor() < 0 || x.faultSince(j)), node
	}
	if verb == "fastack" {
		j.vague = true // no node makes sure that all nodes hear of it
	}
}

// done makes a worker acknowledge its job, give it back, or die.
func (x *plainFaultWalk) done(w *worker) {
	j, where := w.job, w.node
	w.job = nil
	j.hands--
	if where == x.down || where == x.lost || x.IntN(3) == 0 {
		where = x.up()
	}
	switch verb := x.pick("ack", "ack", "ack", "ack", "ack", "fastack", "nack", "nack", "enqueue", "die"); {
	case verb == "ack", verb == "fastack":
		x.end(j, verb, where)
	case verb != "die" && !x.isLate(w, j):
		x.giveBack(j, verb, where)
	}
}

func (x *plainFaultWalk) giveBack(j *walkJob, verb, where string) {
	// The job is back before its node has told the others: another client can get it at once.
	was, certain := *j, !x.faultSince(j) && j.hands == 0
	j.mayAt, j.dueAt = x.at, x.at
	isBack := strings.HasPrefix(x.do("%s %s %s", verb, where, j.name), "true")
	switch {
	case j.given > was.given: // another client got it meanwhile
	case isBack && !certain:
		j.dueAt = was.dueAt // it comes now, or when its retry time is over
	case isBack:
		j.backAt, j.backDue = x.at, was.dueAt
	case !isBack:
		j.dueAt, j.mayAt = was.dueAt, was.mayAt
	}
}

// settle delivers the messages that are under way, most of the time. Sometimes something breaks just before.
func (x *plainFaultWalk) settle() {
	if !x.ending && x.down == "" && !x.isCut && len(x.w.Sent) > 0 && x.IntN(10) == 0 {
		x.broke(x.mishap(x.IntN(3)))
	}
	x.walk.settle()
}

// works makes a worker say WORKING.
func (x *plainFaultWalk) works(w *worker) {
	j := w.job
	j.dueAt = max(j.dueAt, x.w.Now+j.retry*1000+2500)
	x.do("working %s %s", w.node, j.name)
	x.settle()
	w.until = x.w.Now + int64(x.IntN(int(min(j.retry*900, 8000))))
}

// work lets each worker go on.
func (x *plainFaultWalk) work(quiet bool) {
	for _, w := range x.workers {
		down := w.node == x.down || w.node == x.lost
		switch {
		case w.job != nil && x.w.Now < w.until:
		case w.job != nil && down && x.IntN(2) == 0:
			w.until = x.w.Now + 500
		case w.job != nil && !down && x.IntN(6) == 0 && !x.isLate(w, w.job):
			x.works(w)
		case w.job != nil:
			x.done(w)
			x.settle()
		case down || w.waits || quiet || x.IntN(3) > 0:
		default:
			x.ask(w)
			x.settle()
		}
	}
}

// happen plays what a client, an operator or chance does next.
func (x *plainFaultWalk) happen() {
	switch k := x.IntN(52); {
	case k < 12, k > 40 && x.isBusy:
		x.add()
	case k < 18:
		if j := x.some(); j.deferred && !j.released && j.answered && !j.ended() {
			j.releasedAt = x.w.Now
			x.release(j)
			x.settle()
		}
	case k < 20 && x.cancels:
		if j := x.some(); j.answered && !j.ended() && j.asked == "" && j.given == 0 {
			x.end(j, "cancel", x.up())
			x.settle()
		}
	case k < 22:
		x.dequeue(x.some())
	case k == 22 && x.cancels:
		x.delete(x.some())
	case k == 23:
		x.broke(x.mishap(x.IntN(3)))
	case k == 26 && x.pauses && len(x.paused) == 0:
		x.pause()
	case k == 27 && x.leaving && x.left == "":
		x.left = x.up()
		x.do("leaving %s yes", x.left)
	case k == 28 && x.reloads:
		node := x.up()
		x.breaks()
		x.forgets(node)
		x.do("reload %s", node)
	case k == 29 && x.deletes:
		x.deleteQueue()
	case k == 30 && x.losses && x.lost == "" && x.down == "":
		x.lose()
	}
}

func (x *plainFaultWalk) pause() {
	x.calm = never
	n, how := x.up(), x.pick("in", "out", "all")
	x.paused[n] = true
	if x.IntN(2) == 0 {
		how += " bcast"
		for _, m := range x.w.nodes {
			x.paused[m.Name] = true
		}
		delete(x.paused, x.lost)
	}
	x.do("pause %s %s", n, how)
}

// delete makes a client say DELJOB at the node that has the only copy of a job.
func (x *plainFaultWalk) delete(j *walkJob) {
	if known := x.known(j); x.wellFor() > 5000 && j.answered && !j.ended() && j.given == 0 && len(known) == 1 && x.copyAt(x.named(known), j).Holders() == 0 { // and the job isn't under way to another node
		x.end(j, "del", known)
	}
}

// deleteQueue deletes a queue at one node. Jobs that had a copy there are no longer promised, and the queue's other jobs aren't given to
// that node's clients.
func (x *plainFaultWalk) deleteQueue() {
	n, queue := x.named(x.up()), x.queue()
	if n.e.Queue([]byte(queue)) == nil {
		return
	}
	for _, j := range x.list {
		if x.copyAt(n, j) != nil || j.queue == queue {
			j.vague = j.vague || j.ended()
			x.frees(j)
		}
	}
	x.breaks()
	x.do("delqueue %s %s", n.Name, queue)
}

// lose loses a node for good. Some time later a new node, or its replica, takes its place.
func (x *plainFaultWalk) lose() {
	x.broke(x.failNode())
	x.losing = true
}

// mend ends what was broken for long enough, or all of it.
func (x *plainFaultWalk) mend(all bool) {
	if x.left != "" && (all || x.IntN(30) == 0) {
		x.do("leaving %s no", x.left)
		x.left = ""
	}
	if len(x.paused) > 0 && (all || x.IntN(10) == 0) {
		x.do("deliver")
		for _, n := range x.w.nodes {
			if x.paused[n.Name] && n.Name != x.lost && n.Name != x.down {
				x.do("pause %s none bcast", n.Name)
				delete(x.paused, n.Name)
			}
		}
	}
	if x.losing && (all || x.w.Now >= x.downTill) {
		x.replace(x.IntN(2) == 0)
	}
	x.walk.mend(all)
}

// replace makes a node meet the others in the place of a lost one, and makes these forget the lost one.
func (x *plainFaultWalk) replace(replica bool) {
	line := "newnode"
	if replica {
		line += " " + x.down
	}
	name := strings.TrimSpace(strings.SplitN(x.do("%s", line), "\n", 2)[0])
	x.lost, x.down, x.losing = x.down, "", false
	delete(x.paused, x.lost)
	if x.left == x.lost {
		x.left = ""
	}
	x.breaks()
	for _, n := range x.w.nodes {
		if n.Name != x.lost && n.Name != name {
			x.do("meet %s %s on-purpose", name, n.Name)
			x.walk.settle()
		}
	}
	x.do("advance %dms deliver", 1+x.IntN(3000))
	for _, n := range x.w.nodes {
		if n.Name != x.lost {
			x.do("forget %s %s", n.Name, x.lost)
			x.walk.settle()
		}
	}
	for _, w := range x.workers {
		if w.node == x.lost {
			w.node, w.waits = name, false
		}
	}
	if replica {
		return
	}
	for _, j := range x.list {
		j.copies--
		switch {
		case j.ended():
			j.vague = true // the other nodes may not have heard of its end
		case j.copies <= 0 || x.known(j) == "" && j.once || j.deferred:
			x.frees(j)
		default:
			j.dueAt = max(j.dueAt, x.w.Now+j.retry*1000+1500)
		}
	}
}

// loose says whether nothing is known of when a job comes, because the jobs that it waits for may be done or not.
func (x *plainFaultWalk) loose(j *walkJob) bool {
	if j.free {
		return true
	}
	for _, p := range j.parents {
		if p.vague || x.loose(p) && !p.ended() {
			return true
		}
	}
	return j.blocks != nil && (j.blocks.vague || x.loose(j.blocks)) ||
		j.last && slices.ContainsFunc(x.list, func(c *walkJob) bool { return c.blocks == j && c.vague })
}

// due says whether nothing hinders a job's delivery.
func (x *plainFaultWalk) due(j *walkJob) bool {
	return j.answered && !j.ended() && j.asked == "" && x.w.Now >= max(j.notBefore, j.dueAt) && x.wellFor() >= 0 &&
		!(j.once && (j.given > 0 || x.isAwaited(j))) && (!j.deferred || j.released) && len(x.awaited(j)) == 0 && !x.loose(j)
}

// isAwaited says whether others wait for a job. If so, a job with RETRY 0 stays at its node.
func (x *plainFaultWalk) isAwaited(j *walkJob) bool {
	return j.blocks != nil && j.blocks.last || slices.ContainsFunc(x.list, func(c *walkJob) bool { return c.blocks == j || slices.Contains(c.parents, j) })
}

// isQueued says whether a node has a job in a queue. Such a job can come to another node some seconds later. The same holds for a
// job that was released to come last, if the jobs that it waits for are deleted.
func (x *plainFaultWalk) isQueued(j *walkJob) bool {
	return slices.ContainsFunc(x.w.nodes, func(n *actor) bool {
		c := x.copyAt(n, j)
		return n.Name != x.lost && c != nil && c.State == store.StateQueued
	})
}

// judge looks for ADDJOBs that aren't answered, for jobs that aren't delivered though clients wait, and for jobs that are lost.
func (x *plainFaultWalk) judge() {
	for _, j := range x.list {
		x.answersAdd(j)
		if late := x.lies(j, x.due(j)); late > 17_000 || late > 6000 && !j.last && !x.isQueued(j) {
			if shown := x.do("show %s", j.name); j.once && x.faultSince(j) && strings.Contains(shown, "uncertain") {
				j.free = true
			} else {
				x.fail("%s isn't delivered, for %d ms: %s", j.name, late, shown)
			}
		}
		if x.wellFor() > 5000 && j.answered && j.asked == "" && !j.ended() && !(j.once && j.given > 0) && !x.loose(j) && x.known(j) == "" {
			x.fail("nobody knows %s", j.name)
		}
	}
}

func (x *plainFaultWalk) run(steps int) {
	x.nodes = 2 + x.IntN(3)
	x.open(x.nodes)
	if x.isBusy = x.IntN(2) == 0; x.isBusy {
		for len(x.workers) > 1 && x.IntN(4*x.nodes) > 0 {
			i := x.IntN(len(x.workers))
			x.workers = slices.Delete(x.workers, i, i+1)
		}
	}
	x.calm, x.restarted = x.w.Now-100_000, x.w.Now-1_000_000
	x.live(steps, x)
	x.ending = true
	x.mend(true)
	for range 60 {
		for _, w := range x.workers {
			w.until = min(w.until, x.w.Now+100)
		}
		if x.work(false); x.failure == "" {
			x.do("deliver")
			x.do("advance 400ms deliver")
			x.judge()
		}
	}
	if x.failure == "" {
		x.finish()
	}
}

// finish acknowledges all jobs, and looks for what is left.
func (x *plainFaultWalk) finish() {
	x.do("advance 6s deliver")
	x.judge()
	for _, j := range x.list {
		known := x.known(j)
		if known == "" {
			continue
		}
		if j.refused && x.settled(j.refusedAt+j.retry*1000+10_000) {
			x.fail("in the end %s is at %s, though it was refused", j.name, known)
		}
		nodes := strings.Split(known, "")
		if !j.once { // a job with RETRY 0 can have an uncertain copy of which the other nodes don't know
			nodes = []string{x.pick(nodes...)}
		}
		for _, node := range nodes {
			x.end(j, "ack", node)
		}
		if x.IntN(3) == 0 {
			x.do("deliver")
		}
	}
	if x.do("advance 40s deliver"); x.lost != "" {
		x.do("advance 15m deliver") // for some time nodes still try to tell the lost node
	}
	x.empty()
	x.idle()
	for _, n := range x.w.nodes {
		if left := fmt.Sprint(n.e.Edges(), n.e.Asked(), n.e.Delegated(), n.e.Load().Adding, n.e.Load().Claims); n.Name != x.lost && left != "0 0 0 0 0" {
			x.fail("in the end node %s has something left: %s", n.Name, left)
		}
	}
	if x.failure != "" {
		return
	}
	for l := range strings.SplitSeq(x.do("advance 10m deliver"), "\n") {
		if strings.Contains(l, "->") && !strings.Contains(l, "NEEDJOBS") && !strings.Contains(l, "ENTR") { // ENTRIES and ENTRYSUMS are about settings
			x.fail("in the end nodes speak of jobs still: %s", l)
		}
	}
}
