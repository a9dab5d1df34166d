package bus

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// pending are the connections that were made to us and haven't proved
// themselves. When there are too many the oldest goes: an honest handshake takes
// milliseconds, so whoever fills the list fills it with his own.
type pending struct {
	max int

	len atomic.Int64 // of list, for the owner, who can't lock

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
