package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// heldBack is how many jobs wait for their key in the GETJOB that is measured.
const heldBack = 100_000

// uniqueAdds are the ways to add a job that are compared; the first is the plain one.
var uniqueAdds = []struct {
	name string
	add  func(c *conn, i int)
}{
	{"none", func(c *conn, i int) { c.send("ADDJOB", "q", body(i), "0") }},
	{"until-processed", func(c *conn, i int) { c.send("ADDJOB", "q", body(i), "0", "UNIQUE", "until-processed") }},
	{"until-processed KEY", func(c *conn, i int) {
		c.send("ADDJOB", "q", body(i), "0", "UNIQUE", "until-processed", "KEY", fmt.Sprintf("user:%d", i))
	}},
	{"before-processing", func(c *conn, i int) { c.send("ADDJOB", "q", body(i), "0", "UNIQUE", "before-processing") }},
	{"during-processing", func(c *conn, i int) { c.send("ADDJOB", "q", body(i), "0", "UNIQUE", "during-processing") }},
	{"by QCONFIG", func(c *conn, i int) { c.send("ADDJOB", "s", body(i), "0") }},
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
	conns[0].do("QCONFIG", "SET", "s", "UNIQUE", "until-processed")
	flush := func() {
		conns[0].do("FLUSHALL")
		time.Sleep(500 * time.Millisecond) // locks of jobs that are gone are freed bit by bit
	}
	for round := range *rounds {
		for i, u := range uniqueAdds {
			flush()
			adds[i] = append(adds[i], timed(*ops, u.add))
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
			add := uniqueAdds[0].add
			if i >= 2 {
				add = uniqueAdds[4].add
			}
			timed(n, add)
			gets[i] = append(gets[i], timed(n, get))
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, pipeline 32, %d-byte bodies, medians of %d rounds\n\nADDJOB, unique by\tµs CPU\tratio\t\n", *clients, *bodyLen, *rounds)
	base := median(adds[0])
	for i, u := range uniqueAdds {
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t\n", u.name, median(adds[i]), median(adds[i])/base)
	}
	fmt.Fprintf(w, "\nGETJOB\tnone held back\t%d held back\tratio\t\n", heldBack)
	for i, name := range []string{"of plain jobs", "of during-processing jobs"} {
		none, some := median(gets[2*i]), median(gets[2*i+1])
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t\n", name, none, some, some/none)
	}
	check(w.Flush())
}
