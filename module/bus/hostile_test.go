package bus

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func noSecret(c *Config) { c.Secret = nil }

// meet tells a node to meet an address, and returns the outcome.
func (v *node) meet(addr string) *Met {
	v.mesh.t.Helper()
	ticket := v.Meet(addr)
	var met *Met
	v.mesh.await("the outcome of meeting "+addr, func() bool {
		for _, m := range v.met {
			if m.Ticket == ticket {
				met = m
			}
		}
		return met != nil
	})
	require.Equal(v.mesh.t, addr, met.Addr)
	return met
}

func (v *node) awaitLog(text string) {
	v.mesh.t.Helper()
	v.mesh.await("a log line with "+text, func() bool { return v.logged(text) })
}

// A node that is just starting can be met before it listens.
func TestMeetBeforeItListens(t *testing.T) {
	m := newMesh(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	a := m.open(1, nil)
	ticket := a.Meet(addr)
	m.settle(3 * meetEvery)
	require.Empty(t, a.met)
	b := m.open(2, func(c *Config) { c.Listen = addr })
	m.await("them to meet", func() bool { return len(a.met) == 1 })
	require.NoError(t, a.met[0].Err)
	require.Equal(t, ticket, a.met[0].Ticket)
	require.Equal(t, b.cfg.ID, a.met[0].ID)
	require.ErrorContains(t, m.open(3, func(c *Config) { c.HandshakeTimeout = meetEvery }).meet("127.0.0.1:1").Err, "refused")
}

func TestMeet(t *testing.T) {
	for _, ids := range [][2]int{{1, 2}, {2, 1}} {
		m := newMesh(t)
		a, b := m.open(ids[0], nil), m.open(ids[1], nil)
		met := a.meet(b.Addr().String())
		require.NoError(t, met.Err)
		require.Equal(t, b.cfg.ID, met.ID)
		m.await("both up", func() bool { return a.connected(b) && b.connected(a) })

		// Once more, from both sides, which changes nothing.
		require.NoError(t, a.meet(b.Addr().String()).Err)
		require.NoError(t, b.meet(a.Addr().String()).Err)
		require.Equal(t, 1, a.ups)
		require.Equal(t, 1, b.ups)
		require.Empty(t, a.downs)
	}
}

func TestSecretsThatDiffer(t *testing.T) {
	for name, secrets := range map[string][2][]byte{
		"wrong":            {[]byte(secret), []byte("another secret, equally long")},
		"only the dialler": {[]byte(secret), nil},
		"only the dialled": {nil, []byte(secret)},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			a := m.open(1, func(c *Config) { c.Secret = secrets[0] })
			b := m.open(2, func(c *Config) { c.Secret = secrets[1] })
			require.ErrorIs(t, a.meet(b.Addr().String()).Err, ErrSecret)
			a.awaitLog("secrets differ")
			b.awaitLog("secrets differ")
			a.connect(b)
			m.await("a failure", func() bool {
				s, _ := a.PeerStats(b.cfg.ID)
				return strings.Contains(s.LastError, "secrets differ")
			})
			require.Zero(t, a.ups+b.ups)
			require.NotZero(t, b.Stats().Refused)
		})
	}
}

func TestLoopbackOnlyWithoutSecret(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"} {
		_, err := Open(Config{Listen: listen, ID: testID(1)})
		require.ErrorIs(t, err, ErrLoopback)
	}
	a := newMesh(t).open(1, noSecret)
	require.ErrorIs(t, a.meet("192.0.2.1:7").Err, ErrLoopback)
	a.Connect(testID(2), "192.0.2.1:7")
	a.awaitLog("only loopback")
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{
		{},
		{ID: testID(1), Listen: "nonsense"},
		{ID: testID(1), Listen: "127.0.0.1:0", MaxFrame: 7},
		{ID: testID(1), Listen: "127.0.0.1:0", MaxFrame: 1 << 20, MaxQueued: 1000},
		{ID: testID(1), Listen: "127.0.0.1:0", Advertise: "host:port"},
		{ID: testID(1), Listen: "127.0.0.1:0", PingInterval: time.Hour},
		{ID: testID(1), Listen: "127.0.0.1:0", RedialMin: time.Hour},
		{ID: testID(1), Listen: "127.0.0.1:0", IdleTimeout: -1},
	} {
		_, err := Open(c)
		require.Error(t, err)
	}
}

func TestAdvertisedAddress(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, func(c *Config) { c.Advertise = "queue-1.example:7777"; c.Features = 5 })
	b := m.open(2, func(c *Config) { c.Features = 12 })
	b.connect(a)
	m.await("up", func() bool { return b.connected(a) && a.connected(b) })
	require.Equal(t, "queue-1.example:7777", b.up[a.cfg.ID].Advertised)
	require.EqualValues(t, 4, b.up[a.cfg.ID].Features)
	require.EqualValues(t, 4, a.up[b.cfg.ID].Features)
}

func TestVersions(t *testing.T) {
	m := newMesh(t)
	speaking := func(id int, oldest, newest uint16) *node {
		return m.open(id, func(c *Config) { c.versions = [2]uint16{oldest, newest} })
	}
	a, b, c := speaking(1, 1, 3), speaking(2, 2, 5), speaking(3, 4, 5)
	a.connect(b)
	m.await("up", func() bool { return a.connected(b) && b.connected(a) })
	require.EqualValues(t, 3, a.up[b.cfg.ID].Version)
	require.EqualValues(t, 3, b.up[a.cfg.ID].Version)

	require.ErrorIs(t, a.meet(c.Addr().String()).Err, ErrVersion)
	a.awaitLog("this node speaks 1 to 3, the peer 4 to 5")
	c.awaitLog("this node speaks 4 to 5, the peer 1 to 3")
}

func TestOurOwnAddress(t *testing.T) {
	for _, change := range []func(*Config){nil, noSecret} {
		a := newMesh(t).open(1, change)
		require.ErrorIs(t, a.meet(a.Addr().String()).Err, ErrSelf)
		a.Connect(a.cfg.ID, a.Addr().String()) // ignored
		a.mesh.settle(20 * time.Millisecond)
		require.Empty(t, a.twins)
		require.Zero(t, a.ups)
	}
}

func TestAnotherNodeWithOurID(t *testing.T) {
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(1, nil)
	require.ErrorIs(t, a.meet(b.Addr().String()).Err, ErrIDInUse)
	m.await("both to know", func() bool { return len(a.twins) == 1 && len(b.twins) == 1 })
	require.Equal(t, a.cfg.ID, a.twins[0].ID)
	require.ErrorIs(t, a.meet(b.Addr().String()).Err, ErrIDInUse)
	m.settle(20 * time.Millisecond)
	require.Len(t, a.twins, 1, "said too often")
}

func TestTwoNodesWithOneID(t *testing.T) {
	for _, ids := range [][2]int{{1, 2}, {2, 1}} {
		m := newMesh(t)
		a := m.open(ids[0], nil)
		first, second := m.open(ids[1], nil), m.open(ids[1], nil)
		first.connect(a)
		m.await("the first", func() bool { return a.connected(first) && first.connected(a) })
		second.connect(a)
		// To a this looks like a restart, until the first node comes back.
		m.await("both noticed", func() bool { return len(a.twins) == 1 && second.connected(a) })
		require.Equal(t, second.cfg.ID, a.twins[0].ID)
		require.ErrorIs(t, a.downs[0].Err, ErrReplaced)
		m.settle(100 * time.Millisecond)
		require.Equal(t, 2, a.ups, "the two took turns")
		require.Len(t, a.twins, 1)
		require.True(t, second.connected(a))
		require.False(t, first.connected(a))
	}
}

func TestAnotherNodeAtTheAddress(t *testing.T) {
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(2, nil)
	a.Connect(testID(3), b.Addr().String())
	a.awaitLog("another node answers")
	require.Zero(t, a.ups)

	// The address is corrected.
	c := m.open(3, nil)
	a.connect(c)
	m.await("up", func() bool { return a.connected(c) })
}

// fakeServer runs serve for each connection until the test ends.
func fakeServer(t *testing.T, serve func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

func TestServersOfOtherProtocols(t *testing.T) {
	redis := func(c net.Conn) {
		var b [1]byte
		_, _ = c.Read(b[:])
		_, _ = io.WriteString(c, "-ERR unknown command 'jobmesh'\r\n")
		_, _ = io.Copy(io.Discard, c)
	}
	speaksFirst := func(c net.Conn) {
		_, _ = io.WriteString(c, "220 mail.example ESMTP\r\n")
		_, _ = io.Copy(io.Discard, c)
	}
	for _, change := range []func(*Config){nil, noSecret} {
		m := newMesh(t)
		a := m.open(1, change)
		for _, serve := range []func(net.Conn){redis, speaksFirst} {
			require.ErrorIs(t, a.meet(fakeServer(t, serve)).Err, ErrNotBus)
		}
		a.Connect(testID(2), fakeServer(t, redis))
		a.awaitLog("not the bus of a jobmesh node: it ")
		closes := fakeServer(t, func(net.Conn) {})
		require.Error(t, a.meet(closes).Err)
	}
}

func TestSilentServer(t *testing.T) {
	for _, change := range []func(*Config){nil, noSecret} {
		a := newMesh(t).open(1, func(c *Config) {
			c.HandshakeTimeout = 50 * time.Millisecond
			if change != nil {
				change(c)
			}
		})
		silent := fakeServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		require.ErrorContains(t, a.meet(silent).Err, "no complete handshake within 50ms")
	}
}

func TestSilentClientsAreCutOff(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, func(c *Config) { c.HandshakeTimeout = 50 * time.Millisecond })
	c, err := net.Dial("tcp", a.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	m.await("the count", func() bool { return a.Stats().Refused == 1 && a.Stats().Pending == 0 })
	a.awaitLog("no complete handshake")
}

func TestUnprovedConnectionsAreBounded(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, func(c *Config) { c.MaxPending = 4 })
	b := m.open(2, nil)
	for range 20 {
		c, err := net.Dial("tcp", a.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	m.await("the surplus to be cut off", func() bool { return a.Stats().Refused == 16 })
	require.Equal(t, 4, a.Stats().Pending)
	b.connect(a)
	m.await("an honest node", func() bool { return a.connected(b) && b.connected(a) })
}

// proxy is a line that can go silent without closing.
type proxy struct {
	addr string
	dead atomic.Bool
	up   atomic.Int64 // connections
}

func newProxy(t *testing.T, to string) *proxy {
	p := &proxy{}
	p.addr = fakeServer(t, func(from net.Conn) {
		c, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer c.Close()
		p.up.Add(1)
		var both sync.WaitGroup
		both.Go(func() { p.copy(c, from) })
		both.Go(func() { p.copy(from, c) })
		both.Wait()
	})
	return p
}

func (p *proxy) copy(dst, src net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		if !p.dead.Load() {
			_, _ = dst.Write(b[:n])
		}
		if err != nil {
			if !p.dead.Load() {
				dst.Close()
			}
			return
		}
	}
}

func TestSilentPeerIsNoticed(t *testing.T) {
	m := newMesh(t)
	hurry := func(c *Config) {
		c.PingInterval, c.IdleTimeout = 20*time.Millisecond, 500*time.Millisecond
		c.HandshakeTimeout = time.Second
	}
	a, b := m.open(1, hurry), m.open(2, hurry)
	p := newProxy(t, b.Addr().String())
	a.Connect(b.cfg.ID, p.addr)
	m.await("up", func() bool { return a.connected(b) && b.connected(a) })
	m.settle(800 * time.Millisecond)
	require.Empty(t, a.downs, "the pings should keep it up")
	s, ok := a.PeerStats(b.cfg.ID)
	require.True(t, ok)
	require.Less(t, time.Since(s.Heard), 500*time.Millisecond)
	require.NotZero(t, s.RTT)

	p.dead.Store(true)
	m.await("both down", func() bool { return !a.connected(b) && !b.connected(a) })
	require.ErrorIs(t, a.downs[0].Err, ErrSilent)
	require.ErrorIs(t, b.downs[0].Err, ErrSilent)

	p.dead.Store(false)
	m.await("up again", func() bool { return a.connected(b) && b.connected(a) })
}

// One side has lost the connection, the other doesn't know.
func TestHalfOpenConnectionIsReplaced(t *testing.T) {
	for _, ids := range [][2]int{{1, 2}, {2, 1}} {
		m := newMesh(t)
		patient := m.open(ids[0], nil)
		hasty := m.open(ids[1], func(c *Config) {
			c.PingInterval, c.IdleTimeout = 10*time.Millisecond, 100*time.Millisecond
		})
		p := newProxy(t, patient.Addr().String())
		hasty.Connect(patient.cfg.ID, p.addr)
		m.await("up", func() bool { return patient.connected(hasty) && hasty.connected(patient) })
		p.dead.Store(true)
		m.await("the hasty one down", func() bool { return !hasty.connected(patient) })
		require.True(t, patient.connected(hasty))
		hasty.connect(patient) // around the dead line
		m.await("the other to believe it", func() bool {
			return patient.ups == 2 && hasty.connected(patient)
		})
		require.ErrorIs(t, patient.downs[0].Err, ErrReplaced)
		require.Empty(t, patient.twins)
	}
}

// raw is a peer without a bus: it can say anything.
type raw struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func rawHello(id NodeID) *hello {
	return &hello{oldest: oldestVersion, newest: newestVersion, id: id, instance: instanceID{1, 2, 3}, maxFrame: 1 << 20, port: 7}
}

// rawPeer makes a connection to v without TLS, and waits until v reports it up.
func rawPeer(v *node, id int) *raw { return rawPeerOf(v, rawHello(testID(id))) }

func rawPeerOf(v *node, hello *hello) *raw {
	t, id := v.mesh.t, hello.id
	c, err := net.Dial("tcp", v.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	p := &raw{c, t, bufio.NewReaderSize(c, 1<<16)}
	b := appendFrame([]byte(magic), kindHello, hello.append(nil))
	p.write(appendFrame(b, kindProof, make([]byte, proofSize)))
	p.skipMagic()
	p.expect(kindHello)
	p.expect(kindProof)
	if decides(v.cfg.ID, id) {
		p.expect(kindAccept)
	} else {
		p.write(appendFrame(nil, kindAccept, []byte{0, 0, 0, 0, 0, 0, 0, 1}))
	}
	p.write(appendFrame(nil, kindPing, make([]byte, pingSize)))
	v.mesh.await("the raw peer to be up", func() bool { return v.up[id] != nil })
	return p
}

func (p *raw) write(b []byte) {
	_, err := p.Write(b)
	require.NoError(p.t, err)
}

func (p *raw) skipMagic() {
	b := make([]byte, len(magic))
	_, err := io.ReadFull(p.r, b)
	require.NoError(p.t, err)
	require.Equal(p.t, magic, string(b))
}

func (p *raw) next() (kind byte, payload []byte, err error) {
	kind, size, err := header(p.r, 1<<20)
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(p.r, payload)
	return kind, payload, err
}

func (p *raw) expect(want byte) []byte {
	kind, payload, err := p.next()
	require.NoError(p.t, err)
	require.Equal(p.t, want, kind)
	return payload
}

// awaitClose reads until a close frame, and returns it.
func (p *raw) awaitClose() *closeError {
	_ = p.SetReadDeadline(time.Now().Add(patience))
	for {
		kind, payload, err := p.next()
		require.NoError(p.t, err)
		if kind == kindClose {
			return asClose(parseClose(payload))
		}
	}
}

func messagesFrame(numbers ...uint64) []byte {
	var b []byte
	for _, n := range numbers {
		b = appendMessage(b, binary.BigEndian.AppendUint64(nil, n))
	}
	return appendFrame(nil, kindMessages, b)
}

func TestRubbishAfterTheHandshake(t *testing.T) {
	good := messagesFrame(0, 1)
	frame := func(kind byte, payload ...byte) []byte { return appendFrame(nil, kind, payload) }
	for name, c := range map[string]struct {
		bytes []byte
		text  string
	}{
		"oversized frame":         {[]byte{0x7f, 0xff, 0xff, 0xff, kindMessages}, "a frame of 2147483647 bytes"},
		"one byte too large":      {[]byte{0, 0, 0x40, 1, kindMessages}, "a frame of 16385 bytes, at most 16384"},
		"unknown kind":            {frame(99, 1), "kind 99"},
		"kind zero":               {frame(0), "kind 0"},
		"handshake once more":     {frame(kindHello, rawHello(testID(2)).append(nil)...), "kind 1"},
		"replayed proof":          {frame(kindProof, make([]byte, proofSize)...), "kind 2"},
		"replayed accept":         {frame(kindAccept, make([]byte, acceptSize)...), "kind 3"},
		"empty messages":          {frame(kindMessages), "without a message"},
		"message beyond frame":    {frame(kindMessages, 5, 1, 2), "a message of 5 bytes"},
		"cut off length":          {frame(kindMessages, 0x80), "cut off"},
		"length of 64 bits":       {frame(kindMessages, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), "too large"},
		"length that overflows":   {frame(kindMessages, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "too large"},
		"length of 35 bits":       {frame(kindMessages, 0xff, 0xff, 0xff, 0xff, 0x7f), "a message of 34359738367 bytes"},
		"overlong length":         {frame(kindMessages, 0x81, 0), "longer than it need be"},
		"good, then rubbish":      {frame(kindMessages, 1, 7, 9), "a message of 9 bytes"},
		"short ping":              {frame(kindPing, 1), "ping or pong of 1 bytes"},
		"long pong":               {frame(kindPong, make([]byte, 9)...), "ping or pong of 9 bytes"},
		"short close":             {frame(kindClose, 1), "close frame of 1 bytes"},
		"long close":              {frame(kindClose, make([]byte, 300)...), "close frame of 300 bytes"},
		"too large to be skipped": {[]byte{0, 1, 0, 0, mayIgnore | 5}, "a frame of 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			a := m.open(1, func(c *Config) { c.Secret, c.MaxFrame = nil, 16<<10 })
			p := rawPeer(a, 2)
			p.write(good)
			p.write(c.bytes)
			m.await("down", func() bool { return a.up[testID(2)] == nil })
			require.ErrorIs(t, a.downs[0].Err, ErrProtocol)
			require.ErrorContains(t, a.downs[0].Err, c.text)
			require.True(t, inOrder(a.got[testID(2)], 2), "what came before counts")
			told := p.awaitClose()
			require.Equal(t, CodeProtocol, told.code)
			a.awaitLog(c.text)
			require.Zero(t, a.Stats().Panics)
		})
	}
}

func TestTruncatedFrames(t *testing.T) {
	whole := messagesFrame(0, 1, 2)
	for cut := 1; cut < len(whole); cut += 5 {
		m := newMesh(t)
		a := m.open(1, noSecret)
		p := rawPeer(a, 2)
		p.write(whole[:cut])
		require.NoError(t, p.Conn.(*net.TCPConn).CloseWrite())
		m.await("down", func() bool { return a.up[testID(2)] == nil })
		require.Empty(t, a.got[testID(2)])
		require.ErrorIs(t, a.downs[0].Err, io.ErrUnexpectedEOF)
		a.Close()
	}
}

func TestIgnorableFramesAreSkipped(t *testing.T) {
	a := newMesh(t).open(5, noSecret)
	p := rawPeer(a, 2)
	p.write(appendFrame(nil, mayIgnore|99, make([]byte, 3000)))
	p.write(appendFrame(nil, mayIgnore|kindMessages, nil))
	p.write(messagesFrame(0))
	token := []byte("12345678")
	p.write(appendFrame(nil, kindPing, token))
	a.mesh.await("the message", func() bool { return inOrder(a.got[testID(2)], 1) })
	for {
		kind, payload, err := p.next()
		require.NoError(t, err)
		if kind == kindPong && bytes.Equal(payload, token) {
			break
		}
	}
	p.write(appendFrame(nil, kindClose, appendClose(nil, CodeShutdown, "good\nnight")))
	a.mesh.await("down", func() bool { return a.up[testID(2)] == nil })
	require.ErrorIs(t, a.downs[0].Err, ErrClosing)
	require.ErrorContains(t, a.downs[0].Err, `good\nnight`)
}

func TestRubbishInTheHandshake(t *testing.T) {
	hello := rawHello(testID(2)).append(nil)
	with := func(kind byte, payload []byte) []byte { return appendFrame([]byte(magic), kind, payload) }
	late := rawHello(testID(2))
	late.oldest, late.newest = 7, 6
	small := rawHello(testID(2))
	small.maxFrame = 10
	control := rawHello(testID(2))
	control.host = "evil\r\nhost"
	for name, c := range map[string]struct {
		bytes []byte
		text  string
	}{
		"HTTP":               {[]byte("GET / HTTP/1.1\r\n\r\n"), `it says "GET / HTTP/1.1\r\n\r\n"`},
		"oversized hello":    {append([]byte(magic), 0xff, 0xff, 0xff, 0xff, kindHello), "a frame of 4294967295 bytes, at most 512"},
		"short hello":        {with(kindHello, hello[:54]), "a hello of 54 bytes"},
		"messages first":     {with(kindMessages, []byte{1, 1}), "a frame of kind 4 in the handshake"},
		"ignorable":          {with(mayIgnore|77, nil), "a frame of kind 205 in the handshake"},
		"proof too long":     {appendFrame(with(kindHello, hello), kindProof, make([]byte, 41)), "with 41 bytes"},
		"proof without zero": {appendFrame(with(kindHello, hello), kindProof, bytes.Repeat([]byte{1}, 40)), "secrets differ"},
		"versions reversed":  {with(kindHello, late.append(nil)), "versions 7 to 6"},
		"tiny frames":        {with(kindHello, small.append(nil)), "frames of 10 bytes"},
		"control characters": {with(kindHello, control.append(nil)), "unprintable host"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newMesh(t).open(1, noSecret)
			conn, err := net.Dial("tcp", a.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write(c.bytes)
			require.NoError(t, err)
			a.awaitLog(c.text)
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			_, _ = io.Copy(io.Discard, conn) // ends: it was cut off
			require.Zero(t, a.ups)
			require.EqualValues(t, 1, a.Stats().Refused)
		})
	}
}

// A man in the middle has a TLS session with each of two nodes, and passes everything on. No node
// accepts him, since a proof is bound to its session.
func TestManInTheMiddle(t *testing.T) {
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(2, nil)
	cert, err := selfSigned()
	require.NoError(t, err)
	var proofs atomic.Int64
	addr := fakeServer(t, func(c net.Conn) {
		victim := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		other, err := tls.Dial("tcp", b.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer other.Close()
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(other, victim); other.Close() })
		both.Go(func() {
			// Pass the listener's answer on, frame by frame.
			defer c.Close()
			r := &raw{Conn: other, t: t, r: bufio.NewReader(other)}
			if _, err := r.r.Discard(len(magic)); err != nil {
				return
			}
			_, _ = victim.Write([]byte(magic))
			for {
				kind, payload, err := r.next()
				if err != nil {
					return
				}
				if kind == kindProof {
					proofs.Add(1)
				}
				_, _ = victim.Write(appendFrame(nil, kind, payload))
			}
		})
		both.Wait()
	})
	require.ErrorIs(t, a.meet(addr).Err, ErrSecret)
	b.awaitLog("secrets differ")
	require.Zero(t, proofs.Load(), "the listener gave its proof to a stranger")
	require.Zero(t, a.ups+b.ups)
}

// A proof seen on one connection is worthless on another.
func TestReplayedProof(t *testing.T) {
	m := newMesh(t)
	a, b := m.open(1, nil), m.open(2, nil)
	cert, err := selfSigned()
	require.NoError(t, err)
	recorded := make(chan []byte, 1)
	addr := fakeServer(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		r := &raw{Conn: s, t: t, r: bufio.NewReader(s)}
		_, _ = r.r.Discard(len(magic))
		_, hello, _ := r.next()
		_, _ = s.Write(appendFrame([]byte(magic), kindHello, rawHello(testID(2)).append(nil)))
		_, proof, _ := r.next()
		b := appendFrame([]byte(magic), kindHello, hello)
		recorded <- appendFrame(b, kindProof, proof)
	})
	require.Error(t, a.meet(addr).Err)
	c, err := tls.Dial("tcp", b.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer c.Close()
	p := &raw{c, t, bufio.NewReader(c)}
	p.write(<-recorded)
	p.skipMagic()
	p.expect(kindHello)
	require.Equal(t, CodeSecret, asClose(parseClose(p.expect(kindClose))).code)
}

func TestSlowPeerCostsBoundedMemory(t *testing.T) {
	const bound = 256 << 10
	m := newMesh(t)
	a := m.open(1, func(c *Config) {
		c.Secret, c.MaxFrame, c.MaxQueued = nil, 16<<10, bound
		c.PingInterval, c.IdleTimeout = time.Hour, 2*time.Hour
	})
	p := rawPeer(a, 2)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	msg := make([]byte, 1000)
	var sent, refused uint64
	for refused < 20_000 { // 20 MB
		binary.BigEndian.PutUint64(msg, sent)
		if a.Send(testID(2), msg) {
			sent++
			refused = 0
		} else {
			refused++
		}
		s, _ := a.PeerStats(testID(2))
		require.LessOrEqual(t, s.QueuedBytes, int64(bound))
		a.Flush()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4*bound))
	s, _ := a.PeerStats(testID(2))
	require.GreaterOrEqual(t, s.Dropped, uint64(20_000))
	require.Equal(t, s.Dropped, a.Stats().Dropped)

	lines := 0
	for _, line := range strings.Split(a.log(), "\n") {
		if strings.Contains(line, "takes too little") {
			lines++
		}
	}
	require.Equal(t, 1, lines, "said too often:\n%s", a.log())

	// The peer reads on: the messages that were accepted arrive, in order.
	want := uint64(0)
	for want < sent {
		kind, payload, err := p.next()
		require.NoError(t, err)
		if kind != kindMessages {
			continue
		}
		for len(payload) > 0 {
			var got []byte
			got, payload, err = nextMessage(payload)
			require.NoError(t, err)
			require.Equal(t, want, binary.BigEndian.Uint64(got))
			want++
		}
	}
	require.True(t, a.Send(testID(2), msg))
	require.True(t, a.logged("takes messages again"))
}

func TestMessageThatIsTooLarge(t *testing.T) {
	a, b := pair(t, func(c *Config) { c.MaxFrame, c.MaxMessage = 4096, 8192 })
	require.False(t, a.Send(b.cfg.ID, make([]byte, 8193)))
	require.False(t, a.Send(b.cfg.ID, make([]byte, 1<<20)))
	frames := 0
	b.onFrame = func(*Messages) { frames++ }
	require.True(t, a.Send(b.cfg.ID, make([]byte, 8192)))
	require.True(t, a.Send(b.cfg.ID, nil))
	a.Flush()
	a.mesh.await("two frames", func() bool { return frames == 2 })
	require.Equal(t, 1, strings.Count(a.log(), "too large"))
	require.False(t, a.Send(testID(77), nil))
	require.EqualValues(t, 3, a.Stats().Dropped)
}

// A peer that doesn't know parts is sent only messages that fit into one frame.
func TestMessageThatIsTooLargeForAnOlderPeer(t *testing.T) {
	a := newMesh(t).open(1, func(c *Config) { c.Secret, c.MaxFrame = nil, 4096 })
	p := rawPeer(a, 2)
	require.False(t, a.Send(testID(2), make([]byte, 4095)))
	require.True(t, a.Send(testID(2), make([]byte, 4094)))
	a.Flush()
	for {
		if kind, _, err := p.next(); kind == kindMessages {
			break
		} else {
			require.NoError(t, err)
			require.NotEqual(t, byte(kindPart), kind)
		}
	}
	p.write(appendFrame(nil, kindPart, appendPart(nil, 8, 0, []byte("12345678"))))
	require.Equal(t, CodeProtocol, p.awaitClose().code)
}

func TestRubbishInParts(t *testing.T) {
	part := func(total, offset, n int) []byte {
		return appendFrame(nil, kindPart, appendPart(nil, total, offset, make([]byte, n)))
	}
	for name, c := range map[string]struct {
		bytes []byte
		text  string
	}{
		"no data":              {part(10, 0, 0), "a part of 8 bytes"},
		"no head":              {appendFrame(nil, kindPart, make([]byte, 3)), "a part of 3 bytes"},
		"too large":            {part(1<<20+1, 0, 10), "a message of 1048577 bytes in parts, at most 1048576"},
		"of 4 GiB":             {part(1<<32-1, 0, 10), "a message of 4294967295 bytes"},
		"not from the start":   {part(100, 50, 50), "a part at 50 of 100"},
		"a gap":                {append(part(100, 0, 10), part(100, 20, 10)...), "a part at 20 of 100, where 10 of 100"},
		"again":                {append(part(100, 0, 10), part(100, 0, 10)...), "a part at 0 of 100, where 10 of 100"},
		"another total":        {append(part(100, 0, 10), part(90, 10, 10)...), "a part at 10 of 90, where 10 of 100"},
		"more than was said":   {part(9, 0, 10), "a part of 10 bytes, where 9 are left"},
		"more in the end":      {append(part(100, 0, 90), part(100, 90, 11)...), "a part of 11 bytes, where 10 are left"},
		"beyond the end":       {append(part(10, 0, 10), part(10, 10, 1)...), "a part at 10 of 10, where 0 of 0"},
		"an offset beyond all": {part(100, 1<<32-1, 10), "a part at 4294967295"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			a := m.open(1, func(c *Config) { c.Secret, c.MaxMessage = nil, 1<<20 })
			h := rawHello(testID(2))
			h.busFeatures, h.maxMessage = featureParts, 1<<20
			p := rawPeerOf(a, h)
			p.write(messagesFrame(0, 1))
			p.write(c.bytes)
			m.await("down", func() bool { return a.up[testID(2)] == nil })
			require.ErrorIs(t, a.downs[0].Err, ErrProtocol)
			require.ErrorContains(t, a.downs[0].Err, c.text)
			require.Equal(t, CodeProtocol, p.awaitClose().code)
			require.Zero(t, a.Stats().Panics)
		})
	}
}

// An unfinished message costs no more memory than the parts of it that have come.
func TestUnfinishedMessageCostsWhatHasCome(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, noSecret)
	h := rawHello(testID(2))
	h.busFeatures, h.maxMessage = featureParts, 64<<20
	p := rawPeerOf(a, h)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p.write(appendFrame(nil, kindPart, appendPart(nil, 64<<20, 0, make([]byte, 100))))
	p.write(messagesFrame(0))
	m.await("what comes between the parts", func() bool { return inOrder(a.got[testID(2)], 1) })
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(1<<20))
}

// The queue for a slow peer is bounded with large messages too.
func TestSlowPeerAndLargeMessages(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, func(c *Config) { c.Secret, c.MaxQueued, c.MaxMessage = nil, 2<<20, 4<<20 })
	h := rawHello(testID(2))
	h.busFeatures, h.maxMessage = featureParts, 4<<20
	rawPeerOf(a, h)
	queued := func() int64 { s, _ := a.PeerStats(testID(2)); return s.QueuedBytes }
	for _, size := range []int{4 << 20, 1 << 20} {
		for refused := 0; refused < 20; {
			if !a.Send(testID(2), make([]byte, size)) {
				refused++
			}
			a.Flush()
			require.LessOrEqual(t, queued(), int64(5<<20))
		}
	}
	require.True(t, a.SendAbout(testID(2), nothing, make([]byte, 100)), "a heartbeat still goes")
	require.False(t, a.Send(testID(2), make([]byte, 4<<20+1)))
}

func TestStalledPeerIsCutOff(t *testing.T) {
	m := newMesh(t)
	a := m.open(1, func(c *Config) { c.Secret, c.StallTimeout = nil, 100*time.Millisecond })
	rawPeer(a, 2)
	m.await("down", func() bool {
		for range 10 {
			a.Send(testID(2), make([]byte, 500<<10))
		}
		a.Flush()
		return len(a.downs) > 0
	})
	require.ErrorIs(t, a.downs[0].Err, ErrSilent)
	require.ErrorContains(t, a.downs[0].Err, "takes no bytes")
}

func TestFullInboxStopsTheReaders(t *testing.T) {
	const inbox, frame = 64 << 10, 8 << 10
	m := newMesh(t)
	b := m.open(9, func(c *Config) {
		c.MaxInbox, c.MaxFrame = inbox, frame
		c.PingInterval, c.IdleTimeout = 10*time.Millisecond, 200*time.Millisecond
	})
	var senders []*node
	for i := range 3 {
		a := m.open(i+1, func(c *Config) {
			c.MaxFrame, c.MaxQueued = frame, 128<<10
			c.PingInterval, c.IdleTimeout = 10*time.Millisecond, 200*time.Millisecond
		})
		a.connect(b)
		senders = append(senders, a)
	}
	m.await("all up", func() bool { return b.connected(senders...) && senders[2].connected(b) })
	m.await("all up there", func() bool { return senders[0].connected(b) && senders[1].connected(b) })

	b.noDrain = true
	sent := make([]int, len(senders))
	m.await("the sockets to be full", func() bool {
		full := 0
		for i, a := range senders {
			for range 100 {
				if !a.say(b, uint64(sent[i]), 4000) {
					full++
					break
				}
				sent[i]++
			}
			a.Flush()
		}
		return full == len(senders)
	})
	m.settle(400 * time.Millisecond) // longer than IdleTimeout
	bytes := b.Stats().InboxBytes
	require.GreaterOrEqual(t, bytes, int64(inbox))
	require.LessOrEqual(t, bytes, int64(inbox+len(senders)*(frame+headerSize)))
	require.Empty(t, senders[0].downs, "back-pressure isn't silence")

	b.noDrain = false
	m.await("all that was accepted", func() bool {
		for i, a := range senders {
			if !inOrder(b.got[a.cfg.ID], sent[i]) {
				return false
			}
		}
		return true
	})
	require.Empty(t, b.downs)
}

func TestOneWakeUpUntilDrain(t *testing.T) {
	var wakes atomic.Int64
	m := newMesh(t)
	a := m.open(1, nil)
	b := m.open(2, func(c *Config) {
		wake := c.Wake
		c.Wake = func() { wakes.Add(1); wake() }
	})
	a.connect(b)
	m.await("up", func() bool { return a.connected(b) && b.connected(a) })
	b.Drain(b.handle)
	wakes.Store(0)
	b.noDrain = true
	for range 3 {
		for n := range uint64(5) {
			require.True(t, a.say(b, n, 8))
			a.Flush()
		}
		b.got = map[NodeID][]uint64{}
		m.await("five frames", func() bool { return b.Stats().InboxBytes >= 5*1024 })
		require.EqualValues(t, 1, wakes.Load())
		m.await("all that was said", func() bool { // a slow machine may need more than one turn
			b.Drain(b.handle)
			return len(b.got[a.cfg.ID]) >= 5
		})
		require.True(t, inOrder(b.got[a.cfg.ID], 5))
		b.Drain(b.handle)
		wakes.Store(0)
	}
}

func TestPanicsAreContained(t *testing.T) {
	m := newMesh(t)
	cert, err := selfSigned()
	require.NoError(t, err)
	var panics atomic.Bool
	panics.Store(true)
	a := m.open(1, nil)
	a.security.server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if panics.Load() {
			panic("no certificate today")
		}
		return &cert, nil
	}
	a.security.server.Certificates = nil
	b := m.open(2, nil)
	b.connect(a)
	a.awaitLog("panic in the listener: no certificate today")
	require.NotZero(t, a.Stats().Panics)
	panics.Store(false)
	m.await("up", func() bool { return a.connected(b) && b.connected(a) })

	// A panic of the owner loses only the event in which it happened.
	b.onFrame = func(*Messages) { b.onFrame = nil; panic("not this one") }
	for n := range uint64(3) {
		a.say(b, n, 8)
		a.Flush()
	}
	b.noDrain = true
	m.await("a frame at least", func() bool { return b.Stats().InboxBytes > 0 })
	require.Panics(t, func() { b.Drain(b.handle) })
	b.noDrain = false
	m.await("the rest", func() bool { return len(b.got[a.cfg.ID]) == 2 })
}
