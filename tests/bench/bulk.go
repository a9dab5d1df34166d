package main

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// atBulk measures ADDJOBS beside ADDJOB. The ways of adding take turns, so that other load on the machine is the same for all. The
// result is the median of the turns' ratios to ADDJOB on one node.
func atBulk() {
	alone, err := start()
	check(err)
	defer alone.stop()
	mesh := startMesh(3)
	defer mesh.stop()
	conns := connect(alone)
	add := func(c *conn, i int) { c.send("ADDJOB", "q", body(i), "0") }
	ways := []struct {
		name    string
		servers []*server
		conns   []*conn
		ops     int                  // a quarter of which a turn makes
		jobs    int                  // of each call
		send    func(c *conn, i int) // nil: see barrier
	}{
		{"ADDJOB, one node, pipeline 32", []*server{alone}, conns, *ops, 1, add},
		{"ADDJOBS of 32, one node", []*server{alone}, conns, *ops, 32, bulk(32)},
		{"ADDJOBS of 1000, one node", []*server{alone}, conns, *ops, 1000, bulk(1000)},
		{"ADDJOBS of 32, REPLICATE 3", mesh.servers, mesh.conns[0], *ops, 32, bulk(32, "REPLICATE", "3")},
		{"ADDJOBS of 32, REPLICATE 3, 1 client", mesh.servers, mesh.conns[0][:1], *ops / 2, 32, bulk(32, "REPLICATE", "3")},
		{"ADDJOBS of 1000, REPLICATE 3, 1 client", mesh.servers, mesh.conns[0][:1], *ops / 2, 1000, bulk(1000, "REPLICATE", "3")},
		{"32 ADDJOBs, REPLICATE 3 ASYNC, then WAITCOPIES", mesh.servers, mesh.conns[0], *ops, 32, nil},
		{"ADDJOBS of 32, REPLICATE 3 ASYNC", mesh.servers, mesh.conns[0], *ops, 32, bulk(32, "REPLICATE", "3", "ASYNC")},
	}
	costs, ratios := make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range *rounds {
		for turn := range 5 {
			yardstick := 0.0
			for k := range ways {
				w := &ways[k]
				for _, c := range []*conn{conns[0], mesh.conns[0][0], mesh.conns[1][0], mesh.conns[2][0]} {
					c.do("DEL", "q") // FLUSHALL gives freed memory back to the kernel, and each page faults again
					reclaimed(c)
				}
				n := max(w.ops/4/w.jobs, len(w.conns))
				pipeline := 1
				if w.jobs == 1 {
					pipeline = 32
				}
				before := cpuSum(w.servers)
				if w.send == nil {
					barrier(w.conns, n, w.jobs)
				} else {
					each(w.conns, n, pipeline, func(c *conn, _, i int) int { w.send(c, i); return 1 }, func(_, _ int, reply []string) error {
						if len(reply) != w.jobs || reply[len(reply)-1][0] != 'D' {
							return fmt.Errorf("%s: answered %q", w.name, reply)
						}
						return nil
					})
				}
				cost := float64((cpuSum(w.servers) - before).Nanoseconds()) / 1e3 / float64(n*w.jobs)
				if k == 0 {
					yardstick = cost
				}
				if round+turn > 0 { // the first turn warms up
					costs[k], ratios[k] = append(costs[k], cost), append(ratios[k], cost/yardstick)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, %d-byte bodies, medians of %d turns; CPU in µs a job over all nodes\n\nway\tµs CPU\tratio\tits quarters\t\n", *clients, *bodyLen, len(costs[0]))
	for k := range ways {
		r := ratios[k]
		slices.Sort(r)
		fmt.Fprintf(w, "%s\t%.3f\t%.3f\t%.3f to %.3f\t\n", ways[k].name, middle(costs[k]), middle(r), r[len(r)/4], r[len(r)*3/4])
	}
	check(w.Flush())
}

// bulk returns a function that sends an ADDJOBS of so many jobs.
func bulk(jobs int, options ...string) func(c *conn, i int) {
	return func(c *conn, i int) {
		args := append([]string{"ADDJOBS", "q", "5000"}, options...)
		args = append(args, "BODIES")
		for k := range jobs {
			args = append(args, body(i*jobs+k))
		}
		c.send(args...)
	}
}

// barrier makes n calls: each adds jobs with ASYNC in a pipeline, and waits for their copies.
func barrier(conns []*conn, n, jobs int) {
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			for call := i; call < n; call += len(conns) {
				for k := range jobs {
					c.send("ADDJOB", "q", body(call*jobs+k), "0", "REPLICATE", "3", "ASYNC")
				}
				check(c.w.Flush())
				wait := []string{"WAITCOPIES"}
				for range jobs {
					reply, err := c.receive(nil)
					check(err)
					wait = append(wait, reply...)
				}
				counts := c.do(append(wait, "5000")...)
				if len(counts) != jobs || slices.ContainsFunc(counts, func(n string) bool { return n != "3" }) {
					check(fmt.Errorf("WAITCOPIES answered %q", counts))
				}
			}
		})
	}
	all.Wait()
}

// reclaimed waits until a server has freed what was flushed: it does so bit by bit.
func reclaimed(c *conn) {
	for used := int64(0); ; time.Sleep(20 * time.Millisecond) {
		was := used
		if used = info(c, "memory", "used_memory"); used > was-100_000 && was > 0 {
			return
		}
	}
}

// cpuSum is the time that all threads of the servers have run.
func cpuSum(servers []*server) (sum time.Duration) {
	for _, s := range servers {
		sum += s.cpu()
	}
	return sum
}
