package bus

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
)

// FuzzFrame reads a stream of frames as a reader does: whatever comes, it
// ends in an error, takes no more memory than has come, and what is taken for
// messages is exactly what would be written for them.
func FuzzFrame(f *testing.F) {
	f.Add(messagesFrame(1, 2, 3))
	f.Add(append(appendFrame(nil, kindPing, make([]byte, pingSize)), messagesFrame(7)...))
	f.Add(appendFrame(nil, kindClose, appendClose(nil, CodeShutdown, "bye")))
	f.Add([]byte{0, 0, 0xff, 0xff, kindMessages, 1})
	f.Add(appendFrame(nil, kindMessages, []byte{0x81, 0}))
	const limit = 128 << 10
	f.Fuzz(func(t *testing.T, stream []byte) {
		var p pool
		r := bufio.NewReader(bytes.NewReader(stream))
		for {
			kind, size, err := header(r, limit)
			if err != nil {
				mustBeOurs(t, err)
				return
			}
			if size > limit {
				t.Fatalf("a frame of %d bytes", size)
			}
			got, err := p.payload(r, size)
			if err != nil {
				mustBeOurs(t, err)
				return
			}
			if len(got.data) != size || cap(got.data) > max(trustedSize, 2*len(stream))+1024+headerSize {
				t.Fatalf("%d bytes in a buffer of %d for a frame of %d", len(got.data), cap(got.data), size)
			}
			switch kind {
			case kindClose:
				mustBeOurs(t, parseClose(got.data))
			case kindMessages:
				n, err := countMessages(got.data)
				if err != nil {
					mustBeOurs(t, err)
					return
				}
				var again []byte
				m := Messages{payload: got.data}
				for msg := range m.All() {
					again = appendMessage(again, msg)
					n--
				}
				if n != 0 || !bytes.Equal(again, got.data) {
					t.Fatalf("%x became %x, %d messages off", got.data, again, n)
				}
			}
			p.put(got)
		}
	})
}

func mustBeOurs(t *testing.T, err error) {
	var e *closeError
	if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.As(err, &e) {
		t.Fatalf("%T: %v", err, err)
	}
}

// FuzzHello checks that what is taken for a hello says what it is taken to say.
func FuzzHello(f *testing.F) {
	h := rawHello(testID(1))
	f.Add(h.append(nil))
	h.host, h.features = "queue-1.example", 1<<31
	f.Add(h.append(nil))
	f.Add(append(h.append(nil), "of a later version"...))
	f.Add(h.append(nil)[:helloSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			mustBeOurs(t, err)
			return
		}
		again := h.append(nil)
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%x became %x", b, again)
		}
		if v, err := h.common(&hello{oldest: 1, newest: 3}); err == nil && (v < h.oldest || v > h.newest || v < 1 || v > 3) {
			t.Fatalf("version %d", v)
		}
	})
}
