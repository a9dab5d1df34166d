package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
)

// atAgainst compares this build of the module with another, each in a server of its own.
// The two take short turns, so that other load on the machine is the same for both. The
// result is the median of the turns' ratios. Each round has new servers, since the seed of
// a server's hashes, and where its memory lies, change a command's cost by some percent.
func atAgainst(other string) {
	builds := []string{"jobmesh.so", other}
	servers, conns := make([]*server, len(builds)), make([][]*conn, len(builds))
	stop := func() {
		for i, s := range servers {
			for _, c := range conns[i] {
				c.Close()
			}
			s.stop()
		}
	}
	start := func() {
		for i, file := range builds {
			s, err := startBuild(file)
			check(err)
			servers[i], conns[i] = s, connect(s)
		}
	}
	sys, pipelines := systems[0], []int{1, 32}
	if *life {
		pipelines = pipelines[1:]
	}
	measure := func(i, pipeline int) []figure {
		if *life {
			var figures []figure
			for k, cost := range failures(servers[i], conns[i], *ops/8) {
				figures = append(figures, figure{Phase: failing[k], CPU: cost})
			}
			return figures
		}
		n := *ops / 4
		if pipeline == 1 {
			n /= 4
		}
		conns[i][0].do("FLUSHALL")
		return phases(servers[i], conns[i], sys, n, pipeline)
	}
	type key struct {
		phase    string
		pipeline int
	}
	var order []key
	ratios, costs := map[key][]float64{}, map[key][2][]float64{}
	for round := range *rounds {
		if round > 0 {
			stop()
		}
		start()
		for _, pipeline := range pipelines {
			for turn := range 8 {
				var got [2][]figure
				for i := range builds {
					i := (i + turn) % len(builds)
					got[i] = measure(i, pipeline)
				}
				for p, f := range got[0] {
					k := key{f.Phase, pipeline}
					if ratios[k] == nil {
						order = append(order, k)
					}
					ratios[k] = append(ratios[k], f.CPU/got[1][p].CPU)
					both := costs[k]
					both[0], both[1] = append(both[0], f.CPU), append(both[1], got[1][p].CPU)
					costs[k] = both
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
	}
	defer stop()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d clients, %d-byte bodies, medians of %d turns\n\nphase\tpipeline\tµs CPU\tof the other\tratio\tits quarters\t\n", *clients, *bodyLen, len(ratios[order[0]]))
	for _, k := range order {
		r, both := ratios[k], costs[k]
		slices.Sort(r)
		fmt.Fprintf(w, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f to %.3f\t\n", k.phase, k.pipeline, middle(both[0]), middle(both[1]), middle(r), r[len(r)/4], r[len(r)*3/4])
	}
	check(w.Flush())
	if *memory > 0 && !*life {
		fmt.Fprintf(w, "\nbytes of used_memory a job, at %d jobs\n\nbuild\twaiting\tdelivered\t\n", *memory)
		for i, file := range builds {
			h := weigh(conns[i], sys, *memory)
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t\n", file, h.Waiting, h.Delivered)
		}
		check(w.Flush())
	}
}

// middle is the median.
func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
