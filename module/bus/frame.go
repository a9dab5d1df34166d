package bus

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Kinds of frames. A frame of an unknown kind is skipped if the kind has the bit mayIgnore;
// otherwise it closes the connection.
const (
	kindHello    = 1
	kindProof    = 2
	kindAccept   = 3
	kindMessages = 4
	kindPing     = 5
	kindPong     = 6
	kindClose    = 7
	kindPart     = 8 // if both nodes have featureParts
	mayIgnore    = 0x80
)

const (
	headerSize    = 5  // length of the payload, 4 bytes; kind
	pingSize      = 8  // payload of a ping and a pong
	acceptSize    = 8  // payload of an accept
	proofSize     = 40 // payload of a proof
	maxHandshake  = 512
	maxCloseText  = 256
	partHead      = 8 // head of a part: the message's length, and how much of it came before
	maxPart       = 64<<10 - partHead
	maxLengthSize = 5 // a message's length: a varint of at most 32 bits

	// trustedSize is how many bytes are allocated only because a frame's length says so.
	// Beyond that a buffer grows with the bytes that have really come.
	trustedSize = 64 << 10
)

// putHeader writes the header of the frame that fills frame.
func putHeader(frame []byte, kind byte) {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-headerSize))
	frame[4] = kind
}

func appendFrame(b []byte, kind byte, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, kind)
	return append(b, payload...)
}

// messageSize is how many bytes a message of n bytes takes in a frame.
func messageSize(n int) int {
	size := n + 1
	for v := n; v >= 0x80; v >>= 7 {
		size++
	}
	return size
}

func appendMessage(b, msg []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(msg)))
	return append(b, msg...)
}

// nextMessage splits the first message off a messages frame's payload.
func nextMessage(payload []byte) (msg, rest []byte, err error) {
	n, size := binary.Uvarint(payload)
	switch {
	case size <= 0 || size > maxLengthSize:
		return nil, nil, protocolError("the length of a message is cut off or too large")
	case size > 1 && payload[size-1] == 0:
		return nil, nil, protocolError("the length of a message is longer than it need be")
	case n > uint64(len(payload)-size):
		return nil, nil, protocolError("a message of %d bytes in a frame with %d left", n, len(payload)-size)
	}
	end := size + int(n)
	return payload[size:end:end], payload[end:], nil
}

// countMessages returns how many messages the payload of a messages frame holds. It checks
// every length, so that walking over the payload can't fail later.
func countMessages(payload []byte) (int, error) {
	if len(payload) == 0 {
		return 0, protocolError("a messages frame without a message")
	}
	n := 0
	for len(payload) > 0 {
		_, rest, err := nextMessage(payload)
		if err != nil {
			return 0, err
		}
		payload = rest
		n++
	}
	return n, nil
}

func appendPart(b []byte, total, offset int, data []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(total))
	b = binary.BigEndian.AppendUint32(b, uint32(offset))
	return append(b, data...)
}

// assembly is a large message of which some parts have come. Its memory grows with the bytes
// that have really come.
type assembly struct {
	item  *item // the payload of a messages frame that has only this message
	total int
	have  int
}

// part reads a part of sizeBytes. It returns the message's item once the message is whole, and
// nil before.
func (a *assembly) part(p *pool, r *bufio.Reader, sizeBytes, most int) (whole *item, err error) {
	if sizeBytes <= partHead {
		return nil, protocolError("a part of %d bytes", sizeBytes)
	}
	head, err := r.Peek(partHead)
	if err != nil {
		return nil, truncated(err)
	}
	total, offset, n := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:]), sizeBytes-partHead
	switch {
	case uint64(total) > uint64(most):
		return nil, protocolError("a message of %d bytes in parts, at most %d are taken", total, most)
	case int64(offset) != int64(a.have) || a.have > 0 && int(total) != a.total:
		return nil, protocolError("a part at %d of %d, where %d of %d was expected", offset, total, a.have, a.total)
	case n > int(total)-a.have:
		return nil, protocolError("a part of %d bytes, where %d are left", n, int(total)-a.have)
	}
	_, _ = r.Discard(partHead)
	if a.item == nil {
		a.total = int(total)
		a.item = p.get(min(a.total, trustedSize) + maxLengthSize)
		a.item.data = binary.AppendUvarint(a.item.data, uint64(total))
	}
	a.grow(p, n)
	at := len(a.item.data)
	a.item.data = a.item.data[:at+n]
	if _, err := io.ReadFull(r, a.item.data[at:]); err != nil {
		return nil, truncated(err)
	}
	if a.have += n; a.have < a.total {
		return nil, nil
	}
	whole = a.item
	whole.count = 1
	*a = assembly{}
	return whole, nil
}

// grow makes room for n bytes more.
func (a *assembly) grow(p *pool, n int) {
	need := len(a.item.data) + n
	if need <= cap(a.item.data) {
		return
	}
	larger := p.get(max(need, min(2*need, a.total+maxLengthSize)))
	larger.data = append(larger.data, a.item.data...)
	p.put(a.item)
	a.item = larger
}

func appendClose(b []byte, code Code, text string) []byte {
	if len(text) > maxCloseText {
		text = text[:maxCloseText]
	}
	b = binary.BigEndian.AppendUint16(b, uint16(code))
	return append(b, text...)
}

// parseClose turns the payload of a close frame into an error.
func parseClose(payload []byte) error {
	if len(payload) < 2 || len(payload) > 2+maxCloseText {
		return protocolError("a close frame of %d bytes", len(payload))
	}
	return &closeError{
		code:   Code(binary.BigEndian.Uint16(payload)),
		text:   printable(payload[2:]),
		remote: true,
	}
}

// printable escapes a peer's words for a log line.
func printable(text []byte) string {
	q := fmt.Sprintf("%+q", text)
	return q[1 : len(q)-1]
}

// header reads a frame's header and checks its length against limitBytes.
func header(r *bufio.Reader, limitBytes int) (kind byte, size int, err error) {
	head, err := r.Peek(headerSize)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	length := binary.BigEndian.Uint32(head)
	kind = head[4]
	if uint64(length) > uint64(limitBytes) {
		return 0, 0, protocolError("a frame of %d bytes, at most %d are taken", length, limitBytes)
	}
	_, _ = r.Discard(headerSize)
	return kind, int(length), nil
}

// payload reads size bytes into an item of the pool.
func (p *pool) payload(r *bufio.Reader, size int) (*item, error) {
	got := p.get(min(size, trustedSize))
	for {
		have := len(got.data)
		want := min(size, cap(got.data)-headerSize)
		got.data = got.data[:want]
		n, err := io.ReadFull(r, got.data[have:want])
		if err != nil {
			got.data = got.data[:have+n]
			p.put(got)
			return nil, truncated(err)
		}
		if want == size {
			return got, nil
		}
		larger := p.get(min(size, 2*want))
		larger.data = append(larger.data, got.data...)
		p.put(got)
		got = larger
	}
}

// truncated is err, but io.ErrUnexpectedEOF instead of io.EOF: within a frame the stream must
// not end.
func truncated(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
