package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is all that a run decides by chance: how the mesh is made, and which
// faults come when. It follows from the seed alone, so that a seed plays the same
// faults again; how long the servers take for them, and what the clients
// do meanwhile, is never twice the same.
type plan struct {
	seed     uint64
	fsync    []string // of each node
	preamble string   // aof-use-rdb-preamble
	rounds   [][]step
}

// step is a fault's beginning, or its end.
type step struct {
	at    time.Duration // since the round began
	fault string
	node  int
	lasts time.Duration // zero where it has no end of its own
	kind  string        // a variant of the fault
	apart []int         // nodes on the other side
}

func (s step) String() string {
	text := fmt.Sprintf("%6.2fs %s", s.at.Seconds(), s.fault)
	if s.kind != "" {
		text += " " + s.kind
	}
	if s.node >= 0 {
		text += fmt.Sprintf(" node %d", s.node)
	}
	if s.apart != nil {
		text += fmt.Sprintf(" %v", s.apart)
	}
	if s.lasts > 0 {
		text += fmt.Sprintf(" for %v", s.lasts.Round(time.Millisecond))
	}
	return text
}

// fault is one kind of trouble. A plan draws it as often as its weight says.
type fault struct {
	name   string
	weight int
	alone  bool // the node has no other fault meanwhile
	whole  bool // it concerns all nodes
	about  string
}

var allFaults = []fault{
	{"kill", 6, true, false, "kill -9, and a start up to 3 s later"},
	{"shutdown", 2, true, false, "SHUTDOWN, and a start up to 2 s later"},
	{"killall", 1, true, true, "kill -9 of all nodes at once, and their start"},
	{"shutdownall", 1, true, true, "SHUTDOWN of all nodes, and their start"},
	{"stop", 4, true, false, "SIGSTOP for up to 4 s"},
	{"rewrite", 6, false, false, "BGREWRITEAOF"},
	{"save", 3, false, false, "BGSAVE"},
	{"pause", 3, false, false, "CLIENT PAUSE, of writes or of all, for up to 1.5 s"},
	{"leavers", 2, false, false, "CLIENT KILL of all clients of a node"},
}

// faultNames lists them, for the flag.
func faultNames() string {
	var names []string
	for _, f := range allFaults {
		names = append(names, f.name)
	}
	return strings.Join(names, ",")
}

// chosen are the faults of a list of names, or all where it is empty.
func chosen(list string) ([]fault, error) {
	if list == "" {
		return allFaults, nil
	}
	var some []fault
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(allFaults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q: there are %s", name, faultNames())
		}
		some = append(some, allFaults[i])
	}
	return some, nil
}

// newPlan draws a plan of so many rounds, each of that length.
func newPlan(seed uint64, nodes, rounds int, length time.Duration, faults []fault) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed, preamble: "yes"}
	policies := [][]string{{"everysec"}, {"always"}, {"everysec", "always"}}[r.IntN(3)]
	for i := range nodes {
		p.fsync = append(p.fsync, policies[i%len(policies)])
	}
	if r.IntN(4) == 0 {
		p.preamble = "no"
	}
	for range rounds {
		p.rounds = append(p.rounds, drawRound(r, nodes, length, faults))
	}
	return p
}

// drawRound draws the faults of a round. Their ends are steps of their own.
func drawRound(r *rand.Rand, nodes int, length time.Duration, faults []fault) []step {
	var steps []step
	busy := make([]time.Duration, nodes) // until when a node has a fault that is to be alone
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	for at := upTo(time.Second); at < length; at += 100*time.Millisecond + upTo(900*time.Millisecond) {
		n := r.IntN(total)
		f := faults[0]
		for _, f = range faults {
			if n -= f.weight; n < 0 {
				break
			}
		}
		s := step{at: at, fault: f.name, node: r.IntN(nodes)}
		free := busy[s.node] <= at
		if f.whole {
			s.node, free = -1, slices.Max(busy) <= at
		}
		if !free {
			continue
		}
		end := step{node: s.node}
		switch f.name {
		case "kill":
			s.lasts, end.fault = upTo(3*time.Second), "start"
		case "shutdown":
			s.lasts, end.fault = upTo(2*time.Second), "start"
		case "killall", "shutdownall":
			s.lasts, end.fault = upTo(time.Second), "startall"
		case "stop":
			s.lasts, end.fault = 50*time.Millisecond+upTo(4*time.Second), "resume"
		case "pause":
			s.lasts = 50*time.Millisecond + upTo(1500*time.Millisecond)
			s.kind = []string{"WRITE", "ALL"}[r.IntN(2)]
		}
		steps = append(steps, s)
		if end.fault != "" {
			end.at = at + s.lasts
			steps = append(steps, end)
		}
		if f.alone {
			for i := range busy {
				if i == s.node || f.whole {
					busy[i] = at + s.lasts + 200*time.Millisecond
				}
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return steps
}
