package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Config has the settings of a bus. A zero value means the default.
type Config struct {
	// Listen is "host:port"; port 0 takes a free one.
	Listen string
	// Advertise is the "host:port" at which other nodes reach this one. An empty host means
	// the address that they see. Port 0, or an empty Advertise, means the port listened on.
	Advertise string
	ID        NodeID
	// Secret is the cluster's secret, by which nodes prove that they are members. If it is
	// empty, nothing is proved or encrypted, and the bus only listens on loopback addresses,
	// and only dials such.
	Secret []byte
	// Features are bits that mean something to the owner; see Up.
	Features uint32

	// Wake is called by a goroutine when there is something to Drain, and not
	// again until Drain is called. It must not block.
	Wake func()
	// Log is called by the owner and by goroutines, with Redis' levels
	// ("debug", "verbose", "notice", "warning").
	Log func(level, text string)

	MaxFrame int // largest payload of a frame, bytes; 4 KiB to 64 MiB; 1 MiB
	// MaxMessage is the largest message that is received and sent, bytes; 64 MiB. A large
	// message is cut into several frames. A peer of an older version takes no message that is
	// larger than a frame.
	MaxMessage int
	// MaxQueued is how many bytes of buffers may wait for one peer; at least MaxFrame; 16 MiB.
	// As many bytes of large messages may wait in addition, or one large message; and as many
	// again of messages that must not overtake those.
	MaxQueued int
	MaxInbox  int // bytes received and not drained, beyond which nothing is read; 64 MiB
	// MaxPending is how many connections to this node may exist that haven't proved
	// themselves; 64.
	MaxPending int

	HandshakeTimeout time.Duration // for dialling, and as long again for the handshake; 5 s
	PingInterval     time.Duration // 1 s
	IdleTimeout      time.Duration // a peer that says nothing for so long is cut off; 10 s
	StallTimeout     time.Duration // a peer that takes no byte for so long is cut off; 60 s
	RedialMin        time.Duration // after the first failure; 100 ms
	RedialMax        time.Duration // 5 s
	DrainBudget      time.Duration // about how long one Drain may go on; 2 ms
	RelistenInterval time.Duration // between attempts to listen where the address is taken; 1 s

	versions [2]uint16 // oldest and newest; tests set others
}

const (
	minMaxFrame = 4 << 10
	maxMaxFrame = 1 << largestClass
)

func (cfg *Config) complete() error {
	for _, f := range []struct {
		name       string
		value      *int
		preset     int
		least, max int
	}{
		{"MaxFrame", &cfg.MaxFrame, 1 << 20, minMaxFrame, maxMaxFrame},
		{"MaxMessage", &cfg.MaxMessage, 64 << 20, minMaxFrame, 1 << 30},
		{"MaxQueued", &cfg.MaxQueued, max(16<<20, 2*cfg.MaxFrame), cfg.MaxFrame, 1 << 40},
		{"MaxInbox", &cfg.MaxInbox, 64 << 20, 1, 1 << 40},
		{"MaxPending", &cfg.MaxPending, 64, 1, 1 << 16},
	} {
		if *f.value == 0 {
			*f.value = f.preset
		}
		if *f.value < f.least || *f.value > f.max {
			return fmt.Errorf("%s is %d, not %d to %d", f.name, *f.value, f.least, f.max)
		}
	}
	for _, f := range []struct {
		name   string
		value  *time.Duration
		preset time.Duration
	}{
		{"HandshakeTimeout", &cfg.HandshakeTimeout, 5 * time.Second},
		{"PingInterval", &cfg.PingInterval, time.Second},
		{"IdleTimeout", &cfg.IdleTimeout, 10 * time.Second},
		{"StallTimeout", &cfg.StallTimeout, time.Minute},
		{"RedialMin", &cfg.RedialMin, 100 * time.Millisecond},
		{"RedialMax", &cfg.RedialMax, 5 * time.Second},
		{"DrainBudget", &cfg.DrainBudget, 2 * time.Millisecond},
		{"RelistenInterval", &cfg.RelistenInterval, time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.preset
		}
		if *f.value < 0 {
			return fmt.Errorf("%s is negative", f.name)
		}
	}
	if cfg.versions == [2]uint16{} {
		cfg.versions = [2]uint16{oldestVersion, newestVersion}
	}
	switch {
	case cfg.PingInterval*2 > cfg.IdleTimeout:
		return fmt.Errorf("IdleTimeout (%v) is less than two PingIntervals (%v)", cfg.IdleTimeout, cfg.PingInterval)
	case cfg.RedialMin > cfg.RedialMax:
		return fmt.Errorf("RedialMin (%v) is more than RedialMax (%v)", cfg.RedialMin, cfg.RedialMax)
	case cfg.ID == NodeID{}:
		return errors.New("no node ID")
	}
	return nil
}

// Bus is this node's end of the connections to all others. Only the owner may call its
// methods; see the package's documentation.
type Bus struct {
	cfg      Config
	security *security // nil: no secret
	instance instanceID
	host     string // advertised
	port     uint16
	start    time.Time
	pool     pool
	report   reporter

	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup

	// From the owner to the connection manager.
	orders  stack
	ordered chan struct{}
	// From the other goroutines to the connection manager.
	words chan any

	// From the goroutines to the owner.
	inbox      stack
	woken      atomic.Bool // Wake was called, and Drain not since
	delivered  atomic.Uint64
	inboxBytes atomic.Int64
	waiting    atomic.Int64  // readers that wait for room
	room       chan struct{} // lets one of them look again

	// The listener comes and goes beside the owner: see listen.
	listening sync.Mutex // guards listener; methods of the owner that must not wait don't lock it
	listener  net.Listener
	deaf      atomic.Pointer[string] // why there is no listener; nil: there is one

	pending  pending
	accepted atomic.Uint64
	refused  atomic.Uint64
	panics   atomic.Uint64

	// Only the owner uses these.
	peers      map[NodeID]*peer
	dirty      []*peer // peers that have something to flush
	arrived    *item   // taken from the inbox, not handled yet
	handled    uint64  // how many of the delivered items
	messages   Messages
	mark       mark
	lastTicket uint64
	dropped    uint64 // messages
	closed     bool
}

// tally counts what happens on the connections to a peer.
type tally struct {
	bytesIn, bytesOut       atomic.Uint64
	framesIn, framesOut     atomic.Uint64
	messagesIn, messagesOut atomic.Uint64
	connections             atomic.Uint64
	rtt                     atomic.Int64 // time.Duration
	heard                   atomic.Int64 // time.Duration since the bus was opened
	lastError               atomic.Pointer[string]
}

// peer is what the owner knows of a node.
type peer struct {
	id     NodeID
	tally  *tally
	wanted bool
	muted  bool    // it was forgotten, and its Down is still to come
	conn   *conn   // nil unless up
	full   []*item // frames of this turn that are complete
	batch  *item   // this turn's messages that come behind full
	bulk   []*item // this turn's frames of large messages
	// The subjects of large messages, and how much of the bulk had been queued up to each. Messages with the same
	// subject must go behind those that are on their way.
	bulkAbout map[uint64]uint64
	bulkIn    uint64 // bytes of buffers that were ever queued in the bulk
	bulkSweep int    // with more subjects those that have arrived are forgotten
	dirty     bool   // in Bus.dirty

	dropped   uint64
	episode   uint64    // messages dropped since there was last room
	warnedAt  time.Time // when an episode was last logged
	loud      bool      // the present episode was logged
	oversized bool      // it was logged that a message is too large
}

// Open starts the goroutines, and listens. If it can't listen on the address, for example
// because another process has the port, the bus works nevertheless: it dials, and tries again
// until it can listen ([Bus.Deaf]). Open only fails for reasons that can't go away by
// themselves. It may wait for a name server.
func Open(cfg Config) (*Bus, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	b := &Bus{
		cfg:     cfg,
		start:   time.Now(),
		ordered: make(chan struct{}, 1),
		words:   make(chan any),
		room:    make(chan struct{}, 1),
		peers:   make(map[NodeID]*peer),
		report:  reporter{log: cfg.Log, quiet: make(map[string]*silence)},
		pending: pending{max: cfg.MaxPending},
	}
	if _, err := rand.Read(b.instance[:]); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	if len(cfg.Secret) > 0 {
		var err error
		if b.security, err = newSecurity(cfg.Secret); err != nil {
			return nil, fmt.Errorf("bus: %w", err)
		}
		if len(cfg.Secret) < shortSecret {
			b.report.always("warning", "the secret has %d bytes; with fewer than %d, whoever is dialled in a node's place can guess it", len(cfg.Secret), shortSecret)
		}
	}
	if err := b.bind(); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	r := &connManager{bus: b, links: make(map[NodeID]*link)}
	b.workers.Go(r.run)
	b.workers.Go(b.listen)
	return b, nil
}

// bind works out what to advertise, and opens the listener if it can.
func (b *Bus) bind() error {
	host, portText, err := net.SplitHostPort(b.cfg.Listen)
	if err != nil {
		return err
	}
	port, err := net.LookupPort("tcp", portText)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); b.security == nil && (ip != nil || host == "") {
		if err := loopbackOnly(ip); err != nil {
			return fmt.Errorf("listening on %s: %w", b.cfg.Listen, err)
		}
	}
	if b.cfg.Advertise != "" {
		host, portText, err := net.SplitHostPort(b.cfg.Advertise)
		if err != nil {
			return err
		}
		if len(host) > maxHost {
			return fmt.Errorf("the advertised host has more than %d characters", maxHost)
		}
		advertised, err := strconv.Atoi(portText)
		if err != nil || advertised < 0 || advertised > 65535 {
			return fmt.Errorf("the advertised port is %q", portText)
		}
		b.host = host
		if advertised != 0 {
			b.port = uint16(advertised)
		}
	}
	if err = b.tryListen(); errors.Is(err, ErrLoopback) {
		return err
	}
	if b.port == 0 {
		if err != nil && port == 0 {
			return err // there is no port to advertise
		}
		b.port = uint16(port)
		if port == 0 {
			b.port = uint16(b.listener.Addr().(*net.TCPAddr).Port)
		}
	}
	if err != nil {
		b.report.always("warning", "can't listen: %v. This node dials the nodes that it knows, but none can dial it; it tries again every %v", err, b.cfg.RelistenInterval)
	}
	return nil
}

// tryListen opens the listener, or notes why it can't.
func (b *Bus) tryListen() error {
	listener, err := b.openListener()
	if err != nil {
		text := err.Error()
		b.deaf.Store(&text)
		return err
	}
	b.listening.Lock()
	defer b.listening.Unlock()
	b.listener = listener
	b.deaf.Store(nil)
	return nil
}

func (b *Bus) openListener() (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", b.cfg.Listen)
	if err != nil {
		return nil, err
	}
	if b.security == nil {
		if err := loopbackOnly(addr.IP); err != nil {
			return nil, fmt.Errorf("listening on %s: %w", b.cfg.Listen, err)
		}
	}
	return net.ListenTCP("tcp", addr)
}

// Deaf says why the bus can't listen on its address, and so can't be dialled. The bus tries
// again and again. Deaf is "" while the bus listens.
func (b *Bus) Deaf() string {
	if why := b.deaf.Load(); why != nil {
		return *why
	}
	return ""
}

// Addr is the address on which the bus listens; nil if it can't.
func (b *Bus) Addr() net.Addr {
	b.listening.Lock()
	defer b.listening.Unlock()
	if b.listener == nil {
		return nil
	}
	return b.listener.Addr()
}

// Close tells the peers that this node is shutting down, and returns when all goroutines have
// ended. If a peer doesn't take its last bytes, that takes about a second.
func (b *Bus) Close() {
	b.closed = true
	b.cancel()
	b.closeListener()
	b.workers.Wait()
	for _, p := range b.peers {
		b.discard(p)
		p.conn = nil
	}
}

func (b *Bus) closeListener() {
	b.listening.Lock()
	defer b.listening.Unlock()
	if b.listener != nil {
		_ = b.listener.Close()
	}
}

// Connect keeps one connection to this peer, until Forget. If the address has changed, the
// new one counts from the next dial on.
func (b *Bus) Connect(id NodeID, addr string) {
	if id == b.cfg.ID {
		return
	}
	p := b.peer(id, nil)
	p.wanted = true
	b.order(connectOrder{id, addr, p.tally})
}

// Forget ends the connection to a peer. The bus doesn't dial it again, but the peer may dial
// this node.
func (b *Bus) Forget(id NodeID) {
	p := b.peers[id]
	if p == nil {
		return
	}
	b.discard(p)
	p.wanted, p.muted = false, true
	if p.conn == nil {
		delete(b.peers, id)
	}
	b.order(forgetOrder{id})
}

// Meet dials an address to learn which node is there. If nobody listens there yet, it tries
// again for HandshakeTimeout. The outcome is a [Met] event with the ticket returned. The
// connection stays, but once it ends it is only made again after Connect.
func (b *Bus) Meet(addr string) (ticket uint64) {
	b.lastTicket++
	b.order(meetOrder{addr, b.lastTicket})
	return b.lastTicket
}

func (b *Bus) order(note any) {
	b.orders.push(&item{note: note})
	select {
	case b.ordered <- struct{}{}:
	default:
	}
}

// peer returns what is known of a node. A node that isn't known yet gets the tally t, or a new
// one if t is nil.
func (b *Bus) peer(id NodeID, t *tally) *peer {
	p := b.peers[id]
	if p == nil {
		if t == nil {
			t = &tally{}
		}
		p = &peer{id: id, tally: t}
		b.peers[id] = p
	}
	return p
}

// Send adds a copy of msg to this turn's batch for a peer. It drops msg, counts that, and
// returns false if the peer isn't connected, if too much waits for it already, or if msg is
// larger than the peer takes.
func (b *Bus) Send(id NodeID, msg []byte) bool { return b.SendAbout(id, everything, msg) }

// Subjects of messages that aren't about one single thing.
const (
	nothing    = 0
	everything = 1<<64 - 1
)

// SendAbout is Send for a message with a subject, about. It may overtake large messages that
// are still on their way, except those with the same subject and those of Send. If about is 0,
// it may overtake all of them.
func (b *Bus) SendAbout(id NodeID, about uint64, msg []byte) bool {
	p := b.peers[id]
	if p == nil {
		b.dropped++
		return false
	}
	c := p.conn
	if c == nil || p.muted || b.closed {
		b.drop(p, 1)
		return false
	}
	if c.most > 0 && (len(msg) > c.part || p.follows(about)) {
		return b.sendBulk(p, about, msg)
	}
	need := messageSize(len(msg))
	if need > c.limit {
		return b.oversized(p, msg, c.limit)
	}
	if p.batch != nil && len(p.batch.data)-headerSize+need > c.limit {
		// The frame must wait for Flush: what its messages promise may not be on disk yet.
		p.full = append(p.full, p.batch)
		p.batch = nil
	}
	if !b.makeRoom(p, need) {
		return b.overfull(p)
	}
	p.batch.data = appendMessage(p.batch.data, msg)
	p.batch.count++
	b.soil(p)
	return true
}

// soil notes that there is something to flush.
func (b *Bus) soil(p *peer) {
	if !p.dirty {
		p.dirty = true
		b.dirty = append(b.dirty, p)
	}
}

func (b *Bus) oversized(p *peer, msg []byte, most int) bool {
	b.drop(p, 1)
	if !p.oversized {
		p.oversized = true
		b.log("warning", "a message of %d bytes for %v is too large: at most %d are taken", len(msg), p.id, most)
	}
	return false
}

func (b *Bus) overfull(p *peer) bool {
	b.drop(p, 1)
	if now := time.Now(); p.episode == 0 && now.Sub(p.warnedAt) >= quietFor {
		p.warnedAt, p.loud = now, true
		b.log("warning", "%v takes too little: %d bytes wait for it, messages are dropped", p.id, p.conn.queued.Load()+p.conn.bulkQueued.Load())
	}
	p.episode++
	return false
}

// sendBulk adds a message to the bulk, the frames that others may overtake: a large message,
// or a small one that must not overtake a large one. Messages that were sent before it are
// written before it. For Flush hands over the bulk last, and the writer takes from the bulk
// first.
func (b *Bus) sendBulk(p *peer, about uint64, msg []byte) bool {
	c := p.conn
	if len(msg) > c.most {
		return b.oversized(p, msg, c.most)
	}
	room := int64(b.cfg.MaxQueued)
	if len(msg) <= c.part {
		room += max(int64(c.most), room)
	}
	if queued := c.bulkQueued.Load(); queued > 0 && queued+int64(len(msg)) > room {
		return b.overfull(p)
	}
	defer p.noteSubject(about)
	if len(msg) <= c.part {
		b.bulkBatch(p, messageSize(len(msg))).append(msg)
		b.soil(p)
		return true
	}
	for at := 0; at < len(msg); at += c.part {
		some := msg[at:min(at+c.part, len(msg))]
		frame := b.bulkFrame(p, kindPart, partHead+len(some))
		frame.data = appendPart(frame.data, len(msg), at, some)
		if at+len(some) == len(msg) {
			frame.count = 1
		}
	}
	b.soil(p)
	return true
}

// noteSubject notes the subject of a message that was queued in the bulk.
func (p *peer) noteSubject(about uint64) {
	if p.bulkAbout == nil {
		p.bulkAbout = map[uint64]uint64{}
	}
	p.bulkAbout[about] = p.bulkIn
	if len(p.bulkAbout) > max(p.bulkSweep, 64) {
		written := p.bulkWritten()
		maps.DeleteFunc(p.bulkAbout, func(_, upTo uint64) bool { return upTo <= written })
		p.bulkSweep = 2 * len(p.bulkAbout)
	}
}

// bulkWritten is how much of the bulk is written, as bulkIn counts it.
func (p *peer) bulkWritten() uint64 { return p.bulkIn - uint64(p.conn.bulkQueued.Load()) }

// follows says whether a message with this subject must not overtake the bulk.
func (p *peer) follows(about uint64) bool {
	if p.bulkAbout == nil || about == nothing {
		return false
	}
	written := p.bulkWritten()
	if written == p.bulkIn {
		p.bulkAbout = nil
		return false
	}
	return about == everything || p.bulkAbout[everything] > written || p.bulkAbout[about] > written
}

// bulkBatch returns the last frame of the bulk if it has small messages and room for size
// bytes more, and otherwise a new one.
func (b *Bus) bulkBatch(p *peer, size int) *item {
	if n := len(p.bulk); n > 0 {
		if last := p.bulk[n-1]; last.kind == kindMessages && len(last.data)+size <= cap(last.data) {
			return last
		}
	}
	return b.bulkFrame(p, kindMessages, size)
}

func (b *Bus) bulkFrame(p *peer, kind byte, size int) *item {
	frame := b.pool.get(size)
	frame.kind, frame.data = kind, frame.data[:headerSize]
	p.conn.bulkQueued.Add(int64(cap(frame.data)))
	p.bulkIn += uint64(cap(frame.data))
	p.bulk = append(p.bulk, frame)
	return frame
}

func (p *item) append(msg []byte) {
	p.data = appendMessage(p.data, msg)
	p.count++
}

func (b *Bus) drop(p *peer, messages int) {
	p.dropped += uint64(messages)
	b.dropped += uint64(messages)
}

// makeRoom gives the peer a batch with room for size bytes more. It returns false if MaxQueued
// doesn't allow that.
func (b *Bus) makeRoom(p *peer, size int) bool {
	old := p.batch
	have, was := headerSize, 0
	if old != nil {
		if have, was = len(old.data), cap(old.data); have+size <= was {
			return true
		}
		size = min(max(have-headerSize+size, 2*(was-headerSize)), p.conn.limit)
	}
	batch := b.pool.get(size)
	more := int64(cap(batch.data) - was)
	if queued := p.conn.queued.Load(); queued+more > int64(b.cfg.MaxQueued) {
		b.pool.put(batch)
		return false
	} else if p.episode > 0 && queued < int64(b.cfg.MaxQueued/2) {
		if p.loud {
			b.log("notice", "%v takes messages again, %d were dropped", p.id, p.episode)
		}
		p.episode, p.loud = 0, false
	}
	p.conn.queued.Add(more)
	batch.data = batch.data[:headerSize]
	if old != nil {
		batch.data = append(batch.data[:0], old.data...)
		batch.count = old.count
		b.pool.put(old)
	}
	p.batch = batch
	return true
}

// close ends the turn's last frame, and returns all frames of the turn but those of the bulk.
func (p *peer) close() []*item {
	if p.batch != nil {
		p.full = append(p.full, p.batch)
		p.batch = nil
	}
	frames := p.full
	p.full = p.full[:0]
	return frames
}

// handOver gives a peer's frames to its socket, or to its writer.
func (b *Bus) handOver(p *peer) {
	frames := p.close()
	for i, frame := range frames {
		frames[i] = nil
		putHeader(frame.data, kindMessages)
		if i < len(frames)-1 {
			p.conn.out.push(frame)
		} else {
			p.conn.send(frame)
		}
	}
	for i, frame := range p.bulk {
		p.bulk[i] = nil
		putHeader(frame.data, frame.kind)
		p.conn.bulk.push(frame)
	}
	if len(p.bulk) > 0 {
		p.bulk = p.bulk[:0]
		p.conn.poke()
	}
}

// discard drops what wasn't flushed to a peer.
func (b *Bus) discard(p *peer) {
	for _, frame := range p.close() {
		b.drop(p, frame.count)
		p.conn.queued.Add(-int64(cap(frame.data)))
		b.pool.put(frame)
	}
	for i, frame := range p.bulk {
		b.drop(p, frame.count)
		p.conn.bulkQueued.Add(-int64(cap(frame.data)))
		b.pool.put(frame)
		p.bulk[i] = nil
	}
	p.bulk, p.bulkAbout = p.bulk[:0], nil
}

// Flush writes what was sent since the last Flush, or leaves that to the goroutines.
func (b *Bus) Flush() {
	for i, p := range b.dirty {
		b.handOver(p)
		p.dirty = false
		b.dirty[i] = nil
	}
	b.dirty = b.dirty[:0]
}

// Drain calls handle with what has arrived, in the order of its arrival, for about
// Config.DrainBudget. If something is left, it asks for another turn. The event is valid until
// handle returns. handle may call all methods except Drain and Close.
func (b *Bus) Drain(handle func(Event)) {
	b.woken.Store(false)
	last := &b.arrived
	for *last != nil { // an earlier call left something behind
		last = &(*last).next
	}
	*last = b.inbox.take()
	defer func() {
		if b.arrived != nil {
			b.wake()
		}
		b.letIn()
	}()
	end := time.Now().Add(b.cfg.DrainBudget)
	for b.arrived != nil {
		p := b.arrived
		if p.note == nil {
			b.handleMessages(p, handle)
		} else {
			b.arrived = p.next
			b.handled++
			b.handleNote(p, handle)
		}
		if b.arrived != nil && time.Now().After(end) {
			return
		}
	}
}

// Limits of a slice, which is what handle gets at a time. They are so small that a slice is
// handled within a fraction of a millisecond.
const (
	sliceMessages = 128
	sliceBytes    = 64 << 10
)

// handleMessages hands out the next slice of a frame. The frame stays the first of b.arrived
// until all of it was handed out. If handle panics, the rest of the frame is dropped.
func (b *Bus) handleMessages(p *item, handle func(Event)) {
	done := true
	defer func() {
		if done {
			b.arrived = p.next
			b.handled++
			b.inboxBytes.Add(-int64(cap(p.data)))
			b.pool.put(p)
		}
	}()
	// Messages of a connection that was replaced are lost with it.
	peer := b.peers[p.conn.id]
	if peer == nil || peer.conn != p.conn || peer.muted {
		return
	}
	count, from := 0, p.at
	if from == 0 && p.count <= sliceMessages && len(p.data) <= sliceBytes {
		count, p.at = p.count, len(p.data)
	}
	for count < sliceMessages && p.at-from < sliceBytes && p.at < len(p.data) {
		_, rest, _ := nextMessage(p.data[p.at:]) // the reader has checked the lengths
		p.at = len(p.data) - len(rest)
		count++
	}
	b.messages = Messages{ID: peer.id, Count: count, payload: p.data[from:p.at]}
	handle(&b.messages)
	done = p.at == len(p.data) || b.messages.skip
}

func (b *Bus) handleNote(p *item, handle func(Event)) {
	switch note := p.note.(type) {
	case *Up:
		peer := b.peer(note.ID, p.conn.tally)
		if peer.conn != nil {
			if peer.conn.serial > p.conn.serial {
				return // it was replaced before it could say that it is up
			}
			b.down(peer, handle, &closeError{code: CodeReplaced, text: ErrReplaced.Error()})
			peer = b.peer(note.ID, p.conn.tally)
		}
		peer.conn, peer.tally, peer.muted = p.conn, p.conn.tally, false
		handle(note)
	case *Down:
		if peer := b.peers[note.ID]; peer != nil && peer.conn == p.conn {
			b.down(peer, handle, note.Err)
		}
	case Event:
		handle(note)
	}
}

func (b *Bus) down(p *peer, handle func(Event), err error) {
	b.discard(p)
	p.conn = nil
	if !p.wanted {
		delete(b.peers, p.id)
	}
	handle(&Down{ID: p.id, Err: err})
}

// letIn lets a reader go on that waits for room in the inbox, if there is room.
func (b *Bus) letIn() {
	if b.waiting.Load() > 0 && b.hasRoom() {
		select {
		case b.room <- struct{}{}:
		default:
		}
	}
}

func (b *Bus) hasRoom() bool { return b.inboxBytes.Load() < int64(b.cfg.MaxInbox) }

// waitForRoom keeps a reader from reading while the inbox is full.
func (b *Bus) waitForRoom(quit <-chan struct{}) error {
	if b.hasRoom() {
		return nil
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for !b.hasRoom() {
		select {
		case <-b.room:
		case <-quit:
			return ErrClosing
		}
	}
	// There may be room for another one too.
	b.letIn()
	return nil
}

// deliver puts something into the owner's inbox.
func (b *Bus) deliver(p *item) {
	b.delivered.Add(1)
	b.inbox.push(p)
	b.wake()
}

// wake asks the owner for a turn, unless it was asked already. It recovers from a panic of
// Config.Wake: the connection whose goroutine called it need not end for that.
func (b *Bus) wake() {
	if b.cfg.Wake == nil || b.woken.Swap(true) {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			b.woken.Store(false)
			b.panicked("wake-up", p)
		}
	}()
	b.cfg.Wake()
}

// tell sends a word to the connection manager, unless the bus is closing.
func (b *Bus) tell(word any) {
	select {
	case b.words <- word:
	case <-b.ctx.Done():
	}
}

// PeerStats returns counts for one peer. ok is false if the peer isn't known.
func (b *Bus) PeerStats(id NodeID) (s PeerStats, ok bool) {
	p := b.peers[id]
	if p == nil {
		return s, false
	}
	t := p.tally
	s = PeerStats{
		ID:          id,
		BytesIn:     t.bytesIn.Load(),
		BytesOut:    t.bytesOut.Load(),
		FramesIn:    t.framesIn.Load(),
		FramesOut:   t.framesOut.Load(),
		MessagesIn:  t.messagesIn.Load(),
		MessagesOut: t.messagesOut.Load(),
		Dropped:     p.dropped,
		Connections: t.connections.Load(),
		RTT:         time.Duration(t.rtt.Load()),
	}
	if heard := t.heard.Load(); heard != 0 {
		s.Heard = b.start.Add(time.Duration(heard))
	}
	if text := t.lastError.Load(); text != nil {
		s.LastError = *text
	}
	if c := p.conn; c != nil {
		s.Connected, s.Remote, s.Version = true, c.up.Remote, c.up.Version
		s.QueuedBytes = c.queued.Load() + c.bulkQueued.Load()
	}
	return s, true
}

func (b *Bus) hello() hello {
	return hello{
		oldest: b.cfg.versions[0], newest: b.cfg.versions[1],
		id: b.cfg.ID, instance: b.instance,
		maxFrame: uint32(b.cfg.MaxFrame), maxMessage: uint32(b.cfg.MaxMessage),
		busFeatures: featureParts,
		features:    b.cfg.Features,
		port:        b.port, host: b.host,
	}
}

func (b *Bus) newWire(raw net.Conn) *socket {
	return &socket{Conn: raw, idle: b.cfg.IdleTimeout, stall: b.cfg.StallTimeout}
}

// now is the time since the bus was opened.
func (b *Bus) now() time.Duration { return time.Since(b.start) }

// log logs for the owner, without a lock.
func (b *Bus) log(level, format string, args ...any) {
	if b.cfg.Log != nil {
		b.cfg.Log(level, fmt.Sprintf(format, args...))
	}
}

// panicked reports a panic that a goroutine recovered from.
func (b *Bus) panicked(what string, p any) {
	b.panics.Add(1)
	b.report.limited("panic "+what, "warning", "panic in the %s: %v\n%s", what, p, debug.Stack())
}
