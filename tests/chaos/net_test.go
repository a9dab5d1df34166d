package chaos

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// network stands between the nodes. Each node announces the address of its own proxy in the
// place of its bus port, so that all that another node sends to it goes through that proxy.
// As with TCP, data that a proxy holds up isn't lost: it arrives when the way is free again,
// unless the connection was given up by then.
type network struct {
	mu    sync.Mutex
	freed *sync.Cond
	held  map[way]bool
	slow  map[way]time.Duration
	links map[*link]bool
	over  bool

	proxies []*proxy
}

// way leads from one node to another. A connection has two.
type way struct{ from, to int }

// proxy takes the connections of a node's server.
type proxy struct {
	n    *network
	node int
	bus  string // the server's own address
	pid  atomic.Int64
	l    net.Listener
}

// link is a connection of one node to another.
type link struct {
	dialler, dialled net.Conn
	from, to         int
}

func newNetwork(t *testing.T) *network {
	n := &network{held: map[way]bool{}, slow: map[way]time.Duration{}, links: map[*link]bool{}}
	n.freed = sync.NewCond(&n.mu)
	t.Cleanup(n.close)
	return n
}

// add makes the proxy of one more server of a node, and returns its port.
func (n *network) add(t *testing.T, node, bus int) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{n: n, node: node, bus: fmt.Sprint("127.0.0.1:", bus), l: l}
	n.mu.Lock()
	n.proxies = append(n.proxies, p)
	n.mu.Unlock()
	go p.serve()
	return l.Addr().(*net.TCPAddr).Port
}

func (p *proxy) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		go p.take(c)
	}
}

// take connects a node that has dialled the proxy to the proxy's node.
func (p *proxy) take(c net.Conn) {
	defer c.Close()
	k := &link{dialler: c, from: p.n.whose(c.RemoteAddr().(*net.TCPAddr).Port), to: p.node}
	if k.from < 0 || !p.n.pass(way{k.from, k.to}, k) {
		return // it has ended meanwhile
	}
	d, err := net.Dial("tcp", p.bus)
	if err != nil {
		return
	}
	defer d.Close()
	k.dialled = d
	p.n.mu.Lock()
	p.n.links[k] = true
	p.n.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.n.carry(k, d, c, way{k.from, k.to}) })
	both.Go(func() { p.n.carry(k, c, d, way{k.to, k.from}) })
	both.Wait()
	p.n.mu.Lock()
	delete(p.n.links, k)
	p.n.mu.Unlock()
}

// carry passes on what one side sends, until either side closes the connection.
func (n *network) carry(k *link, to, from net.Conn, w way) {
	defer k.dialler.Close()
	defer k.dialled.Close()
	buf := make([]byte, 64<<10)
	for {
		size, err := from.Read(buf)
		if size > 0 {
			if !n.pass(w, k) {
				return
			}
			if _, err := to.Write(buf[:size]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until a way is free. It returns false if the network was closed.
func (n *network) pass(w way, k *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.held[w] && !n.over {
		n.freed.Wait()
	}
	if slow := n.slow[w]; slow > 0 && !n.over {
		n.mu.Unlock()
		time.Sleep(slow)
		n.mu.Lock()
	}
	return !n.over
}

// cut holds up all that nodes of one side send to the other side, and the other way round. If
// half is true, only what the others send to the nodes of side is held up.
func (n *network) cut(side []int, half bool) {
	n.each(side, func(w way) {
		n.held[w] = true
		if !half {
			n.held[way{w.to, w.from}] = true
		}
	})
}

// drag delays all that the other nodes send to the nodes of side.
func (n *network) drag(side []int, by time.Duration) {
	n.each(side, func(w way) { n.slow[w] = by })
}

// each calls do for all ways that lead from the other nodes to the nodes of side.
func (n *network) each(side []int, do func(way)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	in := map[int]bool{}
	for _, i := range side {
		in[i] = true
	}
	for _, p := range n.proxies {
		for _, to := range side {
			if !in[p.node] {
				do(way{p.node, to})
			}
		}
	}
}

// reset ends all connections of a node.
func (n *network) reset(node int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.links {
		if k.from == node || k.to == node {
			k.dialler.Close()
			k.dialled.Close()
		}
	}
}

// heal frees all ways.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.held)
	clear(n.slow)
	n.freed.Broadcast()
}

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
	n.freed.Broadcast()
	for _, p := range n.proxies {
		p.l.Close()
	}
	for k := range n.links {
		k.dialler.Close()
		k.dialled.Close()
	}
}

// whose finds the node whose process has a connection from that port, by the socket's inode
// and each process' open files, which the kernel tells. It returns -1 if the connection has ended.
func (n *network) whose(port int) int {
	table, _ := os.ReadFile("/proc/net/tcp")
	local := fmt.Sprintf("0100007F:%04X", port)
	socket := ""
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == local && f[9] != "0" {
			socket = "socket:[" + f[9] + "]"
		}
	}
	if socket == "" {
		return -1
	}
	n.mu.Lock()
	proxies := n.proxies
	n.mu.Unlock()
	for _, p := range proxies {
		folder := "/proc/" + strconv.FormatInt(p.pid.Load(), 10) + "/fd/"
		files, _ := os.ReadDir(folder)
		for _, f := range files {
			if to, err := os.Readlink(folder + f.Name()); err == nil && to == socket {
				return p.node
			}
		}
	}
	return -1
}
