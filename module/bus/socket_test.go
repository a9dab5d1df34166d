package bus

import (
	"bytes"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// liveWire is one end of a TCP connection whose buffers are smallish, and the other end.
func liveWire(t *testing.T, late func()) (*socket, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { raw.Close(); far.Close() })
	require.NoError(t, raw.(*net.TCPConn).SetWriteBuffer(64<<10))
	require.NoError(t, far.(*net.TCPConn).SetReadBuffer(64<<10))
	w := &socket{Conn: raw, idle: time.Minute, stall: time.Minute}
	w.goLive(&tally{}, late)
	return w, far
}

func TestAWriteWaitsForNobodyAndNothingOvertakes(t *testing.T) {
	late := make(chan struct{}, 1)
	w, far := liveWire(t, func() {
		select {
		case late <- struct{}{}:
		default:
		}
	})
	sent := make([]byte, 4<<20)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	// Nobody reads. Write takes all the bytes all the same, and asks for drain.
	began := time.Now()
	_, err := w.Write(sent[:1<<20])
	require.NoError(t, err)
	require.Less(t, time.Since(began), 5*time.Second)
	<-late
	require.True(t, w.behind.Load())
	// Bytes that are written while drain works come behind those that drain writes.
	var drains sync.WaitGroup
	drains.Go(func() {
		for range late {
			_ = w.drain()
		}
	})
	late <- struct{}{}
	got := make(chan []byte)
	go func() {
		all := make([]byte, len(sent))
		_, _ = io.ReadFull(far, all)
		got <- all
	}()
	for at := 1 << 20; at < len(sent); {
		end := min(at+1+rand.IntN(20_000), len(sent))
		n, err := w.Write(sent[at:end])
		require.NoError(t, err)
		at += n
	}
	require.True(t, bytes.Equal(sent, <-got))
	close(late)
	w.late = func() {}
	drains.Wait()
	require.NoError(t, w.drain())
	require.False(t, w.behind.Load())
	require.EqualValues(t, len(sent), w.tally.bytesOut.Load())
}

// A peer that asks for new keys and doesn't read makes TLS write within a read. The owner must not
// wait for that write either.
func TestTLSWritesWaitForNobody(t *testing.T) {
	w, far := liveWire(t, func() {})
	w.live = false // as in the handshake
	cert, err := selfSigned()
	require.NoError(t, err)
	peer := tls.Client(far, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
	shaken := make(chan error)
	go func() { shaken <- peer.Handshake() }()
	c := tls.Server(w, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true})
	require.NoError(t, c.Handshake())
	require.NoError(t, <-shaken)
	w.live = true
	sent := bytes.Repeat([]byte("a job "), 100_000)
	began := time.Now()
	_, err = c.Write(sent)
	require.NoError(t, err)
	require.Less(t, time.Since(began), 5*time.Second)
	require.True(t, w.behind.Load())
	drained := make(chan error)
	go func() { drained <- w.drain() }()
	got := make([]byte, len(sent))
	_, err = io.ReadFull(peer, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, <-drained)
}

func TestAFailedWriteIsRemembered(t *testing.T) {
	w, far := liveWire(t, func() {})
	require.NoError(t, far.(*net.TCPConn).SetLinger(0))
	require.NoError(t, far.Close())
	require.Eventually(t, func() bool {
		_, err := w.Write([]byte("x"))
		return err != nil
	}, patience, time.Millisecond)
	require.Error(t, w.drain(), "so the writer learns why the owner failed")
	require.NoError(t, w.Conn.Close())
	_, err := w.Write([]byte("x"))
	require.Error(t, err)
}

func TestADrainGivesUpOnAPeerThatTakesNothing(t *testing.T) {
	w, _ := liveWire(t, func() {})
	w.stall = 50 * time.Millisecond
	_, err := w.Write(make([]byte, 8<<20))
	require.NoError(t, err)
	require.ErrorContains(t, w.drain(), "timeout")
	_, err = w.Write([]byte("x"))
	require.Error(t, err)
	require.Error(t, w.drain())
}
