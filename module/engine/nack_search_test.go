package engine_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/lock/locktest"
)

// nackSearch lets one client at a time take a job, and give it back at any node of a healthy mesh, while messages between
// two nodes take any time, but keep their order.
type nackSearch struct {
	*rand.Rand
	t       *testing.T
	w       *world
	log     strings.Builder
	names   []string
	waits   map[string]bool // nodes at which a client waits
	holders int             // clients that have the job
	most    int
}

var nackGives = regexp.MustCompile(`(?m)^ +(\w) gives j to \w+$`)

func (x *nackSearch) do(line string) string {
	out := x.w.PlayLine(x.t, line)
	x.heard(line, out)
	return out
}

// heard notes what clients get.
func (x *nackSearch) heard(line, out string) {
	x.log.WriteString(line + "\n----\n" + out + "\n")
	for _, m := range nackGives.FindAllStringSubmatch(out, -1) {
		x.holders++
		delete(x.waits, m[1])
	}
	if strings.HasPrefix(out, "got j ") {
		x.holders++
	}
	x.most = max(x.most, x.holders)
}

// bring delivers the first message that is under way from one node to another.
func (x *nackSearch) bring(from, to string) {
	for i, l := range x.w.Sent {
		if l.From.Name == from && l.To.Name == to {
			x.w.Sent = append(append([]locktest.Letter{}, x.w.Sent[:i]...), x.w.Sent[i+1:]...)
			x.w.Out.Reset()
			x.w.Bring(l)
			x.w.Flush()
			x.heard("message "+from+" to "+to, x.w.Out.String())
			return
		}
	}
}

func (x *nackSearch) some() string { return x.names[x.IntN(len(x.names))] }

func (x *nackSearch) step(nacks *int) {
	switch at := x.some(); x.IntN(4) {
	case 0:
		if !x.waits[at] && x.holders == 0 && strings.Contains(x.do("get "+at+" wait=w"+at), " waits") {
			x.waits[at] = true
		}
	case 1:
		if x.holders == 1 && *nacks < 3 {
			*nacks++
			x.holders = 0
			x.do("nack " + at + " j")
		}
	default:
		x.bring(at, x.some())
	}
}

// A client gives a job back at any node, also before all nodes have heard that it had come back. Messages about that cross, and nodes
// can leave the job to each other: then it comes when they ask each other. It isn't given to a second client meanwhile.
func TestNacksThatCross(t *testing.T) {
	found := 0
	for seed := range uint64(600) {
		x := &nackSearch{Rand: rand.New(rand.NewPCG(seed, 11)), t: t, w: newWorld(), waits: map[string]bool{}}
		if x.names = []string{"a", "b"}; seed%2 == 1 {
			x.names = append(x.names, "c")
		}
		x.do("mesh nodes=" + string('0'+rune(len(x.names))) + " idle")
		x.do("advance 10s deliver quiet")
		x.do("add " + x.some() + " j retry=300 replicate=" + string('0'+rune(len(x.names))))
		x.do("deliver quiet")
		nacks := 0
		for range 40 {
			x.step(&nacks)
		}
		for len(x.w.Sent) > 0 {
			l := x.w.Sent[x.IntN(len(x.w.Sent))]
			x.bring(l.From.Name, l.To.Name)
		}
		require.LessOrEqual(t, x.most, 1, "seed %d: two clients have the job\n%s", seed, &x.log)
		if x.holders > 0 || strings.Contains(x.do("show j"), "queued") {
			continue
		}
		found++
		x.do("advance 25s deliver")
		require.True(t, x.holders > 0 || strings.Contains(x.do("show j"), "queued"), "seed %d: nobody has the job\n%s", seed, &x.log)
	}
	require.NotZero(t, found)
	t.Logf("%d were left by all nodes, and found", found)
}
