package engine_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	walkSeeds = flag.Int("walk.seeds", 0, "random walks of each kind, too")
	walkSeed  = flag.Uint64("walk.seed", 0, "walk by this seed alone, and print the conversation")
)

// walkKind is what can happen in a walk, besides that clients add, get, acknowledge and give back jobs.
type walkKind struct {
	families bool // most jobs wait for others, or are deferred
	pauses   bool // queues are paused at one node, or at all nodes
	cuts     bool // a connection breaks, and what is under way is lost
	crashes  bool
	stalls   bool // a node stands still
	cancels  bool
	leaving  bool
	queues   bool // two queues, and jobs are released from one into the other

	// for TestFaultWalks:
	clocks   bool // nodes' clocks are up to a second wrong
	once     bool // many jobs have RETRY 0
	long     bool // most RETRY are long
	everySec bool // a crash loses what a node logged in the last second
	losses   bool // a node is lost, and a new node, or its replica, takes its place
	reloads  bool // DEBUG RELOAD
	deletes  bool // a queue is deleted at one node
}

var walkKinds = map[string]walkKind{
	"plain":                 {},
	"families":              {families: true},
	"families, pauses":      {families: true, pauses: true},
	"families, cancels":     {families: true, cancels: true},
	"families, two queues":  {families: true, queues: true},
	"cuts":                  {cuts: true},
	"crashes":               {crashes: true},
	"stalls":                {stalls: true},
	"leaving":               {leaving: true},
	"two queues and stalls": {queues: true, stalls: true},
}

func (k walkKind) faults() bool { return k.cuts || k.crashes || k.stalls }

// TestWalks makes clients of a mesh do at random what clients do, through the commands of the scripts. Messages
// are delivered late or in part. It judges what each client gets. No job comes twice without a reason, after its
// acknowledgement, or before the jobs that it waits for. No job comes later than a
// second while a client waits for it (16 s if more than clients are in its way). A walk that
// fails prints its conversation, which is nearly a script.
func TestWalks(t *testing.T) {
	for name, kind := range walkKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			walks(t, 3, func(seed uint64) *walk {
				x := newWalk(t, seed, kind)
				x.run(800)
				return x
			})
		})
	}
}

// walks plays the first seeds, and the seeds that the flags ask for.
func walks(t *testing.T, fixed int, play func(seed uint64) *walk) {
	if *walkSeed != 0 {
		x := play(*walkSeed)
		fmt.Print(x.log.String())
		if x.failure != "" {
			t.Error(x.failure)
		}
		return
	}
	for i := range fixed + *walkSeeds {
		seed := uint64(i + 1)
		if i >= fixed {
			seed = rand.Uint64()
		}
		if x := play(seed); x.failure != "" {
			t.Errorf("%s\nwalk again: go test ./module/engine -run '^%s$' -walk.seed %d", x.failure, strings.ReplaceAll(t.Name(), "/", "$/^"), seed)
		}
	}
}

// walkJob is what the judge knows of a job.
type walkJob struct {
	name, queue        string
	once               bool // at most once (RETRY 0)
	answered, refused  bool
	acked, cancelled   bool  // cancelled: or the job ended undone in another way
	endedAt            int64 // when it was acknowledged, or when something else ended it
	vague              bool  // the message about its end is under way, or can be lost by a fault
	free               bool  // nobody knows when it is to come, for example after the cancel of a job that it waited for
	parents            []*walkJob
	onDead             bool // ONDEAD run
	deferred, released bool
	blocks             *walkJob // the job that blocks this one (BLOCKEDBY)
	last               bool
	notBefore          int64
	given, reasons     int   // how often it was delivered, and how many reasons there were for deliveries after the first
	hands              int   // how many workers have it
	ready              int64 // since when it could be delivered; 0: it can't
	byKey                    // for a unique job
	throughFaults            // if nodes fail
}

func (j *walkJob) ended() bool { return j.acked || j.cancelled }

type worker struct {
	node, name, queue string
	waits             bool
	since, until      int64 // since when it waits, and until when it works on its job
	job               *walkJob
	turn              int // the number of its delivery among the deliveries of its job
}

// walkJudge is told what clients hear.
type walkJudge interface {
	got(w *worker, j *walkJob)
	promised(j *walkJob, name string) // an ADDJOB that waited is answered with the ID of this job
	refused(j *walkJob, why string)
	worked(j *walkJob, err string) // a WORKING that waited is answered; err is "<nil>" without an error
}

type walk struct {
	walkKind
	walkJudge
	*rand.Rand
	t        *testing.T
	w        *world
	at       int64 // the time of the event that is judged
	log      strings.Builder
	jobs     map[string]*walkJob
	list     []*walkJob
	workers  []*worker
	polls    map[string]bool // nodes whose clients don't wait
	paused   map[string]bool
	down     string
	left     string
	calm     int64 // since when nothing has been in the way of a delivery
	failure  string
	asksIdle bool // nodes ask about idle copies
	trouble
}

func newWalk(t *testing.T, seed uint64, kind walkKind) *walk {
	x := &walk{
		walkKind: kind, Rand: rand.New(rand.NewPCG(seed, 7)), t: t, w: newWorld(),
		jobs: map[string]*walkJob{}, polls: map[string]bool{}, paused: map[string]bool{},
	}
	x.walkJudge = plainJudge{x}
	x.asksIdle = seed%3 == 0
	return x
}

var (
	walkGives   = regexp.MustCompile(`^ +\w gives (\w+) to (\w+)$`)
	walkAnswers = regexp.MustCompile(`^ +\w answers ADDJOB (\w+): (.*)$`)
	walkWorked  = regexp.MustCompile(`^ +\w answers WORKING (\w+): (.*)$`)
	walkAway    = regexp.MustCompile(`^ +\w sends (\w+) away`)
	walkGot     = regexp.MustCompile(`(?m)^got (\w+) `)
	walkTime    = regexp.MustCompile(`^([0-9]\S*):$`)
)

// do plays a line of a script, and tells the judge what clients hear.
func (x *walk) do(format string, args ...any) string {
	line := fmt.Sprintf(format, args...)
	before := x.w.Now
	out := x.w.PlayLine(x.t, line)
	if !strings.HasPrefix(line, "deliver") || out != "ok\n" {
		fmt.Fprintf(&x.log, "%s\n----\n%s\n", line, out)
	}
	for l := range strings.SplitSeq(out, "\n") {
		x.hear(l)
	}
	if x.w.Now > before { // without this the judge's own commands would change it
		x.at = x.w.Now
	}
	return out
}

// hear tells the judge of one line of output.
func (x *walk) hear(l string) {
	if m := walkGives.FindStringSubmatch(l); m != nil {
		w := x.worker(m[2])
		w.waits = false
		x.got(w, x.jobs[m[1]])
	} else if m := walkAnswers.FindStringSubmatch(l); m != nil && x.jobs[m[2]] != nil {
		x.promised(x.jobs[m[1]], m[2])
	} else if m != nil {
		x.refused(x.jobs[m[1]], m[2])
	} else if m := walkWorked.FindStringSubmatch(l); m != nil {
		x.worked(x.jobs[m[1]], m[2])
	} else if m := walkAway.FindStringSubmatch(l); m != nil {
		x.worker(m[1]).waits = false
	} else if m := walkTime.FindStringSubmatch(l); m != nil {
		d, err := time.ParseDuration(m[1])
		require.NoError(x.t, err)
		x.at = dawn + d.Milliseconds()
	}
}

func (x *walk) worker(name string) *worker {
	return x.workers[slices.IndexFunc(x.workers, func(w *worker) bool { return w.name == name })]
}

func (x *walk) fail(format string, args ...any) {
	if x.failure == "" {
		x.failure = fmt.Sprintf(format, args...)
		fmt.Fprintf(&x.log, "# at %d ms: %s\n\n", x.at-dawn, x.failure)
	}
}

// plainJudge judges jobs that aren't unique.
type plainJudge struct{ *walk }

func (x plainJudge) promised(j *walkJob, _ string) { j.answered = true }
func (x plainJudge) refused(j *walkJob, _ string)  { j.refused = true }
func (x plainJudge) worked(*walkJob, string)       {}

// got judges a delivery.
func (x plainJudge) got(w *worker, j *walkJob) {
	j.given++
	switch {
	case j.acked && !j.vague && x.w.Now > j.endedAt+1000:
		x.fail("%s is delivered %d ms after its acknowledgement", j.name, x.w.Now-j.endedAt)
	case j.given > 1+j.reasons && (!x.faults() || j.once):
		x.fail("%s is delivered %d times, with %d reasons", j.name, j.given, j.reasons)
	case x.w.Now < j.notBefore-20:
		x.fail("%s is delivered before its delay is over", j.name)
	case j.free:
	case j.deferred && !j.released:
		x.fail("%s is delivered before its release", j.name)
	default:
		for _, p := range x.awaited(j) {
			x.fail("%s is delivered before %s", j.name, p.name)
		}
	}
	j.hands++
	x.begins(w, j)
}

// begins makes a worker work on a job for some time.
func (x *walk) begins(w *worker, j *walkJob) {
	j.ready, w.job = 0, j
	w.until = x.w.Now + []int64{5, 5, 20, 50, 100, 400, 700, 1500, 9000}[x.IntN(9)]
}

// awaited lists the jobs that a job still waits for.
func (x *walk) awaited(j *walkJob) (list []*walkJob) {
	for _, p := range j.parents {
		if !p.ended() {
			list = append(list, p)
		}
	}
	if p := j.blocks; p != nil && !p.ended() && !(p.last && p.released) {
		list = append(list, p)
	}
	if j.last {
		for _, c := range x.list {
			if c.blocks == j && c.answered && !c.ended() {
				list = append(list, c)
			}
		}
	}
	return list
}

// due says whether a job is to be delivered as soon as a client asks.
func (x *walk) due(j *walkJob) bool {
	return j.answered && !j.refused && !j.ended() && !j.free && j.hands == 0 && x.w.Now >= j.notBefore &&
		!(j.once && j.given > 0) && (!j.deferred || j.released) && len(x.awaited(j)) == 0 &&
		!(j.once && slices.ContainsFunc(x.list, func(c *walkJob) bool { return slices.Contains(c.parents, j) })) // an at-most-once job stays at its node while others wait for it
}

// up returns a node that isn't down.
func (x *walk) up() string {
	for {
		if n := x.w.nodes[x.IntN(len(x.w.nodes))]; n.Name != x.down && n.Name != x.lost {
			return n.Name
		}
	}
}

// some returns one of the jobs that were added last.
func (x *walk) some() *walkJob {
	if len(x.list) == 0 {
		return &walkJob{}
	}
	return x.list[max(0, len(x.list)-1-x.IntN(12))]
}

func (x *walk) queue() string {
	if x.queues && x.IntN(3) == 0 {
		return "r"
	}
	return "q"
}

func (x *walk) add() {
	j := &walkJob{name: fmt.Sprintf("j%d", len(x.list)+1), queue: x.queue()}
	line := fmt.Sprintf("add %s %s ttl=100000 queue=%s", x.up(), j.name, j.queue)
	kind := x.IntN(10)
	if x.families {
		kind = x.IntN(4)
	}
	if j.once = kind > 2 && x.IntN(5) == 0; j.once {
		line += " retry=0"
	} else {
		line += fmt.Sprintf(" retry=300 replicate=%d", 1+x.IntN(len(x.w.nodes)))
		if x.IntN(6) == 0 {
			line += " async"
			j.free = x.faults() // nothing is promised
		}
	}
	if x.IntN(4) == 0 {
		delay := 1 + x.IntN(6)
		line += fmt.Sprintf(" delay=%d", delay)
		j.notBefore = x.w.Now + int64(delay)*1000
	}
	switch {
	case kind <= 1:
		line += x.after(j)
	case kind == 2:
		if p := x.some(); p.deferred && !p.released && !p.ended() && x.IntN(4) > 0 {
			j.blocks, j.deferred = p, x.IntN(8) == 0
			line += " blockedby=" + p.name
		} else {
			j.deferred = true
		}
		if j.deferred {
			line += " deferred"
		}
	}
	x.jobs[j.name], x.list = j, append(x.list, j)
	switch first, _, _ := strings.Cut(x.do("%s", line), "\n"); {
	case first == "added":
		j.answered = true
	case !strings.HasPrefix(first, "waits"):
		j.refused = true
	}
}

// after makes a job wait for some of the others.
func (x *walk) after(j *walkJob) string {
	var names []string
	for range 1 + x.IntN(3) {
		if p := x.some(); p.answered && !p.ended() && !slices.Contains(j.parents, p) {
			j.parents, names = append(j.parents, p), append(names, p.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	line := " after=(" + strings.Join(names, ",") + ")"
	if j.onDead = x.IntN(2) == 0; j.onDead {
		line += " run"
	}
	return line
}

// done makes a worker acknowledge its job, or give it back, mostly at the node where it got it.
func (x *walk) done(w *worker) {
	j := w.job
	w.job = nil
	j.hands--
	where := w.node
	if x.IntN(3) == 0 || where == x.down {
		where = x.up()
	}
	verb := []string{"ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "fastack", "enqueue", "nack", "nack"}[x.IntN(12)]
	switch {
	case verb == "nack" || verb == "enqueue" && !j.once && where == w.node:
		j.reasons++
		if strings.HasPrefix(x.do("%s %s %s", verb, where, j.name), "true") {
			return
		}
		if j.reasons--; j.once {
			return
		}
		verb = "ack"
	case verb == "enqueue" || x.faults():
		verb = "ack"
	}
	if !j.acked {
		j.acked, j.endedAt = true, x.w.Now
	}
	if out := x.do("%s %s %s", verb, where, j.name); x.faults() && !strings.HasPrefix(out, "true") {
		j.vague = true
	}
}

// cancel ends the jobs that wait for the job, too. The judge doesn't follow how far that goes.
func (x *walk) cancel(j *walkJob) {
	j.cancelled = true
	for _, c := range x.list {
		if c != j && !c.cancelled && (slices.Contains(c.parents, j) && !c.onDead || c.blocks == j) {
			c.free = true
			x.cancel(c)
		} else if slices.Contains(c.parents, j) || c.last {
			c.free = c.free || j.free || c.last
		}
	}
}

// work lets each worker go on.
func (x *walk) work(quiet bool) {
	for _, w := range x.workers {
		switch {
		case w.node == x.down:
		case w.job != nil && x.w.Now < w.until:
		case w.job != nil && !w.job.once && x.IntN(8) == 0:
			x.do("working %s %s", w.node, w.job.name)
			w.until = x.w.Now + int64(x.IntN(6000))
		case w.job != nil:
			x.done(w)
		case w.waits || quiet || x.IntN(3) > 0:
		default:
			x.ask(w)
		}
	}
}

// ask makes a worker ask for a job, and wait for it unless it polls.
func (x *walk) ask(w *worker) {
	line := fmt.Sprintf("get %s queue=%s", w.node, w.queue)
	if !x.polls[w.node] {
		line += " wait=" + w.name
	}
	out := x.do("%s", line)
	if strings.HasPrefix(out, "nothing") && strings.Contains(out, " CLAIM ") { // a client that polls waits for a run's votes, too
		out = x.do("%s wait=%s", line, w.name)
	}
	if m := walkGot.FindStringSubmatch(out); m != nil {
		x.got(w, x.jobs[m[1]])
	} else if strings.Contains(out, " waits") {
		w.waits, w.since = true, x.w.Now
	}
}

// happen plays what a client, an operator or chance does next.
func (x *walk) happen() {
	switch k := x.IntN(30); {
	case k < 5:
		x.add()
	case k < 9:
		if j := x.some(); j.deferred && !j.released && j.answered {
			x.release(j)
		}
	case k == 9 && x.pauses && len(x.paused) == 0:
		n, how := x.up(), []string{"in", "out", "all"}[x.IntN(3)]
		x.paused[n] = true
		if x.IntN(2) == 0 {
			how += " bcast"
			for _, m := range x.w.nodes {
				x.paused[m.Name] = true
			}
		}
		x.do("pause %s %s", n, how)
	case k == 10 && x.cuts:
		a, b := x.up(), x.up()
		if a == b {
			return
		}
		x.do("cut %s %s", a, b)
		x.do("deliver")
		if x.IntN(2) == 0 {
			x.do("advance %dms deliver", 1+x.IntN(3000))
		}
		x.do("join %s %s", a, b)
		x.calm = x.w.Now
	case k == 11 && x.crashes && x.down == "" && x.IntN(3) == 0:
		x.crash()
	case k == 12 && x.stalls:
		n := x.up()
		x.do("stall %s", n)
		x.do("deliver")
		x.do("advance %dms deliver", 1+x.IntN([]int{100, 2000, 14000}[x.IntN(3)]))
		x.do("wake %s", n)
		x.calm = x.w.Now
	case k == 13 && x.leaving && x.left == "":
		x.left = x.up()
		x.do("leaving %s yes", x.left)
	case k == 14 && x.cancels:
		if j := x.some(); j.answered && !j.acked && !j.cancelled && j.given == 0 {
			x.cancel(j)
			x.do("cancel %s %s", x.up(), j.name)
		}
	case k == 15 && x.IntN(3) == 0:
		j := x.some()
		if !j.answered || j.given > 0 || j.acked {
			return
		}
		if n := x.up(); strings.HasPrefix(x.do("dequeue %s %s", n, j.name), "true") {
			if x.IntN(2) == 0 {
				x.do("deliver")
			}
			x.do("enqueue %s %s", n, j.name)
		}
	}
}

func (x *walk) crash() (out string) {
	x.down = x.up()
	if x.everySec {
		out = x.do("crash %s loses=%dms", x.down, x.IntN(1000))
	} else {
		out = x.do("crash %s", x.down)
	}
	for _, w := range x.workers {
		if w.node == x.down {
			w.waits = false
		}
	}
	return out
}

// release releases a job. It says whether the job was released, why it wasn't, and into which queue.
func (x *walk) release(j *walkJob) (released bool, why, queue string) {
	line, last := fmt.Sprintf("release %s %s", x.up(), j.name), x.IntN(2) == 0
	if queue = j.queue; last {
		line += " last"
	}
	if x.queues && x.IntN(2) == 0 {
		queue = x.queue()
		line += " queue=" + queue
	}
	// The job is released before its node has told the others: the release can unblock others at once.
	was := *j
	j.released, j.last, j.queue = true, last, queue
	if why = x.do("%s", line); strings.HasPrefix(why, "waits for the others") || strings.HasPrefix(why, "1") {
		return true, "", queue
	}
	j.released, j.last, j.queue = was.released, was.last, was.queue
	return false, why, queue
}

// heal ends what is in the way: some of it at random, or all of it.
func (x *walk) heal(all bool) {
	if x.down != "" && (all || x.IntN(10) == 0) {
		x.do("restart %s", x.down)
		x.down, x.calm = "", x.w.Now
	}
	if x.left != "" && (all || x.IntN(30) == 0) {
		x.do("leaving %s no", x.left)
		x.left, x.calm = "", x.w.Now
	}
	if len(x.paused) > 0 && (all || x.IntN(10) == 0) {
		x.do("deliver")
		for _, n := range x.w.nodes {
			if x.paused[n.Name] {
				x.do("pause %s none bcast", n.Name)
			}
		}
		clear(x.paused)
		x.calm = x.w.Now
	}
}

// judge looks for jobs that aren't delivered though clients wait.
func (x *walk) judge() {
	for _, j := range x.list {
		if late := x.lies(j, x.due(j)); late > x.patience() {
			if shown := x.do("show %s", j.name); j.once && x.faults() && strings.Contains(shown, "uncertain") {
				j.free = true
			} else {
				x.fail("%s isn't delivered, for %d ms: %s", j.name, late, shown)
			}
		}
	}
}

// patience is how long a job may lie while a client waits for it, in ms. If only clients that come and go are in its way, it lies
// until its node has told the others. In the worst case it then moves twice more to a node whose client has gone.
func (x *walk) patience() int64 {
	if x.faults() || x.pauses || x.leaving || x.cancels {
		return 16_000
	}
	if x.families {
		return 4_000 // a holder must find out that the first one, which was to unblock the job, has no copy any more
	}
	return 1_000
}

// lies says how long a job has been due while a client waited for it.
func (x *walk) lies(j *walkJob, due bool) (late int64) {
	if !due {
		j.ready = 0
		return 0
	}
	if j.ready == 0 {
		j.ready = x.w.Now
	}
	for _, w := range x.workers {
		if w.waits && w.queue == j.queue {
			late = max(late, x.w.Now-max(j.ready, x.calm, w.since))
		}
	}
	return late
}

// open makes a mesh with workers.
func (x *walk) open(nodes int) {
	options := ""
	if x.asksIdle {
		options = " idle"
	}
	x.do("mesh nodes=%d remembers adders%s", nodes, options)
	for _, n := range x.w.nodes {
		x.polls[n.Name] = x.IntN(4) == 0
		for i := range 2 + x.IntN(2) {
			w := &worker{node: n.Name, name: fmt.Sprintf("w%s%d", n.Name, i), queue: "q"}
			if x.queues && i%2 == 1 {
				w.queue = "r"
			}
			x.workers = append(x.workers, w)
		}
	}
}

func (x *walk) run(steps int) {
	x.open(2 + x.IntN(3))
	quiet := false
	for step := 0; step < steps && x.failure == ""; step++ {
		end := step > steps*3/4
		if quiet = !end && quiet != (x.IntN(40) == 0); quiet {
			x.calm = x.w.Now
		}
		x.work(quiet)
		if !end {
			x.happen()
		}
		x.heal(end)
		if x.IntN(6) == 0 {
			x.do("deliver once")
		} else {
			x.do("deliver")
		}
		if x.IntN(3) > 0 {
			x.do("advance %dms", 1+x.IntN(15))
		} else {
			x.do("deliver")
			x.do("advance %dms deliver", 1+x.IntN(1500))
		}
		if x.left != "" || x.down != "" || len(x.paused) > 0 {
			x.calm = x.w.Now
		}
		x.judge()
	}
}
