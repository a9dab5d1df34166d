package bus

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stream sends frames of messages from a to b, and waits for them. Not more
// than a few frames are on the way at once, as in a turn of an event loop.
type stream struct {
	a, b  *Bus
	woken chan struct{}
	to    NodeID
	sent  int
	got   int
	take  func(Event)
}

func newStream(t testing.TB, secret []byte) *stream {
	s := &stream{woken: make(chan struct{}, 1), to: testID(2)}
	open := func(n int) *Bus {
		b, err := Open(Config{Listen: "127.0.0.1:0", ID: testID(n), Secret: secret, Wake: func() {
			select {
			case s.woken <- struct{}{}:
			default:
			}
		}})
		require.NoError(t, err)
		t.Cleanup(b.Close)
		return b
	}
	s.a, s.b = open(1), open(2)
	up := 0
	s.take = func(e Event) {
		switch e := e.(type) {
		case *Up:
			up++
		case *Messages:
			for range e.All() {
				s.got++
			}
		}
	}
	s.a.Connect(s.to, s.b.Addr().String())
	for up < 2 {
		s.turn(t)
	}
	return s
}

func (s *stream) turn(t testing.TB) {
	select {
	case <-s.woken:
	case <-time.After(patience):
		t.Fatal("nothing arrives")
	}
	s.a.Drain(s.take)
	s.b.Drain(s.take)
}

func (s *stream) send(t testing.TB, frames, perFrame int, msg []byte) {
	for range frames {
		for range perFrame {
			if !s.a.Send(s.to, msg) {
				t.Fatal("dropped")
			}
		}
		s.sent += perFrame
		s.a.Flush()
		for s.sent-s.got > 8*perFrame {
			s.turn(t)
		}
	}
	for s.got < s.sent {
		s.turn(t)
	}
}

func TestNothingIsAllocatedPerMessage(t *testing.T) {
	s := newStream(t, []byte(secret))
	msg := make([]byte, 100)
	s.send(t, 300, 100, msg) // fills the pools
	const frames, perFrame = 500, 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.send(t, frames, perFrame, msg)
	runtime.ReadMemStats(&after)
	each := float64(after.Mallocs-before.Mallocs) / (frames * perFrame)
	// Only the race detector, the tests' timers, and pools that the collector has
	// emptied may allocate: some per frame at most.
	require.Less(t, each, 0.2)
}

func TestSendAndFlushAllocateNothing(t *testing.T) {
	s := newStream(t, nil)
	msg := make([]byte, 100)
	one := func() { // with no timer, which would allocate
		for range 10 {
			s.a.Send(s.to, msg)
		}
		s.a.Flush()
		s.sent += 10
		for s.got < s.sent {
			<-s.woken
			s.b.Drain(s.take)
		}
	}
	if raceEnabled {
		t.Skip("the race detector drops what is pooled, at random")
	}
	one()
	require.Less(t, testing.AllocsPerRun(200, one), 1.0)
}

func benchmark(b *testing.B, secret []byte, sizeBytes int) {
	s := newStream(b, secret)
	msg := make([]byte, sizeBytes)
	s.send(b, 100, 100, msg)
	b.SetBytes(int64(sizeBytes))
	b.ReportAllocs()
	b.ResetTimer()
	s.send(b, b.N/100+1, 100, msg)
}

// An operation is one message sent, flushed in a frame with 99 others,
// and drained at the other end.
func BenchmarkEncrypted100B(b *testing.B) { benchmark(b, []byte(secret), 100) }
func BenchmarkEncrypted4KiB(b *testing.B) { benchmark(b, []byte(secret), 4096) }
func BenchmarkPlain100B(b *testing.B)     { benchmark(b, nil, 100) }

// A message may promise something that is on disk only at the turn's end. So no
// message leaves before Flush, however much the turn has to say.
func TestNothingIsSentBeforeFlush(t *testing.T) {
	s := newStream(t, nil)
	msg := make([]byte, 100_000)
	for range 50 { // several frames
		require.True(t, s.a.Send(s.to, msg))
	}
	before, _ := s.a.PeerStats(s.to)
	time.Sleep(50 * time.Millisecond)
	after, _ := s.a.PeerStats(s.to)
	require.Equal(t, before.MessagesOut, after.MessagesOut)
	s.a.Flush()
	for s.got < 50 {
		s.turn(t)
	}
	after, _ = s.a.PeerStats(s.to)
	require.Zero(t, after.Dropped)
	require.GreaterOrEqual(t, after.FramesOut, uint64(5))
}
