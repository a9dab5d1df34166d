package engine_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/lock/locktest"
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
// The script names jobs and clients. Package locktest has the nodes, their messages and the commands about locks.
// In a mesh with "idle" nodes ask about idle copies, and ask for jobs more often. Without it each rule shows
// what becomes of a job by that rule alone.
// In a mesh with former=(c) that node is of a former release, which takes no messages for several jobs, and counts returns modulo 16.
// In a mesh with "events" nodes tell events. In one with concurrency=N all queues have that limit, and with rate=N seconds=N that rate.
// In a mesh with "late" a flush reaches nodes that were away, and a node that is started again ended in order, unless the restart is inexact.
// In a mesh with "adders" a late answer to an ADDJOB also names the ADDJOB's job.
func TestScripts(t *testing.T) {
	locktest.Run(t, func() *locktest.World { return newWorld().World }, "testdata/*.txt", "testdata/defects/*.txt")
}

const dawn = locktest.Dawn

// world is a [locktest.World] whose nodes are engines.
type world struct {
	*locktest.World
	nodes  []*actor // the same as World.Nodes
	batch  map[string]*engine.Batch
	former []string // nodes of a former release
	idle   bool     // nodes ask about idle copies; else the other rules show by themselves
	adders bool
	events bool
	late   bool           // flushes reach nodes that were away
	limits engine.Limits  // of all queues
	cursor uint64         // where the next scan begins
	copies engine.Pending // the last WAITCOPIES

	questions map[string][]int64 // see question
}

// actor is a node, and what it has on disk beside the locks.
type actor struct {
	*locktest.Actor
	w     *world
	e     *engine.Node
	k     *keys
	disk  map[store.ID][2][]byte
	order []store.ID
	gone  engine.Deletions
	past  engine.Past
	known engine.Known // what it knew of jobs when the process ended

	tail []logged // the entries about jobs that aren't on disk for sure, if that takes a second
}

func newWorld() *world {
	w := &world{}
	w.World = locktest.New(w.start)
	w.Kinds, w.Text = kindNames, w.text
	maps.Copy(w.Commands, map[string]func(){
		"mesh": w.mesh, "add": w.add, "addjobs": w.addJobs, "leaves": w.leaves, "get": w.get, "ack": w.ack, "deliver": w.deliver,
		"show": w.show, "crash": w.crash, "memory": w.pressure, "leaving": w.leave, "pause": w.pause,
		"inject": w.inject, "qlen": w.qlen, "load": w.load, "skew": w.skew, "lostlock": w.lostLock,
		"choke": func() { w.actor(0).Choked = true }, "unchoke": func() { w.actor(0).Choked = false },
		"loads": func() { w.actor(0).e.BeginLoading() }, "loaded": func() { w.actor(0).e.EndLoading() },
		"take": func() { w.actor(0).k.taken[w.Word(1)] = true }, "untake": func() { w.actor(0).k.taken[w.Word(1)] = false },
		"undeliver": func() {
			n, id := w.actor(0), w.Job(1)
			n.Do(func() { n.e.Undeliver(engine.DeliveryOf(n.e.Job(&id))) })
		},
		"follow": func() { // NODE OTHER: it becomes a replica of another node, whose data it loads
			n, other := w.actor(0), w.actor(1)
			n.Do(func() { n.e.SetPassive(true) })
			n.Do(func() { n.e.Flushed(-1) })
			n.disk, n.order = map[store.ID][2][]byte{}, nil
			n.Do(func() {
				clear(n.k.boxes)
				n.e.BeginLoading()
				for _, id := range other.order {
					if d, yes := other.disk[id]; yes {
						n.disk[id], n.order = d, append(n.order, id)
						require.NoError(w.T, n.e.ApplyJob(d[0], d[1]))
					}
				}
				n.e.Locks().Drop()
				n.CopyLog(other.Actor)
				n.LoadLocks()
				n.e.EndLoading()
				n.e.Follow()
			})
		},
		"promote": func() { n := w.actor(0); n.Do(func() { n.e.SetPassive(false) }); n.noteUncertain() },
		"flush":   func() { n := w.actor(0); n.Do(n.e.Flush) },
		"passive": func() { n := w.actor(0); n.Do(func() { n.e.SetPassive(true) }) }, // NODE: it becomes a replica
		"inherit": func() { // NODE OTHER: it gets what another node has logged, as a replica that is to be promoted in its place
			n, other := w.actor(0), w.actor(1)
			n.disk, n.order = maps.Clone(other.disk), slices.Clone(other.order)
		},
		"stats": func() { // what all nodes count of jobs that were added and that have ended
			for _, n := range w.nodes {
				s := n.e.Stats
				w.Say("%s: added %d, known %d, done %d, cancelled %d, expired %d, dropped %d, dead %d", n.Name, s.Added, s.NamesKnown, s.Acked, s.Cancelled, s.Expired, s.Dropped, s.Dead)
			}
		},
		"abandon": func() { // NODE JOB: the client of its ADDJOB goes away
			n, p := w.actor(0), engine.PendingAdd(w.Job(1))
			n.Do(func() {
				n.e.Deny(p)
				n.e.Abandon(p)
			})
		},
		"delqueue": func() {
			n := w.actor(0)
			q := n.e.Queue([]byte(w.Word(1)))
			for id, d := range n.disk {
				if string(d[0]) == w.Word(1) {
					delete(n.disk, id)
				}
			}
			n.Do(func() { n.k.Drop([]*store.Queue{q}) })
		},
		"token": func() { // NODE JOB: the job's token, and what clients are shown of it
			n, id := w.actor(0), w.Job(1)
			t := n.e.Token(n.e.Job(&id))
			if t == 0 {
				w.Say("none")
				return
			}
			w.Say("%s shown %d", locktest.Token(t), lock.ShownToken(t)-lock.ShownToken(locktest.FirstToken))
		},
		"former": func() { // NODE OTHER: the other is of a former release
			n, other := w.actor(0), w.actor(1)
			n.Do(func() { n.e.SetFeatures(other.ID, engine.Features{Batches: true}) })
		},
		"move": w.move, "count": w.count, "scan": w.scan, "waitcopies": w.waitCopies, "qflush": w.qflush, "paused": w.paused,
		"sofar":   func() { w.Say("%v", w.actor(0).e.CopiesSoFar(w.copies)) }, // NODE: what the last WAITCOPIES would answer now
		"release": w.release, "cancel": w.cancel, "waitjob": w.waitJob, "body": w.body, "newnode": w.newNode, "reload": w.reload,
	})
	for _, verb := range []string{"fastack", "del", "nack", "enqueue", "dequeue", "working"} {
		w.Commands[verb] = func() { w.verb(verb) }
	}
	return w
}

func (w *world) mesh() {
	w.nodes, w.idle, w.adders, w.events, w.limits = nil, w.D.HasArg("idle"), w.D.HasArg("adders"), w.D.HasArg("events"), engine.Limits{}
	w.late = w.D.HasArg("late")
	w.Arg("concurrency", &w.limits.AtOnce)
	w.Arg("rate", &w.limits.Count)
	w.Arg("seconds", &w.limits.Seconds)
	w.batch, w.former, w.questions = map[string]*engine.Batch{}, nil, map[string][]int64{}
	for _, arg := range w.D.CmdArgs {
		if arg.Key == "former" {
			w.former = arg.Vals
		}
	}
	w.Mesh()
}

// actor returns the node that the i-th word names.
func (w *world) actor(i int) *actor { return w.of(w.Actor(i)) }

func (w *world) of(a *locktest.Actor) *actor { return w.nodes[slices.Index(w.Nodes, a)] }

// start begins a life of a node's process.
func (w *world) start(a *locktest.Actor, timeout int64) locktest.Node {
	if len(w.nodes) < len(w.Nodes) {
		w.nodes = append(w.nodes, &actor{Actor: a, w: w, disk: map[store.ID][2][]byte{}})
	}
	n := w.of(a)
	if n.known = (engine.Known{All: true}); n.e != nil {
		n.known = n.e.Known()
	}
	n.k = &keys{boxes: map[*store.Queue]unsafe.Pointer{}, taken: map[string]bool{}}
	n.e = engine.New(engine.Config{
		Alloc: storetest.New(), Keys: n.k, Random: rand.NewPCG(uint64(n.ID[0]), n.Life), NodeID: n.ID.String(), Now: w.Now + n.Off, NodeTimeout: timeout,
	})
	n.k.n = n.e
	n.e.SetLazy(!w.idle)
	if w.late && n.Life == 1 {
		n.e.SetKnown(n.known)
	}
	if w.events {
		n.e.SetEvents(engine.AllEvents, 0)
	}
	if limits := w.limits; limits != (engine.Limits{}) {
		n.e.SetPolicies(&engine.Policies{Generation: 1, Rated: true, LimitsOf: func([]byte) engine.Limits { return limits }})
	}
	n.e.SetExpiresInHands(w.D.HasArg("disque"))
	return &member{n.e, n}
}

// member is an engine as package locktest sees it.
type member struct {
	*engine.Node
	n *actor
}

// members are the nodes that it knows.
type members struct {
	*membership.Table[*engine.Peer]
	n *actor
}

func (m *member) Table() locktest.Table { return members{m.Mesh(), m.n} }

func (m members) Up(id wire.NodeID, addr string, met bool) {
	other := m.n.W.ByID(id)
	m.n.e.SetLife(id, other.Life)
	former := func(name string) bool { return slices.Contains(m.n.w.former, name) }
	m.n.e.SetFeatures(id, engine.Features{Batches: !former(other.Name), Counts: true, Entries: true, Copies: true, Flushes: true, Jobs: true, Failures: true, Names: !former(other.Name), Delays: !former(other.Name),
		Results: !former(other.Name), Replaces: !former(other.Name), Bodies: !former(other.Name), Bounds: m.n.w.late && !former(other.Name), Returns: !former(other.Name) && !former(m.n.Name)})
	m.Table.Up(id, addr, met)
}

// CarryOut shows, and carries out, the effects of an event.
func (m *member) CarryOut() {
	n := m.n
	for _, e := range m.Effects() {
		n.effect(&e)
	}
	if refused := n.Refused; len(refused) > 0 {
		n.Refused = nil
		n.Do(func() {
			for _, l := range refused {
				n.e.Unsent(l.To.ID, wire.Kind(l.Bytes[0]), (*wire.JobID)(l.Bytes[2:]))
			}
		})
	}
}

// BeginLoading also loads the jobs that the node has logged.
func (m *member) BeginLoading() {
	m.Node.BeginLoading()
	for _, id := range m.n.order {
		if d, yes := m.n.disk[id]; yes {
			require.NoError(m.n.W.T, m.ApplyJob(d[0], d[1]))
		}
	}
}

func (m *member) Loaded(exact bool) {
	m.SetDeletions(m.n.gone)
	m.SetPast(m.n.past)
	if m.n.w.late && exact {
		m.SetKnown(m.n.known)
	}
	m.Settle(engine.Trust{Exact: exact, Clean: exact && m.n.w.late})
	m.n.noteUncertain()
}

// newNode starts one more node, which knows no other. If the command names a node, the new one is its replica, and is promoted.
func (w *world) newNode() {
	if len(w.D.CmdArgs) == 0 {
		w.NewNode().Node.StartsNew()
		return
	}
	other := w.actor(0)
	n := w.of(w.NewNode())
	n.Do(func() {
		n.e.SetPassive(true)
		n.e.BeginLoading()
		for _, id := range other.order {
			if d, yes := other.disk[id]; yes {
				n.disk[id], n.order = d, append(n.order, id)
				require.NoError(w.T, n.e.ApplyJob(d[0], d[1]))
			}
		}
		n.e.EndLoading()
		n.e.Follow()
	})
	n.Do(func() { n.e.SetPassive(false) })
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
	n.Do(func() { n.e.Flushed(-1) })
	n.Do(func() {
		clear(n.k.boxes)
		n.e.BeginLoading()
		for _, s := range all {
			require.NoError(w.T, n.e.ApplyJob(s.queue, s.record))
		}
		n.e.EndLoading()
		n.e.Settle(engine.Trust{Exact: true, Same: true})
	})
}

func (n *actor) effect(e *engine.Effect) {
	w := n.w
	switch e.Kind {
	case engine.LogJob, engine.LogState, engine.LogMove:
		n.logs(e.Job.ID)
		if _, yes := n.disk[e.Job.ID]; !yes {
			n.order = append(n.order, e.Job.ID)
		}
		n.disk[e.Job.ID] = [2][]byte{slices.Clone(e.Job.Queue.NameBytes()), slices.Clone(e.Job.Record())}
		where := ""
		if e.Kind == engine.LogMove {
			where = " in " + string(e.Job.Queue.NameBytes())
		}
		w.Say("  %s logs %s%s: %s", n.Name, w.JobName(e.Job.ID), where, w.state(e.Job))
	case engine.LogDrop:
		n.logs(e.ID)
		j := n.e.Job(&e.ID)
		n.disk[e.ID] = [2][]byte{slices.Clone(j.Queue.NameBytes()), slices.Clone(j.Record())}
		w.Say("  %s logs %s: waits for one less", n.Name, w.JobName(e.ID))
	case engine.LogDelete:
		n.logs(e.ID)
		delete(n.disk, e.ID)
		w.Say("  %s logs %s: gone", n.Name, w.JobName(e.ID))
	case engine.LogFlush:
		n.tail = nil
		clear(n.disk)
		n.order = nil
		w.Say("  %s logs flush", n.Name)
	case engine.LogQueue:
		w.Say("  %s logs queue %s", n.Name, e.Queue.NameBytes())
	case engine.Serve:
		w.Say("  %s gives %s to %v", n.Name, w.JobName(e.Job.ID), e.Waiter.Client)
	case engine.Release:
		w.Say("  %s sends %v away: %v", n.Name, e.Waiter.Client, e.Err)
	case engine.Released:
		w.Say("  %s answers RELEASEJOB %v: %d", n.Name, e.Client, e.Nodes)
	case engine.Promise:
		w.Say("  %s answers ADDJOB%s: %s", n.Name, w.adder(e), w.JobName(e.ID))
	case engine.AnswerBatch:
		b := e.Client.(*engine.Batch)
		w.Say("  %s answers ADDJOBS %v: %s", n.Name, b.Client, w.answers(b))
	case engine.Deny:
		if w.adders {
			w.Say("  %s answers ADDJOB%s: %v", n.Name, w.adder(e), e.Err)
			break
		}
		w.Say("  %s refuses %s: %v", n.Name, w.JobName(e.ID), e.Err)
	case engine.Happened:
		h := e.Client.(*engine.Happening)
		text := fmt.Sprintf("  %s tells %v", n.Name, h.Event)
		for _, name := range []string{"why", "delay"} {
			if v := h.Field(name); v != "" {
				text += " " + name + "=" + v
			}
		}
		w.Say("%s", text)
	case engine.Send:
		n.Sends(e.Peer.ID, n.e.Message(e))
	case engine.Connect:
		n.Connects(e.Peer.ID)
	case engine.Disconnect:
		n.Disconnects(e.Peer.ID)
	case engine.NodesChanged:
		n.gone, n.past = n.e.Deletions(), n.e.Past()
		n.e.PastKept(n.past)
		n.NodesChanged()
	case engine.LogLock:
		n.LogLock(n.e.Message(e))
	case engine.LogUnlock:
		n.LogUnlock(lock.UnlockParts(n.e.Message(e)))
	case engine.KeepVotes:
		n.KeepVotes()
	case engine.AnswerMesh:
		w.Say("  %s answers %v", n.Name, e.Client)
		w.gathered(e.Answer)
	case engine.LockDone:
		n.Answers(e.Client, e.Outcome)
	case engine.Worked:
		w.Say("  %s answers WORKING %v: %v", n.Name, e.Client, e.Err)
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
	n.tail = slices.DeleteFunc(n.tail, func(l logged) bool { return l.at < n.w.Now-1000 })
	before, known := n.disk[id]
	n.tail = append(n.tail, logged{n.w.Now, id, before, known})
}

// tears loses what a node has logged in the last lost ms.
func (n *actor) tears(lost int64) {
	for _, l := range slices.Backward(n.tail) {
		if l.at < n.w.Now-lost {
			break
		}
		n.w.Say("  %s loses what it logged of %s", n.Name, n.w.JobName(l.id))
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

var kindNames = map[wire.Kind]string{
	wire.ReplJob: "REPLJOB", wire.GotJob: "GOTJOB", wire.Refused: "REFUSED", wire.Holders: "HOLDERS", wire.Enqueue: "ENQUEUE",
	wire.WillQueue: "WILLQUEUE", wire.Queued: "QUEUED", wire.Working: "WORKING", wire.SetAck: "SETACK", wire.GotAck: "GOTACK",
	wire.DelJob: "DELJOB", wire.NeedJobs: "NEEDJOBS", wire.YourJob: "YOURJOB", wire.Pause: "PAUSE",
	wire.AskWork: "ASKWORK", wire.Work: "WORK", wire.Release: "RELEASE", wire.Released: "RELEASED", wire.AskOutcome: "ASKFATE", wire.Outcome: "FATE",
	wire.Offer: "OFFER", wire.Taken: "TAKEN", wire.Declined: "DECLINED", wire.Settled: "SETTLED", wire.PutOff: "PUTOFF", wire.MovedTo: "MOVEDTO", wire.AskIdle: "ASKIDLE", wire.Idle: "IDLE",
	wire.ReplJobs: "REPLJOBS", wire.GotJobs: "GOTJOBS",
	wire.Entries: "ENTRIES", wire.EntrySums: "ENTRYSUMS", wire.AskCopies: "ASKCOPIES", wire.Copies: "COPIES", wire.AskFlush: "ASKFLUSH", wire.Flushed: "FLUSHED", wire.AskJobs: "ASKJOBS", wire.Jobs: "JOBS", wire.Whereabouts: "WHEREABOUTS", wire.AskMove: "ASKMOVE", wire.MovedJobs: "MOVEDJOBS",
	wire.SetEnd: "SETEND", wire.GotEnd: "GOTEND", wire.Watch: "WATCH", wire.Ended: "ENDED", wire.Cancel: "CANCEL", wire.Do: "DO", wire.Did: "DID", wire.NewCopy: "NEWCOPY",
	wire.AskName: "ASKNAME", wire.Named: "NAMED", wire.Publish: "PUBLISH", wire.AskDelayed: "ASKDELAYED", wire.DelayedJobs: "DELAYEDJOBS",
	wire.AskGiven: "ASKGIVEN", wire.Given: "GIVEN", wire.Flushes: "FLUSHES", wire.FlushReady: "FLUSHREADY",
	wire.AskCounts: "ASKCOUNTS", wire.Counts: "COUNTS", wire.AskQueues: "ASKQUEUES", wire.Queues: "QUEUES",
}

// flagNames lists flags that have a meaning of their own in some kinds.
var flagNames = []struct {
	kind wire.Kind
	flag uint8
	name string
}{
	{wire.DelJob, wire.PassOn, "pass-on"},
	{wire.GotEnd, wire.ToAll, "to-all"},
	{wire.WillQueue, wire.WasQueued, "was-queued"},
	{wire.Queued, wire.InHands, "in-hands"},
	{wire.Working, wire.Lasts, "lasts"},
	{wire.Queued, wire.Kept, "kept"},
	{wire.Enqueue, wire.Leaves, "leaves"},
	{wire.Enqueue, wire.WasHeld, "was-held"},
	{wire.Enqueue, wire.Unblocked, "let-go"},
	{wire.PutOff, wire.Objection, "objection"},
	{wire.PutOff, wire.KeptOut, "kept-out"},
	{wire.PutOff, wire.Due, "due"},
	{wire.PutOff, wire.Delays, "delays"},
	{wire.PutOff, wire.GotKey, "got-key"},
}

// question counts the questions of a node's process from 1, by their numbers, which begin anywhere.
func (w *world) question(asker *locktest.Actor, number int64) int64 {
	const most = 1000 // questions of a process
	bases := w.questions[asker.Name]
	at := slices.IndexFunc(bases, func(base int64) bool { return number > base && number <= base+most })
	if at < 0 {
		at = len(bases)
		bases = append(bases, number-1)
		w.questions[asker.Name] = bases
	}
	return number - bases[at]
}

// text shows what a message about jobs says.
func (w *world) text(l locktest.Letter, m *wire.Message) (text string) {
	switch m.Kind {
	case wire.MovedTo:
		return text + fmt.Sprintf(" %s %s %d", w.JobName(m.ID), m.Queue, m.Count)
	case wire.Whereabouts:
		return text + fmt.Sprintf(" %s %s %d%s", w.JobName(m.ID), m.Queue, m.Count, wordsText(m.Job.Extras))
	case wire.AskWork, wire.Work, wire.AskCounts, wire.Counts, wire.AskQueues, wire.Queues:
		return text
	case wire.Do:
		text += fmt.Sprintf(" %s %q", w.JobName(m.ID), m.Queue)
		if span, bound := m.Lock.Debounce(); span > 0 {
			text += fmt.Sprintf(" due in %v, at most %v", time.Duration(span)*time.Millisecond, time.Duration(bound)*time.Millisecond)
		}
		return text
	case wire.Did:
		if m.Flags&wire.Done != 0 {
			return text + " done"
		}
		if m.Flags&wire.Waits != 0 {
			return text + " waits"
		}
		return text
	case wire.NewCopy:
		return text + fmt.Sprintf(" %s %q in %v", w.JobName(m.ID), m.Job.Body, time.Duration(m.Round)*time.Millisecond)
	case wire.Watch:
		for raw := range slices.Chunk(m.Queue, len(store.ID{})) {
			text += " " + w.JobName(store.ID(raw))
		}
		return text
	case wire.Ended:
		if m.Span == 0 {
			text += " unasked"
		}
		return text + w.endsText(engine.ReadEnds(m.Queue))
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
	if slices.Contains(w.former, l.To.Name) {
		require.False(w.T, m.Returns.Told, "a node of a former release refuses the message")
	}
	count := countOf(m)
	text += " " + w.JobName(m.ID)
	for _, s := range m.More {
		text += " " + w.JobName(s.ID)
	}
	if m.Kind == wire.GotJobs {
		text += fmt.Sprintf(" and %d more", m.Count-1)
	}
	if len(m.Holders) > 0 {
		text += " held by "
		for _, h := range m.Holders {
			for _, n := range w.nodes {
				if n.ID.Node() == h {
					text += n.Name
				}
			}
		}
	}
	switch m.Kind {
	case wire.Release, wire.Released, wire.Outcome:
		return text + fmt.Sprintf(" %d flags %d", m.Count, m.Flags)
	case wire.SetEnd, wire.GotEnd:
		if e, ok := engine.ReadEnding(store.FindExtra(m.Job.Extras, store.TagEnd)); ok {
			text += fmt.Sprintf(" %v", e.Outcome)
		} else if m.Flags&wire.Cancelled != 0 {
			text += " cancelled"
		}
		if store.FindExtra(m.Job.Extras, store.TagCancel) != nil {
			text += " soft"
		}
		if m.Kind == wire.SetEnd {
			text += fmt.Sprintf(" %q", m.Queue)
			m.Flags &^= wire.Cancelled
		}
	case wire.SetAck:
		if m.Flags&wire.Cancelled != 0 {
			text += " cancelled"
			m.Flags = 0
		}
	}
	if m.Kind == wire.Refused {
		text += [...]string{"", " no memory", " leaving", " paused", " passive", " wrong type", " deleted"}[m.Count]
	}
	switch m.Kind {
	case wire.AskCopies, wire.AskFlush, wire.AskMove, wire.AskGiven:
		m.Span = w.question(l.From, m.Span)
	case wire.Copies, wire.Flushed, wire.FlushReady, wire.MovedJobs, wire.Given:
		m.Span = w.question(l.To, m.Span)
	}
	if m.Span > 0 {
		text += fmt.Sprintf(" in %v", time.Duration(m.Span)*time.Millisecond)
	}
	if m.Kind == wire.PutOff && m.Flags&wire.CountNack != 0 {
		text += fmt.Sprintf(" returns=%d count-nack", count)
		m.Flags &= 0xF &^ wire.CountNack
	}
	for _, f := range flagNames {
		if m.Kind == f.kind && m.Flags&f.flag != 0 {
			text, m.Flags = text+" "+f.name, m.Flags&^f.flag
		}
	}
	if m.Kind == wire.Working {
		m.Flags &^= wire.CountNack
	}
	if m.Kind == wire.WillQueue || m.Kind == wire.Queued || m.Kind == wire.Working {
		counts := "nacks"
		if raw := l.Bytes[1]; m.Kind == wire.Queued && raw&(wire.Kept|wire.InHands) == 0 {
			counts = "returns"
		}
		if count > 0 {
			text += fmt.Sprintf(" %s=%d", counts, count)
		}
		m.Flags &= 0xF
		more := int(m.Flags >> 2)
		if m.Returns.Told {
			more = int(m.Returns.Deliveries)
		}
		if m.Kind == wire.WillQueue && more > 0 {
			text += fmt.Sprintf(" additional=%d", more)
			m.Flags &^= wire.DeliveriesFlags(3)
		}
	}
	flags := [...]string{"no-reply", "queue-it", "count-nack", "count-more", "known", "", "of-name", "by-client"}
	for i, name := range flags {
		if m.Flags&(1<<i) != 0 {
			text += " " + name
		}
	}
	return text
}

// countOf is how many NACKs, or returns, a message counts.
func countOf(m *wire.Message) int {
	switch {
	case !m.Returns.Told:
		return int(m.Flags >> 4)
	case m.CountsNacks():
		return int(m.Returns.Nacks)
	}
	return int(m.Returns.Nacks) + int(m.Returns.Deliveries)
}

// wordsText shows how far a job is, why it failed, why it was given up, and for how long a client has it.
func wordsText(extras []byte) (text string) {
	if e := store.FindExtra(extras, store.TagProgress); e != nil {
		text += fmt.Sprintf(" progress %q", e[8:])
	}
	if e := store.FindExtra(extras, store.TagFailure); e != nil {
		text += fmt.Sprintf(" failed %q", e[9+int(e[8]):])
	}
	if e := store.FindExtra(extras, store.TagDead); e != nil {
		text += " " + engine.Why(e[8]).String()
	}
	if e := store.FindExtra(extras, store.TagLapses); e != nil {
		for e = e[4:]; len(e) >= 12; e = e[12:] {
			text += fmt.Sprintf(" lapses=%d unstarted=%d", binary.LittleEndian.Uint16(e[8:]), binary.LittleEndian.Uint16(e[10:]))
		}
	}
	if e := store.FindExtra(extras, store.TagLease); e != nil {
		text += fmt.Sprintf(" lease=%d", binary.LittleEndian.Uint32(e))
	}
	if e := store.FindExtra(extras, store.TagBody); e != nil {
		text += fmt.Sprintf(" body=%d", binary.LittleEndian.Uint32(e))
	}
	return text
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
		text += fmt.Sprintf(" next=%v", time.Duration(j.QTime-w.Now)*time.Millisecond)
	}
	if p, ok := engine.ProgressOf(j); ok {
		text += fmt.Sprintf(" progress=%q", p.Text)
	}
	if e, ok := engine.EndingOf(j); ok {
		text += fmt.Sprintf(" outcome=%v", e.Outcome)
		if e.HasDetail {
			text += fmt.Sprintf(" %q", j.Body())
		}
	}
	if w, ok := engine.CancelOf(j); ok {
		text += fmt.Sprintf(" asked-to-stop=%q", w.Reason)
	}
	holders := ""
	for i := range j.Holders() {
		h, yes := j.Holder(i)
		for _, n := range w.nodes {
			if uint64(n.ID.Node()) == h {
				holders += " " + n.Name
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

// --- commands of clients ---------------------------------------------------------

func (w *world) add() {
	n, name := w.actor(0), w.Word(1)
	a := w.newAdd()
	if a.Replicate == 0 {
		a.Replicate = n.e.Copies()
	}
	n.Do(func() {
		if a.Name != nil {
			id, err := n.e.AddNamed(&a)
			if w.Say("added, %v", err); w.Jobs[id] == "" {
				w.Jobs[id], w.IDs[name] = name, id
			}
			return
		}
		id, wait, err := n.e.AddJob(&a)
		switch {
		case err != nil:
			w.Say("%v", err)
			return
		case wait:
			n.e.Tie(engine.PendingAdd(id), name)
			w.Say("waits for %s", map[bool]string{true: "copies", false: "votes"}[n.e.Job(&id) != nil])
		default:
			w.Say("added")
		}
		if w.Jobs[id] != "" {
			w.Say("it is %s", w.Jobs[id])
			return
		}
		w.Jobs[id], w.IDs[name] = name, id
	})
}

// addJobs is ADDJOBS: a node, a name for the client, jobs=(name,…), sizes=(bytes,…) or keys=(key,…), and the options of add.
func (w *world) addJobs() {
	n, client := w.actor(0), w.Word(1)
	a := w.newAdd()
	if a.Replicate == 0 {
		a.Replicate = n.e.Copies()
	}
	var names []string
	var bodies, keys [][]byte
	for _, arg := range w.D.CmdArgs {
		for _, v := range arg.Vals {
			switch arg.Key {
			case "jobs":
				names = append(names, v)
			case "sizes":
				size, err := strconv.Atoi(v)
				require.NoError(w.T, err)
				bodies = append(bodies, make([]byte, size))
			case "keys":
				keys = append(keys, []byte(v))
			}
		}
	}
	for len(bodies) < len(names) {
		bodies = append(bodies, []byte("body"))
	}
	w.Arg("maxlen", &a.MaxLen)
	n.Do(func() {
		b, wait, err := n.e.AddJobs(&a, bodies, keys)
		if err != nil {
			w.Say("%v", err)
			return
		}
		for i, answer := range b.Answers {
			if id := answer.ID; id != (store.ID{}) && w.Jobs[id] == "" {
				w.Jobs[id], w.IDs[names[i]] = names[i], id
			}
		}
		if !wait {
			w.Say("%s", w.answers(b))
			return
		}
		n.e.Tie(engine.PendingBatch(b), client)
		w.batch[client] = b
		w.Say("%s waits", client)
	})
}

func (w *world) answers(b *engine.Batch) string {
	var all []string
	for _, a := range b.Answers {
		switch a.Err {
		case nil:
			all = append(all, w.JobName(a.ID))
		case engine.ErrDropped:
			all = append(all, "null")
		default:
			code, _, _ := strings.Cut(a.Err.Error(), " ")
			all = append(all, "-"+code)
		}
	}
	return strings.Join(all, " ")
}

// leaves is the end of a client of ADDJOBS.
func (w *world) leaves() {
	n, b := w.actor(0), w.batch[w.Word(1)]
	n.Do(func() {
		n.e.Deny(engine.PendingBatch(b))
		n.e.Abandon(engine.PendingBatch(b))
	})
}

// policy reads what ADDJOB says of failures: onexpire (dead), maxnacks, maxdeliveries, deadttl, backoff (its base; the greatest is a minute).
func (w *world) policy(a *engine.Add) {
	p := &engine.Policy{Max: 60, ExpiredDies: true}
	for _, o := range []struct {
		name string
		set  engine.PolicySet
		into *int64
	}{
		{"onexpire", engine.SetOnExpire, nil}, {"maxnacks", engine.SetMaxNacks, &p.MaxNacks}, {"maxdeliveries", engine.SetMaxDeliveries, &p.MaxDeliveries},
		{"deadttl", engine.SetDeadTTL, &p.DeadTTL}, {"backoff", engine.SetBackoff, &p.Base}, {"keep", engine.SetKeep, &p.Keep},
	} {
		if !w.D.HasArg(o.name) {
			continue
		}
		if p.Set |= o.set; o.into != nil {
			w.Arg(o.name, o.into)
		}
		a.Policy = p
	}
}

// newAdd reads the options of a new job.
func (w *world) newAdd() engine.Add {
	a := engine.Add{Queue: []byte("q"), Body: []byte("body"), Replicate: 1, Retry: 10, TTL: 600, CanWait: true, Async: w.D.HasArg("async"), Default: w.D.HasArg("default")}
	queue := "q"
	w.Arg("queue", &queue)
	a.Queue = []byte(queue)
	w.Arg("replicate", &a.Replicate)
	w.Arg("retry", &a.Retry)
	w.Arg("ttl", &a.TTL)
	w.Arg("delay", &a.Delay)
	w.Arg("timeout", &a.Timeout)
	if w.D.HasArg("maxlapses") {
		a.Policy = &engine.Policy{Set: engine.SetMaxLapses}
		w.Arg("maxlapses", &a.Policy.MaxLapses)
	}
	body := "body"
	w.Arg("body", &body)
	a.Body = []byte(body)
	if given := ""; w.D.HasArg("name") {
		w.Arg("name", &given)
		a.Name = []byte(given)
	}
	w.Arg("priority", &a.Priority)
	w.policy(&a)
	w.members(&a)
	w.unique(&a)
	return a
}

// body shows the body that each node has for a job.
func (w *world) body() {
	id := w.Job(0)
	for _, n := range w.nodes {
		if j := n.e.Job(&id); j != nil {
			w.Say("%s: %s, %s", n.Name, j.Queue.NameBytes(), j.Body())
		}
	}
}

// members reads which jobs a job waits for: "deferred", blockedby=job, after=(job,…), run or dead.
func (w *world) members(a *engine.Add) {
	a.Deferred = w.D.HasArg("deferred")
	for _, arg := range w.D.CmdArgs {
		switch arg.Key {
		case "blockedby":
			id := w.IDs[arg.Vals[0]]
			a.BlockedBy = &id
		case "after":
			for _, name := range arg.Vals {
				a.After = append(a.After, w.IDs[name])
			}
		case "run":
			a.OnDead = engine.OnDeadRun
		case "dead":
			a.OnDead = engine.OnDeadDead
		}
	}
}

func (w *world) release() {
	n, id := w.actor(0), w.Job(1)
	n.Do(func() {
		var queue []byte
		if q := ""; w.D.HasArg("queue") {
			w.Arg("queue", &q)
			queue = []byte(q)
		}
		nodes, wait, err := n.e.Release(&id, queue, w.D.HasArg("last"), true)
		switch {
		case err != nil:
			w.Say("%v", err)
		case wait:
			n.e.Tie(engine.PendingRelease(id), w.Word(1))
			w.Say("waits for the others")
		default:
			w.Say("%d", nodes)
		}
	})
}

func (w *world) cancel() {
	n, id := w.actor(0), w.Job(1)
	cancel := n.e.CancelFor
	if w.D.HasArg("soft") {
		cancel = n.e.CancelSoftly
	}
	var reason []byte
	if text := ""; w.D.HasArg("reason") {
		w.Arg("reason", &text)
		reason = []byte(text)
	}
	n.Do(func() { w.Say("%d", cancel(&id, reason)) })
}

// waitJob is WAITJOB: NODE CLIENT JOB … [any] [timeout=MS].
func (w *world) waitJob() {
	n := w.actor(0)
	var ids []store.ID
	for i := 2; i < len(w.D.CmdArgs) && w.IDs[w.D.CmdArgs[i].Key] != (store.ID{}); i++ {
		ids = append(ids, w.Job(i))
	}
	timeout := int64(0)
	w.Arg("timeout", &timeout)
	n.Do(func() {
		p, now := n.e.WaitJobs(ids, w.D.HasArg("any"), timeout)
		if now != nil {
			w.Say("answer%s", w.endsText(now))
			return
		}
		n.e.Tie(p, w.Word(1))
	})
}

func (w *world) endsText(ends []engine.JobEnd) (text string) {
	for i := range ends {
		e := &ends[i]
		if text += fmt.Sprintf(" %s %v", w.JobName(e.ID), e.Outcome); e.HasDetail {
			text += fmt.Sprintf(" %q", e.Detail)
		}
	}
	return text
}

func (w *world) get() {
	n := w.actor(0)
	queue, count, client := "q", 1, ""
	w.Arg("queue", &queue)
	w.Arg("count", &count)
	w.Arg("wait", &client)
	lease := int64(0)
	w.Arg("lease", &lease)
	n.Do(func() {
		got := n.e.FetchFor([]*store.Queue{n.e.Queue([]byte(queue))}, count, true, lease, nil)
		for _, j := range got {
			w.Say("got %s nacks=%d additional=%d", w.JobName(j.ID), j.Nacks, j.Deliveries)
		}
		if len(got) > 0 {
			return
		}
		if w.D.HasArg("polls") {
			n.e.Poll([]byte(queue), count)
		}
		if client == "" {
			w.Say("nothing")
			return
		}
		waiter, err := n.e.Wait([][]byte{[]byte(queue)}, client)
		if err != nil {
			w.Say("%v", err)
			return
		}
		waiter.Count, waiter.Lease = count, lease
		w.Say("%s waits", client)
	})
}

func (w *world) ack() {
	n, id := w.actor(0), w.Job(1)
	r := engine.Result{Has: w.D.HasArg("result"), HasKeep: w.D.HasArg("keep")}
	text := ""
	w.Arg("result", &text)
	w.Arg("keep", &r.Keep)
	if r.Data = []byte(text); !r.Has && !r.HasKeep {
		n.Do(func() { w.Say("%v", n.e.Ack(&id)) })
		return
	}
	n.Do(func() { w.Say("%v", n.e.Finish(&id, &r)) })
}

func (w *world) verb(name string) {
	n, id := w.actor(0), w.Job(1)
	n.Do(func() {
		switch name {
		case "fastack":
			w.Say("%v", n.e.FastAck(&id))
		case "del":
			w.Say("%v", n.e.Delete(&id))
		case "nack":
			w.Say("%v", n.e.Nack(&id, w.failure()))
		case "enqueue":
			enqueue := n.e.Enqueue
			if w.D.HasArg("unstarted") {
				enqueue = n.e.EnqueueUnstarted
			}
			w.Say("%v", enqueue(&id))
		case "dequeue":
			w.Say("%v", n.e.Dequeue(&id))
		case "working":
			work := engine.Work{Client: w.JobName(id)}
			if w.D.HasArg("progress") {
				var text string
				w.Arg("progress", &text)
				work.Progress = []byte(text)
			}
			switch seconds, pending, err := n.e.Working(&id, work); {
			case err != nil:
				w.Say("%v", err)
			case pending:
				w.Say("waits for votes")
			default:
				w.Say("%d", seconds)
			}
		}
	})
}

// failure reads [delay=SECONDS] [dead] [reason=TEXT] [body=TEXT].
func (w *world) failure() *engine.Failure {
	f := &engine.Failure{Dead: w.D.HasArg("dead")}
	if w.D.HasArg("delay") {
		w.Arg("delay", &f.Delay)
		f.Delay *= 1000
	}
	if w.D.HasArg("reason") {
		var reason string
		w.Arg("reason", &reason)
		f.Reason = []byte(reason)
	}
	if w.D.HasArg("body") {
		var body string
		w.Arg("body", &body)
		f.Body, f.HasBody = []byte(body), true
	}
	return f
}

// move moves a job (NODE JOB [to=QUEUE] [priority=N] [at=SECONDS from now]).
func (w *world) move() {
	n, id := w.actor(0), w.Job(1)
	m := engine.Move{Ranks: w.D.HasArg("priority")}
	if w.D.HasArg("to") {
		var name string
		w.Arg("to", &name)
		m.To = []byte(name)
	}
	w.Arg("priority", &m.Priority)
	if m.HasAt = w.D.HasArg("at"); m.HasAt {
		w.Arg("at", &m.At)
		m.At = m.At*1000 + w.Now + n.Off
	}
	n.Do(func() {
		switch moved, err := n.e.Move(&id, &m); {
		case err == engine.ErrNotHere:
			w.Say("asks the others")
			if p, now := n.e.MoveAway([]store.ID{id}, &m, 1000); now != nil {
				w.gathered(now)
			} else {
				n.e.Tie(p, "MOVEJOB")
			}
		case err != nil:
			w.Say("%v", err)
		case moved:
			w.Say("moved")
		default:
			w.Say("it is so already")
		}
	})
}

// waitCopies is WAITCOPIES of a job: NODE JOB [copies=N].
func (w *world) waitCopies() {
	n, id, copies := w.actor(0), w.Job(1), 0
	w.Arg("copies", &copies)
	n.Do(func() {
		p, now := n.e.WaitCopies([]store.ID{id}, copies, 0)
		if now != nil {
			w.Say("answer %v", now)
			return
		}
		n.e.Tie(p, "waiter")
		w.copies = p
	})
}

// qflush flushes the queue q (NODE [mesh] [all]).
func (w *world) qflush() {
	n, all := w.actor(0), w.D.HasArg("all")
	n.Do(func() {
		var p engine.Pending
		var now *engine.MeshAnswer
		if w.D.HasArg("mesh") {
			p, now = n.e.FlushMesh([]byte("q"), all, 10_000)
		} else {
			p, now = n.e.FlushQueue([]byte("q"), all, true)
		}
		if now != nil {
			w.Say("answer")
			w.gathered(now)
			return
		}
		n.e.Tie(p, "flush")
	})
}

// paused says what is paused of the queue q at each node, and what all nodes are to have paused, as each knows it.
func (w *world) paused() {
	for _, n := range w.nodes {
		everywhere := "nothing"
		if e := n.e.Entries().Get(engine.EntryPause, "q"); e != nil {
			everywhere = fmt.Sprint(e.Value)
		}
		w.Say("%s: pause %d, everywhere %s, in step %v", n.Name, n.e.PauseOf([]byte("q"), n.e.Queue([]byte("q"))), everywhere, n.e.EntriesInStep())
	}
}

// pause pauses the queue q at a node (NODE in|out|all|none [bcast] [for=SECONDS]). With "unsaid" the other nodes don't hear that its clients don't want jobs any more.
func (w *world) pause() {
	n, sent := w.actor(0), len(w.Sent)
	mask := map[string]uint8{"in": engine.PauseIn, "out": engine.PauseOut, "all": 3, "none": 0}[w.Word(1)]
	n.Do(func() {
		pause := n.e.SetPause
		if w.D.HasArg("bcast") {
			pause = n.e.PauseEverywhere
		}
		seconds := 0
		w.Arg("for", &seconds)
		_, err := pause([]byte("q"), mask, int64(seconds)*1000)
		require.NoError(w.T, err)
	})
	if w.D.HasArg("unsaid") {
		w.Sent = w.Sent[:sent]
	}
}

func (w *world) qlen() {
	for _, n := range w.nodes {
		length := uint64(0)
		if q := n.e.Queue([]byte("q")); q != nil {
			length = q.Len
		}
		w.Say("%s: %d", n.Name, length)
	}
}

// count is QSTAT … MESH: NODE QUEUE.
func (w *world) count() {
	n := w.actor(0)
	w.asks(n, func() (engine.Pending, *engine.MeshAnswer) { return n.e.AskCounts([]byte(w.Word(1)), 1000) })
}

// scan is QSCAN … MESH: NODE count=N. It goes on where the former one ended.
func (w *world) scan() {
	n, count := w.actor(0), 10
	w.Arg("count", &count)
	w.asks(n, func() (engine.Pending, *engine.MeshAnswer) { return n.e.AskQueues(w.cursor, count, 1000) })
}

// asks asks all nodes a question.
func (w *world) asks(n *actor, ask func() (engine.Pending, *engine.MeshAnswer)) {
	n.Do(func() {
		p, now := ask()
		if now != nil {
			w.gathered(now)
			return
		}
		w.Say("waits for answers")
		n.e.Tie(p, w.D.Cmd)
	})
}

// gathered shows what the nodes have answered.
func (w *world) gathered(a *engine.MeshAnswer) {
	if a.Copies != nil {
		w.Say("  %v", a.Copies)
	}
	if a.Ends != nil {
		w.Say(" %s", w.endsText(a.Ends))
	}
	if a.Flushed > 0 {
		w.Say("  flushed %d", a.Flushed)
	}
	if a.Moved > 0 || a.Refused != nil {
		w.Say("  moved %d, %v", a.Moved, a.Refused)
	}
	for i := range a.Queues {
		q := &a.Queues[i]
		w.Say("  %s: %s", q.Name, countsText(&q.Counts))
		for k := range q.Nodes {
			w.Say("    %s: %s", w.ByID(q.Nodes[k].Node).Name, countsText(&q.Nodes[k].Counts))
		}
	}
	for _, id := range a.Unanswered {
		w.Say("  unanswered: %s", w.ByID(id).Name)
	}
	if w.cursor = a.Next; a.Next != 0 {
		w.Say("  more")
	}
}

func countsText(c *engine.Counts) (text string) {
	for _, f := range []struct {
		name  string
		value uint64
	}{
		{"waiting", c.Len}, {"in-progress", c.InProgress}, {"overdue", c.Overdue}, {"held-back", c.HeldBack}, {"delayed", c.Delayed},
		{"deferred", c.Deferred}, {"blocked", c.Blocked}, {"clients", c.Waiters}, {"pause", c.Pause},
		{"deferred-copies", c.DeferredCopies}, {"blocked-copies", c.BlockedCopies},
	} {
		if f.value > 0 {
			text += fmt.Sprintf(" %s=%d", f.name, f.value)
		}
	}
	return strings.TrimPrefix(text, " ")
}

// show shows a job at each node.
func (w *world) show() {
	id := w.Job(0)
	for _, n := range w.nodes {
		if n.Down {
			w.Say("%s: down", n.Name)
		} else if j := n.e.Job(&id); j != nil {
			n.e.SetNow(w.Now + n.Off)
			w.Say("%s: %s", n.Name, w.state(j))
		} else {
			w.Say("%s: unknown", n.Name)
		}
	}
}

func (w *world) load() {
	for _, n := range w.nodes {
		w.Say("%s: %d jobs, %+v", n.Name, n.e.Jobs(), n.e.Load())
	}
}

// --- network and time ------------------------------------------------------------

// deliver delivers messages. With "together", which needs a "to", that node serves clients only after it has got all of
// them.
func (w *world) deliver() {
	w.DeliverBy(func(to *locktest.Actor, bring func()) {
		if n := w.of(to); w.D.HasArg("together") { // that node gets all messages at one moment
			n.Do(func() { n.e.Hear(bring) })
		} else {
			bring()
		}
	})
}

// crash ends a node's process. With loses=SPAN its log of jobs lacks the end, with "wiped" its disk is lost.
func (w *world) crash() {
	a := w.actor(0)
	lost := "0s"
	if w.Arg("loses", &lost); lost != "0s" {
		a.tears(w.Span(lost))
	}
	a.tail = nil
	if w.D.HasArg("wiped") {
		clear(a.disk)
		a.order = nil
	}
	w.Crash()
}

// inject makes a node receive a message that no node sent.
func (w *world) inject() {
	from, to, id := w.actor(0), w.actor(1), w.Job(2)
	m := wire.Message{ID: id, Queue: []byte("q"), Job: wire.Job{CTime: 1_700_000_000_000_000_000, Left: 100_000, Retry: 10, Repl: 2, Body: []byte("body")}}
	for kind, name := range kindNames {
		if strings.EqualFold(name, w.Word(3)) {
			m.Kind = kind
		}
	}
	if id.AtMostOnce() {
		m.Job.Retry = 0
	}
	count := 0
	w.Arg("count", &count)
	m.Count = uint32(count)
	m.Holders = []wire.Node{from.ID.Node()}
	if w.D.HasArg("blind") {
		m.Holders = nil
	}
	to.Do(func() { require.NoError(w.T, to.e.Receive(from.ID, m.Append(nil))) })
}

// skew shifts the creation time of a node's copy by that many seconds.
func (w *world) skew() {
	n, id := w.actor(0), w.Job(1)
	shift, err := strconv.ParseInt(w.Word(2), 10, 64)
	require.NoError(w.T, err)
	j := n.e.Job(&id)
	j.CTime = uint64(int64(j.CTime) + shift*1_000_000_000)
}

// --- nodes -----------------------------------------------------------------------

func (w *world) pressure() {
	n := w.actor(0)
	ratio, err := strconv.ParseFloat(w.Word(1), 64)
	require.NoError(w.T, err)
	n.Do(func() { n.e.SetMemory(ratio / 100) })
}

func (w *world) leave() {
	n := w.actor(0)
	n.Do(func() { n.e.SetLeaving(w.Word(1) == "yes") })
}

// unique reads by what a job is unique: unique=until, before, during, both or window,
// limit=…, lockttl=…, runttl=…, key=…, unkeyed, any, conflict=raise, return, reschedule, replace or debounce (with bound=…), busy=drop, dead or reschedule.
func (w *world) unique(a *engine.Add) {
	how, conflict := "", ""
	if w.Arg("unique", &how); how == "" {
		return
	}
	w.Arg("conflict", &conflict)
	u := &a.Unique
	u.Strategy = map[string]uint8{"before": store.UniqueBefore, "during": store.UniqueDuring, "both": store.UniqueBoth, "until": store.UniqueUntil, "window": store.UniqueWindow}[how]
	u.Conflict = map[string]uint8{"raise": store.ConflictRaise, "return": store.ConflictReturn, "reschedule": store.ConflictReschedule, "replace": store.ConflictReplace, "debounce": store.ConflictDebounce}[conflict]
	u.Mesh, u.Any, u.Keyed, u.Key, u.ConflictDelay, u.BusyDelay = !w.D.HasArg("own"), w.D.HasArg("any"), true, []byte("k"), 5, 5
	w.Arg("limit", &u.Limit)
	w.Arg("bound", &u.ConflictDelay) // s
	w.Arg("lockttl", &u.LockTTL)     // s
	w.Arg("runttl", &u.RunTTL)       // s
	busy := ""
	w.Arg("busy", &busy)
	u.Busy = map[string]uint8{"drop": store.BusyDrop, "dead": store.BusyDead, "reschedule": store.BusyReschedule}[busy]
	key := "k"
	w.Arg("key", &key)
	u.Key = []byte(key)
	if w.D.HasArg("unkeyed") {
		u.Keyed, u.Key = false, nil
	}
}

// lostlock JOB shows at which nodes it is known that a job has lost a lock.
func (w *world) lostLock() {
	id := w.Job(0)
	for _, n := range w.nodes {
		w.Say("%s: %v", n.Name, n.e.LockLost(&id))
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
		require.True(t, n.Nack(&id, &engine.Failure{}))
		n.Effects()
	}
	require.EqualValues(t, 1<<16-1, n.Job(&id).Nacks)
}
