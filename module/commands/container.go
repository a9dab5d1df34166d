package commands

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"jobmesh/module/engine"
	"jobmesh/rm"
)

// hello is Disque's HELLO: format, own ID, and the nodes with address,
// port and priority.
func (m *module) hello(c *rm.Ctx) {
	own := "1"
	if m.node.Leaving() {
		own = "100"
	}
	peers := m.node.Mesh().All()
	c.Array(3 + len(peers))
	c.Int(1)
	c.Text(m.node.NodeID())
	c.Array(4)
	c.Text(m.node.NodeID())
	c.Text(m.host())
	c.Text(strconv.Itoa(m.clientPort()))
	c.Text(own)
	for _, p := range peers {
		host, port := peerAddr(p)
		c.Array(4)
		c.Text(p.ID.String())
		c.Text(host)
		c.Text(strconv.Itoa(port))
		c.Text(priority(p))
	}
}

// flush is Disque's DEBUG FLUSHALL: it deletes every queue and job, and clients that wait
// get the null array.
func (m *module) flush(c *rm.Ctx) {
	if !m.enter(c) || !mayRun(c, "FLUSHALL") {
		return
	}
	m.node.Flush()
	m.whenDone(c)
	m.carryOut(c)
}

// whenDone answers OK when no key holds a flushed queue any more, and the nodes' file is
// written. If the client can't wait (MULTI, a script), it answers at once.
func (m *module) whenDone(c *rm.Ctx) {
	if (m.node.Flushing() || m.mesh.saving) && c.CanBlock() {
		client, err := c.Block(0, func(c *rm.Ctx, gone bool) {
			if !gone { // CLIENT UNBLOCK
				c.Simple("OK")
			}
		})
		if err == nil {
			m.undone = append(m.undone, client)
			return
		}
	}
	c.Simple("OK")
}

// answerDone answers the clients that wait in whenDone. At a replica they don't wait for
// the keys, which go when the master's do.
func (m *module) answerDone() {
	if len(m.undone) == 0 || m.mesh.saving || m.node.Flushing() && !m.node.Passive() {
		return
	}
	for _, client := range m.undone {
		client.Answer(func(c *rm.Ctx) { c.Simple("OK") }, nil)
	}
	m.undone = nil
}

// keepNodesFor writes the nodes' file before whenDone answers the client: outside the main
// thread if the client can wait.
func (m *module) keepNodesFor(c *rm.Ctx) {
	if c.CanBlock() {
		m.keepNodesLater()
	} else {
		m.keepNodes()
	}
}

// flushedEffect is a logged flush.
func (m *module) flushedEffect(c *rm.Ctx) {
	m.internal(c, errInternalFlushed, func() error {
		m.node.ApplyFlush()
		return nil
	})
}

const errPaused engine.Refusal = "TRYAGAIN writes are paused (CLIENT PAUSE or FAILOVER), and this changes what is logged: try again when that is over"

const errInternalFlushed engine.Refusal = "ERR FLUSHED is a special command only processed from AOF"

const errInternalEvent engine.Refusal = "ERR EVENT is a special command only processed from AOF"

const errInternalEpoch engine.Refusal = "ERR EPOCH is a special command only processed from AOF"

const errCluster = "ERR Wrong CLUSTER subcommand or number of arguments, see JOBMESH HELP"

// clusterRight returns the subcommand of the server's CLUSTER that a user must be allowed
// to run: the one of the same name, or RESET, the most powerful, if there is none.
func clusterRight(sub []byte) string {
	for _, name := range []string{"MEET", "NODES", "INFO", "FORGET", "MYID", "SAVECONFIG"} {
		if is(sub, name) {
			return name
		}
	}
	return "RESET"
}

// cluster is Disque's CLUSTER.
func (m *module) cluster(c *rm.Ctx) {
	if !m.enter(c) || !mayRun(c, "CLUSTER", clusterRight(c.Arg(2))) {
		return
	}
	n, sub := c.NArgs(), c.Arg(2)
	switch {
	case is(sub, "MYID") && n == 3:
		c.Text(m.node.NodeID())
	case is(sub, "NODES") && n == 3:
		c.Text(m.nodesText(false))
	case is(sub, "INFO") && n == 3:
		nodes := len(m.node.Mesh().All()) + 1
		c.Text(fmt.Sprintf("cluster_state:ok\r\ncluster_known_nodes:%d\r\ncluster_reachable_nodes:%d\r\ncluster_size:%d\r\n"+
			"cluster_stats_messages_sent:%d\r\ncluster_stats_messages_received:%d\r\ncluster_bus:%s\r\n%s",
			nodes, m.node.Mesh().Reachable(), nodes, m.node.Stats.Sent, m.node.Stats.Received, m.busState(), m.lockState()+m.settingsState()))
	case is(sub, "SAVECONFIG") && n == 3:
		if err := m.saveNodes(); err != nil {
			c.Error("ERR error saving the cluster node config: " + err.Error())
			return
		}
		c.Simple("OK")
	case is(sub, "LEAVING") && n == 3:
		c.Simple(yesNo(m.node.Leaving()))
	case n > 3 && !is(sub, "MEET") && m.server.WritesPaused(), is(sub, "RESET") && m.server.WritesPaused():
		fail(c, errPaused)
	case is(sub, "LEAVING") && n == 4:
		yes := is(c.Arg(3), "YES")
		if !yes && !is(c.Arg(3), "NO") {
			c.Error("ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'")
			return
		}
		m.node.SetLeaving(yes)
		m.keepNodesFor(c)
		m.whenDone(c)
		m.carryOut(c)
	case is(sub, "MEET") && (n == 5 || n == 6):
		m.meet(c)
	case is(sub, "FORGET") && n == 4:
		m.forget(c)
	case is(sub, "RESET") && (n == 3 || n == 4):
		hard := n == 4 && is(c.Arg(3), "HARD")
		if n == 4 && !hard && !is(c.Arg(3), "SOFT") {
			fail(c, errSyntax)
			return
		}
		if m.node.Passive() {
			fail(c, engine.ErrReplica)
			return
		}
		m.node.Reset()
		if hard {
			// The bus knows this node by its ID, so it is opened anew.
			m.carryOut(c)
			m.closeBus()
			m.node.SetNodeID(newNodeID())
			m.server.After(0, func(*rm.Ctx) { m.openBus() })
		}
		m.keepNodesFor(c)
		m.whenDone(c)
		m.carryOut(c)
	default:
		c.Error(errCluster)
	}
}

// flushed follows FLUSHALL and FLUSHDB.
func (m *module) flushed(c *rm.Ctx, db int) {
	m.carryOutRest(c)
	m.node.Flushed(db)
	m.hurry()
}

// tellFlushed logs, after a flush, what it didn't do. While the server empties its data it isn't known
// whether that is a flush, or the beginning of a load.
func (m *module) tellFlushed() {
	if n := m.node.TakeFlushed(); n > 0 {
		m.server.Log(rm.Notice, "%d jobs are flushed at this node alone: other nodes that hold copies of some go on with them, and don't hand them to this node", n)
	}
}

// printable replaces control characters, so that text from a client can't break an error's
// line.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// shutdown saves, whatever the server's save points are, and ends the server. It is of use
// for a server that saves nothing by itself. The state file does the rest.
//
// If a module calls SHUTDOWN and that fails, the server ends by an assertion: it waits for
// an answer that the module's client doesn't get. So everything that can fail is done
// before, and SHUTDOWN is called with FORCE.
func (m *module) shutdown(c *rm.Ctx) {
	if !m.enter(c) || !mayRun(c, "SHUTDOWN") {
		return
	}
	saved := false
	if !m.writes() {
		if _, err := m.server.CallStrings("SAVE"); err != nil {
			c.Error("ERR the data can't be saved, so the server goes on: its log says why. SHUTDOWN NOSAVE ends it without saving")
			return
		}
		saved = true
	}
	c.Simple("OK")
	// The server ends only after this command's effects are in the log.
	m.server.After(1, func(*rm.Ctx) { m.exit(saved) })
}

// exit ends the server once no RDB and no AOF is written in the background, and everything
// is saved. saved says that a save was already made.
func (m *module) exit(saved bool) {
	const again = 50 // ms
	if m.writes() {
		if !m.exits {
			m.server.Log(rm.Notice, "JOBMESH SHUTDOWN waits for the end of the save or the AOF rewrite that is under way")
		}
		m.exits = true
		m.server.After(again, func(*rm.Ctx) { m.exit(false) })
		return
	}
	m.exits = false
	if changes, ok := m.server.InfoField("persistence", "rdb_changes_since_last_save"); !saved || !ok || changes != "0" {
		if _, err := m.server.CallStrings("SAVE"); err != nil {
			m.server.Log(rm.Warning, "JOBMESH SHUTDOWN: the data can't be saved, so the server goes on: %v", err)
			return
		}
	}
	if _, err := m.server.CallStrings("SHUTDOWN", "NOSAVE", "NOW", "FORCE"); err != nil {
		m.server.Log(rm.Warning, "JOBMESH SHUTDOWN: %v", err)
	}
}

// writes says whether the server writes an RDB or an AOF in the background, or is about to.
// The server must not end while it makes its first AOF: the next start would read only
// that.
func (m *module) writes() bool {
	for _, field := range [...]string{"rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"} {
		if v, ok := m.server.InfoField("persistence", field); ok && v != "0" {
			return true
		}
	}
	m.watchGap()
	return m.gap && !m.off
}

// epochEffect is a logged mark: it names the process that writes the log from there on, and
// says which earlier jobs were uncertain to that process.
func (m *module) epochEffect(c *rm.Ctx) {
	m.internal(c, errInternalEpoch, func() error {
		process, err := strconv.ParseUint(string(c.Arg(2)), 16, 64)
		if err == nil && c.NArgs() >= 5 {
			at, err1 := strconv.ParseInt(string(c.Arg(3)), 10, 64)
			last, err2 := strconv.ParseUint(string(c.Arg(4)), 10, 64)
			if err = errors.Join(err1, err2); err == nil {
				m.node.Doubt(at, last)
			}
		}
		m.inLog = process
		return err
	})
}

// finalEffect is a logged mark: a run of an older release ended there by JOBMESH SHUTDOWN.
func (m *module) finalEffect(c *rm.Ctx) {
	if !c.FromPeer() {
		c.Error("ERR FINAL is a special command only processed from AOF")
		return
	}
	m.final = true
	c.Simple("OK")
}
