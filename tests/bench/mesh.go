package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// nodes is a mesh on this machine.
type nodes struct {
	servers []*server
	conns   [][]*conn // of each
	ports   []string  // of their buses
}

func startMesh(n int, more ...string) *nodes {
	m := &nodes{}
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(err)
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		l.Close()
		s, err := start(append([]string{"cluster-port", port}, more...)...)
		check(err)
		m.servers, m.conns, m.ports = append(m.servers, s), append(m.conns, connect(s)), append(m.ports, port)
	}
	// A node's bus opens a moment after the node takes clients, and a MEET isn't tried again.
	for began := time.Now(); !m.met(); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			check(fmt.Errorf("the nodes don't find each other"))
		}
		for _, conns := range m.conns[1:] {
			conns[0].do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", "1", m.ports[0])
		}
	}
	return m
}

func (m *nodes) met() bool {
	for _, conns := range m.conns {
		if info(conns[0], "jobmesh", "jobmesh_reachable_nodes") < int64(len(m.conns)-1) {
			return false
		}
	}
	return true
}

func (m *nodes) stop() {
	for _, s := range m.servers {
		s.stop()
	}
}

func (m *nodes) cpu() (sum time.Duration) {
	for _, s := range m.servers {
		sum += s.cpu()
	}
	return sum
}

// wire is the bytes that all nodes have sent to each other.
func (m *nodes) wire() (sum int64) {
	for _, conns := range m.conns {
		sum += info(conns[0], "jobmesh", "jobmesh_bus_bytes_sent")
	}
	return sum
}

// atRest waits until no node knows a job any more.
func (m *nodes) atRest() {
	for _, conns := range m.conns {
		for info(conns[0], "jobmesh", "jobmesh_registered_jobs") > 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// variant is a way to add and to acknowledge.
type variant struct {
	copies int
	async  bool
	fast   bool
}

func (v variant) String() string {
	mode, ack := "sync", "ACKJOB"
	if v.async {
		mode = "async"
	}
	if v.fast {
		ack = "FASTACK"
	}
	return fmt.Sprintf("%d\t%s\t%s", v.copies, mode, ack)
}

type meshFigure struct{ add, get, ack, perSec, addBytes, ackBytes float64 }

func (m *nodes) measure(v variant, n, pipeline int) meshFigure {
	ids := make([]string, n)
	none := func(int, int, []string) error { return nil }
	conns, ack := m.conns[0], "ACKJOB"
	if v.fast {
		ack = "FASTACK"
	}
	copies := strconv.Itoa(v.copies)
	per := func(run func()) (cpu, bytes, seconds float64) {
		c, w, began := m.cpu(), m.wire(), time.Now()
		run()
		seconds = time.Since(began).Seconds()
		return float64((m.cpu() - c).Nanoseconds()) / 1e3 / float64(n), float64(m.wire()-w) / float64(n), seconds
	}
	var f meshFigure
	var took float64
	f.add, f.addBytes, took = per(func() {
		each(conns, n, pipeline, func(c *conn, _, i int) int {
			if v.async {
				c.send("ADDJOB", "q", body(i), "5000", "REPLICATE", copies, "ASYNC")
			} else {
				c.send("ADDJOB", "q", body(i), "5000", "REPLICATE", copies)
			}
			return 1
		}, none)
	})
	f.perSec = float64(n) / took
	f.get, _, _ = per(func() {
		each(conns, n, pipeline, func(c *conn, _, _ int) int { c.send("GETJOB", "NOHANG", "FROM", "q"); return 1 },
			func(_, i int, r []string) (err error) {
				ids[i], err = nth(1)(r)
				return err
			})
	})
	f.ack, f.ackBytes, _ = per(func() {
		each(conns, n, pipeline, func(c *conn, _, i int) int { c.send(ack, ids[i]); return 1 }, none)
		m.atRest()
	})
	return f
}

// atMesh is the benchmark of three nodes.
func atMesh() {
	m := startMesh(3)
	defer m.stop()
	// While a connection is blocked in ADDJOB its pipeline waits: so it has one job in flight,
	// however deep the pipeline is.
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Printf("three nodes, %d clients on one of them, %d-byte bodies; CPU in µs a job over all nodes\n\n", *clients, *bodyLen)
	fmt.Fprintln(w, "pipeline\tREPLICATE\tmode\tack\tadded/s\tadd\tget\tack\tadd, bytes on the wire\tack, bytes\t")
	full := 0.0
	for _, pipeline := range []int{1, 32} {
		for _, v := range []variant{{1, false, false}, {2, false, false}, {3, false, false}, {3, false, true}, {2, true, false}, {3, true, false}} {
			n := *ops / 4
			m.measure(v, n/4, pipeline) // warm
			f := m.measure(v, n, pipeline)
			if (v == variant{copies: 3}) {
				full = max(full, f.perSec)
			}
			fmt.Fprintf(w, "%d\t%v\t%.0f\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t\n", pipeline, v, f.perSec, f.add, f.get, f.ack, f.addBytes, f.ackBytes)
		}
	}
	check(w.Flush())
	fmt.Println()
	m.halfLoad(full / 2)
	m.latencies()
}

// halfLoad measures synchronous ADDJOBs of all clients at a steady rate, jobs a
// second.
func (m *nodes) halfLoad(rate float64) {
	const seconds = 5
	all := hdrhistogram.New(1, 60_000_000, 3)
	var mu sync.Mutex
	var wg sync.WaitGroup
	each := time.Duration(float64(time.Second) * float64(*clients) / rate)
	for i, c := range m.conns[0] {
		wg.Go(func() {
			h := hdrhistogram.New(1, 60_000_000, 3)
			began := time.Now()
			// The time that a call waits for the answer to the one before counts. The time by which
			// this timer is late, up to milliseconds where all cores are in use, doesn't.
			for next := began.Add(each * time.Duration(i) / time.Duration(*clients)); next.Sub(began) < seconds*time.Second; next = next.Add(each) {
				from := next
				if early := time.Until(next); early > 0 {
					time.Sleep(early)
					from = time.Now()
				}
				c.do("ADDJOB", "half", body(0), "5000", "REPLICATE", "3")
				h.RecordValue(time.Since(from).Microseconds())
			}
			mu.Lock()
			all.Merge(h)
			mu.Unlock()
		})
	}
	wg.Wait()
	show(fmt.Sprintf("ADDJOB with REPLICATE 3, %.0f a second", rate), all)
	for _, conns := range m.conns {
		conns[0].do("JOBMESH", "FLUSH")
	}
}

// latencies measures a synchronous ADDJOB, and the way of a job from one node
// to a client that waits on another, at a steady rate below what the nodes can do.
func (m *nodes) latencies() {
	const rate, n = 2000, 10_000
	added, delivered := hdrhistogram.New(1, 60_000_000, 3), hdrhistogram.New(1, 60_000_000, 3)
	stamps := make(chan time.Time, n)
	done := make(chan struct{})
	consumer := m.conns[1][0]
	go func() {
		defer close(done)
		for began := range stamps {
			job := consumer.do("GETJOB", "TIMEOUT", "10000", "FROM", "far")
			delivered.RecordValue(time.Since(began).Microseconds())
			consumer.do("ACKJOB", job[1])
		}
	}()
	next := time.Now()
	for range n {
		time.Sleep(time.Until(next))
		next = next.Add(time.Second / rate)
		began := time.Now()
		stamps <- began
		m.conns[0][0].do("ADDJOB", "far", body(0), "5000", "REPLICATE", "3")
		added.RecordValue(time.Since(began).Microseconds())
	}
	close(stamps)
	<-done
	show("ADDJOB with REPLICATE 3", added)
	show("from ADDJOB on one node to GETJOB on another", delivered)
}
