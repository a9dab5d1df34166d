package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// atLife shows what the options cost that say what becomes of a job, beside the same without them: giving a job back, dead letters,
// priorities, limits, and recurring jobs.
func atLife() {
	s, err := start()
	check(err)
	conns := connect(s)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d clients, pipeline 32, medians of %d rounds\n\n\tµs CPU\tratio\t\n", *clients, *rounds)
	atFailure(s, conns, out)
	atPriorities(s, conns, out)
	check(out.Flush())
	s.stop()
	for _, nodes := range []int{1, 3} {
		m := startMesh(nodes)
		m.limits(nodes)
		m.recurring(nodes)
		m.stop()
	}
}

// ratios prints the first figure, and the others as multiples of it. figures are of each round.
func ratios(out *tabwriter.Writer, names []string, figures [][]float64) {
	for i, name := range names {
		var cost, ratio []float64
		for _, round := range figures {
			cost, ratio = append(cost, round[i]), append(ratio, round[i]/round[0])
		}
		slices.Sort(cost)
		slices.Sort(ratio)
		fmt.Fprintf(out, "%s\t%.2f\t%.2f\t\n", name, middle(cost), middle(ratio))
	}
	fmt.Fprintln(out, "\t\t\t")
}

// fetched adds n jobs to a queue and fetches them all.
func fetched(conns []*conn, queue string, n int, options ...string) []string {
	each(conns, n, 32, func(c *conn, _, i int) int {
		c.send(append([]string{"ADDJOB", queue, body(i), "0"}, options...)...)
		return 1
	}, func(int, int, []string) error { return nil })
	ids := make([]string, n)
	each(conns, n, 32, func(c *conn, _, _ int) int { c.send("GETJOB", "NOHANG", "FROM", queue); return 1 }, func(_, i int, r []string) (err error) {
		ids[i], err = nth(1)(r)
		return err
	})
	return ids
}

// timed is the CPU that a call costs, in µs.
func timed(s *server, conns []*conn, n int, call func(c *conn, i int)) float64 {
	before := s.cpu()
	each(conns, n, 32, func(c *conn, _, i int) int { call(c, i); return 1 }, func(int, int, []string) error { return nil })
	return float64((s.cpu() - before).Nanoseconds()) / 1000 / float64(n)
}

// failing are the commands that failures compares, the first of which is the measure of the others.
var failing = []string{"ACKJOB", "NACK", "NACK DELAY 60", "NACK REASON timeout", "NACK DEAD", "MOVEJOB of a dead letter"}

// failures is what each of the commands in failing costs over n jobs.
func failures(s *server, conns []*conn, n int) (costs []float64) {
	for _, command := range failing {
		conns[0].do("FLUSHALL")
		ids := fetched(conns, "q", n)
		words := strings.Fields(command)
		if words[0] == "MOVEJOB" {
			words = words[:1]
			timed(s, conns, n, func(c *conn, i int) { c.send("NACK", ids[i], "DEAD") })
		}
		costs = append(costs, timed(s, conns, n, func(c *conn, i int) { c.send(append([]string{words[0], ids[i]}, words[1:]...)...) }))
	}
	conns[0].do("FLUSHALL")
	return costs
}

func atFailure(s *server, conns []*conn, out *tabwriter.Writer) {
	var figures [][]float64
	for range *rounds {
		figures = append(figures, failures(s, conns, *ops/8))
	}
	ratios(out, failing, figures)
}

func atPriorities(s *server, conns []*conn, out *tabwriter.Writer) {
	n := *ops / 8
	var figures [][]float64
	for range *rounds {
		var round []float64
		for _, priorities := range []int{1, 10} {
			conns[0].do("FLUSHALL")
			each(conns, *memory, 32, func(c *conn, _, i int) int {
				if p := i % priorities; p > 0 {
					c.send("ADDJOB", "q", body(i), "0", "PRIORITY", strconv.Itoa(p))
				} else {
					c.send("ADDJOB", "q", body(i), "0")
				}
				return 1
			}, func(int, int, []string) error { return nil })
			round = append(round, timed(s, conns, n, func(c *conn, _ int) { c.send("GETJOB", "NOHANG", "FROM", "q") }))
		}
		figures = append(figures, round)
	}
	conns[0].do("FLUSHALL")
	ratios(out, []string{fmt.Sprintf("GETJOB, %d jobs wait", *memory), "with 10 priorities"}, figures)
}

// limits compares the cycle of a job, on one queue of as many nodes, that has no limit with one that has.
func (m *nodes) limits(nodes int) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d nodes, one client each, GETJOB and ACKJOB\tµs CPU of all\tratio\t\n", nodes)
	n := *ops / 20
	queues := []string{"run", "slots", "rate", "plain"}
	m.conns[0][0].do("QCONFIG", "SET", "slots", "CONCURRENCY", "4")
	m.conns[0][0].do("QCONFIG", "SET", "rate", "RATE", "1000000", "1")
	time.Sleep(time.Second) // the settings are known everywhere
	var figures [][]float64
	for range *rounds {
		var round []float64
		for _, queue := range queues {
			options := []string{"RETRY", "60", "REPLICATE", "1"}
			if queue == "run" {
				options = append(options, "UNIQUE", "during-processing", "KEY", "")
			}
			for k, conns := range m.conns {
				each(conns[:1], n, 32, func(c *conn, _, i int) int {
					if queue == "run" {
						options[len(options)-1] = strconv.Itoa(k) + ":" + strconv.Itoa(i)
					}
					c.send(append([]string{"ADDJOB", queue, body(i), "0"}, options...)...)
					return 1
				}, func(int, int, []string) error { return nil })
			}
			before := m.cpu()
			done := make(chan bool)
			for _, conns := range m.conns {
				go func() {
					for range n {
						conns[0].do("ACKJOB", conns[0].do("GETJOB", "FROM", queue)[1])
					}
					done <- true
				}()
			}
			for range m.conns {
				<-done
			}
			round = append(round, float64((m.cpu()-before).Nanoseconds())/1000/float64(n*nodes))
		}
		figures = append(figures, round)
	}
	ratios(out, []string{"UNIQUE during-processing", "CONCURRENCY 4", "RATE", "without any"}, figures)
	check(out.Flush())
}

// recurring shows what recurring jobs cost that aren't due, and how late the others come.
func (m *nodes) recurring(nodes int) {
	const entries, idle, eager, seconds = 99_900, 10 * time.Second, 100, 10
	c := m.conns[0][0]
	cpu := func() float64 {
		before := m.cpu()
		time.Sleep(idle)
		return 100 * float64(m.cpu()-before) / float64(idle) / float64(nodes)
	}
	without := cpu()
	each(m.conns[0][:1], entries, 32, func(c *conn, _, i int) int {
		c.send("CRON", "SET", fmt.Sprint("idle", i), "EVERY", "86400", "OFFSET", strconv.Itoa((int(time.Now().Unix())+43_200)%86400), "JOB", "idle", "b")
		return 1
	}, func(int, int, []string) error { return nil })
	for k := range m.conns {
		for info(m.conns[k][0], "jobmesh", "jobmesh_cron_entries") < entries {
			time.Sleep(100 * time.Millisecond)
		}
	}
	time.Sleep(5 * time.Second) // what was told is saved
	fmt.Printf("%d nodes, %d recurring jobs, none due: %.2f %% of a core a node, %.2f %% without them\n", nodes, entries, cpu(), without)
	for i := range eager {
		c.do("CRON", "SET", fmt.Sprint("eager", i), "EVERY", "2", "OFFSET", strconv.Itoa(i%2), "JOB", "eager", "b")
	}
	late := hdrhistogram.New(1, 60_000_000, 3)
	for until := time.Now().Add(seconds * time.Second); time.Now().Before(until); {
		id := c.do("GETJOB", "FROM", "eager")[1]
		now, shown := time.Now(), c.do("SHOW", id)
		for i, word := range shown {
			if word == "slot" {
				slot, err := strconv.ParseInt(shown[i+1], 10, 64)
				check(err)
				late.RecordValue(now.Sub(time.Unix(slot, 0)).Microseconds())
			}
		}
		c.do("ACKJOB", id)
	}
	show(fmt.Sprintf("%d nodes, %d recurring jobs a second come late by", nodes, eager/2), late)
}
