package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// uniqueSystem is one of the two unique queues: the module's, and the same in Lua.
type uniqueSystem struct {
	name string
	push func(c *conn, item string)
	pop  func(c *conn)
}

var uniqueSystems = []uniqueSystem{
	{
		name: "jobmesh",
		push: func(c *conn, item string) { c.send("UQ.PUSH", "q", item, "AT", "1370213794") },
		pop:  func(c *conn) { c.send("UQ.POP", "q") },
	},
	{
		name: "Lua",
		push: func(c *conn, item string) {
			c.send("FCALL", "luq_push", "3", "l", "l:uniqueness", "l:start_at", item, "1370213794")
		},
		pop: func(c *conn) { c.send("FCALL", "luq_pop", "3", "l", "l:uniqueness", "l:start_at") },
	},
}

// uniqueFigure is µs of CPU an operation.
type uniqueFigure struct{ push, duplicate, pop float64 }

func uniquePhases(s *server, conns []*conn, sys *uniqueSystem, n int) uniqueFigure {
	timed := func(make func(c *conn, i int), words int) float64 {
		before := s.cpu()
		each(conns, n, 32, func(c *conn, _, i int) int { make(c, i); return 1 }, func(_, i int, r []string) error {
			if len(r) != words {
				return fmt.Errorf("%s: %d words for item %d: %q", sys.name, len(r), i, r)
			}
			return nil
		})
		return float64((s.cpu() - before).Nanoseconds()) / 1000 / float64(n)
	}
	push := func(c *conn, i int) { sys.push(c, body(i)) }
	return uniqueFigure{timed(push, 1), timed(push, 0), timed(func(c *conn, _ int) { sys.pop(c) }, 2)}
}

// atUnique compares the module's unique queue with the same in Lua on plain types.
func atUnique() {
	s, err := start()
	check(err)
	defer s.stop()
	conns := connect(s)
	code, err := os.ReadFile("lua/unique_queue.lua")
	check(err)
	conns[0].do("FUNCTION", "LOAD", string(code))

	all := map[string][]uniqueFigure{}
	for round := range *rounds {
		for i := range uniqueSystems {
			sys := &uniqueSystems[(i+round)%len(uniqueSystems)]
			all[sys.name] = append(all[sys.name], uniquePhases(s, conns, sys, *ops))
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	mid := func(sys string, pick func(uniqueFigure) float64) float64 {
		v := make([]float64, 0, *rounds)
		for _, f := range all[sys] {
			v = append(v, pick(f))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, pipeline 32, %d-byte items, medians of %d rounds of %d\n\n", *clients, *bodyLen, *rounds, *ops)
	fmt.Fprintln(w, "CPU, µs an operation\tjobmesh\tLua\tratio\t")
	for _, phase := range []struct {
		name string
		pick func(uniqueFigure) float64
	}{
		{"push", func(f uniqueFigure) float64 { return f.push }},
		{"push of a duplicate", func(f uniqueFigure) float64 { return f.duplicate }},
		{"pop", func(f uniqueFigure) float64 { return f.pop }},
	} {
		ours, lua := mid("jobmesh", phase.pick), mid("Lua", phase.pick)
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t\n", phase.name, ours, lua, ours/lua)
	}
	if *memory > 0 {
		var bytes [2]float64
		for i := range uniqueSystems {
			bytes[i] = weighUnique(conns, &uniqueSystems[i], *memory)
		}
		fmt.Fprintf(w, "bytes an item, of %d\t%.0f\t%.0f\t%.2f\t\n", *memory, bytes[0], bytes[1], bytes[0]/bytes[1])
	}
	check(w.Flush())
}

// weighUnique is the growth of used_memory over n items, each.
func weighUnique(conns []*conn, sys *uniqueSystem, n int) float64 {
	c := conns[0]
	// The scripts' garbage isn't the queue's memory: garbage that is left from before is
	// collected while the scripts make more.
	c.do("FLUSHALL")
	time.Sleep(100 * time.Millisecond)
	before := info(c, "memory", "used_memory")
	each(conns, n, 32, func(c *conn, _, i int) int { sys.push(c, body(i)); return 1 }, func(int, int, []string) error { return nil })
	after := info(c, "memory", "used_memory")
	c.do("FLUSHALL")
	return float64(after-before) / float64(n)
}
