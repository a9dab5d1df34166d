package bus

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

const (
	// closeGrace is how long a peer has to take the last bytes, the reason
	// among them, of a connection that is being closed.
	closeGrace = time.Second
	// lingerGrace is how long we wait for the peer to close its side first.
	lingerGrace = 500 * time.Millisecond
	// idleGrace is a second chance for a peer that seems silent: it may be we
	// that stood still, with its bytes waiting in the socket.
	idleGrace = 500 * time.Millisecond
)

// wire is a socket with a memory for one byte. While it is live, every
// read and write has its own deadline, until shut sets the last one.
type wire struct {
	net.Conn
	idle, stall time.Duration

	live    bool // set before there is a second goroutine
	tally   *tally
	closing atomic.Bool

	first    byte // read ahead
	hasFirst bool
}

// peekFirst reads a byte that the next Read returns again.
func (w *wire) peekFirst() (byte, error) {
	var b [1]byte
	if _, err := w.Conn.Read(b[:]); err != nil {
		return 0, err
	}
	w.first, w.hasFirst = b[0], true
	return w.first, nil
}

// goLive ends the handshake's deadline and starts counting.
func (w *wire) goLive(t *tally) {
	w.tally, w.live = t, true
	_ = w.SetDeadline(time.Time{})
}

// shut lets reads fail from now on, and writes after closeGrace.
func (w *wire) shut() {
	w.closing.Store(true)
	w.lastDeadlines()
}

func (w *wire) lastDeadlines() {
	_ = w.SetReadDeadline(time.Unix(1, 0))
	_ = w.SetWriteDeadline(time.Now().Add(closeGrace))
}

func (w *wire) Read(p []byte) (int, error) {
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

func (w *wire) readWithin(p []byte, d time.Duration) (int, error) {
	_ = w.SetReadDeadline(time.Now().Add(d))
	if w.closing.Load() { // shut may have come before our deadline
		_ = w.SetReadDeadline(time.Unix(1, 0))
	}
	return w.Conn.Read(p)
}

func (w *wire) Write(p []byte) (int, error) {
	if !w.live {
		return w.Conn.Write(p)
	}
	_ = w.SetWriteDeadline(time.Now().Add(w.stall))
	if w.closing.Load() {
		_ = w.SetWriteDeadline(time.Now().Add(closeGrace))
	}
	n, err := w.Conn.Write(p)
	w.tally.bytesOut.Add(uint64(n))
	return n, err
}

// linger closes so that what was written last arrives: a socket closed with
// bytes unread makes the peer's kernel throw away what it has for its reader.
func (w *wire) linger() {
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
