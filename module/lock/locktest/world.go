// Package locktest plays scripts of nodes that have locks. It has the nodes, the messages between them, their logs of
// locks, and the time. The maker of a node says what it is: in the tests of package lock it is the locks and a table of
// nodes, in those of package engine a whole engine.
//
// Nodes are called a, b, c …. A node's messages are held until "deliver". Heartbeats, and pages of the tables of locks,
// arrive at once and aren't shown, unless the mesh was made with "beats" or "tables". A mesh that was made with
// "remembers" knows after restarts how long its votes can have lasted.
package locktest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
)

// Dawn is when scripts begin, unix ms.
const Dawn = 1_700_000_000_000

// Node is a node in one life of its process. Its events are like an engine's: CarryOut follows each of them.
type Node interface {
	SetNow(wall int64)
	Receive(from wire.NodeID, message []byte) error
	Tick() (next int64)   // unix ms
	EarliestArmed() int64 // the earliest time that was set since the last call, unix ms
	CarryOut()            // does what the event was to bring about, by the methods of the node's Actor
	Reset()

	StartsNew()
	BeginLoading() // the log of locks is loaded after this
	EndLoading()
	Loaded(exact bool)

	Locks() *lock.Node
	Table() Table
}

// Table is a node's table of the other nodes.
type Table interface {
	Add(id wire.NodeID, addr string) bool
	Forget(id wire.NodeID) bool
	Up(id wire.NodeID, addr string, met bool)
	Down(id wire.NodeID)
	Reachable() int
	Mesh() membership.Mesh
}

// World is what a script is about: several nodes, and the messages between them.
type World struct {
	T        *testing.T
	D        *datadriven.TestData // the command that is played
	Commands map[string]func()
	Out      strings.Builder

	Now   int64
	Nodes []*Actor
	Sent  []Letter            // messages under way
	Jobs  map[store.ID]string // their names in the script
	IDs   map[string]store.ID

	// Kinds and Text are for messages of other packages: the names of their kinds, and what is shown of them.
	Kinds map[wire.Kind]string
	Text  func(l Letter, m *wire.Message) string

	start         func(a *Actor, timeout int64) Node
	beats, tables bool
	why           string   // the reason that the last refusal of a lock gave
	quick         []Letter // heartbeats, and pages of the tables of locks, on their way
}

// Letter is a message under way.
type Letter struct {
	From, To *Actor
	Bytes    []byte
}

// Actor is a node in a script, through all lives of its process, and with what it has on disk.
type Actor struct {
	W     *World
	Node  Node
	Name  string
	ID    wire.NodeID
	Links map[*Actor]bool
	Life  uint64
	Off   int64 // how far its wall clock is ahead of the others'
	Down  bool
	Still bool // stands still: it neither ticks nor receives

	Choked  bool // its bus accepts nothing
	Refused []Letter

	next  int64
	known []wire.NodeID     // its nodes' file
	locks map[string][]byte // its log of locks
	floor uint64
	table uint64 // its log of the table of locks as a whole
	votes lock.Votes
	keeps bool
}

// New makes a world whose nodes are made by start.
func New(start func(a *Actor, timeout int64) Node) *World {
	w := &World{start: start}
	w.Commands = map[string]func(){
		"mesh": w.Mesh, "mesh-beats": func() { w.beats = true }, "newnode": func() { w.NewNode().Node.StartsNew() },
		"deliver": w.Deliver, "drop": w.drop, "advance": w.advance, "cut": w.cut, "join": w.join,
		"crash": w.Crash, "restart": w.restart, "forget": w.forget, "meet": w.meet, "know": w.know, "nodes": w.nodes,
		"stall": func() { w.Actor(0).Still = true }, "wake": func() { w.Actor(0).Still = false },
		"clock": w.clock, "reset": func() { a := w.Actor(0); a.Do(a.Node.Reset) },

		"acquire": w.acquire, "extend": func() { w.extend(false) }, "letgo": func() { w.extend(true) },
		"unlock": w.unlock, "unheard": w.unheard, "clearlock": w.clearLock, "distrust": w.distrust,
		"locks": w.locks, "why": func() { w.Say("%s", w.why) },
	}
	return w
}

// Run plays the scripts that the patterns name, each in a world of its own.
func Run(t *testing.T, world func() *World, patterns ...string) {
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { datadriven.RunTest(t, file, world().Play) })
		}
	}
}

// Play carries out a command, and returns what it shows.
func (w *World) Play(t *testing.T, d *datadriven.TestData) string {
	w.T, w.D = t, d
	w.Out.Reset()
	f := w.Commands[d.Cmd]
	if f == nil {
		d.Fatalf(t, "no such command: %s", d.Cmd)
	}
	f()
	w.Flush()
	if w.Out.Len() == 0 {
		return "ok\n"
	}
	return w.Out.String()
}

// PlayLine carries out a command that is a line of a script.
func (w *World) PlayLine(t *testing.T, line string) string {
	cmd, words, err := datadriven.ParseLine(line)
	require.NoError(t, err)
	return w.Play(t, &datadriven.TestData{Cmd: cmd, CmdArgs: words})
}

// Say adds a line to what the command shows.
func (w *World) Say(format string, args ...any) { fmt.Fprintf(&w.Out, format+"\n", args...) }

// --- arguments -----------------------------------------------------------------

// Arg reads an argument, if the command has it.
func (w *World) Arg(key string, dest any) {
	if w.D.HasArg(key) {
		w.D.ScanArgs(w.T, key, dest)
	}
}

// Actor returns the node that the i-th word names.
func (w *World) Actor(i int) *Actor {
	for _, n := range w.Nodes {
		if i < len(w.D.CmdArgs) && n.Name == w.D.CmdArgs[i].Key {
			return n
		}
	}
	w.D.Fatalf(w.T, "word %d names no node", i+1)
	return nil
}

// Word returns the i-th word.
func (w *World) Word(i int) string {
	if i >= len(w.D.CmdArgs) {
		w.D.Fatalf(w.T, "word %d is missing", i+1)
	}
	return w.D.CmdArgs[i].Key
}

// Job returns the ID of the job that the i-th word names.
func (w *World) Job(i int) store.ID {
	id, yes := w.IDs[w.Word(i)]
	if !yes {
		w.D.Fatalf(w.T, "no job %s", w.Word(i))
	}
	return id
}

// Span reads a span of time, ms.
func (w *World) Span(text string) int64 {
	d, err := time.ParseDuration(text)
	require.NoError(w.T, err)
	return d.Milliseconds()
}

func (w *World) duration(key string, dest *int64) {
	text := ""
	if w.Arg(key, &text); text != "" {
		*dest = w.Span(text)
	}
}

// ByID returns the node with an ID.
func (w *World) ByID(id wire.NodeID) *Actor {
	for _, n := range w.Nodes {
		if n.ID == id {
			return n
		}
	}
	panic("no such node")
}

// --- nodes -----------------------------------------------------------------------

// Mesh begins anew with several nodes.
func (w *World) Mesh() {
	count, timeout := 3, int64(membership.DefaultTimeout)
	w.Arg("nodes", &count)
	w.Arg("timeout", &timeout)
	*w = World{
		T: w.T, D: w.D, Commands: w.Commands, Kinds: w.Kinds, Text: w.Text, start: w.start,
		Now: Dawn, Jobs: map[store.ID]string{}, IDs: map[string]store.ID{}, beats: w.D.HasArg("beats"), tables: w.D.HasArg("tables"),
	}
	for i := range count {
		n := w.newActor()
		if w.D.HasArg("near") { // their tokens differ only in bits that clients aren't shown
			n.ID[6], n.ID[7] = 0x11, byte(0x10*(i+1))
		}
		n.start(timeout)
		if n.votes = (lock.Votes{Longest: lock.LeasesUpTo(-1), Unleased: true}); w.D.HasArg("remembers") {
			n.votes = lock.Votes{}
			n.Node.Locks().SetVotes(n.votes)
		}
	}
	if w.D.HasArg("apart") {
		return
	}
	for i, n := range w.Nodes {
		for _, p := range w.Nodes[i+1:] {
			w.Connect(n, p)
		}
	}
	w.Flush()
	w.Out.Reset()
}

// newActor makes one more node, and doesn't start it.
func (w *World) newActor() *Actor {
	i := len(w.Nodes)
	n := &Actor{W: w, Name: string(rune('a' + i)), locks: map[string][]byte{}, Links: map[*Actor]bool{}, next: w.Now + 1}
	for k := range n.ID {
		n.ID[k] = byte(0x11 * (i + 1))
	}
	w.Nodes = append(w.Nodes, n)
	return n
}

// NewNode starts one more node, which knows no other.
func (w *World) NewNode() *Actor {
	n := w.newActor()
	n.start(membership.DefaultTimeout)
	w.Say("%s", n.Name)
	return n
}

func (n *Actor) start(timeout int64) {
	n.Life++
	n.Down = false
	n.Node = n.W.start(n, timeout)
}

// Do runs an event at a node, and carries out what the event brings about.
func (n *Actor) Do(f func()) {
	n.Node.SetNow(n.W.Now + n.Off)
	f()
	n.Node.CarryOut()
	if n.keeps {
		n.keeps = false
		n.Do(func() { n.Node.Locks().VotesKept(n.votes) })
	}
	n.next = min(n.next+n.Off, n.Node.EarliestArmed()) - n.Off
}

// Crash ends a node's process. With "wiped" its disk is lost, too.
func (w *World) Crash() {
	a := w.Actor(0)
	a.Down = true
	if w.D.HasArg("wiped") {
		clear(a.locks)
		a.floor, a.table = 0, 0
	}
	for _, b := range w.Nodes {
		if b != a && a.Links[b] {
			w.Unlink(a, b)
			b.Do(func() { b.Node.Table().Down(a.ID) })
		}
	}
}

// restart brings a node back with what it logged. The node trusts its log, but not with
// "distrust". With "always" each vote was logged before it was given, and the log also says
// what is known of the votes as a whole.
func (w *World) restart() {
	a := w.Actor(0)
	a.start(membership.DefaultTimeout)
	a.next = w.Now + 1
	a.Do(func() {
		a.Node.BeginLoading()
		a.LoadLocks()
		a.Node.EndLoading()
		for _, id := range slices.Clone(a.known) {
			a.Node.Table().Add(id, w.ByID(id).addr())
		}
		locks := a.Node.Locks()
		locks.SetVotes(a.votes)
		a.Node.Loaded(!w.D.HasArg("inexact"))
		switch {
		case w.D.HasArg("always") && locks.IsComplete():
			locks.TrustLoaded()
		case w.D.HasArg("distrust"), w.D.HasArg("always"):
			locks.MarkIncomplete()
		default:
			locks.Trust()
		}
	})
	for _, b := range w.Nodes {
		if b != a && !b.Down {
			w.Connect(a, b)
		}
	}
}

func (w *World) forget() {
	n, other := w.Actor(0), w.Actor(1)
	n.Do(func() { w.Say("%v", n.Node.Table().Forget(other.ID)) })
}

// know makes a node know another one, as from the nodes' file: they aren't connected.
func (w *World) know() {
	n, other := w.Actor(0), w.Actor(1)
	n.Do(func() { n.Node.Table().Add(other.ID, other.addr()) })
}

// meet tells a node of another one by gossip, or with "on-purpose" by CLUSTER MEET.
func (w *World) meet() {
	n, other := w.Actor(0), w.Actor(1)
	n.Links[other], other.Links[n] = true, true
	n.meets(other, w.D.HasArg("on-purpose"))
	if n.Links[other] {
		other.meets(n, w.D.HasArg("on-purpose"))
	}
}

var healthNames = [...]string{"well", "suspected", "failed", "forgotten"}

// nodes shows all nodes' tables of the others.
func (w *World) nodes() {
	for _, n := range w.Nodes {
		if n.Down {
			continue
		}
		text := n.Name + ":"
		for _, p := range n.Node.Table().Mesh().All() {
			text += fmt.Sprintf(" %s %s", w.ByID(p.ID).Name, healthNames[p.Health])
			if !p.Connected {
				text += " apart"
			}
			if p.Leaving {
				text += " leaving"
			}
			text += ","
		}
		w.Say("%s %d reachable", text, n.Node.Table().Reachable())
	}
}

// clock NODE SPAN sets the wall clock of a node that is down that far ahead of the others'.
func (w *World) clock() {
	n := w.Actor(0)
	text, back := strings.CutPrefix(w.Word(1), "-")
	if n.Off = w.Span(text); back {
		n.Off = -n.Off
	}
}

// --- network and time ------------------------------------------------------------

func (n *Actor) addr() string { return n.Name + ":1" }

// Connect makes a connection between two nodes.
func (w *World) Connect(a, b *Actor) {
	a.Links[b], b.Links[a] = true, true
	a.meets(b, true)
	b.meets(a, true)
}

func (n *Actor) meets(other *Actor, purpose bool) {
	n.Do(func() { n.Node.Table().Up(other.ID, other.addr(), purpose) })
}

// Unlink ends the connection of two nodes. Messages under way are lost.
func (w *World) Unlink(a, b *Actor) {
	delete(a.Links, b)
	delete(b.Links, a)
	w.Sent = slices.DeleteFunc(w.Sent, func(l Letter) bool {
		gone := l.From == a && l.To == b || l.From == b && l.To == a
		if gone {
			w.Say("  %s is lost", l)
		}
		return gone
	})
}

// cut ends the connections between the named nodes, or from one node to all. join makes them anew.
func (w *World) cut() {
	a := w.Actor(0)
	for _, b := range w.others(a) {
		w.Unlink(a, b)
		a.Do(func() { a.Node.Table().Down(b.ID) })
		b.Do(func() { b.Node.Table().Down(a.ID) })
	}
}

func (w *World) join() {
	a := w.Actor(0)
	for _, b := range w.others(a) {
		w.Connect(a, b)
	}
}

func (w *World) others(a *Actor) (list []*Actor) {
	for _, b := range w.Nodes {
		if b != a && !b.Down && (len(w.D.CmdArgs) == 1 || b == w.Actor(1)) {
			list = append(list, b)
		}
	}
	return list
}

// Sends puts a message under way.
func (n *Actor) Sends(to wire.NodeID, message []byte) {
	w := n.W
	l := Letter{n, w.ByID(to), slices.Clone(message)}
	switch k := l.Read().Kind; {
	case k == wire.Heartbeat && !w.beats || (k == wire.LockPull || k == wire.LockPage) && !w.tables:
		w.quick = append(w.quick, l)
	case n.Choked:
		w.Say("  %s isn't accepted", l)
		n.Refused = append(n.Refused, l)
	default:
		w.Say("  %s", l)
		w.Sent = append(w.Sent, l)
	}
}

// Connects shows that a node wants a connection.
func (n *Actor) Connects(to wire.NodeID) { n.W.Say("  %s connects to %s", n.Name, n.W.ByID(to).Name) }

// Disconnects ends a connection that a node doesn't want any more.
func (n *Actor) Disconnects(from wire.NodeID) {
	other := n.W.ByID(from)
	n.W.Say("  %s disconnects %s", n.Name, other.Name)
	if n.W.Unlink(n, other); !other.Down {
		other.Do(func() { other.Node.Table().Down(n.ID) })
	}
}

// NodesChanged writes a node's nodes' file.
func (n *Actor) NodesChanged() {
	n.known = n.known[:0]
	for _, p := range n.Node.Table().Mesh().All() {
		n.known = append(n.known, p.ID)
	}
}

// Flush delivers the messages that aren't shown.
func (w *World) Flush() {
	for len(w.quick) > 0 {
		l := w.quick[0]
		w.quick = w.quick[1:]
		if l.From.Links[l.To] && !l.To.Down && !l.To.Still {
			l.arrives()
		}
	}
}

func (l Letter) arrives() {
	l.To.Do(func() { require.NoError(l.To.W.T, l.To.Node.Receive(l.From.ID, l.Bytes)) })
}

// Chosen says whether the command's from, to and kind name a message.
func (w *World) Chosen(l Letter) bool {
	name := w.kindName(l.Read().Kind)
	from, to, kind := l.From.Name, l.To.Name, name
	w.Arg("from", &from)
	w.Arg("to", &to)
	w.Arg("kind", &kind)
	return !l.To.Still && from == l.From.Name && to == l.To.Name && strings.EqualFold(kind, name)
}

// Deliver delivers messages, and the answers to them, until there are none left; with "once" only the messages that
// were under way.
func (w *World) Deliver() { w.DeliverBy(func(_ *Actor, bring func()) { bring() }) }

// DeliverBy is Deliver, and calls hear to bring the messages. to is the receiver of the first one.
func (w *World) DeliverBy(hear func(to *Actor, bring func())) {
	const many = 500
	for count := range many {
		if count == many-1 {
			w.Say("… and so on: there is no end")
		}
		batch := w.Sent
		w.Sent = nil
		first := slices.IndexFunc(batch, w.Chosen)
		if first < 0 {
			w.Sent = batch
			return
		}
		hear(batch[first].To, func() {
			for _, l := range batch {
				if w.Chosen(l) {
					w.Bring(l)
				} else {
					w.Sent = append(w.Sent, l)
				}
			}
		})
		if w.D.HasArg("once") {
			return
		}
	}
}

// Bring delivers a message.
func (w *World) Bring(l Letter) {
	if !l.From.Links[l.To] || l.To.Down {
		w.Say("%s is lost", l)
		return
	}
	w.Say("%s", l)
	l.arrives()
}

func (w *World) drop() {
	w.Sent = slices.DeleteFunc(w.Sent, func(l Letter) bool {
		if !w.Chosen(l) {
			return false
		}
		w.Say("%s is dropped", l)
		return true
	})
}

// advance lets time pass. With "deliver" messages arrive at once meanwhile.
func (w *World) advance() {
	end := w.Now + w.Span(w.Word(0))
	for {
		w.Flush()
		var first *Actor
		for _, n := range w.Nodes {
			if !n.Down && !n.Still && n.next <= end && (first == nil || n.next < first.next) {
				first = n
			}
		}
		if first == nil {
			break
		}
		w.Now = max(w.Now, first.next)
		before := w.Out.Len()
		first.Do(func() { first.next = first.Node.Tick() - first.Off })
		if w.D.HasArg("deliver") {
			w.Commands["deliver"]()
		}
		if text := w.Out.String(); w.D.HasArg("quiet") {
			w.Out.Reset()
			w.Out.WriteString(text[:before])
		} else if len(text) > before {
			w.Out.Reset()
			fmt.Fprintf(&w.Out, "%s%v:\n%s", text[:before], time.Duration(w.Now-Dawn)*time.Millisecond, text[before:])
		}
	}
	w.Now = end
}
