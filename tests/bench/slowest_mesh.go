package main

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

const meshLocks = 20_000 // each needs the answers of two nodes

// atSlowestMesh does to a mesh what concerns all that its first node holds, and shows how
// long each of these kept that node's main thread at a time.
func atSlowestMesh() {
	m := startMesh(3, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--maxclients", "10000")
	defer func() { m.stop() }()
	s, conns, last := m.servers[0], m.conns[0], m.servers[2]
	c, jobs := conns[0], *memory
	l := &stops{s: s, c: c}
	none := func(int, int, []string) error { return nil }
	load := func(n int, make func(c *conn, i int)) {
		each(conns, n, 32, func(c *conn, _, i int) int { make(c, i); return 1 }, none)
	}
	reach := func(n int64) func() bool {
		return func() bool { return info(c, "jobmesh", "jobmesh_reachable_nodes") == n }
	}
	id := func(m *nodes, node int) string { return m.conns[node][0].do("JOBMESH", "CLUSTER", "MYID")[0] }

	load(manyQueues, func(c *conn, i int) { c.send("ADDJOB", fmt.Sprint("q", i), "body", "5000", "REPLICATE", "2") })
	load(jobs*9/10, func(c *conn, i int) { c.send("ADDJOB", "big", "body", "0", "REPLICATE", "1") })
	ids := make([]string, jobs/10)
	each(conns, len(ids), 32, func(c *conn, _, i int) int {
		c.send("ADDJOB", "big", "body", "5000", "REPLICATE", "3")
		return 1
	}, func(who, i int, reply []string) error { ids[i] = reply[0]; return nil })
	load(manyQueues, func(c *conn, i int) {
		c.send("ADDJOB", fmt.Sprint("u", i%1000), fmt.Sprint(i), "5000", "REPLICATE", "1", "UNIQUE", "during-processing")
	})
	load(meshLocks, func(c *conn, i int) { c.send("LOCK.ACQUIRE", fmt.Sprint("n", i), "me", "3600000", "WAIT", "5000") })
	var waiting []*conn
	wait := func(send func(w *conn, i int)) {
		for i := range waitClients {
			w, err := dial(s.addr)
			check(err)
			send(w, i)
			check(w.w.Flush())
			waiting = append(waiting, w)
		}
		time.Sleep(time.Second)
	}
	wait(func(w *conn, i int) {
		args := []string{"GETJOB", "FROM"}
		for k := range manyWaits / waitClients {
			args = append(args, fmt.Sprint("w", i, ":", k))
		}
		w.send(args...)
	})
	l.measure("nothing", func() { time.Sleep(3 * time.Second) }, nil)
	name := id(m, 2)
	l.measure("a node dies", func() { last.cmd.Process.Kill(); last.cmd.Wait() }, reach(1))
	load(len(ids), func(c *conn, i int) { c.send("ACKJOB", ids[i]) })
	again := func() {
		last.cmd = exec.Command(last.cmd.Path, last.cmd.Args[1:]...)
		check(last.cmd.Start())
	}
	l.measure("it is back, and is told of acknowledgements", func() { again(); time.Sleep(3 * time.Second) }, reach(2))
	l.measure("CLUSTER FORGET of it", func() { c.do("JOBMESH", "CLUSTER", "FORGET", name) }, reach(1))
	l.measure("MEET", func() {
		m.conns[1][0].do("JOBMESH", "CLUSTER", "FORGET", name)
		c.do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", "1", m.ports[2])
	}, reach(2))
	// While the other nodes stand still, no lock is decided.
	for _, x := range m.servers[1:] {
		check(x.cmd.Process.Signal(syscall.SIGSTOP))
	}
	wait(func(w *conn, i int) {
		for k := range 100 {
			w.send("LOCK.ACQUIRE", fmt.Sprint("stopped", i, ":", k), "me", "60000", "WAIT", "60000")
		}
	})
	l.measure("a node dies while locks are undecided", func() { last.cmd.Process.Kill(); last.cmd.Wait() }, reach(1))
	l.measure("the others go on", func() {
		check(m.servers[1].cmd.Process.Signal(syscall.SIGCONT))
		again()
		time.Sleep(3 * time.Second)
	}, reach(2))
	l.measure("CLUSTER LEAVING no", func() { c.do("JOBMESH", "CLUSTER", "LEAVING", "no") }, nil)
	l.measure("CLUSTER LEAVING", func() { c.do("JOBMESH", "CLUSTER", "LEAVING", "yes") }, l.until("blocked_clients", 0))
	c.do("JOBMESH", "CLUSTER", "LEAVING", "no")
	for _, w := range waiting {
		w.Close()
	}
	m.stop()

	m = startMesh(3, "--appendonly", "yes", "--appendfsync", "no")
	conns, c = m.conns[0], m.conns[0][0]
	l.s, l.c = m.servers[0], c
	unique := func() {
		load(manyLocks, func(c *conn, i int) {
			c.send("ADDJOB", "x", fmt.Sprint(i), "5000", "REPLICATE", "1", "UNIQUE", "before-processing")
		})
	}
	unique()
	l.measure("JOBMESH FLUSH of unique jobs", func() { c.do("JOBMESH", "FLUSH") }, nil)
	unique()
	l.measure("FLUSHALL ASYNC of unique jobs", func() { c.do("FLUSHALL", "ASYNC") }, nil)
	unique()
	l.measure("CLUSTER RESET HARD", func() { c.do("JOBMESH", "CLUSTER", "RESET", "HARD") }, nil)
	l.show(fmt.Sprintf("The same on a mesh of three nodes, with %d locks", meshLocks))
}
