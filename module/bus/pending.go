package bus

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// pending has the connections to this node that haven't proved themselves. If there are too
// many, the oldest is closed. An honest handshake takes milliseconds, so an attacker who fills
// the list mostly closes connections of its own.
type pending struct {
	max int

	len atomic.Int64 // of list, for the owner, which must not lock

	mu   sync.Mutex
	list []net.Conn
}

func (p *pending) add(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) >= p.max {
		_ = p.list[0].Close()
		p.list = slices.Delete(p.list, 0, 1)
	}
	p.list = append(p.list, c)
	p.len.Store(int64(len(p.list)))
}

func (p *pending) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.list, c); i >= 0 {
		p.list = slices.Delete(p.list, i, i+1)
	}
	p.len.Store(int64(len(p.list)))
}
