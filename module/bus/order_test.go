package bus

import (
	"bufio"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// turns is a socket that runs one function of a list with each frame that is written.
type turns struct {
	during []func()
	kinds  []byte // of the frames
	sizes  []int  // of their payloads
}

func (w *turns) Write(b []byte) (int, error) {
	w.kinds = append(w.kinds, b[4])
	w.sizes = append(w.sizes, int(binary.BigEndian.Uint32(b)))
	if len(w.during) > 0 {
		w.during[0]()
		w.during = w.during[1:]
	}
	return len(b), nil
}

// A small message that follows large ones overtakes no message that was sent before it in the same
// turn, at whatever moment that turn ends.
func TestWhatFollowsLargeMessagesOvertakesNothing(t *testing.T) {
	live, _ := liveWire(t, func() {})
	id := testID(2)
	b := &Bus{cfg: Config{MaxQueued: 1 << 20}, peers: map[NodeID]*peer{}}
	c := &conn{bus: b, wire: live, nc: live, tally: &tally{}, limit: 1 << 10, most: 1 << 20, part: 100, kick: make(chan struct{}, 1)}
	b.peers[id] = &peer{id: id, tally: c.tally, conn: c}
	c.turn.Lock() // the test is the writer
	defer c.turn.Unlock()
	send := func(about uint64, size int) { require.True(t, b.SendAbout(id, about, make([]byte, size))) }

	w := &turns{}
	w.during = []func(){
		func() {}, // the large message's first part
		func() { // its last
			send(6, 10)
			b.Flush()
			send(7, 20)
			send(everything, 30)
			require.Len(t, b.peers[id].bulk, 1, "it follows the large one")
		},
		b.Flush, // the first small message
	}
	send(5, 150)
	b.Flush()
	writer := bufio.NewWriterSize(w, 1) // each frame is one write
	for more := true; more; {
		require.NoError(t, c.writeQueued(writer))
		select {
		case <-c.kick:
		default:
			more = false
		}
	}
	require.Equal(t, []byte{kindPart, kindPart, kindMessages, kindMessages, kindMessages}, w.kinds)
	one := messageSize(10)
	require.Equal(t, []int{one, one + 10, one + 20}, w.sizes[2:])
	require.Zero(t, c.queued.Load()+c.bulkQueued.Load())
}
