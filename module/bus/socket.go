package bus

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// closeGrace is how long a peer has to take the last bytes of a connection that is being
	// closed; the reason is among them.
	closeGrace = time.Second
	// lingerGrace is how long this node waits for the peer to close its side first.
	lingerGrace = 500 * time.Millisecond
	// idleGrace is a second chance for a peer that seems silent. Perhaps this process stood
	// still, and the peer's bytes wait in the socket.
	idleGrace = 500 * time.Millisecond
)

// socket is a connection of which one byte can be read ahead (peekFirst). While it is live, no
// write waits for the peer: what the kernel doesn't take at once is kept for drain. So the
// owner may write, also through TLS. Every read, and every write of drain, has a deadline of its
// own, until shut sets the last ones.
type socket struct {
	net.Conn
	idle, stall time.Duration

	live    bool // set before there is a second goroutine
	tally   *tally
	closing atomic.Bool

	// busy is false while the reader waits and has handed over all that it has read. passes
	// counts how often it came to that.
	busy   atomic.Bool
	passes atomic.Uint64
	take   struct {
		once func(fd uintptr) bool // reads into data what is there; false: nothing
		data []byte
		n    int
		err  error
	}

	first    byte // the byte that was read ahead, if hasFirst
	hasFirst bool

	behind atomic.Bool // there is a rest, or drain is at work
	late   func()      // called when behind becomes true
	socket syscall.RawConn
	once   func(fd uintptr) // writes try.data, as far as the kernel takes it
	mu     sync.Mutex       // guards what follows; held over one system call at most, which doesn't wait
	rest   []byte
	failed error // the first failure of a write
	try    struct {
		data []byte
		n    int
		err  error
	}
}

// peekFirst reads a byte that the next Read returns again.
func (w *socket) peekFirst() (byte, error) {
	var b [1]byte
	if _, err := w.Conn.Read(b[:]); err != nil {
		return 0, err
	}
	w.first, w.hasFirst = b[0], true
	return w.first, nil
}

// goLive ends the handshake's deadline and starts counting.
func (w *socket) goLive(t *tally, late func()) {
	w.tally, w.late, w.live = t, late, true
	if s, ok := w.Conn.(syscall.Conn); ok {
		// Without a raw socket, drain does all writing.
		w.socket, _ = s.SyscallConn()
	}
	w.once = func(fd uintptr) {
		for {
			w.try.n, w.try.err = syscall.Write(int(fd), w.try.data)
			if w.try.err != syscall.EINTR {
				return
			}
		}
	}
	w.busy.Store(true)
	w.take.once = func(fd uintptr) bool {
		w.busy.Store(true) // before anything leaves the socket
		for {
			w.take.n, w.take.err = syscall.Read(int(fd), w.take.data)
			if w.take.err != syscall.EINTR {
				break
			}
		}
		if w.take.err != syscall.EAGAIN {
			return true
		}
		w.passes.Add(1)
		w.busy.Store(false)
		return false
	}
	_ = w.SetDeadline(time.Time{})
}

// quiet says whether the reader has handed over all that has arrived: it waits, and there is
// nothing in the socket.
func (w *socket) quiet() bool {
	if w.socket == nil {
		return true // no socket that could hold anything
	}
	if w.busy.Load() {
		return false
	}
	arrived := false
	var b [1]byte
	err := w.socket.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		arrived = err != syscall.EAGAIN
	})
	// The reader may have read something between the two looks at busy.
	return err != nil || !arrived && !w.busy.Load()
}

// shut makes reads fail from now on, and writes after closeGrace.
func (w *socket) shut() {
	w.closing.Store(true)
	w.lastDeadlines()
}

func (w *socket) lastDeadlines() {
	_ = w.SetReadDeadline(time.Unix(1, 0))
	_ = w.SetWriteDeadline(time.Now().Add(closeGrace))
}

func (w *socket) Read(p []byte) (int, error) {
	if w.hasFirst && len(p) > 0 {
		w.hasFirst = false
		p[0] = w.first
		return 1, nil
	}
	if !w.live {
		return w.Conn.Read(p)
	}
	n, err := w.readWithin(p, w.idle)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !w.closing.Load() {
		n, err = w.readWithin(p, idleGrace)
	}
	w.tally.bytesIn.Add(uint64(n))
	return n, err
}

func (w *socket) readWithin(p []byte, d time.Duration) (int, error) {
	_ = w.SetReadDeadline(time.Now().Add(d))
	if w.closing.Load() { // shut may have come before our deadline
		_ = w.SetReadDeadline(time.Unix(1, 0))
	}
	if w.socket == nil || len(p) == 0 {
		return w.Conn.Read(p)
	}
	w.take.data = p
	err := w.socket.Read(w.take.once)
	w.take.data = nil
	switch {
	case err != nil:
		return 0, err
	case w.take.err != nil:
		return 0, os.NewSyscallError("read", w.take.err)
	case w.take.n == 0:
		return 0, io.EOF
	}
	return w.take.n, nil
}

func (w *socket) Write(p []byte) (int, error) {
	if !w.live {
		return w.Conn.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	if w.failed == nil && !w.behind.Load() {
		n, w.failed = w.attempt(p)
		w.tally.bytesOut.Add(uint64(n))
	}
	if w.failed != nil {
		return n, w.failed
	}
	if n < len(p) {
		w.rest = append(w.rest, p[n:]...)
		if !w.behind.Swap(true) {
			w.late()
		}
	}
	return len(p), nil
}

// attempt writes what the socket takes without waiting.
func (w *socket) attempt(p []byte) (int, error) {
	if w.socket == nil || len(p) == 0 {
		return 0, nil
	}
	w.try.data = p
	err := w.socket.Control(w.once)
	w.try.data = nil
	switch {
	case err != nil:
		return 0, err
	case w.try.err == syscall.EAGAIN:
		return 0, nil
	case w.try.err != nil:
		return 0, os.NewSyscallError("write", w.try.err)
	}
	return w.try.n, nil
}

// drain writes the rest, and waits until the kernel has taken it. Only one goroutine at a time
// may call it.
func (w *socket) drain() error {
	var buffer []byte
	for {
		w.mu.Lock()
		rest, err := w.rest, w.failed
		if len(rest) == 0 || err != nil {
			w.rest = nil
			w.behind.Store(false)
			w.mu.Unlock()
			return err
		}
		w.rest = buffer[:0]
		w.mu.Unlock()
		n, err := w.writeWithin(rest, w.stall)
		w.tally.bytesOut.Add(uint64(n))
		if err != nil {
			w.mu.Lock()
			w.failed = err
			w.mu.Unlock()
		}
		buffer = rest
	}
}

func (w *socket) writeWithin(p []byte, d time.Duration) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(d))
	if w.closing.Load() {
		_ = w.SetWriteDeadline(time.Now().Add(closeGrace))
	}
	return w.Conn.Write(p)
}

// linger closes the socket so that what was written last arrives. Before it closes, it reads what
// the peer still sends: if a socket is closed with unread bytes, the peer's kernel drops what its
// reader hasn't read yet.
func (w *socket) linger() {
	if half, ok := w.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = w.Conn.SetReadDeadline(time.Now().Add(lingerGrace))
		var scrap [4096]byte
		for range 64 {
			if _, err := w.Conn.Read(scrap[:]); err != nil {
				break
			}
		}
	}
	_ = w.Conn.Close()
}
