package commands

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"jobmesh/module/bus"
	"jobmesh/module/engine"
	"jobmesh/module/lock"
	"jobmesh/module/membership"
	"jobmesh/module/store"
	"jobmesh/module/wire"
	"jobmesh/rm"
)

// featureOffers is a feature of the bus: a node that has it answers Offer.
const featureOffers = 1

// featureBatches is a feature of the bus: a node that has it takes ReplJobs.
const featureBatches = 2

// featureCounts is another: a node that has it answers AskCounts and AskQueues.
const featureCounts = 4

// featureEntries is another: a node that has it takes Entries and EntrySums.
const featureEntries = 8

// featureCopies is another: a node that has it answers AskCopies.
const featureCopies = 16

// featureFlushes is another: a node that has it answers AskFlush.
const featureFlushes = 32

// featureJobs is another: a node that has it answers AskJobs.
const featureJobs = 64

// featureFailures is another: a node that has it takes Whereabouts, and PutOff with CountNack.
const featureFailures = 128

// featureRates is another: a node that has it obeys RATE.
const featureRates = 256

// featureResults is another: a node that has it takes SetEnd, GotEnd, Watch, Ended and Cancel.
const featureResults = 1024

// featureSlots is another: a node that has it votes for slots of locks, and obeys CONCURRENCY.
const featureSlots = 512

// featureCrons is another: a node that has it makes recurring jobs, and takes Marks.
const featureCrons = 2048

// featureReturns is another: a node that has it takes wire.Returns behind WillQueue, Queued, Working and PutOff.
const featureReturns = 4096

// featureLimits is another: a node that has it obeys UNIQUE … LIMIT.
const featureLimits = 8192

// featureReplaces is another: a node that has it answers Do and NewCopy.
const featureReplaces = 16384

// featureNames is another: a node that has it answers AskName, and takes Publish.
const featureNames = 32768

// featureDelays is another: a node that has it answers AskDelayed.
const featureDelays = 65536

// featureBodies is another: a node that has it keeps the versions of bodies.
const featureBodies = 262144

// featureBounds is another: a node that has it tells wire.Bounds, and takes AskGiven, Flushes, and AskFlush with Soon.
const featureBounds = 524288

const maxZone = 64 // bytes of a zone's name

// busOffset is how far the port of a node's bus is above its port for clients.
const busOffset = 10000

// mesh connects the engine to the bus.
type mesh struct {
	bus     *bus.Bus // nil: none, as on a Redis replica
	met     map[wire.NodeID]bool
	left    bool // the bus is closed when this turn ends
	closing bool // a bus before this one still has the port
	awaited bool // this node opens another bus when that one is closed
	saving  bool // the nodes' file is being written
	unsaved bool // when that is done, it has to be written again
	saves   uint64
	tokens  uint64 // the nodes' file says that tokens up to this one may have been given out; 0: it says nothing
	kept    uint64 // the save that the node relies on
	failed  string // why the last write of the file failed; empty: it didn't
	unsent  []unsent
	file    nodesFile
	files   []string // the nodes' file in each folder that has been the server's dir; the start's folder first
	others  []string // nodes' files in such folders that belong to other nodes

	catching, caught time.Time // when caughtUp began to wait (zero: it doesn't wait), and when it last had everything

	// The operator's settings: jobmesh.cluster-secret, cluster-bind, cluster-announce, cluster-port (0: it follows from
	// the clients' port, see busOffset) and cluster-node-timeout (ms).
	secret, bind, announce string
	port, timeout          int64

	local string // this node's address, as its connections show it; empty: there was no connection yet
}

// unsent is a message with a job that the bus didn't accept.
type unsent struct {
	to   wire.NodeID
	kind wire.Kind
	id   wire.JobID
}

func (m *module) setNodeTimeout(ms int64) {
	m.mesh.timeout = ms
	m.node.Mesh().SetTimeout(ms)
}

// clientPort returns the port for clients, or the TLS port if there is no other. It returns
// 0 if there is none, or if none is known.
func (m *module) clientPort() int {
	if port := m.portOf("port"); port != 0 {
		return port
	}
	return m.portOf("tls-port")
}

func (m *module) portOf(parameter string) int {
	text, err := m.server.ConfigValue(parameter)
	if err != nil {
		text, _ = m.server.InfoField("server", "tcp_port")
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return port
}

// openBus makes the node take part in the mesh. If no bus can be opened, the node works
// alone, and the log says why.
func (m *module) openBus() {
	if m.mesh.bus != nil || m.node.Passive() {
		return
	}
	if m.mesh.closing {
		m.mesh.awaited = true
		return
	}
	m.node.SetPort(m.clientPort())
	port := m.mesh.port
	if port == 0 {
		if m.clientPort() == 0 {
			m.server.Log(rm.Warning, "this server has no port for clients, from which that of the bus would follow: this node works alone. Set jobmesh.cluster-port")
			return
		}
		port = int64(m.clientPort()) + busOffset
	}
	if port > 65535 {
		m.server.Log(rm.Notice, "no port is left for the bus (%d is too high): this node works alone. Set jobmesh.cluster-port", port)
		return
	}
	host := m.mesh.bind
	if host == "" && m.mesh.secret == "" {
		host = "127.0.0.1"
	}
	b, err := bus.Open(bus.Config{
		Listen:    net.JoinHostPort(host, strconv.FormatInt(port, 10)),
		Advertise: m.mesh.announce,
		ID:        m.node.Self(),
		Features:  featureOffers | featureBatches | featureCounts | featureEntries | featureCopies | featureFlushes | featureJobs | featureFailures | featureRates | featureSlots | featureResults | featureCrons | featureReturns | featureLimits | featureReplaces | featureNames | featureDelays | featureBodies | featureBounds,
		Secret:    []byte(m.mesh.secret),
		Wake: func() {
			m.server.Post(func(*rm.Server) { m.later(0, m.drain) })
		},
		Log: func(level, text string) { m.server.Log(rm.Level(level), "bus: %s", text) },
	})
	if err != nil {
		m.server.Log(rm.Warning, "this node works alone: %v", err)
		return
	}
	m.mesh.bus, m.mesh.met = b, map[wire.NodeID]bool{}
	for _, p := range m.node.Mesh().All() {
		b.Connect(p.ID, p.Addr)
	}
}

// learnHost takes the local address of a connection for this node's address. A loopback
// address doesn't replace one that is known.
func (m *module) learnHost(local string) {
	if ip := net.ParseIP(local); m.mesh.local == "" || ip != nil && !ip.IsLoopback() {
		m.mesh.local = local
	}
}

// host returns the host at which others reach this node: the one that the operator
// announces, else the one that connections have shown.
func (m *module) host() string {
	if host, _, _ := net.SplitHostPort(m.mesh.announce); host != "" {
		return host
	}
	return m.mesh.local
}

// busState describes the bus for CLUSTER INFO: whether other nodes can connect to this one.
func (m *module) busState() string {
	if m.mesh.bus == nil {
		return "none"
	}
	if why := m.mesh.bus.Deaf(); why != "" {
		return "not listening, " + printable(why)
	}
	return "listening"
}

// leave takes the node out of the mesh, since it is a Redis replica now. While writes were
// paused, the node read nothing: jobs that others handed over to it may still be unread. It
// refuses them, so that the other nodes queue them again at once. The bus is closed when
// the turn ends, after the AOF is written and these answers are sent.
func (m *module) leave(c *rm.Ctx) {
	b := m.mesh.bus
	if b == nil {
		return
	}
	for more, since := true, time.Now(); more && time.Since(since) < leaveFor; {
		more = false
		b.Drain(func(e bus.Event) {
			more = true
			if _, yes := e.(*bus.Messages); yes { // connections and meetings no longer matter
				m.node.SetNow(c.Now())
				m.busEvent(e)
				m.carryOut(c)
			}
		})
	}
	m.mesh.left = true
	m.server.WantTurn()
}

// leaveFor is how long, at most, the node refuses jobs before it leaves.
const leaveFor = 4 * time.Millisecond

// closeBus ends the node's connections. The bus closes outside the main thread.
func (m *module) closeBus() {
	m.mesh.left = false
	if b := m.mesh.bus; b != nil {
		m.mesh.bus = nil
		for _, p := range m.node.Mesh().All() {
			m.node.Mesh().Down(p.ID)
		}
		m.mesh.closing = true
		m.server.Go(func() {
			b.Close()
			m.server.Post(func(*rm.Server) {
				m.mesh.closing = false
				if m.mesh.awaited {
					m.mesh.awaited = false
					m.openBus()
				}
			})
		})
	}
}

// drain applies the events that have arrived on the bus.
func (m *module) drain(c *rm.Ctx) {
	b := m.mesh.bus
	if b == nil {
		return
	}
	c.CopyEffects() // more engine calls follow
	m.node.Hear(func() {
		b.Drain(func(e bus.Event) {
			m.node.SetNow(c.Now())
			m.busEvent(e)
			m.carryOut(c)
		})
	})
	m.carryOut(c)
}

const (
	catchUpEvery = 20 * time.Millisecond  // how often caughtUp checks whether something has arrived
	catchUpMost  = 500 * time.Millisecond // how long timers wait for it, at most
	stalledMS    = 100                    // a timer that is this late, or later, follows a standstill
)

// caughtUp says whether everything that other nodes have sent by now is applied. Messages
// are applied before timers run: after the server stood still, a socket may hold the
// acknowledgement of a job that a timer would queue again. caughtUp drains what it can.
// Timers wait for catchUpMost at most: a node that never stops sending must not stop the
// clock.
func (m *module) caughtUp(c *rm.Ctx) bool {
	b, now := m.mesh.bus, time.Now()
	if b == nil || m.mesh.catching.IsZero() && now.Sub(m.mesh.caught) < catchUpEvery {
		return true
	}
	if m.mesh.catching.IsZero() {
		m.mesh.catching = now
		b.Mark()
	}
	if !b.Reached() {
		m.drain(c)
		if m.mesh.bus == b && !b.Reached() && now.Sub(m.mesh.catching) < catchUpMost {
			return false
		}
	}
	m.mesh.catching, m.mesh.caught = time.Time{}, now
	return true
}

func (m *module) busEvent(e bus.Event) {
	switch e := e.(type) {
	case *bus.Up:
		id := e.ID
		life := e.Instance
		if e.Features&featureOffers == 0 {
			life = 0
		}
		m.node.SetLife(id, life)
		m.node.SetFeatures(id, engine.Features{
			Batches: e.Features&featureBatches != 0, Counts: e.Features&featureCounts != 0, Entries: e.Features&featureEntries != 0,
			Copies: e.Features&featureCopies != 0, Flushes: e.Features&featureFlushes != 0, Jobs: e.Features&featureJobs != 0, Failures: e.Features&featureFailures != 0, Rates: e.Features&featureRates != 0,
			Slots: e.Features&featureSlots != 0, Results: e.Features&featureResults != 0, Crons: e.Features&featureCrons != 0, Returns: e.Features&featureReturns != 0, Limits: e.Features&featureLimits != 0, Replaces: e.Features&featureReplaces != 0,
			Names: e.Features&featureNames != 0, Delays: e.Features&featureDelays != 0, Bodies: e.Features&featureBodies != 0, Bounds: e.Features&featureBounds != 0,
		})
		m.learnHost(e.Local)
		m.node.Mesh().Up(id, e.Advertised, m.mesh.met[id])
		delete(m.mesh.met, id)
	case *bus.Down:
		m.node.Mesh().Down(e.ID)
	case *bus.Met:
		if e.Err != nil {
			m.server.Log(rm.Warning, "JOBMESH CLUSTER MEET %s: %v", e.Addr, e.Err)
			return
		}
		if id := e.ID; m.node.Mesh().Meet(id, e.Addr) {
			m.mesh.met[id] = true
			m.mesh.bus.Connect(e.ID, e.Addr)
		}
	case *bus.Duplicate:
		m.server.Log(rm.Warning, "two nodes have the ID %s: one is at %s. JOBMESH CLUSTER RESET HARD on one of them gives it a new one", e.ID, e.Addr)
	case *bus.Messages:
		id := e.ID
		for b := range e.All() {
			if err := m.node.Receive(id, b); err != nil {
				m.server.Log(rm.Warning, "node %s: %v", e.ID, err)
				e.Skip()
				return
			}
			m.carryOut(m.ctx)
		}
	}
}

// meshEffect carries out effects for other nodes, and for clients that wait for other
// nodes.
func (m *module) meshEffect(e *engine.Effect) {
	switch e.Kind {
	case engine.Promise:
		if client, ok := e.Client.(*rm.Client); ok {
			id := e.ID
			client.Answer(func(c *rm.Ctx) { id.Put((*[store.IDLen]byte)(c.SimpleBuffer(store.IDLen))) }, nil)
		}
	case engine.Deny:
		if client, ok := e.Client.(*rm.Client); ok {
			err := e.Err
			client.Answer(func(c *rm.Ctx) {
				if err == engine.ErrDropped {
					c.Null()
				} else {
					fail(c, err)
				}
			}, nil)
		}
	case engine.AnswerBatch:
		answerBatch(e.Client.(*engine.Batch))
	case engine.AnswerMesh:
		m.answerMesh(e)
	case engine.Released:
		m.answerRelease(e)
	case engine.NodesChanged, engine.KeepVotes:
		m.keepNodesLater()
	}
	b := m.mesh.bus
	if b == nil {
		return
	}
	switch e.Kind {
	case engine.Send:
		if msg := m.node.Message(e); !m.send(e.Peer.ID, msg) {
			m.refusedByBus(e.Peer.ID, msg)
		}
		m.server.WantTurn()
	case engine.Connect:
		b.Connect(e.Peer.ID, e.Peer.Addr)
	case engine.Disconnect:
		b.Forget(e.Peer.ID)
	}
}

// send gives a message to the bus, and returns false if the bus doesn't accept it. Messages
// about one job keep their order, whatever their size.
func (m *module) send(to wire.NodeID, msg []byte) bool {
	about := uint64(0)
	if wire.Kind(msg[0]).OfJob() {
		about = binary.LittleEndian.Uint64(msg[2+4:]) | 1
	}
	return m.mesh.bus.SendAbout(to, about, msg)
}

// farewell runs when everything is saved and the process ends. It takes back what other
// nodes hold for clients of this process that were promised nothing. Then a client that
// asks again at another node, as in a rolling restart, doesn't meet its own first request.
// It returns the votes of this node that it has taken back, for the state file.
//
// All other effects are dropped. Their changes are in no log, so nothing must be said that
// depends on one of them: an Offer of a job that is still in the queue when the process is back.
func (m *module) farewell() (votes []byte) {
	if m.mesh.bus == nil || m.node.Passive() {
		return nil
	}
	m.node.Farewell()
	effects := m.node.Effects()
	kept := map[string]bool{} // the votes that fall back to what they were
	for i := range effects {
		if e := &effects[i]; e.Kind == engine.LogLock {
			if l, err := store.ParseLock(m.node.Message(e)); err == nil {
				kept[string(l.Name)] = true
			}
		}
	}
	for i := range effects {
		switch e := &effects[i]; e.Kind {
		case engine.Send:
			switch msg := m.node.Message(e); wire.Kind(msg[0]) {
			case wire.DelJob, wire.Unlock, wire.SetAck:
				m.send(e.Peer.ID, msg)
			}
		case engine.LogUnlock:
			b := m.node.Message(e)
			if name, _ := lock.UnlockParts(b); !kept[string(name)] {
				votes = appendBytes(appendBytes(votes, nil), b)
			}
		}
	}
	return votes
}

// refusedByBus tells the engine, soon, about a message with a job that the bus didn't
// accept. Other messages are repeated in any case.
func (m *module) refusedByBus(to wire.NodeID, msg []byte) {
	switch wire.Kind(msg[0]) {
	case wire.Offer, wire.YourJob, wire.ReplJob, wire.ReplJobs, wire.SetEnd:
	default:
		return
	}
	if m.mesh.unsent = append(m.mesh.unsent, unsent{to, wire.Kind(msg[0]), wire.JobID(msg[2:])}); len(m.mesh.unsent) == 1 {
		// Not at once: the effects of this call may still point at the job.
		m.later(0, m.tellUnsent)
	}
}

func (m *module) tellUnsent(c *rm.Ctx) {
	c.CopyEffects()
	all := m.mesh.unsent
	m.mesh.unsent = nil
	for i := range all {
		m.node.Unsent(all[i].to, all[i].kind, &all[i].id)
	}
}

// turn sends the messages of this turn of the event loop, one frame to each node. By then
// the server has written the AOF: what is promised to another node is in it.
func (m *module) turn() {
	if m.mesh.bus != nil {
		m.mesh.bus.Flush()
	}
	if m.mesh.left {
		m.closeBus()
	}
}

// traffic counts the bytes on the wire to and from the nodes that are known now.
func (m *module) traffic() (out, in int64) {
	if m.mesh.bus == nil {
		return 0, 0
	}
	for _, p := range m.node.Mesh().All() {
		if s, ok := m.mesh.bus.PeerStats(p.ID); ok {
			out, in = out+int64(s.BytesOut), in+int64(s.BytesIn)
		}
	}
	return out, in
}

// replicateMove replicates SETJOB of a job that is in another queue: its state, its parts, and the queue's name.
func (m *module) replicateMove(c *rm.Ctx, j *store.Job) {
	args := c.Replicate(m.effect.setJob, 3)
	args.Bulk(j.StateRecord())
	args.Bulk(j.RawParts())
	args.Bulk(j.Queue.NameBytes())
}

// replicateState replicates SETJOB: the job's state, and its parts (holders and extras) if
// it has any.
func (m *module) replicateState(c *rm.Ctx, j *store.Job) {
	holders := j.RawParts()
	if holders == nil {
		c.Replicate(m.effect.setJob, 1).Bulk(j.StateRecord())
		return
	}
	args := c.Replicate(m.effect.setJob, 2)
	args.Bulk(j.StateRecord())
	args.Bulk(holders)
}

func (m *module) imports(q *store.Queue) int64 {
	_, rate := m.node.Imports(q.NameBytes())
	return rate
}

// nodeName returns a holder's ID if the node is known, else the part of the ID that the job
// has.
func (m *module) nodeName(holder uint64) string {
	if p := m.node.Mesh().ByName(wire.Node(holder)); p != nil {
		return p.ID.String()
	}
	return fmt.Sprintf("%016x", holder)
}

// putHolders answers which nodes may hold a job, and which have confirmed. A node confirms
// that it holds the job; if the job is acknowledged, it confirms that it knows so.
func (m *module) putHolders(c *rm.Ctx, j *store.Job) {
	own := m.node.KeepsCopy(j)
	c.Text("nodes-delivered")
	m.putNodes(c, j, j.Holders(), own, false)
	c.Text("nodes-confirmed")
	switch j.State {
	case store.StateWaitRepl:
		m.putNodes(c, j, j.Confirmed(), own, true)
	case store.StateAcked:
		m.putNodes(c, j, j.Confirmed(), true, true)
	default:
		c.Array(0)
	}
}

// putNodes answers the n holders of a job, or those of them that have confirmed. With own
// it adds this node.
func (m *module) putNodes(c *rm.Ctx, j *store.Job, n int, own, confirmed bool) {
	if own {
		c.Array(n + 1)
		c.Text(m.node.NodeID())
	} else {
		c.Array(n)
	}
	for i := range j.Holders() {
		if h, yes := j.Holder(i); yes || !confirmed {
			c.Text(m.nodeName(h))
		}
	}
}

// peerAddr splits a peer's address as clients see it: its host, and its port
// for clients.
func peerAddr(p *engine.Peer) (host string, port int) {
	host, text, err := net.SplitHostPort(p.Addr)
	if err != nil {
		return "", p.Port
	}
	if p.Port != 0 {
		return host, p.Port
	}
	if n, err := strconv.Atoi(text); err == nil && n > busOffset {
		return host, n - busOffset
	}
	return host, 0
}

// peerLine is a line of CLUSTER NODES about another node, or one of the nodes' file (forFile). In the file the port for
// clients is 0 if the node hasn't said it.
func peerLine(p *engine.Peer, forFile bool) string {
	var flags []string
	switch p.Health {
	case membership.Suspected:
		flags = append(flags, "fail?")
	case membership.Failed:
		flags = append(flags, "fail")
	}
	if p.Addr == "" {
		flags = append(flags, "noaddr")
	}
	if p.Leaving {
		flags = append(flags, "leaving")
	}
	if p.Stale() {
		flags = append(flags, "stale")
	}
	if flags == nil {
		flags = []string{"noflags"}
	}
	link := "disconnected"
	if p.Connected {
		link = "connected"
	}
	host, port := peerAddr(p)
	addr := fmt.Sprintf("%s:%d", host, port)
	if forFile {
		addr = fmt.Sprintf("%s:%d@%s", host, p.Port, p.Addr)
	}
	return fmt.Sprintf("%v %s %s 0 %d %s\n", p.ID, addr, strings.Join(flags, ","), p.Heard, link)
}

// priority is the priority of a node that HELLO shows to clients: less is better.
func priority(p *engine.Peer) string {
	switch {
	case p.Leaving || p.Health == membership.Failed:
		return "100"
	case p.Health == membership.Suspected:
		return "10"
	case !p.Connected:
		return "5"
	}
	return "1"
}

// meet is CLUSTER MEET ip port [bus-port].
func (m *module) meet(c *rm.Ctx) {
	host := string(c.Arg(3))
	port, ok := integer(c.Arg(4))
	if !ok {
		c.Error("ERR Invalid TCP port specified: " + printable(string(c.Arg(4))))
		return
	}
	busPort := port + busOffset
	if c.NArgs() == 6 {
		if busPort, ok = between(c.Arg(5), 1, 65535); !ok {
			c.Error("ERR Invalid TCP bus port specified: " + printable(string(c.Arg(5))))
			return
		}
	}
	if net.ParseIP(host) == nil || port < 1 || busPort > 65535 || port > 65535 {
		c.Error(fmt.Sprintf("ERR Invalid node address specified: %s:%s. Give an IP address, not a name, and ports from 1 to 65535: that of the bus is the port plus 10000 where it isn't given", printable(host), printable(string(c.Arg(4)))))
		return
	}
	m.openBus() // a node that was promoted a moment ago has none yet
	if m.promoted {
		c.Error(errPromoted)
		return
	}
	if m.node.Passive() {
		c.Error("ERR a replica meets nobody: its master takes part in the mesh")
		return
	}
	if m.mesh.awaited {
		c.Error("ERR this node's bus is being opened anew: try again in a second")
		return
	}
	if m.mesh.bus == nil {
		c.Error("ERR this node has no bus, so it can meet nobody: the log says why")
		return
	}
	m.mesh.bus.Meet(net.JoinHostPort(host, strconv.FormatInt(busPort, 10)))
	c.Simple("OK")
}

// forget is CLUSTER FORGET id.
func (m *module) forget(c *rm.Ctx) {
	text := string(c.Arg(3))
	id, err := wire.ParseNodeID(text)
	switch {
	case len(text) != 40:
		c.Error("ERR Invalid node identifier")
	case text == m.node.NodeID():
		c.Error("ERR I tried hard but I can't forget myself...")
	case err != nil || !m.node.Mesh().Forget(id):
		c.Error("ERR Unknown node " + printable(text))
	default:
		c.Simple("OK")
		m.carryOut(c)
	}
}

// keepNodesLater writes the nodes' file outside the main thread, one write at a time.
func (m *module) keepNodesLater() {
	if m.mesh.saving {
		m.mesh.unsaved = true
		return
	}
	m.mesh.saving = true
	write, kept := m.nodesSave()
	m.server.Go(func() {
		// Call kept even after a failed write, if no file is left: after a restart the node
		// has another ID then, and nobody waits for what it remembers.
		stale, err := write()
		m.server.Post(func(*rm.Server) {
			m.mesh.saving = false
			if !stale {
				kept()
			}
			if err == nil {
				m.mesh.failed = ""
			} else if m.mesh.failed != err.Error() {
				m.mesh.failed = err.Error()
				m.server.Log(rm.Warning, "the nodes' file can't be written, so this node won't find its mesh again by itself, nor votes for locks with a longer lease than before: %v", err)
			}
			if m.mesh.unsaved {
				m.mesh.unsaved = false
				m.keepNodesLater()
			}
			m.answerDone()
		})
	})
}

// readPeer reads a line of the nodes' file about another node.
func (m *module) readPeer(f []string) error {
	id, err := wire.ParseNodeID(f[0])
	if err != nil {
		return err
	}
	clients, addr, ok := strings.Cut(f[1], "@")
	if !ok {
		return errors.New("no bus address after @")
	}
	port, err := strconv.ParseUint(clients[strings.LastIndexByte(clients, ':')+1:], 10, 16)
	if err != nil {
		return errors.New("no port for clients before @")
	}
	m.node.Mesh().Restore(id, addr, int(port), slices.Contains(strings.Split(f[2], ","), "stale"))
	return nil
}
