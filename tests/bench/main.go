package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

var (
	rounds  = flag.Int("rounds", 5, "rounds; the median counts")
	ops     = flag.Int("ops", 200_000, "operations a round at pipeline 32; a quarter of them at 1")
	clients = flag.Int("clients", 50, "connections")
	bodyLen = flag.Int("body", 100, "bytes of a body")
	memory  = flag.Int("memory", 1_000_000, "jobs of the memory figures; 0 leaves them out")
	scale   = flag.Bool("scale", false, "run the test with ten million jobs instead")
	mesh    = flag.Bool("mesh", false, "measure a mesh of three nodes instead")
	uq      = flag.Bool("uq", false, "compare the unique queue with the same in Lua on plain types instead")
	unique  = flag.Bool("unique", false, "measure what uniqueness costs ADDJOB and GETJOB instead")
	locks   = flag.Bool("locks", false, "measure locks on one node and on three instead")
	bulks   = flag.Bool("bulk", false, "measure ADDJOBS on one node and on three instead")
	life    = flag.Bool("life", false, "measure what failure, priorities, limits and recurring jobs cost instead")
	slowest = flag.Bool("slowest", false, "show how long what concerns all of a full server stops it, instead")
	only    = flag.String("only", "", "sections of -slowest, with commas between: commands, times, families, waits, locks, roles, mesh")
	against = flag.String("against", "", "compare with another build of the module, this file, instead; with -life what failure costs")
	many    = flag.Int("jobs", 10_000_000, "jobs of -scale")
	asJSON  = flag.Bool("json", false, "print JSON")
)

// system is one of the systems that are compared: how to add, get and acknowledge.
type system struct {
	name  string
	setup func(c *conn)
	add   func(c *conn, body string)
	get   func(c *conn)
	// id picks what ack needs from get's reply.
	id  func(reply []string) (string, error)
	ack func(c *conn, id string) (calls int)
}

var errEmpty = errors.New("nothing was fetched")

func nth(n int) func([]string) (string, error) {
	return func(r []string) (string, error) {
		if len(r) <= n {
			return "", errEmpty
		}
		return r[n], nil
	}
}

var systems = []*system{
	{
		name:  "jobmesh",
		setup: func(*conn) {},
		add:   func(c *conn, body string) { c.send("ADDJOB", "q", body, "0") },
		get:   func(c *conn) { c.send("GETJOB", "NOHANG", "FROM", "q") },
		id:    nth(1),
		ack:   func(c *conn, id string) int { c.send("ACKJOB", id); return 1 },
	},
	{
		name:  "streams",
		setup: func(c *conn) { c.do("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM") },
		add:   func(c *conn, body string) { c.send("XADD", "s", "*", "b", body) },
		get:   func(c *conn) { c.send("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">") },
		id:    nth(1),
		ack: func(c *conn, id string) int {
			c.send("XACK", "s", "g", id)
			c.send("XDEL", "s", id)
			return 2
		},
	},
	{
		name:  "lists",
		setup: func(*conn) {},
		add:   func(c *conn, body string) { c.send("LPUSH", "l", body) },
		get:   func(c *conn) { c.send("LMOVE", "l", "p", "RIGHT", "LEFT") },
		id:    nth(0),
		ack:   func(c *conn, id string) int { c.send("LREM", "p", "-1", id); return 1 },
	},
}

// figure is what one phase cost.
type figure struct {
	System   string
	Phase    string
	Pipeline int
	CPU      float64 // µs an operation
	PerSec   float64
}

func body(i int) string {
	return fmt.Sprintf("%0*d", *bodyLen, i)
}

// phases runs add, get and ack over n jobs.
func phases(s *server, conns []*conn, sys *system, n, pipeline int) []figure {
	ids := make([]string, n)
	none := func(int, int, []string) error { return nil }
	timed := func(phase string, run func()) figure {
		cpu, began := s.cpu(), time.Now()
		run()
		took, cost := time.Since(began), s.cpu()-cpu
		return figure{sys.name, phase, pipeline, float64(cost.Microseconds()) / float64(n), float64(n) / took.Seconds()}
	}
	out := []figure{
		timed("add", func() {
			each(conns, n, pipeline, func(c *conn, _, i int) int { sys.add(c, body(i)); return 1 }, none)
		}),
		timed("get", func() {
			each(conns, n, pipeline, func(c *conn, _, _ int) int { sys.get(c); return 1 }, func(_, i int, r []string) (err error) {
				ids[i], err = sys.id(r)
				return err
			})
		}),
		timed("ack", func() {
			each(conns, n, pipeline, func(c *conn, _, i int) int { return sys.ack(c, ids[i]) }, func(_, i int, r []string) error {
				if slices.Contains(r, "0") {
					return fmt.Errorf("%s: %s was not there to acknowledge", sys.name, ids[i])
				}
				return nil
			})
		}),
	}
	var cpu, secs float64
	for _, f := range out {
		cpu += f.CPU
		secs += 1 / f.PerSec
	}
	return append(out, figure{sys.name, "cycle", pipeline, cpu, 1 / secs})
}

// median of each system's phases over the rounds.
func medians(all []figure) (out []figure) {
	type key struct {
		system, phase string
		pipeline      int
	}
	groups := map[key][]figure{}
	var order []key
	for _, f := range all {
		k := key{f.System, f.Phase, f.Pipeline}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], f)
	}
	for _, k := range order {
		g := groups[k]
		m := g[0]
		mid := func(pick func(figure) float64) float64 {
			v := make([]float64, len(g))
			for i, f := range g {
				v[i] = pick(f)
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		m.CPU, m.PerSec = mid(func(f figure) float64 { return f.CPU }), mid(func(f figure) float64 { return f.PerSec })
		out = append(out, m)
	}
	return out
}

func find(all []figure, system, phase string, pipeline int) figure {
	for _, f := range all {
		if f.System == system && f.Phase == phase && f.Pipeline == pipeline {
			return f
		}
	}
	return figure{}
}

// info reads a number from INFO.
func info(c *conn, section, field string) int64 {
	for line := range strings.SplitSeq(c.do("INFO", section)[0], "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

// held is what a job costs in memory.
type held struct {
	System             string
	Waiting, Delivered float64 // bytes of used_memory a job
	GoHeap             int64   // bytes in all
}

func weigh(conns []*conn, sys *system, n int) held {
	c := conns[0]
	c.do("FLUSHALL")
	sys.setup(c)
	none := func(int, int, []string) error { return nil }
	before := info(c, "memory", "used_memory")
	each(conns, n, 32, func(c *conn, _, i int) int { sys.add(c, body(i)); return 1 }, none)
	waiting := info(c, "memory", "used_memory")
	each(conns, n, 32, func(c *conn, _, _ int) int { sys.get(c); return 1 }, none)
	delivered := info(c, "memory", "used_memory")
	h := held{System: sys.name, Waiting: float64(waiting-before) / float64(n), Delivered: float64(delivered-before) / float64(n)}
	if sys.name == "jobmesh" {
		h.GoHeap = info(c, "jobmesh", "jobmesh_go_heap_bytes")
	}
	c.do("FLUSHALL")
	return h
}

func connect(s *server) []*conn {
	conns := make([]*conn, *clients)
	for i := range conns {
		c, err := dial(s.addr)
		check(err)
		conns[i] = c
	}
	return conns
}

func main() {
	runtime.LockOSThread() // servers end with the thread that has started them
	flag.Parse()
	if *against != "" {
		atAgainst(*against)
		return
	}
	if *mesh {
		atMesh()
		return
	}
	if *bulks {
		atBulk()
		return
	}
	if *life {
		atLife()
		return
	}
	if *locks {
		atLocks()
		return
	}
	if *uq {
		atUnique()
		return
	}
	if *unique {
		atUniqueJobs()
		return
	}
	if *slowest {
		atSlowest()
		return
	}
	s, err := start()
	check(err)
	defer s.stop()
	conns := connect(s)
	if *scale {
		atScale(s, conns)
		return
	}
	var all []figure
	for round := range *rounds {
		for _, pipeline := range []int{1, 32} {
			n := *ops
			if pipeline == 1 {
				n /= 4
			}
			for _, sys := range systems {
				conns[0].do("FLUSHALL")
				sys.setup(conns[0])
				all = append(all, phases(s, conns, sys, n, pipeline)...)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	all = medians(all)
	var weights []held
	if *memory > 0 {
		for _, sys := range systems {
			weights = append(weights, weigh(conns, sys, *memory))
		}
	}
	if *asJSON {
		check(json.NewEncoder(os.Stdout).Encode(map[string]any{"figures": all, "memory": weights}))
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, %d-byte bodies, medians of %d rounds\n\n", *clients, *bodyLen, *rounds)
	fmt.Fprintln(w, "phase\tpipeline\tsystem\tjobs/s\tCPU s per million\tratio to streams\t")
	for _, pipeline := range []int{1, 32} {
		for _, phase := range []string{"add", "get", "ack", "cycle"} {
			base := find(all, "streams", phase, pipeline)
			for _, sys := range systems {
				f := find(all, sys.name, phase, pipeline)
				fmt.Fprintf(w, "%s\t%d\t%s\t%.0f\t%.2f\t%.2f\t\n", phase, pipeline, sys.name, f.PerSec, f.CPU, f.CPU/base.CPU)
			}
		}
	}
	check(w.Flush())
	if len(weights) > 0 {
		fmt.Fprintf(w, "\nbytes of used_memory a job, at %d jobs\n\nsystem\twaiting\tratio\tdelivered\tratio\tGo heap in all\t\n", *memory)
		for _, h := range weights {
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\t%.2f\t%d\t\n", h.System, h.Waiting, h.Waiting/weights[1].Waiting, h.Delivered, h.Delivered/weights[1].Delivered, h.GoHeap)
		}
		check(w.Flush())
	}
}

// probe measures the latency of a cycle while something goes on in a server that is
// idle otherwise.
func probe(c *conn, goesOn func() bool) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, 60_000_000, 3)
	for goesOn() {
		for range 200 {
			began := time.Now()
			c.do("ADDJOB", "probe", "x", "0")
			id := c.do("GETJOB", "NOHANG", "FROM", "probe")[1]
			c.do("ACKJOB", id)
			h.RecordValue(time.Since(began).Microseconds())
		}
	}
	return h
}

func bgsave(c *conn) (*hdrhistogram.Histogram, time.Duration) {
	began := time.Now()
	c.do("BGSAVE")
	h := probe(c, func() bool { return info(c, "persistence", "rdb_bgsave_in_progress") == 1 })
	return h, time.Since(began)
}

func show(name string, h *hdrhistogram.Histogram) {
	fmt.Printf("%-42s p50 %6d  p99 %6d  p99.9 %6d  max %7d µs (%d cycles)\n", name, h.ValueAtQuantile(50), h.ValueAtQuantile(99), h.ValueAtQuantile(99.9), h.Max(), h.TotalCount())
}

func atScale(s *server, conns []*conn) {
	c, sys := conns[0], systems[0]
	table := func(title string, f []figure) {
		fmt.Println(title)
		for _, x := range f {
			fmt.Printf("  %-6s %.2f µs CPU an operation\n", x.Phase, x.CPU)
		}
	}
	var before []figure
	for range 3 {
		before = append(before, phases(s, conns, sys, *ops, 32)...)
	}
	before = medians(before)
	table("empty server, pipeline 32:", before)
	until := time.Now().Add(2 * time.Second)
	show("latency of a cycle, empty server", probe(c, func() bool { return time.Now().Before(until) }))

	c.do("SLOWLOG", "RESET")
	used := info(c, "memory", "used_memory")
	began := time.Now()
	each(conns, *many, 32, func(c *conn, _, i int) int { c.send("ADDJOB", "big", body(i), "0"); return 1 }, func(int, int, []string) error { return nil })
	fmt.Printf("\n%d jobs added in %.1f s; %.0f bytes of used_memory each; Go heap %d bytes\n", *many, time.Since(began).Seconds(),
		float64(info(c, "memory", "used_memory")-used)/float64(*many), info(c, "jobmesh", "jobmesh_go_heap_bytes"))
	slowest, n := 0, 0
	c.send("SLOWLOG", "GET", "-1")
	check(c.w.Flush())
	reply, err := c.receive(nil)
	check(err)
	for i, word := range reply {
		if word == "ADDJOB" && i > 0 {
			if us, err := strconv.Atoi(reply[i-1]); err == nil {
				slowest, n = max(slowest, us), n+1
			}
		}
	}
	fmt.Printf("slowest ADDJOB while the tables grew: %d µs (%d above 1000 µs)\n\n", slowest, n)
	var full []figure
	for range 3 {
		full = append(full, phases(s, conns, sys, *ops, 32)...)
	}
	full = medians(full)
	table("with them in memory, pipeline 32:", full)
	for i := range full {
		fmt.Printf("  %-6s %.2f times the empty server's\n", full[i].Phase, full[i].CPU/before[i].CPU)
	}
	h, took := bgsave(c)
	fmt.Printf("\nBGSAVE ended after %.1f s: %s\n", took.Seconds(), saveStatus(c))
	show("latency of a cycle during BGSAVE", h)
	until = time.Now().Add(2 * time.Second)
	show("latency of a cycle, no BGSAVE", probe(c, func() bool { return time.Now().Before(until) }))
	fmt.Printf("Go heap %d bytes, Go memory in all %d bytes\n", info(c, "jobmesh", "jobmesh_go_heap_bytes"), info(c, "jobmesh", "jobmesh_go_total_bytes"))
}

func saveStatus(c *conn) string {
	for line := range strings.SplitSeq(c.do("INFO", "persistence")[0], "\r\n") {
		if v, ok := strings.CutPrefix(line, "rdb_last_bgsave_status:"); ok {
			return v
		}
	}
	return "unknown"
}
