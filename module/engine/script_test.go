package engine_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/store/storetest"
	"jobmesh/module/wire"
)

// TestScripts plays testdata/*.txt: conversations between nodes, with all that
// they send and do. testdata/defects has a script for each defect of Disque's mesh, which
// doesn't occur here; B and a number name it. "go test ./module/engine -run Scripts -rewrite" writes what
// the nodes do now into the files. Read and judge that before you keep it.
//
// Nodes are called a, b, c …; the script names jobs and clients. A node's
// messages are held until "deliver". Heartbeats, and pages of the tables of locks,
// arrive at once and aren't shown, unless the mesh was made with "beats" or "tables".
// A mesh that was made with "remembers" knows after restarts how long its votes can have
// lasted. In a mesh with "idle" nodes ask about idle copies, and ask for jobs more often. Without it each rule shows
// what becomes of a job by that rule alone.
// In a mesh with "adders" a late answer to an ADDJOB also names the ADDJOB's job.
func TestScripts(t *testing.T) {
	for _, pattern := range []string{"testdata/*.txt", "testdata/defects/*.txt"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				w := &world{}
				datadriven.RunTest(t, file, w.play)
			})
		}
	}
}

const dawn = 1_700_000_000_000

type world struct {
	t             *testing.T
	d             *datadriven.TestData
	out           strings.Builder
	now           int64
	nodes         []*actor
	jobs          map[store.ID]string
	ids           map[string]store.ID
	sent          []letter
	beats, tables bool
	idle          bool // nodes ask about idle copies; else the other rules show by themselves
	adders        bool
	why           string   // the reason that the last refusal of a lock gave
	quick         []letter // heartbeats, and pages of the tables of locks, on their way
}

type letter struct {
	from, to *actor
	m        []byte
}

type actor struct {
	w     *world
	name  string
	id    wire.NodeID
	e     *engine.Node
	k     *keys
	disk  map[store.ID][2][]byte
	order []store.ID
	peers []wire.NodeID
	links map[*actor]bool
	next  int64
	off   int64 // how far its wall clock is ahead of the others'
	down  bool
	still bool // stands still: it neither ticks nor receives
	life  uint64
	locks map[string][]byte // its log of locks
	floor uint64
	table uint64 // its log of the table of locks as a whole
	gone  engine.Deletions
	past  engine.Past
	votes lock.Votes
	keeps bool

	tail []logged // the entries about jobs that aren't on disk for sure, if that takes a second

	choked  bool // its bus accepts nothing
	refused []letter
}

func (w *world) play(t *testing.T, d *datadriven.TestData) string {
	w.t, w.d = t, d
	w.out.Reset()
	commands := map[string]func(){
		"mesh": w.mesh, "mesh-beats": func() { w.beats = true }, "add": w.add, "get": w.get, "ack": w.ack, "deliver": w.deliver, "drop": w.drop,
		"advance": w.advance, "show": w.show, "crash": w.crash, "restart": w.restart, "cut": w.cut, "join": w.join,
		"memory": w.pressure, "leaving": w.leave, "pause": w.pause, "forget": w.forget, "meet": w.meet, "nodes": w.table,
		"inject": w.inject, "qlen": w.qlen, "load": w.load, "skew": w.skew, "reset": w.reset,
		"acquire": w.acquire, "extend": func() { w.extend(false) }, "letgo": func() { w.extend(true) }, "unlock": w.unlock, "unheard": w.unheard, "locks": w.locks, "why": func() { w.say("%s", w.why) },
		"know":      w.know,
		"clearlock": w.clearLock, "distrust": w.distrust, "lostlock": w.lostLock,
		"choke": func() { w.actor(0).choked = true }, "unchoke": func() { w.actor(0).choked = false },
		"loads": func() { w.actor(0).e.BeginLoading() }, "loaded": func() { w.actor(0).e.EndLoading() },
		"take": func() { w.actor(0).k.taken[w.word(1)] = true }, "untake": func() { w.actor(0).k.taken[w.word(1)] = false },
		"stall": func() { w.actor(0).still = true }, "wake": func() { w.actor(0).still = false },
		"undeliver": func() {
			n, id := w.actor(0), w.id(1)
			n.do(func() { n.e.Undeliver(engine.DeliveryOf(n.e.Job(&id))) })
		},
		"follow": func() { // NODE OTHER: it becomes a replica of another node, whose data it loads
			n, other := w.actor(0), w.actor(1)
			n.do(func() { n.e.SetPassive(true) })
			n.do(func() { n.e.Flushed(-1) })
			n.disk, n.order = map[store.ID][2][]byte{}, nil
			n.do(func() {
				clear(n.k.boxes)
				n.e.BeginLoading()
				for _, id := range other.order {
					if d, yes := other.disk[id]; yes {
						n.disk[id], n.order = d, append(n.order, id)
						require.NoError(w.t, n.e.ApplyJob(d[0], d[1]))
					}
				}
				n.e.Locks().Drop()
				n.locks, n.floor, n.table = maps.Clone(other.locks), other.floor, other.table
				n.loadLocks()
				n.e.EndLoading()
				n.e.Follow()
			})
		},
		"promote": func() { n := w.actor(0); n.do(func() { n.e.SetPassive(false) }); n.noteUncertain() },
		"flush":   func() { n := w.actor(0); n.do(n.e.Flush) },
		"passive": func() { n := w.actor(0); n.do(func() { n.e.SetPassive(true) }) }, // NODE: it becomes a replica
		"inherit": func() { // NODE OTHER: it gets what another node has logged, as a replica that is to be promoted in its place
			n, other := w.actor(0), w.actor(1)
			n.disk, n.order = maps.Clone(other.disk), slices.Clone(other.order)
		},
		"delqueue": func() {
			n := w.actor(0)
			q := n.e.Queue([]byte(w.word(1)))
			for id, d := range n.disk {
				if string(d[0]) == w.word(1) {
					delete(n.disk, id)
				}
			}
			n.do(func() { n.k.Drop([]*store.Queue{q}) })
		},
		"token": func() { // NODE JOB: the job's token, and what clients are shown of it
			n, id := w.actor(0), w.id(1)
			t := n.e.Token(n.e.Job(&id))
			if t == 0 {
				w.say("none")
				return
			}
			w.say("%s shown %d", w.token(t), lock.ShownToken(t)-lock.ShownToken(uint64(dawn)<<20))
		},
		"clock": func() { // NODE SPAN: sets the wall clock of a node that is down that far ahead of the others'
			n := w.actor(0)
			text, back := strings.CutPrefix(w.word(1), "-")
			if n.off = w.span(text); back {
				n.off = -n.off
			}
		},
		"release": w.release, "cancel": w.cancel, "body": w.body, "newnode": w.newNode, "reload": w.reload,
	}
	for _, verb := range []string{"fastack", "del", "nack", "enqueue", "dequeue", "working"} {
		commands[verb] = func() { w.verb(verb) }
	}
	f := commands[d.Cmd]
	if f == nil {
		d.Fatalf(t, "no such command: %s", d.Cmd)
	}
	f()
	w.flush()
	if w.out.Len() == 0 {
		return "ok\n"
	}
	return w.out.String()
}

func (w *world) say(format string, args ...any) { fmt.Fprintf(&w.out, format+"\n", args...) }

func (w *world) mesh() {
	count, timeout := 3, int64(membership.DefaultTimeout)
	w.arg("nodes", &count)
	w.arg("timeout", &timeout)
	*w = world{t: w.t, d: w.d, now: dawn, jobs: map[store.ID]string{}, ids: map[string]store.ID{}, beats: w.d.HasArg("beats"), tables: w.d.HasArg("tables"), adders: w.d.HasArg("adders"), idle: w.d.HasArg("idle")}
	for i := range count {
		n := w.newActor()
		if w.d.HasArg("near") { // their tokens differ only in bits that clients aren't shown
			n.id[6], n.id[7] = 0x11, byte(0x10*(i+1))
		}
		n.start(timeout)
		n.e.SetExpiresInHands(w.d.HasArg("disque"))
		if n.votes = (lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true}); w.d.HasArg("remembers") {
			n.votes = lock.Votes{}
			n.e.Locks().SetVotes(n.votes)
		}
	}
	if w.d.HasArg("apart") {
		return
	}
	for i, n := range w.nodes {
		for _, p := range w.nodes[i+1:] {
			w.connect(n, p)
		}
	}
	w.flush()
	w.out.Reset()
}

// newActor makes one more node, and doesn't start it.
func (w *world) newActor() *actor {
	i := len(w.nodes)
	n := &actor{w: w, name: string(rune('a' + i)), disk: map[store.ID][2][]byte{}, locks: map[string][]byte{}, links: map[*actor]bool{}, next: w.now + 1}
	for k := range n.id {
		n.id[k] = byte(0x11 * (i + 1))
	}
	w.nodes = append(w.nodes, n)
	return n
}

// newNode starts one more node, which knows no other. If the command names a node, the new one is its replica, and is promoted.
func (w *world) newNode() {
	n := w.newActor()
	n.start(membership.DefaultTimeout)
	w.say("%s", n.name)
	if len(w.d.CmdArgs) == 0 {
		n.e.StartsNew()
		return
	}
	other := w.actor(0)
	n.do(func() {
		n.e.SetPassive(true)
		n.e.BeginLoading()
		for _, id := range other.order {
			if d, yes := other.disk[id]; yes {
				n.disk[id], n.order = d, append(n.order, id)
				require.NoError(w.t, n.e.ApplyJob(d[0], d[1]))
			}
		}
		n.e.EndLoading()
		n.e.Follow()
	})
	n.do(func() { n.e.SetPassive(false) })
	n.noteUncertain()
}

// noteUncertain writes into the log which jobs are uncertain, as JOBMESH EPOCH does.
func (n *actor) noteUncertain() {
	for id, d := range n.disk {
		if j := n.e.Job(&id); j != nil && j.Uncertain() {
			n.disk[id] = [2][]byte{d[0], slices.Clone(j.Record())}
		}
	}
}

// reload makes a node load what it has just saved, as DEBUG RELOAD does.
func (w *world) reload() {
	n := w.actor(0)
	type saved struct{ queue, record []byte }
	var jobs []*store.Job
	var all []saved
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		cursor = n.e.ScanJobs(cursor, &jobs)
	}
	for i, j := range jobs {
		if j.State != store.StateWaitRepl && !n.e.Nameless(j) && !slices.Contains(jobs[:i], j) {
			all = append(all, saved{slices.Clone(j.Queue.NameBytes()), slices.Clone(j.Record())})
		}
	}
	n.do(func() { n.e.Flushed(-1) })
	n.do(func() {
		clear(n.k.boxes)
		n.e.BeginLoading()
		for _, s := range all {
			require.NoError(w.t, n.e.ApplyJob(s.queue, s.record))
		}
		n.e.EndLoading()
		n.e.Settle(engine.Trust{Exact: true, Same: true})
	})
}

func (n *actor) start(timeout int64) {
	n.life++
	n.down = false
	n.k = &keys{boxes: map[*store.Queue]unsafe.Pointer{}, taken: map[string]bool{}}
	n.e = engine.New(engine.Config{
		Alloc: storetest.New(), Keys: n.k, Random: rand.NewPCG(uint64(n.id[0]), n.life), NodeID: n.id.String(), Now: n.w.now + n.off, NodeTimeout: timeout,
	})
	n.k.n = n.e
	n.e.SetLazy(!n.w.idle)
}

// do runs an event at a node and shows its effects.
func (n *actor) do(f func()) {
	n.e.SetNow(n.w.now + n.off)
	f()
	for _, e := range n.e.Effects() {
		n.effect(&e)
	}
	if n.keeps {
		n.keeps = false
		n.do(func() { n.e.Locks().VotesKept(n.votes) })
	}
	if refused := n.refused; len(refused) > 0 {
		n.refused = nil
		n.do(func() {
			for _, l := range refused {
				n.e.Unsent(l.to.id, wire.Kind(l.m[0]), (*wire.JobID)(l.m[2:]))
			}
		})
	}
	n.next = min(n.next+n.off, n.e.EarliestArmed()) - n.off
}

func (n *actor) effect(e *engine.Effect) {
	w := n.w
	switch e.Kind {
	case engine.LogJob, engine.LogState:
		n.logs(e.Job.ID)
		if _, yes := n.disk[e.Job.ID]; !yes {
			n.order = append(n.order, e.Job.ID)
		}
		n.disk[e.Job.ID] = [2][]byte{slices.Clone(e.Job.Queue.NameBytes()), slices.Clone(e.Job.Record())}
		w.say("  %s logs %s: %s", n.name, w.job(e.Job.ID), w.state(e.Job))
	case engine.LogDelete:
		n.logs(e.ID)
		delete(n.disk, e.ID)
		w.say("  %s logs %s: gone", n.name, w.job(e.ID))
	case engine.LogFlush:
		n.tail = nil
		clear(n.disk)
		n.order = nil
		w.say("  %s logs flush", n.name)
	case engine.LogQueue:
		w.say("  %s logs queue %s", n.name, e.Queue.NameBytes())
	case engine.Serve:
		w.say("  %s gives %s to %v", n.name, w.job(e.Job.ID), e.Waiter.Client)
	case engine.Release:
		w.say("  %s sends %v away: %v", n.name, e.Waiter.Client, e.Err)
	case engine.Released:
		w.say("  %s answers RELEASEJOB %v: %d", n.name, e.Client, e.Nodes)
	case engine.Promise:
		w.say("  %s answers ADDJOB%s: %s", n.name, w.adder(e), w.job(e.ID))
	case engine.Deny:
		if w.adders {
			w.say("  %s answers ADDJOB%s: %v", n.name, w.adder(e), e.Err)
			break
		}
		w.say("  %s refuses %s: %v", n.name, w.job(e.ID), e.Err)
	case engine.Send:
		to := w.node(e.Peer.ID)
		l := letter{n, to, slices.Clone(n.e.Message(e))}
		k := l.read().Kind
		if k == wire.Heartbeat && !w.beats || (k == wire.LockPull || k == wire.LockPage) && !w.tables {
			w.quick = append(w.quick, l)
			return
		}
		if n.choked {
			w.say("  %s isn't accepted", l)
			n.refused = append(n.refused, l)
			return
		}
		w.say("  %s", l)
		w.sent = append(w.sent, l)
	case engine.Connect:
		w.say("  %s connects to %s", n.name, w.node(e.Peer.ID).name)
	case engine.Disconnect:
		w.say("  %s disconnects %s", n.name, w.node(e.Peer.ID).name)
		other := w.node(e.Peer.ID)
		if w.unlink(n, other); !other.down {
			other.do(func() { other.e.Mesh().Down(n.id) })
		}
	case engine.NodesChanged:
		n.gone, n.past = n.e.Deletions(), n.e.Past()
		n.peers = n.peers[:0]
		for _, p := range n.e.Mesh().All() {
			n.peers = append(n.peers, p.ID)
		}
	default:
		n.lockEffect(e)
	}
}

// logged is what a node's log had of a job before the node logged something about the job.
type logged struct {
	at     int64
	id     store.ID
	before [2][]byte
	known  bool
}

func (n *actor) logs(id store.ID) {
	n.tail = slices.DeleteFunc(n.tail, func(l logged) bool { return l.at < n.w.now-1000 })
	before, known := n.disk[id]
	n.tail = append(n.tail, logged{n.w.now, id, before, known})
}

// tears loses what a node has logged in the last lost ms.
func (n *actor) tears(lost int64) {
	for _, l := range slices.Backward(n.tail) {
		if l.at < n.w.now-lost {
			break
		}
		n.w.say("  %s loses what it logged of %s", n.name, n.w.job(l.id))
		switch _, has := n.disk[l.id]; {
		case !l.known:
			delete(n.disk, l.id)
			n.order = slices.DeleteFunc(n.order, func(id store.ID) bool { return id == l.id })
		case !has && !slices.Contains(n.order, l.id):
			n.order = append(n.order, l.id)
			fallthrough
		default:
			n.disk[l.id] = l.before
		}
	}
	n.tail = nil
}

// adder names the ADDJOB that is answered.
func (w *world) adder(e *engine.Effect) string {
	if !w.adders {
		return ""
	}
	return fmt.Sprintf(" %v", e.Client)
}

func (l letter) read() (m wire.Message) {
	if err := m.Parse(l.m); err != nil {
		panic(err)
	}
	return m
}

var kindNames = map[wire.Kind]string{
	wire.ReplJob: "REPLJOB", wire.GotJob: "GOTJOB", wire.Refused: "REFUSED", wire.Holders: "HOLDERS", wire.Enqueue: "ENQUEUE",
	wire.WillQueue: "WILLQUEUE", wire.Queued: "QUEUED", wire.Working: "WORKING", wire.SetAck: "SETACK", wire.GotAck: "GOTACK",
	wire.DelJob: "DELJOB", wire.NeedJobs: "NEEDJOBS", wire.YourJob: "YOURJOB", wire.Pause: "PAUSE", wire.Heartbeat: "HEARTBEAT", wire.Failed: "FAILED",
	wire.AskWork: "ASKWORK", wire.Work: "WORK", wire.Release: "RELEASE", wire.Released: "RELEASED", wire.AskOutcome: "ASKFATE", wire.Outcome: "FATE",
	wire.Offer: "OFFER", wire.Taken: "TAKEN", wire.Declined: "DECLINED", wire.Settled: "SETTLED", wire.PutOff: "PUTOFF", wire.MovedTo: "MOVEDTO", wire.AskIdle: "ASKIDLE", wire.Idle: "IDLE",
}

func kindName(k wire.Kind) string { return kindNames[k] + lockKinds[k] }

// flagNames lists flags that have a meaning of their own in some kinds.
var flagNames = []struct {
	kind wire.Kind
	flag uint8
	name string
}{
	{wire.DelJob, wire.PassOn, "pass-on"},
	{wire.WillQueue, wire.WasQueued, "was-queued"},
	{wire.Queued, wire.InHands, "in-hands"},
	{wire.Working, wire.Lasts, "lasts"},
	{wire.Queued, wire.Kept, "kept"},
	{wire.Enqueue, wire.Leaves, "leaves"},
	{wire.Enqueue, wire.WasHeld, "was-held"},
	{wire.Enqueue, wire.Unblocked, "let-go"},
	{wire.PutOff, wire.Objection, "objection"},
	{wire.PutOff, wire.KeptOut, "kept-out"},
	{wire.PutOff, wire.GotKey, "got-key"},
}

func (l letter) String() string {
	m, w := l.read(), l.from.w
	text := fmt.Sprintf("%s->%s %s", l.from.name, l.to.name, kindName(m.Kind))
	if lockKinds[m.Kind] != "" {
		return text + w.lockText(&m)
	}
	switch m.Kind {
	case wire.MovedTo:
		return text + fmt.Sprintf(" %s %s %d", w.job(m.ID), m.Queue, m.Count)
	case wire.Heartbeat, wire.Failed:
		for i := range m.Peers {
			text += fmt.Sprintf(" %s:%s", w.node(m.Peers[i].ID).name, [...]string{"well", "suspected", "failed", "forgotten"}[m.Peers[i].State])
		}
		if m.Flags&wire.Leaving != 0 {
			text += " leaving"
		}
		if m.Flags&wire.Full != 0 {
			text += " full"
		}
		return text
	case wire.AskWork, wire.Work:
		return text
	case wire.NeedJobs, wire.Pause:
		text += fmt.Sprintf(" %s %d", m.Queue, m.Count)
		if m.Kind == wire.NeedJobs && m.Flags&wire.Spare != 0 {
			text += " spare"
		}
		if m.Kind == wire.NeedJobs && m.Flags&wire.Polls != 0 {
			text += " polls"
		}
		return text
	}
	text += " " + w.job(m.ID)
	if len(m.Holders) > 0 {
		text += " held by "
		for _, h := range m.Holders {
			for _, n := range w.nodes {
				if n.id.Node() == h {
					text += n.name
				}
			}
		}
	}
	switch m.Kind {
	case wire.Release, wire.Released, wire.Outcome:
		return text + fmt.Sprintf(" %d flags %d", m.Count, m.Flags)
	case wire.SetAck:
		if m.Flags&wire.Cancelled != 0 {
			text += " cancelled"
			m.Flags = 0
		}
	}
	if m.Kind == wire.Refused {
		text += [...]string{"", " no memory", " leaving", " paused", " passive", " wrong type", " deleted"}[m.Count]
	}
	if m.Span > 0 {
		text += fmt.Sprintf(" in %v", time.Duration(m.Span)*time.Millisecond)
	}
	for _, f := range flagNames {
		if m.Kind == f.kind && m.Flags&f.flag != 0 {
			text, m.Flags = text+" "+f.name, m.Flags&^f.flag
		}
	}
	if m.Kind == wire.WillQueue || m.Kind == wire.Queued {
		counts := "nacks"
		if raw := l.m[1]; m.Kind == wire.Queued && raw&(wire.Kept|wire.InHands) == 0 {
			counts = "returns"
		}
		if count := m.Flags >> 4; count > 0 {
			text += fmt.Sprintf(" %s=%d", counts, count)
		}
		m.Flags &= 0xF
		if more := m.Flags >> 2; m.Kind == wire.WillQueue && more > 0 {
			text += fmt.Sprintf(" additional=%d", more)
			m.Flags &^= wire.DeliveriesFlags(3)
		}
	}
	flags := [...]string{"no-reply", "queue-it", "count-nack", "count-more", "known", "", "", "by-client"}
	for i, name := range flags {
		if m.Flags&(1<<i) != 0 {
			text += " " + name
		}
	}
	return text
}

func (w *world) job(id store.ID) string {
	if name := w.jobs[id]; name != "" {
		return name
	}
	return "it" // the job that is just being added
}

func (w *world) state(j *store.Job) string {
	text := [...]string{"replicating", "active", "queued", "acked"}[j.State]
	if f, ok := j.Family(); ok && f.Held() && j.State == store.StateActive {
		text = "held back"
		if f.Flags&store.FamilyDeferred != 0 {
			text = "deferred"
		}
	}
	if j.Flags&store.FlagOffered != 0 {
		text += " offered"
	} else if j.Uncertain() {
		text += " uncertain"
	} else if j.Flags&store.FlagDelivered != 0 {
		text += " delivered"
	}
	if j.Nacks > 0 || j.Deliveries > 0 {
		text += fmt.Sprintf(" nacks=%d additional=%d", j.Nacks, j.Deliveries)
	}
	if j.State != store.StateQueued && j.QTime > 0 && (j.Retry > 0 || j.Flags&store.FlagDelivered == 0 || j.State == store.StateAcked) {
		text += fmt.Sprintf(" next=%v", time.Duration(j.QTime-w.now)*time.Millisecond)
	}
	holders := ""
	for i := range j.Holders() {
		h, yes := j.Holder(i)
		for _, n := range w.nodes {
			if uint64(n.id.Node()) == h {
				holders += " " + n.name
				if yes {
					holders += "!"
				}
			}
		}
	}
	if holders != "" {
		text += " others:" + holders
	}
	return text
}

func (w *world) node(id wire.NodeID) *actor {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	panic("no such node")
}

// --- arguments -----------------------------------------------------------------

func (w *world) arg(key string, dest any) {
	if w.d.HasArg(key) {
		w.d.ScanArgs(w.t, key, dest)
	}
}

// actor returns the node that the i-th word names.
func (w *world) actor(i int) *actor {
	for _, n := range w.nodes {
		if i < len(w.d.CmdArgs) && n.name == w.d.CmdArgs[i].Key {
			return n
		}
	}
	w.d.Fatalf(w.t, "word %d names no node", i+1)
	return nil
}

func (w *world) word(i int) string {
	if i >= len(w.d.CmdArgs) {
		w.d.Fatalf(w.t, "word %d is missing", i+1)
	}
	return w.d.CmdArgs[i].Key
}

func (w *world) id(i int) store.ID {
	id, yes := w.ids[w.word(i)]
	if !yes {
		w.d.Fatalf(w.t, "no job %s", w.word(i))
	}
	return id
}

func (w *world) span(text string) int64 {
	d, err := time.ParseDuration(text)
	require.NoError(w.t, err)
	return d.Milliseconds()
}

// --- commands of clients ---------------------------------------------------------

func (w *world) add() {
	n, name := w.actor(0), w.word(1)
	a := engine.Add{Queue: []byte("q"), Body: []byte("body"), Replicate: 1, Retry: 10, TTL: 600, CanWait: true, Async: w.d.HasArg("async"), Default: w.d.HasArg("default")}
	queue := "q"
	w.arg("queue", &queue)
	a.Queue = []byte(queue)
	w.arg("replicate", &a.Replicate)
	w.arg("retry", &a.Retry)
	w.arg("ttl", &a.TTL)
	w.arg("delay", &a.Delay)
	w.arg("timeout", &a.Timeout)
	body := "body"
	w.arg("body", &body)
	a.Body = []byte(body)
	w.members(&a)
	w.unique(&a)
	if a.Replicate == 0 {
		a.Replicate = n.e.Copies()
	}
	n.do(func() {
		id, wait, err := n.e.AddJob(&a)
		switch {
		case err != nil:
			w.say("%v", err)
			return
		case wait:
			n.e.Tie(engine.PendingAdd(id), name)
			w.say("waits for %s", map[bool]string{true: "copies", false: "votes"}[n.e.Job(&id) != nil])
		default:
			w.say("added")
		}
		if w.jobs[id] != "" {
			w.say("it is %s", w.jobs[id])
			return
		}
		w.jobs[id], w.ids[name] = name, id
	})
}

// body shows the body that each node has for a job.
func (w *world) body() {
	id := w.id(0)
	for _, n := range w.nodes {
		if j := n.e.Job(&id); j != nil {
			w.say("%s: %s, %s", n.name, j.Queue.NameBytes(), j.Body())
		}
	}
}

// members reads which jobs a job waits for: "deferred", blockedby=job, after=(job,…), run or dead.
func (w *world) members(a *engine.Add) {
	a.Deferred = w.d.HasArg("deferred")
	for _, arg := range w.d.CmdArgs {
		switch arg.Key {
		case "blockedby":
			id := w.ids[arg.Vals[0]]
			a.BlockedBy = &id
		case "after":
			for _, name := range arg.Vals {
				a.After = append(a.After, w.ids[name])
			}
		case "run":
			a.OnDead = engine.OnDeadRun
		case "dead":
			a.OnDead = engine.OnDeadDead
		}
	}
}

func (w *world) release() {
	n, id := w.actor(0), w.id(1)
	n.do(func() {
		var queue []byte
		if q := ""; w.d.HasArg("queue") {
			w.arg("queue", &q)
			queue = []byte(q)
		}
		nodes, wait, err := n.e.Release(&id, queue, w.d.HasArg("last"), true)
		switch {
		case err != nil:
			w.say("%v", err)
		case wait:
			n.e.Tie(engine.PendingRelease(id), w.word(1))
			w.say("waits for the others")
		default:
			w.say("%d", nodes)
		}
	})
}

func (w *world) cancel() {
	n, id := w.actor(0), w.id(1)
	n.do(func() { w.say("%d", n.e.CancelJob(&id)) })
}

func (w *world) get() {
	n := w.actor(0)
	queue, count, client := "q", 1, ""
	w.arg("queue", &queue)
	w.arg("count", &count)
	w.arg("wait", &client)
	n.do(func() {
		got := n.e.Fetch([]*store.Queue{n.e.Queue([]byte(queue))}, count, true, nil)
		for _, j := range got {
			w.say("got %s nacks=%d additional=%d", w.job(j.ID), j.Nacks, j.Deliveries)
		}
		if len(got) > 0 {
			return
		}
		if w.d.HasArg("polls") {
			n.e.Poll([]byte(queue), count)
		}
		if client == "" {
			w.say("nothing")
			return
		}
		if _, err := n.e.Wait([][]byte{[]byte(queue)}, client); err != nil {
			w.say("%v", err)
			return
		}
		w.say("%s waits", client)
	})
}

func (w *world) ack() {
	n, id := w.actor(0), w.id(1)
	n.do(func() { w.say("%v", n.e.Ack(&id)) })
}

func (w *world) verb(name string) {
	n, id := w.actor(0), w.id(1)
	n.do(func() {
		switch name {
		case "fastack":
			w.say("%v", n.e.FastAck(&id))
		case "del":
			w.say("%v", n.e.Delete(&id))
		case "nack":
			w.say("%v", n.e.Enqueue(&id, true))
		case "enqueue":
			w.say("%v", n.e.Enqueue(&id, false))
		case "dequeue":
			w.say("%v", n.e.Dequeue(&id))
		case "working":
			switch seconds, pending, err := n.e.Working(&id, w.job(id)); {
			case err != nil:
				w.say("%v", err)
			case pending:
				w.say("waits for votes")
			default:
				w.say("%d", seconds)
			}
		}
	})
}

// pause pauses the queue q at a node. With "unsaid" the other nodes don't hear that its clients don't want jobs any more.
func (w *world) pause() {
	n, sent := w.actor(0), len(w.sent)
	mask := map[string]uint8{"in": engine.PauseIn, "out": engine.PauseOut, "all": 3, "none": 0}[w.word(1)]
	n.do(func() {
		_, err := n.e.SetPause([]byte("q"), mask)
		require.NoError(w.t, err)
		if w.d.HasArg("bcast") {
			n.e.TellPause([]byte("q"), mask)
		}
	})
	if w.d.HasArg("unsaid") {
		w.sent = w.sent[:sent]
	}
}

func (w *world) qlen() {
	for _, n := range w.nodes {
		length := uint64(0)
		if q := n.e.Queue([]byte("q")); q != nil {
			length = q.Len
		}
		w.say("%s: %d", n.name, length)
	}
}

// show shows a job at each node.
func (w *world) show() {
	id := w.id(0)
	for _, n := range w.nodes {
		if n.down {
			w.say("%s: down", n.name)
		} else if j := n.e.Job(&id); j != nil {
			n.e.SetNow(w.now + n.off)
			w.say("%s: %s", n.name, w.state(j))
		} else {
			w.say("%s: unknown", n.name)
		}
	}
}

func (w *world) load() {
	for _, n := range w.nodes {
		w.say("%s: %d jobs, %+v", n.name, n.e.Jobs(), n.e.Load())
	}
}

// --- network and time ------------------------------------------------------------

// flush delivers the messages that aren't shown.
func (w *world) flush() {
	for len(w.quick) > 0 {
		l := w.quick[0]
		w.quick = w.quick[1:]
		if l.from.links[l.to] && !l.to.down && !l.to.still {
			l.to.do(func() { require.NoError(w.t, l.to.e.Receive(l.from.id, l.m)) })
		}
	}
}

// chosen says whether the command's from, to and kind name a message.
func (w *world) chosen(l letter) bool {
	from, to, kind := l.from.name, l.to.name, kindName(l.read().Kind)
	w.arg("from", &from)
	w.arg("to", &to)
	w.arg("kind", &kind)
	return !l.to.still && from == l.from.name && to == l.to.name && strings.EqualFold(kind, kindName(l.read().Kind))
}

// deliver delivers messages, and the answers to them, until
// there are none left; with "once" only the messages that were under way. With "together", which
// needs a "to", that node serves clients only after it has got all of them.
func (w *world) deliver() {
	const many = 500
	for count := range many {
		if count == many-1 {
			w.say("… and so on: there is no end")
		}
		batch := w.sent
		w.sent = nil
		any := false
		bring := func() {
			for _, l := range batch {
				if !w.chosen(l) {
					w.sent = append(w.sent, l)
					continue
				}
				any = true
				w.bring(l)
			}
		}
		if to := slices.IndexFunc(batch, w.chosen); to >= 0 && w.d.HasArg("together") { // that node gets all messages at one moment
			n := batch[to].to
			n.do(func() { n.e.Hear(bring) })
		} else {
			bring()
		}
		if !any || w.d.HasArg("once") {
			return
		}
	}
}

func (w *world) bring(l letter) {
	if !l.from.links[l.to] || l.to.down {
		w.say("%s is lost", l)
		return
	}
	w.say("%s", l)
	l.to.do(func() { require.NoError(w.t, l.to.e.Receive(l.from.id, l.m)) })
}

func (w *world) drop() {
	w.sent = slices.DeleteFunc(w.sent, func(l letter) bool {
		if !w.chosen(l) {
			return false
		}
		w.say("%s is dropped", l)
		return true
	})
}

// advance lets time pass. With "deliver" messages arrive at once meanwhile.
func (w *world) advance() {
	end := w.now + w.span(w.word(0))
	for {
		w.flush()
		var first *actor
		for _, n := range w.nodes {
			if !n.down && !n.still && n.next <= end && (first == nil || n.next < first.next) {
				first = n
			}
		}
		if first == nil {
			break
		}
		w.now = max(w.now, first.next)
		before := w.out.Len()
		first.do(func() { first.next = first.e.Tick() - first.off })
		if w.d.HasArg("deliver") {
			w.deliver()
		}
		if text := w.out.String(); w.d.HasArg("quiet") {
			w.out.Reset()
			w.out.WriteString(text[:before])
		} else if len(text) > before {
			w.out.Reset()
			fmt.Fprintf(&w.out, "%s%v:\n%s", text[:before], time.Duration(w.now-dawn)*time.Millisecond, text[before:])
		}
	}
	w.now = end
}

func (w *world) connect(a, b *actor) {
	a.links[b], b.links[a] = true, true
	a.meets(b, true)
	b.meets(a, true)
}

func (n *actor) meets(other *actor, purpose bool) {
	n.do(func() {
		n.e.SetLife(other.id, other.life)
		n.e.Mesh().Up(other.id, other.name+":1", purpose)
	})
}

func (w *world) unlink(a, b *actor) {
	delete(a.links, b)
	delete(b.links, a)
	w.sent = slices.DeleteFunc(w.sent, func(l letter) bool {
		gone := l.from == a && l.to == b || l.from == b && l.to == a
		if gone {
			w.say("  %s is lost", l)
		}
		return gone
	})
}

// cut ends the connections between the named nodes, or from one node to all. join makes them anew.
func (w *world) cut() {
	a := w.actor(0)
	for _, b := range w.others(a) {
		w.unlink(a, b)
		a.do(func() { a.e.Mesh().Down(b.id) })
		b.do(func() { b.e.Mesh().Down(a.id) })
	}
}

func (w *world) others(a *actor) (list []*actor) {
	for _, b := range w.nodes {
		if b != a && !b.down && (len(w.d.CmdArgs) == 1 || b == w.actor(1)) {
			list = append(list, b)
		}
	}
	return list
}

func (w *world) join() {
	a := w.actor(0)
	for _, b := range w.others(a) {
		w.connect(a, b)
	}
}

func (w *world) crash() {
	a := w.actor(0)
	a.down = true
	lost := "0s"
	if w.arg("loses", &lost); lost != "0s" {
		a.tears(w.span(lost))
	}
	a.tail = nil
	if w.d.HasArg("wiped") {
		clear(a.disk)
		clear(a.locks)
		a.order, a.floor, a.table = nil, 0, 0
	}
	for _, b := range w.nodes {
		if b != a && a.links[b] {
			w.unlink(a, b)
			b.do(func() { b.e.Mesh().Down(a.id) })
		}
	}
}

// restart brings a node back with what it logged. The node trusts its log, but not with
// "distrust". With "always" each vote was logged before it was given, and the log also says
// what is known of the votes as a whole.
func (w *world) restart() {
	a := w.actor(0)
	a.start(membership.DefaultTimeout)
	a.next = w.now + 1
	a.do(func() {
		a.e.BeginLoading()
		for _, id := range a.order {
			if d, yes := a.disk[id]; yes {
				require.NoError(w.t, a.e.ApplyJob(d[0], d[1]))
			}
		}
		a.loadLocks()
		a.e.EndLoading()
		for _, id := range slices.Clone(a.peers) {
			a.e.Mesh().Add(id, w.node(id).name+":1")
		}
		a.e.Locks().SetVotes(a.votes)
		a.e.SetDeletions(a.gone)
		a.e.SetPast(a.past)
		a.e.Settle(engine.Trust{Exact: !w.d.HasArg("inexact")})
		a.noteUncertain()
		switch {
		case w.d.HasArg("always") && a.e.Locks().IsComplete():
			a.e.Locks().TrustLoaded()
		case w.d.HasArg("distrust"), w.d.HasArg("always"):
			a.e.Locks().MarkIncomplete()
		default:
			a.e.Locks().Trust()
		}
	})
	for _, b := range w.nodes {
		if b != a && !b.down {
			w.connect(a, b)
		}
	}
}

// inject makes a node receive a message that no node sent.
func (w *world) inject() {
	from, to, id := w.actor(0), w.actor(1), w.id(2)
	m := wire.Message{ID: id, Queue: []byte("q"), Job: wire.Job{CTime: 1_700_000_000_000_000_000, Left: 100_000, Retry: 10, Repl: 2, Body: []byte("body")}}
	for kind, name := range kindNames {
		if strings.EqualFold(name, w.word(3)) {
			m.Kind = kind
		}
	}
	if id.AtMostOnce() {
		m.Job.Retry = 0
	}
	count := 0
	w.arg("count", &count)
	m.Count = uint32(count)
	m.Holders = []wire.Node{from.id.Node()}
	if w.d.HasArg("blind") {
		m.Holders = nil
	}
	to.do(func() { require.NoError(w.t, to.e.Receive(from.id, m.Append(nil))) })
}

// skew shifts the creation time of a node's copy by that many seconds.
func (w *world) skew() {
	n, id := w.actor(0), w.id(1)
	shift, err := strconv.ParseInt(w.word(2), 10, 64)
	require.NoError(w.t, err)
	j := n.e.Job(&id)
	j.CTime = uint64(int64(j.CTime) + shift*1_000_000_000)
}

// --- nodes -----------------------------------------------------------------------

func (w *world) pressure() {
	n := w.actor(0)
	ratio, err := strconv.ParseFloat(w.word(1), 64)
	require.NoError(w.t, err)
	n.do(func() { n.e.SetMemory(ratio / 100) })
}

func (w *world) leave() {
	n := w.actor(0)
	n.do(func() { n.e.SetLeaving(w.word(1) == "yes") })
}

func (w *world) forget() {
	n, other := w.actor(0), w.actor(1)
	n.do(func() { w.say("%v", n.e.Mesh().Forget(other.id)) })
}

func (w *world) reset() {
	n := w.actor(0)
	n.do(n.e.Reset)
}

// meet tells a node of another one by gossip, or with "on-purpose" by CLUSTER MEET.
func (w *world) meet() {
	n, other := w.actor(0), w.actor(1)
	n.links[other], other.links[n] = true, true
	n.meets(other, w.d.HasArg("on-purpose"))
	if n.links[other] {
		other.meets(n, w.d.HasArg("on-purpose"))
	}
}

// know makes a node know another one, as from the nodes' file: they aren't connected.
func (w *world) know() {
	n, other := w.actor(0), w.actor(1)
	n.do(func() { n.e.Mesh().Add(other.id, other.name+":1") })
}

func (w *world) table() {
	for _, n := range w.nodes {
		if n.down {
			continue
		}
		text := n.name + ":"
		for _, p := range n.e.Mesh().All() {
			text += fmt.Sprintf(" %s %s", w.node(p.ID).name, [...]string{"well", "suspected", "failed", "forgotten"}[p.Health])
			if !p.Connected {
				text += " apart"
			}
			if p.Leaving {
				text += " leaving"
			}
			text += ","
		}
		w.say("%s %d reachable", text, n.e.Mesh().Reachable())
	}
}

// However many jobs are asked for, at most a hundred are given (defect B14 of Disque's mesh).
func TestNeedJobsWithALargeCount(t *testing.T) {
	n, _, _ := node(dawn)
	other := wire.NodeID{1, 2, 3}
	n.Mesh().Add(other, "b:1")
	n.Mesh().Up(other, "b:1", true)
	for range 500 {
		_, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 10, TTL: 600})
		require.NoError(t, err)
	}
	n.Effects()
	for _, count := range []uint32{200, 1 << 31, 1<<32 - 1} {
		before := n.Queue([]byte("q")).Len
		m := wire.Message{Kind: wire.NeedJobs, Queue: []byte("q"), Count: count}
		require.NoError(t, n.Receive(other, m.Append(nil)))
		require.EqualValues(t, 100, before-n.Queue([]byte("q")).Len)
		n.Effects()
	}
}

// The counters stop at their greatest value (defect B40 of Disque's mesh).
func TestCountersSaturate(t *testing.T) {
	n, _, _ := node(dawn)
	id, _, err := n.AddJob(&engine.Add{Queue: []byte("q"), Replicate: 1, Retry: 10, TTL: 600})
	require.NoError(t, err)
	for range 1<<16 + 10 {
		require.Len(t, n.Fetch([]*store.Queue{n.Queue([]byte("q"))}, 1, true, nil), 1)
		require.True(t, n.Enqueue(&id, true))
		n.Effects()
	}
	require.EqualValues(t, 1<<16-1, n.Job(&id).Nacks)
}
