package membership_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"jobmesh/module/membership"
	"jobmesh/module/wire"
)

// world is several nodes, and the messages between them. The commands of a script:
//
//	nodes NAME…         begins anew with these, which know nobody
//	meet A B            an operator tells A to meet B
//	pass SPAN           time goes on: heartbeats are sent and heard, and then connections made
//	cut A B, join A B   the connection of two ends, or is made again
//	stop A, start A     the node stands still: it sends nothing, and hears nothing
//	leave A, back A     A becomes a replica, whose connections end; or is promoted again
//	restart A           A is a new process, which knows what A's nodes' file says
//	move A…             the nodes come up at other addresses, all at once
//	forget A B          A forgets B
//	reset A             A forgets all
//	state A leaving=B full=B port=N
//	show                the tables
type world struct {
	now   int64
	order []*host
	byID  map[wire.NodeID]*host
	out   strings.Builder
}

// host is one node.
type host struct {
	w       *world
	name    string
	id      wire.NodeID
	table   membership.Table[*membership.Peer]
	state   membership.State
	stopped bool
	away    bool
	moves   int
	wanted  map[wire.NodeID]string // connections that are to be kept, to these addresses
	cut     map[wire.NodeID]bool
	linked  map[wire.NodeID]bool
	met     map[wire.NodeID]bool
	inbox   []letter
}

type letter struct {
	from wire.NodeID
	b    []byte
}

func (h *host) say(format string, args ...any) {
	fmt.Fprintf(&h.w.out, "%s: %s\n", h.name, fmt.Sprintf(format, args...))
}

// addr is where the node is now.
func (h *host) addr() string { return fmt.Sprintf("%s:%d", h.name, 1+h.moves) }

func (h *host) nameOf(id wire.NodeID) string { return h.w.byID[id].name }

func (h *host) Now() int64                             { return h.w.now }
func (h *host) New(p membership.Peer) *membership.Peer { return &p }
func (h *host) State() membership.State                { return h.state }
func (h *host) Changed()                               {}
func (h *host) Connect(p *membership.Peer)             { h.wanted[p.ID] = p.Addr }
func (h *host) TurnAway(p *membership.Peer)            { h.say("turns %s away", h.nameOf(p.ID)); h.drop(p.ID) }
func (h *host) Added(p *membership.Peer)               { h.say("knows %s", h.nameOf(p.ID)) }
func (h *host) Returning(*membership.Peer)             {}
func (h *host) Up(p *membership.Peer)                  { h.say("%s is up", h.nameOf(p.ID)) }
func (h *host) Down(p *membership.Peer)                { h.say("%s is down", h.nameOf(p.ID)) }
func (h *host) Silent(p *membership.Peer)              { h.say("suspects %s", h.nameOf(p.ID)) }
func (h *host) Back(p *membership.Peer)                { h.say("%s is back", h.nameOf(p.ID)) }
func (h *host) Gone(p *membership.Peer)                { h.say("has forgotten %s", h.nameOf(p.ID)) }
func (h *host) Send(m *wire.Message, to ...*membership.Peer) {
	for _, p := range to {
		h.w.byID[p.ID].receives(h, m.Append(nil))
	}
}

func (h *host) Disconnect(p *membership.Peer) {
	delete(h.wanted, p.ID)
	h.drop(p.ID)
}

func (h *host) receives(from *host, b []byte) {
	if h.linked[from.id] {
		h.inbox = append(h.inbox, letter{from.id, b})
	}
}

// drop ends a connection: both ends learn of it when the world links and unlinks.
func (h *host) drop(id wire.NodeID) { delete(h.linked, id) }

// link makes the connections that somebody wants, and ends those that one end has dropped.
func (w *world) link() {
	tried := map[[2]string]bool{} // a node that was turned away tries again later
	for changed := true; changed; {
		changed = false
		for _, a := range w.order {
			for _, b := range w.order {
				if a == b || a.stopped || b.stopped || a.away || b.away {
					continue
				}
				up := a.linked[b.id] && b.linked[a.id]
				switch {
				case !up && (a.linked[b.id] || b.linked[a.id]):
					delete(a.linked, b.id)
					delete(b.linked, a.id)
					a.table.Down(b.id)
					b.table.Down(a.id)
					changed = true
				case up && a.cut[b.id]:
					delete(a.linked, b.id)
					changed = true
				case !up && a.wanted[b.id] == b.addr() && !a.cut[b.id] && !tried[[2]string{a.name, b.name}]:
					tried[[2]string{a.name, b.name}] = true
					a.linked[b.id], b.linked[a.id] = true, true
					met := a.met[b.id]
					delete(a.met, b.id)
					a.table.Up(b.id, b.addr(), met)
					b.table.Up(a.id, a.addr(), false)
					w.deliver()
					changed = a.linked[b.id] && b.linked[a.id]
				}
			}
		}
	}
}

// apart ends all connections of a node.
func (w *world) apart(a *host) {
	for _, p := range a.table.All() {
		if b := w.byID[p.ID]; a.linked[b.id] {
			a.drop(b.id)
			b.drop(a.id)
			a.table.Down(b.id)
			b.table.Down(a.id)
		}
	}
}

func (w *world) deliver() {
	for some := true; some; {
		some = false
		for _, h := range w.order {
			for !h.stopped && len(h.inbox) > 0 {
				l := h.inbox[0]
				h.inbox, some = h.inbox[1:], true
				var m wire.Message
				p := h.table.ByID(l.from)
				if p == nil {
					_ = h.table.Admit(l.from, &m, l.b)
					continue
				}
				if err := m.Parse(l.b); err != nil {
					h.say("%v", err)
					continue
				}
				h.table.Said(p)
				if m.Kind == wire.Failed {
					h.table.OnFailed(&m)
				} else {
					h.table.OnHeartbeat(p, &m)
				}
			}
		}
	}
}

func (w *world) node(name string) *host {
	for _, h := range w.order {
		if h.name == name {
			return h
		}
	}
	return nil
}

func (w *world) show() {
	for _, h := range w.order {
		var list []string
		for _, p := range h.table.All() {
			text := h.nameOf(p.ID)
			for _, mark := range []struct {
				yes  bool
				text string
			}{{p.Health == membership.Suspected, "suspected"}, {p.Health == membership.Failed, "failed"}, {!p.Connected, "unconnected"}, {p.Leaving, "leaving"}, {p.Full, "full"}} {
				if mark.yes {
					text += " " + mark.text
				}
			}
			if p.Port != 0 {
				text += fmt.Sprintf(" port %d", p.Port)
			}
			list = append(list, text)
		}
		sort.Strings(list)
		h.say("[%s], %d reachable, %s", strings.Join(list, "; "), h.table.Reachable(), counted(w, h))
	}
}

// counted lists the nodes that count all the nodes that this one knows: they may ask for its vote.
func counted(w *world, h *host) string {
	var list []string
	for _, p := range h.table.All() {
		if o := w.byID[p.ID]; h.table.CountsAll(p, o.table.Sum()) {
			list = append(list, o.name)
		}
	}
	sort.Strings(list)
	return "would vote for [" + strings.Join(list, " ") + "]"
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "nodes" {
				w = &world{now: 1_700_000_000_000, byID: map[wire.NodeID]*host{}}
				for i, a := range d.CmdArgs {
					h := &host{w: w, name: a.Key, id: wire.NodeID{0: byte(i + 1)}, wanted: map[wire.NodeID]string{}, cut: map[wire.NodeID]bool{}, linked: map[wire.NodeID]bool{}, met: map[wire.NodeID]bool{}}
					h.table = membership.New[*membership.Peer](h, 0)
					h.table.SetSelf(h.id)
					w.order, w.byID[h.id] = append(w.order, h), h
				}
				return ""
			}
			w.out.Reset()
			arg := func(i int) *host { return w.node(d.CmdArgs[i].Key) }
			switch d.Cmd {
			case "meet":
				a, b := arg(0), arg(1)
				if a.table.Meet(b.id, b.addr()) {
					a.met[b.id], a.wanted[b.id] = true, b.addr() // it was dialled there
				}
				w.link()
			case "pass":
				span, err := time.ParseDuration(d.CmdArgs[0].Key)
				require.NoError(t, err)
				for end := w.now + span.Milliseconds(); w.now < end; {
					w.now += 500
					for _, h := range w.order {
						if !h.stopped && !h.away {
							h.table.Tick()
						}
					}
					w.deliver()
				}
				w.link()
			case "cut", "join":
				arg(0).cut[arg(1).id], arg(1).cut[arg(0).id] = d.Cmd == "cut", d.Cmd == "cut"
				w.link()
			case "stop", "start":
				arg(0).stopped = d.Cmd == "stop"
				if d.Cmd == "start" {
					arg(0).table.TimeJumped()
				}
				w.deliver()
				w.link()
			case "move":
				for i := range d.CmdArgs {
					arg(i).moves++
					w.apart(arg(i))
				}
				w.link()
			case "restart":
				a := arg(0)
				w.apart(a)
				old, forgotten := a.table.All(), a.table.Forgotten()
				a.table = membership.New[*membership.Peer](a, 0)
				a.table.SetSelf(a.id)
				for _, p := range old {
					a.table.Restore(p.ID, p.Addr, p.Port, p.Stale())
				}
				for _, id := range forgotten {
					a.table.RestoreForgotten(id)
				}
				w.link()
			case "leave":
				arg(0).away = true
				w.apart(arg(0))
				arg(0).table.Leave()
			case "back":
				arg(0).away = false
				w.link()
			case "forget":
				arg(0).table.Forget(arg(1).id)
				w.link()
			case "reset":
				arg(0).table.Reset()
				w.link()
			case "state":
				for _, a := range d.CmdArgs[1:] {
					switch a.Key {
					case "leaving":
						arg(0).state.Leaving = a.Vals[0] == "true"
					case "full":
						arg(0).state.Full = a.Vals[0] == "true"
					case "port":
						_, err := fmt.Sscan(a.Vals[0], &arg(0).state.Port)
						require.NoError(t, err)
					}
				}
				arg(0).table.Beat()
				w.deliver()
			case "show":
				w.show()
			default:
				t.Fatalf("%s: no command", d.Cmd)
			}
			return w.out.String()
		})
	})
}
