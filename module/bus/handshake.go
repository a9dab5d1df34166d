package bus

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// attempt is one dial.
type attempt struct {
	id     NodeID // the node to be reached, unless meet
	addr   string
	meet   bool
	ticket uint64

	ctx     context.Context
	cancel  context.CancelFunc
	reached atomic.Bool // the address has answered
}

// handshakeBuffer is the size of the buffer for what a peer says before it has proved itself.
const handshakeBuffer = 1 << 10

// meetEvery is the time between attempts to meet a node that doesn't listen yet.
const meetEvery = 100 * time.Millisecond

// handshake turns a socket into a connection to a peer, or refuses it.
type handshake struct {
	bus     *Bus
	wire    *socket
	attempt *attempt // nil: the peer dialled us

	nc       net.Conn
	r        *bufio.Reader
	exported []byte // keying material of the TLS session

	said, heard []byte // hellos
	theirs      hello
	version     uint16
	proved      bool // the peer knows the secret
}

// dial makes one attempt and, if it succeeds, serves the connection.
func (b *Bus) dial(a *attempt) {
	defer a.cancel()
	defer func() {
		if p := recover(); p != nil {
			b.panicked("dialler", p)
			b.dialFailed(a, NodeID{}, errors.New("internal error"))
		}
	}()
	dialer := net.Dialer{Timeout: b.cfg.HandshakeTimeout}
	if b.security == nil {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			host, _, _ := net.SplitHostPort(address)
			return loopbackOnly(net.ParseIP(host))
		}
	}
	raw, err := b.reach(&dialer, a)
	if err != nil {
		b.dialFailed(a, NodeID{}, err)
		return
	}
	a.reached.Store(true)
	h := &handshake{bus: b, attempt: a, wire: b.newWire(raw)}
	defer raw.Close()
	stop := context.AfterFunc(a.ctx, func() { raw.Close() })
	c, err := h.run()
	stop()
	if err != nil {
		b.dialFailed(a, h.theirs.id, h.met(err))
		h.refuse(err)
		return
	}
	if a.meet {
		b.deliver(&item{note: &Met{Ticket: a.ticket, Addr: a.addr, ID: c.id}})
	}
	c.serve()
}

// reach connects. For Meet it tries again for HandshakeTimeout if the connection is refused: a node that is just
// starting, or was promoted a moment ago, opens its port a moment later, and nobody repeats a failed Meet.
func (b *Bus) reach(dialer *net.Dialer, a *attempt) (net.Conn, error) {
	end := time.Now().Add(b.cfg.HandshakeTimeout)
	for {
		raw, err := dialer.DialContext(a.ctx, "tcp", a.addr)
		if !a.meet || !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end) {
			return raw, err
		}
		select {
		case <-time.After(meetEvery):
		case <-a.ctx.Done():
			return nil, err
		}
	}
}

// met is the outcome of a dial that ended with err. For Meet it is no failure if the peer says
// that there is a connection already: Meet only asks which node is there.
func (h *handshake) met(err error) error {
	if h.attempt.meet && h.proved && asClose(err).code == CodeDuplicate {
		return nil
	}
	return err
}

func (b *Bus) dialFailed(a *attempt, id NodeID, err error) {
	if errors.Is(err, ErrSecret) || errors.Is(err, ErrVersion) || errors.Is(err, ErrIDInUse) {
		b.report.limited("dial "+a.addr, "warning", "%s: %v", a.addr, err)
	}
	if a.meet {
		b.deliver(&item{note: &Met{Ticket: a.ticket, Addr: a.addr, ID: id, Err: err}})
		return
	}
	b.tell(failed{a, err})
}

// listen accepts connections until the bus closes. First it waits until the bus can listen on
// its address.
func (b *Bus) listen() {
	for was := b.Deaf(); was != ""; {
		select {
		case <-time.After(b.cfg.RelistenInterval):
		case <-b.ctx.Done():
			return
		}
		if b.tryListen() == nil {
			b.report.always("notice", "listening on %s at last: other nodes can dial this one", b.cfg.Listen)
			was = ""
		}
	}
	if b.ctx.Err() != nil {
		b.closeListener() // Close may have been called before the listener was open
		return
	}
	for {
		raw, err := b.listener.Accept()
		if err == nil {
			b.accepted.Add(1)
			b.workers.Go(func() { b.accept(raw) })
			continue
		}
		if b.ctx.Err() != nil {
			return
		}
		// Most likely the process has no file descriptors left.
		b.report.limited("accept", "warning", "can't take a connection: %v", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-b.ctx.Done():
		}
	}
}

// accept serves a connection that somebody made to this node.
func (b *Bus) accept(raw net.Conn) {
	defer raw.Close()
	defer func() {
		if p := recover(); p != nil {
			b.refused.Add(1)
			b.panicked("listener", p)
		}
	}()
	if c := b.welcome(raw); c != nil {
		c.serve()
	}
}

// welcome goes through the handshake with a peer that dialled this node. It returns nil if the
// peer is refused.
func (b *Bus) welcome(raw net.Conn) *conn {
	b.pending.add(raw)
	defer b.pending.remove(raw)
	stop := context.AfterFunc(b.ctx, func() { raw.Close() })
	h := &handshake{bus: b, wire: b.newWire(raw)}
	c, err := h.run()
	stop()
	if err != nil {
		b.refused.Add(1)
		h.logRefusal(err)
		h.refuse(err)
		return nil
	}
	return c
}

func (h *handshake) logRefusal(err error) {
	e := asClose(err)
	if e.code == CodeDuplicate || e.code == CodeSelf || e.code == CodeShutdown || h.bus.ctx.Err() != nil {
		return // nothing is wrong
	}
	remote := h.wire.RemoteAddr().String()
	host, _, _ := net.SplitHostPort(remote)
	level := "warning"
	if errors.Is(err, errHungUp) {
		level = "verbose" // a health check, or a node that changed its mind
	}
	h.bus.report.limited(fmt.Sprintf("refused %s %s %d", level, host, e.code), level, "refused %s: %v", remote, err)
}

// refuse ends a connection that didn't come up. It tells the peer the reason, if the peer can
// understand it.
func (h *handshake) refuse(err error) {
	e := asClose(err)
	if h.nc == nil || e.remote || e.code == CodeNone {
		return // the caller closes the socket
	}
	var b []byte
	if h.said == nil {
		b = append(b, magic...)
	}
	b = appendFrame(b, kindClose, appendClose(nil, e.code, e.text))
	if _, err := h.nc.Write(b); err == nil {
		h.wire.linger()
	}
}

// run goes through the handshake: see PROTOCOL.md.
func (h *handshake) run() (*conn, error) {
	_ = h.wire.SetDeadline(time.Now().Add(h.bus.cfg.HandshakeTimeout))
	if err := h.secure(); err != nil {
		return nil, h.explain(err)
	}
	h.r = bufio.NewReaderSize(h.nc, handshakeBuffer)
	if err := h.hellos(); err != nil {
		return nil, h.explain(err)
	}
	lost, err := h.prove()
	if err != nil {
		return nil, h.explain(err)
	}
	c, err := h.settle(lost)
	if err != nil {
		return nil, h.explain(err)
	}
	return c, nil
}

// explain replaces a socket's error by one that says more, where it can.
func (h *handshake) explain(err error) error {
	var timeout net.Error
	switch {
	case h.bus.ctx.Err() != nil:
		return broken(ErrClosing, "shutting down")
	case h.dialled() && h.attempt.ctx.Err() != nil:
		return broken(err, "no longer wanted")
	case errors.Is(err, net.ErrClosed):
		return broken(err, "gave way to newer connections that haven't proved themselves either")
	case errors.As(err, &timeout) && timeout.Timeout():
		return broken(err, "no complete handshake within %v", h.bus.cfg.HandshakeTimeout)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return broken(errHungUp, "the connection was closed in the handshake")
	}
	return err
}

var errHungUp = errors.New("hung up")

func (h *handshake) dialled() bool { return h.attempt != nil }

// secure sets h.nc. If there is a secret, it begins TLS, and sets h.exported.
func (h *handshake) secure() error {
	s := h.bus.security
	var session *tls.Conn
	if h.dialled() {
		if s == nil {
			h.nc = h.wire
			return nil
		}
		session = tls.Client(h.wire, s.client)
	} else {
		first, err := h.wire.peekFirst()
		if err != nil {
			return err
		}
		const tlsRecord = 0x16
		switch {
		case s == nil && first == tlsRecord:
			h.nc = h.wire
			return &closeError{code: CodeNoSecret, text: "the secrets differ: the node that was dialled has none, the dialling one has"}
		case s == nil:
			h.nc = h.wire
			return nil
		case first == magic[0]:
			h.nc = h.wire
			return &closeError{code: CodeNeedSecret, text: "the secrets differ: the node that was dialled has one, the dialling one has none"}
		case first != tlsRecord:
			return broken(ErrNotBus, "%v: it begins with the byte %#02x", ErrNotBus, first)
		}
		session = tls.Server(h.wire, s.server)
	}
	if err := session.Handshake(); err != nil {
		if h.dialled() {
			return notTLS(err)
		}
		return fmt.Errorf("TLS: %w", err)
	}
	state := session.ConnectionState()
	var err error
	if h.exported, err = state.ExportKeyingMaterial(exporterLabel, nil, exporterSize); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	h.nc = session
	return nil
}

// hellos exchanges the hellos. The dialler speaks first, so that a listener tells nothing to a
// peer that says nothing.
func (h *handshake) hellos() error {
	ours := h.bus.hello()
	said := ours.append(nil)
	say := func() error {
		h.said = said
		_, err := h.nc.Write(appendFrame([]byte(magic), kindHello, said))
		return err
	}
	if h.dialled() {
		if err := say(); err != nil {
			return err
		}
	}
	if err := h.hearMagic(); err != nil {
		return err
	}
	var err error
	if h.heard, err = h.expect(kindHello, 0); err != nil {
		return err
	}
	if h.theirs, err = parseHello(h.heard); err != nil {
		return err
	}
	if !h.dialled() { // even if there is no common version, so that the peer can see that too
		if err := say(); err != nil {
			return err
		}
	}
	if h.version, err = ours.common(&h.theirs); err != nil {
		return err
	}
	if h.dialled() && h.theirs.id == ours.id && h.theirs.instance == ours.instance {
		return refuse(CodeSelf, "%v", ErrSelf)
	}
	if a := h.attempt; a != nil && !a.meet && h.theirs.id != a.id {
		return refuse(CodeWrongID, "%v: %v, not %v", ErrWrongID, h.theirs.id, a.id)
	}
	return nil
}

func (h *handshake) hearMagic() error {
	got, err := h.r.Peek(len(magic))
	if string(got) == magic {
		_, _ = h.r.Discard(len(magic))
		return nil
	}
	if len(got) == 0 || string(got) == magic[:len(got)] {
		return err
	}
	got, _ = h.r.Peek(min(h.r.Buffered(), 40))
	return broken(ErrNotBus, "%v: it says \"%s\"", ErrNotBus, printable(got))
}

// expect reads a frame of the handshake; sizeBytes 0 means any size.
func (h *handshake) expect(want byte, sizeBytes int) ([]byte, error) {
	kind, size, err := header(h.r, maxHandshake)
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(h.r, b); err != nil {
		return nil, err
	}
	switch {
	case kind == kindClose:
		return nil, parseClose(b)
	case kind != want:
		return nil, protocolError("a frame of kind %d in the handshake, where %d was expected", kind, want)
	case sizeBytes != 0 && size != sizeBytes:
		return nil, protocolError("a frame of kind %d with %d bytes, not %d", kind, size, sizeBytes)
	}
	return b, nil
}

// prove exchanges proofs. The dialler's comes first, so that a listener proves nothing to a peer
// that doesn't know the secret. theyLost is the number up to which the peer has lost the
// connections that this node numbered.
func (h *handshake) prove() (theyLost uint64, err error) {
	if h.dialled() {
		v, err := h.introduce()
		if err != nil {
			return 0, err
		}
		if err := h.sayProof(v.lost); err != nil {
			return 0, err
		}
		if theyLost, err = h.hearProof(); err != nil {
			return 0, err
		}
		return theyLost, h.notOurID()
	}
	if theyLost, err = h.hearProof(); err != nil {
		return 0, err
	}
	v, err := h.introduce()
	if err != nil {
		return 0, err
	}
	if err := h.sayProof(v.lost); err != nil {
		return 0, err
	}
	return theyLost, h.notOurID()
}

func (h *handshake) introduce() (reply, error) {
	return h.ask(func(answer chan reply) any {
		return introduction{h.theirs.id, h.theirs.instance, h.wire.RemoteAddr().String(), answer}
	})
}

// ask asks the connection manager, and waits for its reply.
func (h *handshake) ask(question func(chan reply) any) (reply, error) {
	answer := make(chan reply, 1)
	h.bus.tell(question(answer))
	select {
	case v := <-answer:
		if v.refusal != nil {
			return v, v.refusal
		}
		return v, nil
	case <-h.bus.ctx.Done():
		return reply{}, ErrClosing
	}
}

func (h *handshake) sayProof(lost uint64) error {
	role := byte(roleListener)
	if h.dialled() {
		role = roleDialler
	}
	b := append(make([]byte, 0, proofSize), h.proof(role)...)
	b = binary.BigEndian.AppendUint64(b, lost)
	_, err := h.nc.Write(appendFrame(nil, kindProof, b))
	return err
}

func (h *handshake) hearProof() (lost uint64, err error) {
	b, err := h.expect(kindProof, proofSize)
	if err != nil {
		return 0, err
	}
	role := byte(roleDialler)
	if h.dialled() {
		role = roleListener
	}
	mac := b[:proofSize-8]
	if !hmac.Equal(mac, h.proof(role)) {
		return 0, refuse(CodeSecret, "the secrets differ")
	}
	h.proved = true
	return binary.BigEndian.Uint64(b[len(mac):]), nil
}

// proof is all zeros where there is no secret.
func (h *handshake) proof(role byte) []byte {
	s := h.bus.security
	switch {
	case s == nil:
		return make([]byte, proofSize-8)
	case h.dialled():
		return proof(s.key, role, h.exported, h.said, h.heard)
	}
	return proof(s.key, role, h.exported, h.heard, h.said)
}

// notOurID refuses a peer that has proved itself if it has this node's own ID.
func (h *handshake) notOurID() error {
	if h.theirs.id != h.bus.cfg.ID {
		return nil
	}
	if h.theirs.instance == h.bus.instance {
		return refuse(CodeSelf, "%v", ErrSelf)
	}
	h.bus.tell(duplicate{h.wire.RemoteAddr().String()})
	return refuse(CodeIDInUse, "another running node has the ID %v", h.theirs.id)
}

// settle agrees with the peer on whether this connection is the one to keep.
func (h *handshake) settle(theyLost uint64) (*conn, error) {
	b := h.bus
	p := &request{conn: h.conn(), attempt: h.attempt, lost: theyLost}
	if !decides(b.cfg.ID, h.theirs.id) {
		accept, err := h.expect(kindAccept, acceptSize)
		if err != nil {
			return nil, err
		}
		if p.number = binary.BigEndian.Uint64(accept); p.number == 0 {
			return nil, protocolError("a connection with the number 0")
		}
		p.conn.accepted = true
	}
	v, err := h.ask(func(answer chan reply) any {
		p.answer = answer
		return p
	})
	if err != nil {
		return nil, err
	}
	c := p.conn
	if decides(b.cfg.ID, h.theirs.id) {
		accept := binary.BigEndian.AppendUint64(nil, v.number)
		if _, err := h.nc.Write(appendFrame(nil, kindAccept, accept)); err != nil {
			// The connection manager has let it in already: serve finds it closed.
			c.close(broken(err, "%v", err))
		}
	}
	c.wire.goLive(c.tally, c.poke)
	return c, nil
}

func (h *handshake) conn() *conn {
	b := h.bus
	remote := h.wire.RemoteAddr().String()
	local, _, _ := net.SplitHostPort(h.wire.LocalAddr().String())
	host := h.theirs.host
	if host == "" {
		host, _, _ = net.SplitHostPort(remote)
	}
	limit, most := int(min(uint32(b.cfg.MaxFrame), h.theirs.maxFrame)), 0
	if h.theirs.busFeatures&featureParts != 0 {
		most = int(min(uint32(b.cfg.MaxMessage), h.theirs.maxMessage))
	}
	return &conn{
		bus: b, wire: h.wire, nc: h.nc, r: h.r,
		id: h.theirs.id, instance: h.theirs.instance,
		limit: limit, most: most, part: min(maxPart, limit-partHead),
		kick: make(chan struct{}, 1),
		quit: make(chan struct{}),
		up: &Up{
			ID:         h.theirs.id,
			Remote:     remote,
			Local:      local,
			Advertised: net.JoinHostPort(host, strconv.Itoa(int(h.theirs.port))),
			Version:    h.version,
			Features:   b.cfg.Features & h.theirs.features,
			Instance:   binary.BigEndian.Uint64(h.theirs.instance[:]) | 1,
			Dialled:    h.dialled(),
		},
	}
}
