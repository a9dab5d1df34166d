package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"jobmesh/module/store"
)

// trouble is what a walk through faults knows besides the rest.
type trouble struct {
	isStill   bool  // the node in down stands still, and didn't crash
	troubles  int   // counts what broke, and what was mended
	downTill  int64 // when the node that is down starts again
	isCut     bool
	losing    bool   // the node in down is lost for good; another one will take its place
	lost      string // the node that was lost, and whose place another one has taken
	cutTill   int64
	restarted int64 // when a node was last started
	ending    bool  // nothing new happens
	startsAs  string
	lasts     []int // how long something stays broken, at most
	stepwise  bool  // each step has a draw of its own, so that one can be left out
	seed      uint64
	without   map[int]bool // steps that are left out
}

// throughFaults is what the judge knows of a job in a walk through faults, besides the rest.
type throughFaults struct {
	asked      string // the node that will answer the ADDJOB
	adder      string // the node that was asked
	unheard    bool   // that node crashed before it answered: the job may exist or not
	addedAt    int64
	faultsAt   int // the value of troubles when the job was added
	refusedAt  int64
	wasPutOff  bool // the job is put off, or was, or nobody knows
	firstAt    int64
	dueAt      int64 // when its retry time is over, or it was given back
	mayAt      int64 // from then on the job can come again
	backAt     int64 // when it was given back, if that can end the run of the worker that got it after that
	copies     int   // how many copies were promised
	backDue    int64 // when the job would have come if it hadn't been given back
	ends       int   // how often it was acknowledged
	isAsync    bool
	hearsayAt  string // the node without the job at which a client ended it
	anyTime    bool   // nobody knows when the job is to come
	answeredAt int64
	releasedAt int64
	goneAt     int64 // since when no node knows it, and no node is away; 0: a node knows it, or may
}

// faultPlayer is a walk through faults.
type faultPlayer interface {
	work(quiet bool)
	happen()
	mend(all bool)
	judge()
}

// live plays the steps of a walk. In the last quarter nothing new happens, and everything is mended.
func (x *walk) live(steps int, p faultPlayer) {
	quiet := false
	for step := 0; step < steps && x.failure == ""; step++ {
		if x.stepwise {
			x.Rand = rand.New(rand.NewPCG(x.seed, uint64(step)+100))
		}
		end := step > steps*3/4
		x.ending = end
		if quiet {
			quiet = !end && x.IntN(10) > 0
		} else {
			quiet = x.IntN(60) == 0
		}
		if x.without[step] {
			continue
		}
		p.work(quiet)
		if !end {
			p.happen()
		}
		p.mend(end)
		x.settle()
		switch x.IntN(9) {
		case 0, 1:
			x.do("advance %dms", 1+x.IntN(15))
		case 2, 3, 4, 5:
			x.do("advance %dms deliver", 1+x.IntN(15))
		default:
			x.do("deliver")
			x.do("advance %dms deliver", 1+x.IntN(1500))
		}
		p.judge()
	}
}

// settle delivers the messages that are under way, most of the time.
func (x *walk) settle() {
	switch x.IntN(8) {
	case 0:
	case 1:
		x.do("deliver once")
	default:
		x.do("deliver")
	}
}

func (x *walk) pick(list ...string) string { return list[x.IntN(len(list))] }

// wellFor says for how long all nodes have been well. It is negative while they aren't.
func (x *walk) wellFor() int64 { return x.at - x.calm }

// settled says whether all nodes know by now of something that happened at since.
func (x *walk) settled(since int64) bool { return x.wellFor() > 5000 && x.at-since > 5000 }

// faultSince says whether something broke or was mended since a job was added.
func (x *walk) faultSince(j *walkJob) bool { return x.troubles != j.faultsAt }

// copyAt returns a node's copy of a job, or nil.
func (x *walk) copyAt(n *actor, j *walkJob) *store.Job {
	id := x.w.IDs[j.name]
	return n.e.Job(&id)
}

// known lists the nodes that have a copy of a job.
func (x *walk) known(j *walkJob) (nodes string) {
	for _, n := range x.w.nodes {
		if n.Name != x.lost && x.copyAt(n, j) != nil {
			nodes += n.Name
		}
	}
	return nodes
}

// empty judges that no node has a job any more.
func (x *walk) empty() {
	for _, n := range x.w.nodes {
		if n.Name != x.lost && n.e.Jobs() != 0 {
			shown := ""
			for _, j := range x.list {
				if x.copyAt(n, j) != nil {
					shown += fmt.Sprintf("\n%s\n%s", j.name, x.do("show %s", j.name))
				}
			}
			x.fail("node %s keeps %d jobs: %s", n.Name, n.e.Jobs(), shown)
		}
	}
}

// addJob makes a client of a node say ADDJOB.
func (x *walk) addJob(j *walkJob, node, options string) {
	j.asked, j.adder, j.addedAt, j.faultsAt, j.waitOver = node, node, x.w.Now, x.troubles, never
	x.jobs[j.name], x.list = j, append(x.list, j)
	first, rest, _ := strings.Cut(x.do("add %s %s timeout=1500%s", j.asked, j.name, options), "\n")
	other, is := strings.CutPrefix(rest, "it is ")
	switch {
	case first == "added" && is:
		name, _, _ := strings.Cut(other, "\n")
		x.promised(j, name)
	case first == "added" && j.asked != "":
		x.promised(j, j.name)
	case first != "added" && !strings.HasPrefix(first, "waits"):
		x.refused(j, first)
	}
}

// answersAdd judges that an ADDJOB is answered in time.
func (x *walk) answersAdd(j *walkJob) {
	if j.asked != "" && x.wellFor() >= 0 && x.w.Now > max(j.addedAt, x.calm)+20_000 {
		x.fail("ADDJOB of %s isn't answered", j.name)
	}
}

// handed notes that a worker got a job.
func (x *walk) handed(w *worker, j *walkJob) {
	j.hands++
	j.given++
	j.goneAt = 0
	x.begins(w, j)
	w.turn = j.given
	j.dueAt, j.mayAt = x.at+j.retry*1000+1500, x.at+j.retry*1000-400
	if j.once {
		j.dueAt = never
	}
}

// isLate says whether another worker may have this worker's job, or may get it soon.
func (x *walk) isLate(w *worker, j *walkJob) bool {
	return j.ended() || j.once || j.asked != "" || x.at > j.dueAt-2500 || w.turn != j.given
}

// mishap makes a node crash or stand still, or cuts connections. Each ends some time later.
func (x *walk) mishap(k int) (out string) {
	switch {
	case k == 0 && x.crashes && x.down == "":
		out = x.failNode()
	case k == 1 && x.stalls && x.down == "":
		x.stallNode()
	case k == 2 && x.cuts && !x.isCut:
		x.cutNode()
	}
	return out
}

// someTime says how long something stays broken, in ms.
func (x *walk) someTime() int64 {
	return int64(1 + x.IntN(x.lasts[x.IntN(len(x.lasts))]))
}

func (x *walk) breaks() {
	x.troubles++
	x.calm = never
}

// failNode makes a node crash.
func (x *walk) failNode() (out string) {
	x.breaks()
	out = x.crash()
	x.setClock(x.down)
	for _, j := range x.list {
		if j.asked == x.down {
			j.asked, j.unheard = "", true
		}
	}
	x.downTill = x.w.Now + x.someTime()
	return out
}

// stallNode makes a node stand still.
func (x *walk) stallNode() {
	x.breaks()
	x.down, x.isStill = x.up(), true
	x.do("stall %s", x.down)
	x.downTill = x.w.Now + x.someTime()
}

// setClock makes the clock of a node that is down wrong.
func (x *walk) setClock(node string) {
	if x.clocks {
		x.do("clock %s %dms", node, x.IntN(2000)-1000)
	}
}

// cutNode cuts a node off from one other node, or from all.
func (x *walk) cutNode() {
	x.breaks()
	x.isCut = true
	if a, b := x.up(), x.up(); a != b {
		x.do("cut %s %s", a, b)
	} else {
		x.do("cut %s", a)
	}
	x.cutTill = x.w.Now + x.someTime()
}

// mend ends what was broken for long enough, or all of it.
func (x *walk) mend(all bool) {
	if x.down != "" && (all || x.w.Now >= x.downTill) {
		x.breaks()
		if x.isStill {
			x.do("wake %s", x.down)
		} else {
			x.do("restart %s %s", x.down, x.startsAs)
			x.restarted = x.w.Now
		}
		x.down, x.isStill = "", false
	}
	if x.isCut && x.down == "" && (all || x.w.Now >= x.cutTill) {
		x.breaks()
		x.isCut = false
	}
	if x.down == "" && !x.isCut && len(x.paused) == 0 && x.calm == never {
		x.calm = x.w.Now
		for i, a := range x.w.nodes {
			for _, b := range x.w.nodes[i+1:] {
				if !a.Links[b.Actor] && a.Name != x.lost && b.Name != x.lost {
					x.do("join %s %s", a.Name, b.Name)
				}
			}
		}
	}
}

// dequeue makes a client take a job out of its queue, and put it back.
func (x *walk) dequeue(j *walkJob) {
	at := x.up()
	if !j.answered || j.ended() || j.asked != "" || j.given > 0 || !strings.HasPrefix(x.do("dequeue %s %s", at, j.name), "true") {
		return
	}
	was := j.dueAt
	if j.dueAt = x.at + j.retry*1000 + 1500; j.once {
		j.dueAt = never // it stays out of its queue
	}
	x.do("deliver")
	if strings.HasPrefix(x.do("enqueue %s %s", at, j.name), "true") && !x.faultSince(j) {
		j.dueAt = was
	}
	x.do("deliver")
}

// idle makes all workers wait in vain.
func (x *walk) idle() {
	clear(x.polls)
	for _, w := range x.workers {
		if w.job = nil; !w.waits && x.failure == "" {
			if x.ask(w); w.job != nil {
				x.fail("in the end %s is delivered", w.job.name)
			}
			x.do("deliver")
		}
	}
}

func (x *walk) named(name string) *actor {
	return x.w.nodes[slices.IndexFunc(x.w.nodes, func(n *actor) bool { return n.Name == name })]
}
