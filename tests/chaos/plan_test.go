package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// plan is all that a run decides by chance: how the mesh is made, and which faults come when.
// It follows from the seed alone, so that a seed causes the same faults again. How long the
// servers take for them, and what the clients do meanwhile, is never twice the same.
type plan struct {
	seed     uint64
	fsync    []string // of each node
	preamble string   // aof-use-rdb-preamble
	replicas []int    // of each node: how many Redis replicas it has
	sentinel bool     // a Sentinel watches them
	clocks   bool     // each server has a wall clock of its own
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
	delay time.Duration // of messages
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
	if s.delay != 0 {
		text += fmt.Sprintf(" by %v", s.delay.Round(time.Millisecond))
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
	alone  bool // meanwhile the node has no other fault that is alone
	whole  bool // it concerns more nodes than one
	needs  int  // what the plan has to have
	about  string
}

// The conditions that a fault needs.
const (
	replicas = 1 << iota
	sentinel
	clocks
)

var allFaults = []fault{
	{"kill", 8, true, false, 0, "kill -9, and a start up to 3 s later"},
	{"shutdown", 3, true, false, 0, "SHUTDOWN, and a start up to 2 s later"},
	{"killall", 1, true, true, 0, "kill -9 of all nodes at once, and their start"},
	{"shutdownall", 1, true, true, 0, "SHUTDOWN of all nodes, and their start"},
	{"taken", 1, true, false, 0, "kill -9, and a start while another process has the port of its bus"},
	{"stop", 5, true, false, 0, "SIGSTOP for up to 4 s"},
	{"rewrite", 8, false, false, 0, "BGREWRITEAOF"},
	{"save", 3, false, false, 0, "BGSAVE"},
	{"nolog", 1, true, true, 0, "appendonly no for up to 1 s, and yes again"},
	{"pause", 4, false, false, 0, "CLIENT PAUSE, of writes or of all, for up to 1.5 s"},
	{"cut", 4, false, true, 0, "a partition for up to 8 s, in which nodes hear nothing of the others"},
	{"deaf", 2, false, true, 0, "the same one way: what some nodes say arrives, what they are told doesn't"},
	{"slow", 2, false, true, 0, "what some nodes are told takes up to 300 ms, for up to 4 s"},
	{"reset", 3, false, false, 0, "all connections of a node to the others end"},
	{"leavers", 3, false, false, 0, "CLIENT KILL of all clients of a node"},
	{"leave", 1, true, false, 0, "CLUSTER LEAVING yes for up to 2 s"},
	{"demote", 2, true, false, 0, "REPLICAOF an address where nobody is for up to 1.5 s, then NO ONE"},
	{"clock", 6, false, false, clocks, "a node's wall clock steps ahead or back, by up to two hours"},
	{"replica", 2, true, true, replicas, "kill -9 of a replica, and its start"},
	{"byhand", 3, true, true, replicas, "REPLICAOF NO ONE to a replica, and REPLICAOF that one to the master"},
	{"failover", 3, true, true, replicas, "FAILOVER to a replica"},
	{"sentinel", 3, true, true, sentinel, "kill -9 of a master: Sentinel promotes a replica"},
}

// faultNames lists all faults' names, for the flag.
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
	p.replicas = make([]int, nodes)
	has := 0
	switch r.IntN(5) {
	case 0:
		p.clocks, has = true, clocks
	case 1, 2:
		has = replicas
		for i := range p.replicas {
			p.replicas[i] = 1
		}
		p.replicas[0] = 2
		if p.sentinel = r.IntN(2) == 0; p.sentinel {
			has |= sentinel
		}
	}
	var possible []fault
	for _, f := range faults {
		// If Sentinel watches, it alone changes roles, since it ensures that there is one master.
		roles := f.needs == replicas && f.name != "replica" || f.name == "demote"
		if f.needs&^has == 0 && !(p.sentinel && roles) {
			possible = append(possible, f)
		}
	}
	for range rounds {
		steps := drawRound(r, nodes, length, possible)
		if p.sentinel {
			shorten(steps)
		}
		p.rounds = append(p.rounds, steps)
	}
	return p
}

// about returns what the judge must know of a round.
func (p plan) about(steps []step) round {
	r := round{faults: len(steps) > 0, steps: p.clocks}
	r.unsure = slices.Contains(p.fsync, "everysec") || slices.Max(p.replicas) > 0
	for _, s := range steps {
		r.unsure = r.unsure || s.fault == "nolog" || s.fault == "demote"
	}
	return r
}

// shorten makes the faults of a single node end before Sentinel takes the node for dead.
func shorten(steps []step) {
	began := map[int]time.Duration{}
	for i := range steps {
		s := &steps[i]
		switch s.fault {
		case "kill", "shutdown", "stop":
			s.lasts = min(s.lasts, sentinelPatience/4)
			began[s.node] = s.at + s.lasts
		case "start", "resume":
			s.at = min(s.at, began[s.node])
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
}

// drawRound draws the faults of a round. Their ends are steps of their own.
func drawRound(r *rand.Rand, nodes int, length time.Duration, faults []fault) []step {
	var steps []step
	busy := make([]time.Duration, nodes) // until when a node has a fault that is to be alone
	parted := time.Duration(0)           // until when there is a partition
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
		free := !f.alone || busy[s.node] <= at
		if f.whole {
			free = !f.alone || slices.Max(busy) <= at && parted <= at
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
			s.node, end.node = -1, -1
			s.lasts, end.fault = upTo(time.Second), "startall"
		case "stop":
			s.lasts, end.fault = 50*time.Millisecond+upTo(4*time.Second), "resume"
		case "cut", "deaf", "slow":
			if free = parted <= at; !free {
				break
			}
			s.node = -1
			s.lasts, end.fault, end.node = 200*time.Millisecond+upTo(8*time.Second), "heal", -1
			if f.name == "slow" {
				s.lasts /= 2
				s.delay = time.Duration(1+r.IntN(300)) * time.Millisecond
			}
			s.apart = slices.Sorted(slices.Values(r.Perm(nodes)[:1+r.IntN(nodes-1)]))
			parted = at + s.lasts + 100*time.Millisecond
		case "nolog":
			s.lasts = upTo(time.Second)
		case "leave":
			s.lasts, end.fault = upTo(2*time.Second), "stay"
		case "demote":
			s.lasts, end.fault = upTo(1500*time.Millisecond), "promote"
		case "clock":
			s.delay = time.Duration(r.Int64N(int64(4*time.Hour))) - 2*time.Hour
			if r.IntN(2) == 0 {
				s.delay /= 1000
			}
		case "pause":
			s.lasts = 50*time.Millisecond + upTo(1500*time.Millisecond)
			s.kind = []string{"WRITE", "ALL"}[r.IntN(2)]
		}
		if !free {
			continue
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
