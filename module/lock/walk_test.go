package lock_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"jobmesh/module/lock"
	"jobmesh/module/lock/locktest"
)

var (
	walkSeeds = flag.Int("walk.seeds", 0, "random walks, too")
	walkSeed  = flag.Uint64("walk.seed", 0, "walk by this seed alone, and print the conversation")
)

// TestWalks makes clients of a mesh take, extend and release locks at random, through the commands of the scripts.
// Messages are late or lost, connections break, nodes stand still, crash and come back with all that they logged and
// with another clock, and new nodes come. No two clients have a lock at once, and each holder's token is greater than the one before. In the
// end, when all is well again, each lock can be had. A walk that fails says how to print its conversation, which is
// nearly a script.
func TestWalks(t *testing.T) {
	if *walkSeed != 0 {
		x := walkBy(t, *walkSeed)
		fmt.Print(x.log.String())
		if x.failure != "" {
			t.Error(x.failure)
		}
		return
	}
	const fixed = 30
	grants := 0
	for i := range fixed + *walkSeeds {
		seed := uint64(i + 1)
		if i >= fixed {
			seed = rand.Uint64()
		}
		x := walkBy(t, seed)
		if grants += x.grants; x.failure != "" {
			t.Errorf("%s\nwalk again: go test ./module/lock -run '^TestWalks$' -walk.seed %d", x.failure, seed)
		}
	}
	require.Greater(t, grants, 20*fixed)
}

// walk is a mesh, its clients, and a judge of what they are told.
type walk struct {
	*rand.Rand
	t       *testing.T
	w       *locktest.World
	log     strings.Builder
	clients []*client
	last    map[string]grant // by lock
	down    *locktest.Actor
	still   *locktest.Actor
	grants  int
	failure string
}

// grant is a token, and the client that got it.
type grant struct {
	token uint64
	to    *client
}

// client is the owner of at most one lock, and does one thing at a time. After it has released a lock it has another
// name: see LOCK.RELEASE in COMMANDS.md.
type client struct {
	name  string
	asks  string // the command that isn't answered yet; empty: none
	at    *locktest.Actor
	lock  string // what it asks for, or has
	lease int64
	token uint64
	until int64 // it has the lock until then
	freed bool  // it has released a lock
}

func walkBy(t *testing.T, seed uint64) *walk {
	x := &walk{Rand: rand.New(rand.NewPCG(seed, 3)), t: t, last: map[string]grant{}}
	x.w = newWorld(x.hear)
	x.do("mesh nodes=%d remembers", 2+x.IntN(3))
	for i := range 5 {
		x.clients = append(x.clients, &client{name: fmt.Sprint("x", i)})
	}
	for step := 0; step < 250 && x.failure == ""; step++ {
		x.act(x.clients[x.IntN(len(x.clients))])
		x.happen()
		x.deliver()
		if x.IntN(3) > 0 {
			x.do("advance %dms", 1+x.IntN(50))
		} else {
			// "once", because two nodes with clients in line may take turns to ask at each delivery.
			x.do("advance %dms deliver once", 1+x.IntN(1500))
		}
	}
	x.end()
	return x
}

// do plays a line of a script.
func (x *walk) do(format string, args ...any) string {
	line := fmt.Sprintf(format, args...)
	out := x.w.PlayLine(x.t, line)
	fmt.Fprintf(&x.log, "%s\n----\n%s\n", line, out)
	return out
}

func (x *walk) fail(format string, args ...any) {
	if x.failure == "" {
		x.failure = fmt.Sprintf(format, args...)
		fmt.Fprintf(&x.log, "# %s\n\n", x.failure)
	}
}

// anyNode is a node that clients can reach.
func (x *walk) anyNode() *locktest.Actor {
	for {
		if n := x.w.Nodes[x.IntN(len(x.w.Nodes))]; n != x.down && n != x.still {
			return n
		}
	}
}

// act makes a client do something.
func (x *walk) act(c *client) {
	if c.asks != "" {
		return
	}
	c.at = x.anyNode()
	lease := int64([]int{100, 500, 1000, 3000, 8000}[x.IntN(5)])
	has := c.until > x.w.Now
	switch {
	case has && x.IntN(3) == 0: // it goes on working
	case has && x.IntN(2) == 0:
		c.until, c.freed = 0, true
		x.ask(c, "letgo", "%s", locktest.Token(c.token))
	case has && x.IntN(2) == 0:
		c.lease = lease
		x.ask(c, "extend", "%s lease=%dms", locktest.Token(c.token), lease)
	default:
		if !has {
			c.lock = string("nm"[x.IntN(2)])
		}
		if c.freed {
			c.name, c.freed = c.name+"'", false
		}
		c.lease = lease
		x.ask(c, "acquire", "lease=%dms wait=%dms", lease, []int{0, 0, 3000, 20000}[x.IntN(4)])
	}
}

// ask plays a client's command. Its outcome may be known at once.
func (x *walk) ask(c *client, command, format string, args ...any) {
	c.asks = command
	switch out := x.do("%s %s %s %s %s", command, c.at.Name, c.lock, c.name, fmt.Sprintf(format, args...)); {
	case strings.HasPrefix(out, "granted"):
		x.fail("%s is answered %q before any other node was asked", c.name, out)
	case !strings.HasPrefix(out, "asks"):
		c.asks = ""
	}
}

// hear is told the answer to a client.
func (x *walk) hear(name any, r *lock.Result) {
	for _, c := range x.clients {
		if c.name != name {
			continue
		}
		command := c.asks
		c.asks = ""
		switch {
		case command == "" || command == "letgo":
		case r.Kind == lock.NotHeld || r.Kind == lock.Stale:
			c.until = 0
		case r.Kind == lock.Granted:
			x.granted(c, r)
		}
	}
}

// granted judges whether a client may have a lock now.
func (x *walk) granted(c *client, r *lock.Result) {
	x.grants++
	for _, d := range x.clients {
		if d != c && d.lock == c.lock && d.until > x.w.Now {
			x.fail("%s gets %s, and %s has it for %d ms more", c.name, c.lock, d.name, d.until-x.w.Now)
		}
	}
	if last := x.last[c.lock]; r.Token < last.token || r.Token == last.token && c != last.to {
		x.fail("%s gets %s by %s, after %s got it by %s", c.name, c.lock, locktest.Token(r.Token), last.to.name, locktest.Token(last.token))
	}
	x.last[c.lock] = grant{r.Token, c}
	c.token, c.until = r.Token, max(c.until, r.Began-c.at.Off+c.lease)
}

// happen makes something go wrong, or right again.
func (x *walk) happen() {
	switch x.IntN(25) {
	case 0:
		if x.down == nil && (x.still == nil || len(x.w.Nodes) > 2) {
			n := x.anyNode()
			x.do("crash %s", n.Name)
			x.down = n
			for _, c := range x.clients {
				if c.at == n {
					c.asks = "" // it never hears
				}
			}
		}
	case 1, 2:
		x.restart()
	case 3:
		if x.still == nil && (x.down == nil || len(x.w.Nodes) > 2) {
			x.still = x.anyNode()
			x.do("stall %s", x.still.Name)
		}
	case 4, 5:
		x.wake()
	case 6:
		if a, b := x.anyNode(), x.anyNode(); a != b {
			x.do("cut %s %s", a.Name, b.Name)
		}
	case 7:
		x.mend()
	case 8:
		if len(x.w.Nodes) < 5 && x.IntN(4) == 0 && x.wellKnown() {
			x.comes()
		}
	}
}

func (x *walk) restart() {
	if x.down != nil {
		x.do("clock %s %dms", x.down.Name, x.IntN(2000)-1000)
		x.do("restart %s%s", x.down.Name, []string{"", " always", " distrust"}[x.IntN(3)])
		x.down = nil
	}
}

func (x *walk) wake() {
	if x.still != nil {
		x.do("wake %s", x.still.Name)
		x.still = nil
	}
}

// mend makes the connections that there should be.
func (x *walk) mend() {
	for i, a := range x.w.Nodes {
		for _, b := range x.w.Nodes[i+1:] {
			if !a.Links[b] && a != x.down && b != x.down {
				x.do("join %s %s", a.Name, b.Name)
			}
		}
	}
}

// wellKnown says whether each node is well, and knows all others: only then may one more come. Two changes of who is in
// the mesh at once could leave two majorities without a common voter.
func (x *walk) wellKnown() bool {
	for _, n := range x.w.Nodes {
		if len(n.Links) != len(x.w.Nodes)-1 || n.Down || n.Still {
			return false
		}
	}
	return true
}

func (x *walk) comes() {
	name := strings.TrimSpace(x.do("newnode"))
	for _, n := range x.w.Nodes[:len(x.w.Nodes)-1] {
		x.do("meet %s %s on-purpose", name, n.Name)
	}
}

// deliver brings some messages, or loses some.
func (x *walk) deliver() {
	from, to := x.w.Nodes[x.IntN(len(x.w.Nodes))].Name, x.w.Nodes[x.IntN(len(x.w.Nodes))].Name
	switch x.IntN(8) {
	case 0: // all are late
	case 1:
		x.do("drop from=%s to=%s", from, to)
	case 2:
		x.do("deliver from=%s to=%s", from, to)
	case 3:
		x.do("deliver from=%s", from)
	case 4, 5:
		x.do("deliver once")
	default:
		x.do("deliver")
	}
}

// end puts all right. Then each lock can be had.
func (x *walk) end() {
	x.wake()
	x.restart()
	x.mend()
	x.do("advance 60s deliver once")
	x.do("advance 60s deliver")
	for _, name := range []string{"n", "m"} {
		c := &client{name: "last-" + name, lock: name, lease: 1000, at: x.anyNode()}
		x.clients = append(x.clients, c)
		x.ask(c, "acquire", "lease=1s")
		x.do("deliver")
		if c.until <= x.w.Now {
			x.fail("in the end nobody gets %s", name)
		}
	}
}
