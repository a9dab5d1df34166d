package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"
	"unsafe"
)

// The sizes of -slowest, beside -memory jobs.
const (
	manyQueues  = 100_000
	manyWaits   = 100_000
	waitClients = 100 // each waits for as many queues as it takes
	lineClients = 2_000
	manyLocks   = 100_000
	manyKin     = 100_000
)

// stop is what one event did to the main thread.
type stop struct {
	Event    string
	Slowest  float64 // ms of CPU in one turn of the event loop
	Command  float64 // ms of the slowest command by the server's slow log
	Slow     string  // that command
	TookSecs float64
}

// stops are what several events did to a server.
type stops struct {
	s    *server
	c    *conn
	list []stop
}

// measure measures what an event does to the main thread, until over returns true. If over
// is nil, the event is over when act returns.
func (l *stops) measure(event string, act func(), over func() bool) {
	l.c.do("SLOWLOG", "RESET")
	t, began := l.s.watchTurns(), time.Now()
	time.Sleep(50 * time.Millisecond)
	t.most.Store(0)
	act()
	for over != nil && !over() && time.Since(began) < 2*time.Minute {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // the next tick or two
	close(t.end)
	<-t.done
	x := stop{Event: event, Slowest: float64(t.most.Load()) / 1e6, TookSecs: time.Since(began).Seconds()}
	x.Command, x.Slow = slowlog(l.c)
	l.list = append(l.list, x)
	fmt.Fprintf(os.Stderr, "%-44s %8.2f ms\n", event, x.Slowest)
}

// until waits until a field of INFO jobmesh is as low as wanted.
func (l *stops) until(field string, want int64) func() bool {
	return func() bool { return info(l.c, "jobmesh", "jobmesh_"+field) <= want }
}

func (l *stops) show(title string) {
	if len(l.list) == 0 {
		return
	}
	if *asJSON {
		check(json.NewEncoder(os.Stdout).Encode(l.list))
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: ms of the main thread in one go\n\n", title)
	fmt.Fprintln(w, "event\tslowest turn\tslowest command\t\ttook s\t")
	for _, x := range l.list {
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\t%.1f\t\n", x.Event, x.Slowest, x.Command, x.Slow, x.TookSecs)
	}
	fmt.Fprintln(w)
	check(w.Flush())
}

// chosen says whether a section of -slowest is to be run.
func chosen(section string) bool {
	return *only == "" || slices.Contains(strings.Split(*only, ","), section)
}

// watch measures the main thread's CPU time from one answer to PING to the next, which is a
// turn of the event loop. It measures CPU, not time, since the machine may have other things
// to do. If the kernel allows it, watch runs before all other threads: if it were late for an
// answer, the next answer would come some turns later.
type watch struct {
	path string
	most atomic.Int64 // ns
	end  chan struct{}
	done chan struct{}
}

func (s *server) watchTurns() *watch {
	c, err := net.Dial("tcp", s.addr)
	check(err)
	f, err := c.(*net.TCPConn).File() // reads block the thread, without Go's scheduler
	check(err)
	c.Close()
	pid := strconv.Itoa(s.cmd.Process.Pid)
	t := &watch{path: filepath.Join("/proc", pid, "task", pid, "schedstat"), end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		defer f.Close()
		runtime.LockOSThread() // and the thread ends with the goroutine
		const fifo = 1         // SCHED_FIFO
		priority := int32(1)
		_, _, _ = syscall.Syscall(syscall.SYS_SCHED_SETSCHEDULER, 0, fifo, uintptr(unsafe.Pointer(&priority)))
		fd := int(f.Fd())
		stat, err := os.Open(t.path)
		check(err)
		defer stat.Close()
		var text [64]byte
		for last := cpuOf(stat, text[:]); ; {
			select {
			case <-t.end:
				return
			default:
			}
			_, err := syscall.Write(fd, []byte("PING\r\n"))
			check(err)
			_, err = syscall.Read(fd, text[:])
			check(err)
			now := cpuOf(stat, text[:])
			t.most.Store(max(t.most.Load(), now-last))
			last = now
		}
	}()
	return t
}

// cpuOf reads the first number of a schedstat, ns.
func cpuOf(stat *os.File, buf []byte) int64 {
	n, err := stat.ReadAt(buf, 0)
	if n == 0 {
		check(err)
	}
	first, _, _ := strings.Cut(string(buf[:n]), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	check(err)
	return ns
}

// slowlog is the slowest command since the last RESET.
func slowlog(c *conn) (ms float64, name string) {
	r := c.do("SLOWLOG", "GET", "1000")
	// Each entry is id, time, µs, the arguments, the client's address and name. So µs is the
	// third of three numbers in a row.
	for i := 0; i+3 < len(r); i++ {
		_, err1 := strconv.ParseInt(r[i], 10, 64)
		at, err2 := strconv.ParseInt(r[i+1], 10, 64)
		us, err3 := strconv.ParseInt(r[i+2], 10, 64)
		if err1 == nil && err2 == nil && err3 == nil && at > 1_500_000_000 && at < 1<<33 && float64(us)/1000 > ms {
			ms, name = float64(us)/1000, r[i+3]
		}
	}
	return ms, name
}

// atSlowest does to a full server what concerns all of its data, and shows how long each of
// these kept the main thread at a time.
func atSlowest() {
	s, err := start("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--maxclients", "10000")
	check(err)
	defer s.stop()
	conns := connect(s)
	c, jobs := conns[0], *memory
	none := func(int, int, []string) error { return nil }
	load := func(n int, make func(c *conn, i int)) {
		each(conns, n, 32, func(c *conn, _, i int) int { make(c, i); return 1 }, none)
	}
	addJobs := func(more ...string) {
		load(jobs, func(c *conn, i int) { c.send(append([]string{"ADDJOB", "big", "body", "0"}, more...)...) })
	}
	// Delayed jobs come in any order of their times, which lie within a day. middle is a time in the middle.
	soon := time.Now().Add(time.Hour)
	middle := strconv.FormatInt(soon.Add(12*time.Hour).UnixMilli(), 10)
	addDelayed := func() {
		load(jobs, func(c *conn, i int) {
			c.send("ADDJOB", "big", "body", "0", "AT", strconv.FormatInt(soon.Unix()+int64(i*7919%86400), 10))
		})
	}
	addQueues := func() {
		load(manyQueues, func(c *conn, i int) { c.send("ADDJOB", fmt.Sprint("q", i), "body", "0") })
	}
	var waiting []*conn
	wait := func() {
		for i := range waitClients {
			w, err := dial(s.addr)
			check(err)
			args := []string{"GETJOB", "FROM"}
			for k := range manyWaits / waitClients {
				args = append(args, fmt.Sprint("w", i, ":", k))
			}
			w.send(args...)
			check(w.w.Flush())
			waiting = append(waiting, w)
		}
		for range lineClients {
			w, err := dial(s.addr)
			check(err)
			w.send("GETJOB", "FROM", "line")
			check(w.w.Flush())
			waiting = append(waiting, w)
		}
		for info(c, "jobmesh", "jobmesh_blocked_clients") < waitClients+lineClients {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second) // the server is done with them all
	}
	leave := func() {
		for _, w := range waiting {
			w.Close()
		}
		waiting = nil
	}
	l := &stops{s: s, c: c}
	measure, until := l.measure, l.until
	command := func(args ...string) {
		measure(strings.Join(args, " "), func() { c.do(args...) }, nil)
	}

	// Each section begins with an empty server, and leaves one.
	section := func(name string, run func()) {
		if chosen(name) {
			run()
			c.do("FLUSHALL", "ASYNC")
		}
	}
	section("commands", func() {
		addQueues()
		addJobs()
		measure("nothing", func() {}, nil)
		for _, args := range [][]string{
			{"PAUSE", "big", "all"}, {"PAUSE", "big", "none"}, {"QLEN", "big"}, {"QSTAT", "big"}, {"QPEEK", "big", "1000"},
			{"QSCAN", "0", "COUNT", "1000"}, {"QSCAN", "0", "MINLEN", "100000000"}, {"JSCAN", "0", "COUNT", "1000"}, {"JSCAN", "0", "STATE", "acked"},
			{"JSCAN", "0", "QUEUE", "none"}, {"WIP", "big", "COUNT", "1000"}, {"WIP", "big"}, {"INFO", "jobmesh"}, {"GETJOB", "COUNT", "1000", "FROM", "big"},
			{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, {"RENAME", "big", "large"}, {"RENAME", "large", "big"}, {"SWAPDB", "0", "1"}, {"SWAPDB", "0", "1"},
			{"JOBMESH", "CLUSTER", "RESET", "HARD"},
		} {
			command(args...)
		}
		addDelayed()
		for _, args := range [][]string{{"WIP", "big", "DELAYED"}, {"WIP", "big", "DELAYED", "COUNT", "1000", "CURSOR", middle}, {"WIP", "big", "DELAYED", "CURSOR", middle, "MESH"}} {
			command(args...)
		}
		command("JOBMESH", "FLUSH")
		measure("all is gone after RESET", func() {}, func() bool { return info(c, "memory", "used_memory") < 50<<20 })
		addJobs()
		measure("UNLINK big", func() { c.do("UNLINK", "big") }, func() bool { return info(c, "memory", "used_memory") < 50<<20 })
		addQueues()
		command("JOBMESH", "FLUSH")
		addQueues()
		addJobs()
		command("FLUSHALL", "ASYNC")
	})
	section("times", func() {
		load(jobs, func(c *conn, i int) { c.send("ADDJOB", "big", "body", "0", "RETRY", "1", "TTL", "15") })
		load(jobs/10, func(c *conn, i int) { c.send("GETJOB", "COUNT", "10", "FROM", "big") })
		measure("all in hands: queued again, and expired", func() {}, until("registered_jobs", 0))
		ttl := strconv.Itoa(10 + jobs/50_000)
		load(jobs, func(c *conn, i int) { c.send("ADDJOB", "big", "body", "0", "TTL", ttl) })
		measure("all expire", func() {}, until("registered_jobs", 0))
		load(manyLocks, func(c *conn, i int) {
			c.send("ADDJOB", "windows", "body", "0", "UNIQUE", "window", "TTL", "5", "KEY", strconv.Itoa(i))
		})
		measure("very many windows are over", func() {}, until("locks", 0))
	})
	section("families", func() {
		root := c.do("ADDJOB", "f", "body", "0", "DEFERRED")[0]
		load(manyKin, func(c *conn, i int) { c.send("ADDJOB", "f", "body", "0", "BLOCKEDBY", root) })
		measure("CANCELJOB of one that blocks very many", func() { c.do("CANCELJOB", root) }, until("registered_jobs", 0))
		root = c.do("ADDJOB", "f", "body", "0", "DEFERRED")[0]
		load(manyKin, func(c *conn, i int) { c.send("ADDJOB", "f", "body", "0", "BLOCKEDBY", root) })
		measure("RELEASEJOB LAST, likewise", func() { c.do("RELEASEJOB", root, "LAST") }, nil)
		c.do("FLUSHALL", "ASYNC")
		del := []string{"DELJOB"}
		for range manyKin / 200 {
			root = c.do("ADDJOB", "f", "body", "0", "DEFERRED")[0]
			del = append(del, root)
			load(200, func(c *conn, i int) { c.send("ADDJOB", "f", "body", "0", "BLOCKEDBY", root) })
		}
		measure("DELJOB of 500 that block 200 each", func() { c.do(del...) }, until("registered_jobs", 0))
	})
	section("waits", func() {
		wait()
		measure("LEAVING with very many waits", func() { c.do("JOBMESH", "CLUSTER", "LEAVING", "yes") }, until("blocked_clients", 0))
		c.do("JOBMESH", "CLUSTER", "LEAVING", "no")
		leave()
		wait()
		measure("very many clients go", leave, until("blocked_clients", 0))
		wait()
		measure("FLUSH with very many waits", func() { c.do("JOBMESH", "FLUSH") }, until("blocked_clients", 0))
		leave()
	})
	section("locks", func() {
		lock := func(ttl string) {
			load(manyLocks, func(c *conn, i int) { c.send("LOCK.ACQUIRE", fmt.Sprint("n", i), "me", ttl) })
		}
		lock("5000")
		measure("very many locks are over", func() { time.Sleep(6 * time.Second) }, nil)
		lock("3600000")
		command("LOCK.SCAN", "0", "COUNT", "1000")
		for _, preamble := range []string{"yes", "no"} {
			c.do("CONFIG", "SET", "aof-use-rdb-preamble", preamble)
			measure("BGREWRITEAOF, aof-use-rdb-preamble "+preamble, func() { c.do("BGREWRITEAOF") },
				func() bool { return info(c, "persistence", "aof_rewrite_in_progress") == 0 })
		}
		command("LOCK.CLEAR", "ALL")
	})
	section("roles", func() {
		addQueues()
		addJobs()
		measure("REPLICAOF", func() { c.do("REPLICAOF", "127.0.0.1", "1") }, nil)
		measure("REPLICAOF NO ONE", func() { c.do("REPLICAOF", "NO", "ONE"); time.Sleep(3 * time.Second) }, nil)

		other, err := start("--repl-diskless-sync-delay", "0")
		check(err)
		defer other.stop()
		o, err := dial(other.addr)
		check(err)
		defer o.Close()
		host, port, err := net.SplitHostPort(s.addr)
		check(err)
		o.do("REPLICAOF", host, port)
		follows := func(c *conn) bool {
			r := c.do("ROLE")
			return r[0] == "slave" && slices.Contains(r, "connected")
		}
		for !follows(o) {
			time.Sleep(100 * time.Millisecond)
		}
		measure("FAILOVER, and the other one's word is heard", func() { c.do("FAILOVER"); time.Sleep(3 * time.Second) }, func() bool { return follows(c) })
		measure("FAILOVER back, and the promotion", func() { o.do("FAILOVER"); time.Sleep(3 * time.Second) }, func() bool { return c.do("ROLE")[0] == "master" })
	})

	l.show(fmt.Sprintf("%d jobs, %d queues, %d waits, %d locks, with an AOF", jobs, manyQueues, manyWaits, manyLocks))
	if chosen("mesh") {
		s.stop()
		atSlowestMesh()
	}
}
