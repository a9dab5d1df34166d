package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

func known(s *harness.Server) string { return s.Info("jobmesh", "jobmesh_known_nodes") }

func id(s *harness.Server) string { return s.Do("JOBMESH", "CLUSTER", "MYID").Str }

// says awaits a line of the log with all these words.
func says(t *testing.T, s *harness.Server, words ...string) {
	t.Helper()
	harness.Await(t, 15*time.Second, fmt.Sprintf("a line of the log with %q", words), func() bool {
	lines:
		for line := range strings.Lines(s.Log()) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return true
		}
		return false
	})
}

func meetPort(t *testing.T, s *harness.Server, port string) {
	t.Helper()
	require.Equal(t, "OK", s.Do("JOBMESH", "CLUSTER", "MEET", "127.0.0.1", 1, port).Str)
}

func ownBus(s *harness.Server) string {
	return s.Do("CONFIG", "GET", "jobmesh.cluster-port").Elems[1].Str
}

// kept is a job that no bad input may touch.
func kept(t *testing.T, s *harness.Server) (check func()) {
	v := s.Do("ADDJOB", "kept", "body", 0, "REPLICATE", 1)
	require.Equal(t, byte('+'), v.Kind, "%v", v)
	return func() {
		assert.Equal(t, int64(1), s.Do("QLEN", "kept").Int())
		assert.Equal(t, "queued", s.Do("SHOW", v.Str).Field("state").Str)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	with := func(secret string) *harness.Server {
		return node(t, `jobmesh.cluster-secret "`+secret+`"`, "jobmesh.cluster-bind 127.0.0.1")
	}
	right, wrong, none := with(secret), with("another "+secret), node(t)
	checks := []func(){kept(t, right), kept(t, wrong), kept(t, none)}
	for _, x := range []struct {
		from, to *harness.Server
		why      string
	}{
		{right, wrong, "the secrets differ"},
		{wrong, right, "the secrets differ"},
		{none, right, "the node that was dialled has one, the dialling one has none"},
		{right, none, "secrets differ: this node has one, the peer has none"},
	} {
		meetPort(t, x.from, ownBus(x.to))
		says(t, x.from, "CLUSTER MEET 127.0.0.1:"+ownBus(x.to), x.why)
		says(t, x.to, "refused 127.0.0.1:", "the secrets differ")
	}
	for i, s := range []*harness.Server{right, wrong, none} {
		assert.Equal(t, "1", known(s), "nobody is let in")
		assert.NotContains(t, s.Log(), secret, "a secret is never logged")
		checks[i]()
	}
	// A node with the right secret is let in.
	other := with(secret)
	meetPort(t, other, ownBus(right))
	mesh{right, other}.await(t, 2)
}

func TestMeetWhoIsNoNode(t *testing.T) {
	t.Parallel()
	s := node(t)
	check := kept(t, s)
	listen := func(answer func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				answer(c)
			}
		}()
		return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	plain := harness.Start(t, harness.WithoutModule())
	for name, x := range map[string]struct{ port, why string }{
		"nobody":      {busPort(t), "connection refused"},
		"itself":      {ownBus(s), "the address is this node's own"},
		"its clients": {strconv.Itoa(s.Port), "not the bus of a jobmesh node"},
		"plain Redis": {strconv.Itoa(plain.Port), "not the bus of a jobmesh node"},
		"a web server": {listen(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}), "not the bus of a jobmesh node"},
		"one that hangs up":      {listen(func(c net.Conn) { c.Close() }), "connection"},
		"one that says nothing":  {listen(func(c net.Conn) { t.Cleanup(func() { c.Close() }) }), "no complete handshake"},
		"another version's node": {listen(func(c net.Conn) { _, _ = c.Write(futureHello()) }), "version"},
	} {
		meetPort(t, s, x.port)
		says(t, s, "CLUSTER MEET 127.0.0.1:"+x.port+":", x.why)
		assert.Equal(t, "1", known(s), name)
	}
	check()
}

// futureHello is the first message of a node that speaks versions 7 to 9 alone.
func futureHello() []byte {
	b := make([]byte, 55)
	b[1], b[3] = 7, 9
	for i := range 36 {
		b[4+i] = 0xee
	}
	binary.BigEndian.PutUint32(b[40:], 1<<20)
	binary.BigEndian.PutUint16(b[52:], 1)
	frame := binary.BigEndian.AppendUint32([]byte("jobmesh\n"), uint32(len(b)))
	return append(append(frame, 1), b...)
}

func TestStrangersAtTheBus(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	check := kept(t, m[0])
	told := map[string]bool{}
	for name, x := range map[string]struct {
		say []byte
		why string
	}{
		"a browser":                {[]byte("GET / HTTP/1.1\r\nHost: jobs\r\n\r\n"), "not the bus of a jobmesh node"},
		"a Redis client":           {[]byte("*1\r\n$4\r\nPING\r\n"), "not the bus of a jobmesh node"},
		"another version":          {futureHello(), "version"},
		"a frame too large":        {append([]byte("jobmesh\n"), 0xff, 0xff, 0xff, 0xff, 1), "frame"},
		"a node with the secret":   {[]byte{0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5}, "the secrets differ"},
		"messages without a proof": {append([]byte("jobmesh\n"), 0, 0, 0, 2, 4, 1, 0), "frame"},
	} {
		c, err := net.Dial("tcp", "127.0.0.1:"+ownBus(m[0]))
		require.NoError(t, err)
		_, err = c.Write(x.say)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.Copy(io.Discard, c)
		assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s isn't sent away", name)
		c.Close()
		// Lines about the same kind of fault are held back for a while.
		if !told[x.why] {
			says(t, m[0], "refused 127.0.0.1:", x.why)
			told[x.why] = true
		}
	}
	for _, s := range m {
		assert.Equal(t, "2", known(s))
	}
	check()
	v := m[0].Do("ADDJOB", "q", "b", 5000, "REPLICATE", 2)
	assert.Equal(t, byte('+'), v.Kind, "the mesh works on: %v", v)
}

func TestForgetErrors(t *testing.T) {
	t.Parallel()
	m := start(t, 2)
	check := kept(t, m[0])
	unknown := strings.Repeat("ab", 20)
	for node, want := range map[string]string{
		"ab":                    "ERR Invalid node identifier",
		unknown + "a":           "ERR Invalid node identifier",
		id(m[0]):                "ERR I tried hard but I can't forget myself...",
		unknown:                 "ERR Unknown node " + unknown,
		strings.Repeat("x", 40): "ERR Unknown node " + strings.Repeat("x", 40),
	} {
		v := m[0].Do("JOBMESH", "CLUSTER", "FORGET", node)
		assert.Equal(t, fmt.Sprintf("-%q", want), v.String())
	}
	assert.Equal(t, "2", known(m[0]))
	check()
}
