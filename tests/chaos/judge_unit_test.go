package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// given is a delivery that took a tenth of a second.
func given(at moment) delivery { return delivery{node: "0", sent: at - second/10, at: at} }

func TestJudge(t *testing.T) {
	at := func(node int, when moment) loss { return loss{node, when, when} }
	for name, c := range map[string]struct {
		job    job
		losses []loss
		calm   bool
		unsure bool
		silent []silence
		want   string
	}{
		"delivered":                         {job: job{kind: named("three"), id: "D", deliveries: []delivery{given(2 * second)}}},
		"refused, and not delivered":        {job: job{kind: named("three")}},
		"refused, yet delivered":            {job: job{kind: named("three"), deliveries: []delivery{given(2 * second)}}},
		"lost":                              {job: job{kind: named("two"), id: "D"}, want: "never delivered"},
		"lost with one of two nodes":        {job: job{kind: named("two"), id: "D"}, losses: []loss{at(0, 2*second), at(0, 3*second)}, want: "never delivered"},
		"lost with its two nodes":           {job: job{kind: named("two"), id: "D"}, losses: []loss{at(0, 2*second), at(1, 3*second)}},
		"lost with nodes that died before":  {job: job{kind: named("two"), id: "D"}, losses: []loss{at(0, second/2), at(1, second/2)}, want: "never delivered"},
		"lost with nodes that died later":   {job: job{kind: named("two"), id: "D"}, losses: []loss{at(0, 9*second), at(1, 9*second)}, want: "never delivered"},
		"of several nodes, without waiting": {job: job{kind: named("async"), id: "D"}, losses: []loss{at(2, 2*second)}},
		"twice, at least once":              {job: job{kind: named("one"), id: "D", deliveries: []delivery{given(2 * second), given(3 * second)}}},
		"twice, at most once":               {job: job{kind: named("once"), id: "D", deliveries: []delivery{given(2 * second), given(3 * second)}}, want: "delivered twice"},
		"twice, at most once and unknown":   {job: job{kind: named("once"), deliveries: []delivery{given(2 * second), given(3 * second)}}, want: "delivered twice"},
		"at most once, lost with a node":    {job: job{kind: named("once"), id: "D"}, unsure: true},
		"at most once, and uncertain":       {job: job{kind: named("once"), id: "D", uncertain: true}},
		"uncertain, without a fault":        {job: job{kind: named("once"), id: "D", uncertain: true}, calm: true, want: "never delivered"},
		"at most once, lost with an answer": {job: job{kind: named("once"), id: "D"}, silent: []silence{{once: true}}},
		"at most once, lost":                {job: job{kind: named("once"), id: "D"}, silent: []silence{{}}, want: "never delivered"},
		"at most once, lost without one":    {job: job{kind: named("once"), id: "D"}, calm: true, want: "never delivered"},
		"delayed":                           {job: job{kind: named("delayed"), id: "D", deliveries: []delivery{given(2100 * time.Millisecond)}}},
		"before its delay":                  {job: job{kind: named("delayed"), id: "D", deliveries: []delivery{given(1900 * time.Millisecond)}}, want: "delay"},
	} {
		t.Run(name, func(t *testing.T) {
			c.job.sent, c.job.until = second, second+second/10
			v := judge(&books{jobs: []*job{&c.job}, silent: c.silent}, c.losses, round{faults: !c.calm, unsure: c.unsure})
			if c.want == "" {
				assert.Empty(t, v.findings)
				return
			}
			require.Len(t, v.findings, 1)
			assert.Contains(t, v.findings[0], c.want)
			assert.Contains(t, v.findings[0], "ADDJOB at node", "with its history")
		})
	}
	v := judge(&books{odd: []string{"GETJOB at node 1: -ERR"}}, nil, round{faults: true})
	assert.Len(t, v.findings, 1, "an answer that nobody expects")
}

func TestPlans(t *testing.T) {
	show := func(p plan) string { // all of it
		var b strings.Builder
		for _, round := range p.rounds {
			for _, s := range round {
				b.WriteString(s.String() + "\n")
			}
		}
		return b.String() + strings.Join(p.fsync, " ") + p.preamble
	}
	draw := func(seed uint64) plan { return newPlan(seed, 5, 3, 20*second, allFaults) }
	seen := map[string]int{}
	for seed := range uint64(100) {
		p := draw(seed)
		require.Equal(t, show(p), show(draw(seed)), "a seed's plan is always the same")
		require.NotEqual(t, show(p), show(draw(seed+1)))
		for _, round := range p.rounds {
			down := map[int]bool{}
			for i, s := range round {
				require.True(t, i == 0 || s.at >= round[i-1].at)
				seen[s.fault]++
				switch s.fault {
				case "kill", "shutdown", "stop":
					require.False(t, down[s.node], "what is down isn't ended again:\n%s", show(p))
					down[s.node] = true
				case "killall", "shutdownall":
					for i := range 5 {
						require.False(t, down[i], show(p))
						down[i] = true
					}
				case "start", "resume":
					require.True(t, down[s.node], show(p))
					delete(down, s.node)
				case "startall":
					clear(down)
				}
			}
			require.Empty(t, down, "every fault ends:\n%s", show(p))
		}
	}
	for _, f := range allFaults {
		assert.Positive(t, seen[f.name], "%s is drawn", f.name)
	}
	some, err := chosen("kill,rewrite")
	require.NoError(t, err)
	for _, s := range newPlan(1, 3, 1, 20*second, some).rounds[0] {
		assert.Contains(t, []string{"kill", "start", "rewrite"}, s.fault)
	}
	_, err = chosen("kill,flood")
	assert.ErrorContains(t, err, "flood")
}

// took is a job with a key that was added at a moment, delivered once, and acknowledged.
func took(kind, key string, added, got, acked moment) *job {
	j := &job{kind: named(kind), key: key, id: kind + key + added.String(), sent: added, until: added + second/10}
	if got > 0 {
		j.deliveries = []delivery{given(got)}
	}
	if acked > 0 {
		j.ends = []end{{command: "ACKJOB", sent: acked, until: acked + second/10}}
	}
	return j
}

func TestJudgeOfKeysAndFamilies(t *testing.T) {
	parent := func(acked moment) *job { return took("deferred", "", second, 3*second, acked) }
	released := func(j *job, at moment) *job {
		j.released = at
		return j
	}
	child := func(p *job, got moment) *job {
		j := took("blocked", "", 2*second, got, 0)
		j.parents = []*job{p}
		return j
	}
	early, late := released(parent(4*second), 2*second), released(parent(6*second), 2*second)
	for name, c := range map[string]struct {
		jobs   []*job
		silent []silence
		losses []loss
		want   string
	}{
		"runs one after the other":    {jobs: []*job{took("run", "k", 1*second, 2*second, 3*second), took("run", "k", second, 4*second, 5*second)}},
		"runs at a time":              {jobs: []*job{took("run", "k", 1*second, 2*second, 4*second), took("run", "k", second, 3*second, 5*second)}, want: "two runs at a time"},
		"runs of two keys":            {jobs: []*job{took("run", "k", 1*second, 2*second, 4*second), took("run", "l", second, 3*second, 5*second)}},
		"a run whose time is over":    {jobs: []*job{took("run", "k", 1*second, 2*second, 0), took("run", "k", second, 4*second, 5*second)}},
		"a second one after the ack":  {jobs: []*job{took("until", "k", 1*second, 2*second, 3*second), took("until", "k", 4*second, 5*second, 6*second)}},
		"a second one before the ack": {jobs: []*job{took("until", "k", 1*second, 2*second, 5*second), took("until", "k", 3*second, 6*second, 7*second)}, want: "two jobs wait at a time"},
		"a second one after the get":  {jobs: []*job{took("before", "k", 1*second, 2*second, 5*second), took("before", "k", 3*second, 6*second, 7*second)}},
		"a second one before the get": {jobs: []*job{took("before", "k", 1*second, 4*second, 5*second), took("before", "k", 2*second, 6*second, 7*second)}, want: "two jobs wait at a time"},
		"the first one maybe got": {jobs: []*job{took("before", "k", 1*second, 4*second, 5*second), took("before", "k", 2*second, 6*second, 7*second)},
			silent: []silence{{sent: second, until: 2 * second}}},
		"a second one in the window": {jobs: []*job{took("window", "k", 1*second, 2*second, 2*second), took("window", "k", 2*second, 6*second, 7*second)}, want: "two jobs wait at a time"},
		"one after the window":       {jobs: []*job{took("window", "k", 1*second, 2*second, 2*second), took("window", "k", 4*second, 6*second, 7*second)}},
		"a child after its parent":   {jobs: []*job{early, child(early, 5*second)}},
		"a child before its parent":  {jobs: []*job{late, child(late, 5*second)}, want: "before the one that it waits for"},
		"before its release":         {jobs: []*job{released(parent(5*second), 4*second)}, want: "before it was released"},
		"a child that never came":    {jobs: []*job{early, child(early, 0)}, want: "never delivered"},
		"that fell with its parent":  {jobs: []*job{early, child(early, 0)}, losses: []loss{{0, second, second}, {1, second, second}}},
		"after its time to live":     {jobs: []*job{took("short", "", second, 30*second, 31*second)}, want: "time to live"},
	} {
		t.Run(name, func(t *testing.T) {
			v := judge(&books{jobs: c.jobs, silent: c.silent}, c.losses, round{faults: true})
			if c.want == "" {
				assert.Empty(t, v.findings)
				return
			}
			require.Len(t, v.findings, 1)
			assert.Contains(t, v.findings[0], c.want)
		})
	}
}

func TestJudgeOfLocks(t *testing.T) {
	held := func(owner string, token int64, at, until moment) *holding {
		return &holding{name: "l", owner: owner, token: token, sent: at - second/10, at: at, end: until}
	}
	for name, c := range map[string]struct {
		locks []*holding
		want  string
	}{
		"one after the other": {locks: []*holding{held("a", 1, second, 2*second), held("b", 2, 3*second, 4*second)}},
		"two at a time":       {locks: []*holding{held("a", 1, second, 4*second), held("b", 2, 3*second, 5*second)}, want: "two clients have a lock"},
		"a lower token":       {locks: []*holding{held("a", 2, second, 2*second), held("b", 1, 3*second, 4*second)}, want: "token doesn't grow"},
		"the same token":      {locks: []*holding{held("a", 2, second, 2*second), held("b", 2, 3*second, 4*second)}, want: "token doesn't grow"},
	} {
		t.Run(name, func(t *testing.T) {
			v := judge(&books{locks: c.locks}, nil, round{faults: true})
			if c.want == "" {
				assert.Empty(t, v.findings)
				return
			}
			require.Len(t, v.findings, 1)
			assert.Contains(t, v.findings[0], c.want)
		})
	}
}
