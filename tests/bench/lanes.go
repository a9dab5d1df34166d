package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"
)

// heldBack is how many jobs wait for their key in the GETJOB that is measured.
const heldBack = 100_000

// turns is how many full pipelines each client adds one way before the next way's turn. So
// other load on the machine, and how full the tables are, is the same for all ways.
const turns = 2

// uniqueAdds are the ways to add a job that are compared; the first is the plain one.
var uniqueAdds = []struct {
	name    string
	options []string
	keyed   bool
}{
	{name: "none"},
	{name: "until-processed", options: []string{"UNIQUE", "until-processed"}},
	{name: "until-processed KEY", options: []string{"UNIQUE", "until-processed"}, keyed: true},
	{name: "before-processing", options: []string{"UNIQUE", "before-processing"}},
	{name: "during-processing", options: []string{"UNIQUE", "during-processing"}},
	{name: "by QCONFIG"},
}

// queueOf names the queue of a way to add: each way has its own.
func queueOf(way int) string { return string(rune('a' + way)) }

// addUnique adds job i in one of those ways.
func addUnique(c *conn, way int, queue string, i int) {
	u := &uniqueAdds[way]
	args := append(make([]string, 0, 8), "ADDJOB", queue, body(i), "0")
	args = append(args, u.options...)
	if u.keyed {
		args = append(args, "KEY", fmt.Sprintf("user:%d", i))
	}
	c.send(args...)
}

// atUniqueJobs measures what uniqueness costs ADDJOB and GETJOB: µs of CPU an
// operation, pipeline 32.
func atUniqueJobs() {
	s, err := start()
	check(err)
	defer s.stop()
	conns := connect(s)
	timed := func(n int, send func(c *conn, i int)) float64 {
		before := s.cpu()
		each(conns, n, 32, func(c *conn, _, i int) int { send(c, i); return 1 }, func(_, i int, r []string) error {
			if len(r) == 0 || r[0] == "" {
				return fmt.Errorf("nothing for operation %d: %q", i, r)
			}
			return nil
		})
		return float64((s.cpu() - before).Nanoseconds()) / 1000 / float64(n)
	}
	get := func(c *conn, _ int) { c.send("GETJOB", "NOHANG", "FROM", "q") }
	adds, gets := make([][]float64, len(uniqueAdds)), make([][]float64, 4)
	conns[0].do("QCONFIG", "SET", queueOf(len(uniqueAdds)-1), "UNIQUE", "until-processed")
	flush := func() {
		conns[0].do("FLUSHALL")
		time.Sleep(500 * time.Millisecond) // locks of jobs that are gone are freed bit by bit
	}
	for round := range *rounds {
		flush()
		burst := turns * 32 * *clients
		for from := 0; from < *ops/4; from += burst {
			for i := range uniqueAdds {
				way := (i + from/burst) % len(uniqueAdds)
				cost := timed(burst, func(c *conn, i int) { addUnique(c, way, queueOf(way), from+i) })
				adds[way] = append(adds[way], cost)
			}
		}
		n := *ops / 2
		for i := range gets {
			c := conns[0]
			flush()
			if held := i&1 != 0; held {
				for k := range heldBack {
					c.send("ADDJOB", "q", fmt.Sprint(k), "0", "UNIQUE", "during-processing", "KEY", "busy")
				}
				check(c.w.Flush())
				for range heldBack {
					_, err := c.receive(nil)
					check(err)
				}
				c.do("GETJOB", "FROM", "q")
			}
			way := 0
			if i >= 2 {
				way = 4
			}
			timed(n, func(c *conn, i int) { addUnique(c, way, "q", i) })
			gets[i] = append(gets[i], timed(n, get))
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, pipeline 32, %d-byte bodies, medians of %d rounds, in which the ways to add take turns\n\nADDJOB, unique by\tµs CPU\tratio\t\n", *clients, *bodyLen, *rounds)
	base := middle(adds[0])
	for i, u := range uniqueAdds {
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t\n", u.name, middle(adds[i]), middle(adds[i])/base)
	}
	fmt.Fprintf(w, "\nGETJOB\tnone held back\t%d held back\tratio\t\n", heldBack)
	for i, name := range []string{"of plain jobs", "of during-processing jobs"} {
		none, some := middle(gets[2*i]), middle(gets[2*i+1])
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t\n", name, none, some, some/none)
	}
	check(w.Flush())
}
