package bus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection to a peer that has proved itself. Two goroutines serve
// it: a reader and a writer.
type conn struct {
	bus *Bus

	wire *socket
	nc   net.Conn // wire, or TLS on top of it
	r    *bufio.Reader

	id       NodeID
	instance instanceID
	number   uint64 // the node with the smaller ID gives it; later ones are greater
	serial   uint64 // counts the connections that this node's connection manager let in
	accepted bool   // the peer has accepted it, as the node with the smaller ID
	limit    int    // largest payload that both take, bytes
	most     int    // largest message that comes in parts, bytes; 0: none does
	part     int    // bytes of a message in a part; a larger message comes in several
	large    assembly
	up       *Up
	tally    *tally // the connection manager's, shared by all connections to this peer

	out    stack
	queued atomic.Int64 // bytes of buffers in the owner's batch and in out
	// Frames of large messages, and of messages that must not overtake them. They are written
	// one by one; before each, all that is in out is written.
	bulk       stack
	bulkQueued atomic.Int64  // bytes of buffers in the owner's bulk, in bulk and in bulkNext
	bulkNext   *item         // taken from bulk; the writer's
	kick       chan struct{} // something to write
	turn       sync.Mutex    // held while taking from out and writing; the owner only tries to lock it

	pongDue   atomic.Bool
	pongToken atomic.Uint64

	announced   bool // the reader has delivered the Up
	readerEnded atomic.Bool

	once   sync.Once
	quit   chan struct{}
	reason *closeError // set before quit is closed
}

// close ends the connection. The first reason given counts.
func (c *conn) close(reason *closeError) {
	c.once.Do(func() {
		c.reason = reason
		close(c.quit)
		c.wire.shut()
	})
}

func (c *conn) closing() bool { return c.wire.closing.Load() }

// poke wakes the writer.
func (c *conn) poke() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// promptBytes is up to how many bytes of waiting buffers the owner writes itself. Waking the
// writer takes longer than writing a few messages: it goes through two schedulers, and a
// client waits meanwhile. Larger amounts the writer encrypts and copies beside the owner.
const promptBytes = 16 << 10

// send writes a frame at once if little waits and the socket takes it. Otherwise it leaves the
// frame to the writer. Only the owner calls it.
func (c *conn) send(p *item) {
	c.out.push(p)
	if !c.writeNow() {
		c.poke()
	}
}

func (c *conn) writeNow() bool {
	if c.queued.Load() > promptBytes || c.wire.behind.Load() || c.closing() || !c.turn.TryLock() {
		return false
	}
	defer c.turn.Unlock()
	for p := c.out.take(); p != nil; {
		next := p.next
		if err := c.writeFrame(c.nc, p); err != nil {
			return false // the writer finds out why
		}
		p = next
	}
	return true
}

// serve runs the connection until it ends.
func (c *conn) serve() {
	var writer sync.WaitGroup
	writer.Go(func() {
		err := c.guard("writer", c.write)
		c.close(err)
		if err == c.reason { // otherwise a write has failed, and so would the farewell
			_ = c.guard("writer", c.farewell)
		}
	})
	c.close(c.guard("reader", c.read))
	c.readerEnded.Store(true)
	c.bus.tell(ended{c})
	writer.Wait()
	c.wire.linger()
}

// guard runs f, and returns why the connection is to be closed. A panic of f counts as a
// reason like an error.
func (c *conn) guard(what string, f func() error) (reason *closeError) {
	defer func() {
		if p := recover(); p != nil {
			c.bus.panicked(what, p)
			reason = refuse(CodeInternal, "internal error")
		}
	}()
	if err := f(); err != nil {
		reason = asClose(err)
	}
	return reason
}

func (c *conn) read() error {
	ahead, _ := c.r.Peek(c.r.Buffered()) // these bytes came with the end of the handshake
	c.r = bufio.NewReaderSize(&liveReader{c: c, ahead: ahead}, readBuffer)
	if c.accepted {
		c.announce()
	}
	for {
		if err := c.bus.waitForRoom(c.quit); err != nil {
			return err
		}
		kind, size, err := header(c.r, c.bus.cfg.MaxFrame)
		if err != nil {
			return c.readError(err)
		}
		if kind != kindClose {
			c.announce()
		}
		c.tally.framesIn.Add(1)
		if err := c.frame(kind, size); err != nil {
			return c.readError(err)
		}
	}
}

// announce tells the owner that the connection is up. If this node has accepted it, the reader
// waits with that for the peer's first frame: the peer may have gone meanwhile, or refuse.
func (c *conn) announce() {
	if !c.announced {
		c.announced = true
		c.bus.deliver(&item{conn: c, note: c.up})
	}
}

func (c *conn) frame(kind byte, size int) error {
	switch kind {
	case kindMessages:
		p, err := c.bus.pool.payload(c.r, size)
		if err != nil {
			return err
		}
		if p.count, err = countMessages(p.data); err != nil {
			return err
		}
		c.tally.messagesIn.Add(uint64(p.count))
		p.conn = c
		c.bus.inboxBytes.Add(int64(cap(p.data)))
		c.bus.deliver(p)
		return nil
	case kindPart:
		if c.most == 0 {
			return protocolError("a frame of kind %d", kind)
		}
		p, err := c.large.part(&c.bus.pool, c.r, size, c.bus.cfg.MaxMessage)
		if p == nil {
			return err
		}
		c.tally.messagesIn.Add(1)
		p.conn = c
		c.bus.inboxBytes.Add(int64(cap(p.data)))
		c.bus.deliver(p)
		return nil
	case kindPing, kindPong:
		if size != pingSize {
			return protocolError("a ping or pong of %d bytes", size)
		}
		b, err := c.r.Peek(pingSize)
		if err != nil {
			return truncated(err)
		}
		token := binary.BigEndian.Uint64(b)
		_, _ = c.r.Discard(pingSize)
		if kind == kindPong {
			c.ponged(token)
			return nil
		}
		// Only the last ping is answered, so that a flood of them costs nothing.
		c.pongToken.Store(token)
		c.pongDue.Store(true)
		c.poke()
		return nil
	case kindClose:
		if size > 2+maxCloseText {
			return protocolError("a close frame of %d bytes", size)
		}
		b, err := c.r.Peek(size)
		if err != nil {
			return truncated(err)
		}
		return parseClose(b)
	}
	if kind&mayIgnore != 0 {
		_, err := c.r.Discard(size)
		return truncated(err)
	}
	return protocolError("a frame of kind %d", kind)
}

// ponged notes the round trip's time. It ignores a token that can't be ours.
func (c *conn) ponged(token uint64) {
	if rtt := c.bus.now() - time.Duration(token); rtt >= 0 && rtt < time.Hour {
		c.tally.rtt.Store(int64(rtt))
	}
}

func (c *conn) readError(err error) error {
	var reason *closeError
	switch {
	case errors.As(err, &reason):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &closeError{code: CodeSilent, text: "nothing heard for " + c.bus.cfg.IdleTimeout.String()}
	case err == io.EOF:
		return broken(io.EOF, "the peer closed the connection without a word")
	case err == io.ErrUnexpectedEOF:
		return broken(err, "the connection ended within a frame")
	}
	return broken(err, "%v", err)
}

// liveReader notes when something was heard. It reads above TLS, so that only what the peer
// itself has said counts.
type liveReader struct {
	c     *conn
	ahead []byte
}

func (r *liveReader) Read(p []byte) (int, error) {
	if len(r.ahead) > 0 {
		n := copy(p, r.ahead)
		r.ahead = r.ahead[n:]
		return n, nil
	}
	n, err := r.c.nc.Read(p)
	if n > 0 {
		r.c.tally.heard.Store(int64(r.c.bus.now()))
	}
	return n, err
}

const (
	readBuffer  = 32 << 10
	writeBuffer = 32 << 10
)

func (c *conn) write() error {
	w := bufio.NewWriterSize(c.nc, writeBuffer)
	ping := time.NewTicker(c.bus.cfg.PingInterval)
	defer ping.Stop()
	// The first ping is sent at once: the peer may be waiting for a first frame.
	err := c.token(w, kindPing, uint64(c.bus.now()))
	c.poke()
	for {
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return broken(ErrSilent, "the peer takes no bytes for %v", c.bus.cfg.StallTimeout)
			}
			return broken(err, "%v", err)
		}
		var kind byte
		token := uint64(0)
		select {
		case <-c.kick:
			if c.pongDue.Swap(false) {
				kind, token = kindPong, c.pongToken.Load()
			}
		case <-ping.C:
			kind, token = kindPing, uint64(c.bus.now())
		case <-c.quit:
			return c.reason
		}
		err = c.writeAll(w, kind, token)
	}
}

// writeAll writes a ping or a pong, if there is one to write, and everything
// that the owner has flushed.
func (c *conn) writeAll(w *bufio.Writer, kind byte, token uint64) (err error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	if kind != 0 {
		err = c.token(w, kind, token)
	}
	if err == nil {
		err = c.writeQueued(w)
	}
	return err
}

func (c *conn) token(w *bufio.Writer, kind byte, token uint64) error {
	b := append(w.AvailableBuffer(), 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, token)
	putHeader(b, kind)
	c.tally.framesOut.Add(1)
	_, err := w.Write(b)
	return err
}

// writeQueued writes what is in w, then everything that the owner has flushed, and waits until
// the socket has it all. It takes a frame of the bulk before it takes what is in out: all that
// was sent before that frame is in out by then, and is written before it.
func (c *conn) writeQueued(w *bufio.Writer) error {
	for {
		if c.bulkNext == nil {
			c.bulkNext = c.bulk.take()
		}
		for p := c.out.take(); p != nil; {
			next := p.next
			if err := c.writeOn(w, p); err != nil {
				return err
			}
			p = next
		}
		p := c.bulkNext
		if p == nil {
			break
		}
		c.bulkNext = p.next
		if err := c.writeOn(w, p); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return c.wire.drain()
}

// writeOn writes a frame, and waits until the socket takes more.
func (c *conn) writeOn(w io.Writer, p *item) error {
	if err := c.writeFrame(w, p); err != nil {
		return err
	}
	if c.wire.behind.Load() {
		return c.wire.drain()
	}
	return nil
}

func (c *conn) writeFrame(w io.Writer, p *item) error {
	if _, err := w.Write(p.data); err != nil {
		return err
	}
	c.tally.framesOut.Add(1)
	c.tally.messagesOut.Add(uint64(p.count))
	if p.kind != 0 {
		c.bulkQueued.Add(-int64(cap(p.data)))
	} else {
		c.queued.Add(-int64(cap(p.data)))
	}
	c.bus.pool.put(p)
	return nil
}

// farewell writes what is left, and why the connection ends, if the peer may still read it.
func (c *conn) farewell() error {
	if c.reason.remote || c.reason.code == CodeNone {
		return nil
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	w := bufio.NewWriterSize(c.nc, writeBuffer)
	if err := c.writeQueued(w); err != nil {
		return err
	}
	_, _ = w.Write(appendFrame(nil, kindClose, appendClose(nil, c.reason.code, c.reason.text)))
	if err := w.Flush(); err != nil {
		return err
	}
	return c.wire.drain()
}
