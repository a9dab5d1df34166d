package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Value is a reply, with its type: Kind is the protocol's own character.
type Value struct {
	Kind  byte
	Str   string // the text of + - $ = ! ( , and #
	Elems []Value
	Null  bool // $-1, *-1 or _

	n int64      // of :
	t testing.TB // nil where nothing fails a test
}

// Int is the number of an integer reply. Any other reply, or none, fails the test,
// so that it isn't taken for 0. A condition that may see another reply uses
// [Value.Is] instead.
func (v Value) Int() int64 {
	if v.Kind == ':' {
		return v.n
	}
	if v.t == nil {
		panic(fmt.Sprintf("the reply is %v, not an integer", v))
	}
	v.t.Helper()
	v.t.Errorf("the reply is %v, not an integer", v)
	return math.MinInt64
}

// Is says whether the reply is that integer.
func (v Value) Is(n int64) bool { return v.Kind == ':' && v.n == n }

// Err says whether the reply is an error that begins with a text.
func (v Value) Err(prefix string) bool { return v.Kind == '-' && strings.HasPrefix(v.Str, prefix) }

// NullArray and NullString tell the two nulls of RESP2 apart.
func (v Value) NullArray() bool { return v.Kind == '*' && v.Null }

// NullString says whether the reply is $-1.
func (v Value) NullString() bool { return v.Kind == '$' && v.Null }

// Strings are the texts of an array's elements.
func (v Value) Strings() []string {
	out := make([]string, len(v.Elems))
	for i, e := range v.Elems {
		out[i] = e.Str
	}
	return out
}

// Field is the value behind a name, in a map or a flat array.
func (v Value) Field(name string) Value {
	for i := 0; i+1 < len(v.Elems); i += 2 {
		if v.Elems[i].Str == name {
			return v.Elems[i+1]
		}
	}
	return Value{t: v.t}
}

// String shows the reply with its types.
func (v Value) String() string {
	switch {
	case v.Kind == 0:
		return "none"
	case v.Null:
		return string(v.Kind) + "null"
	case v.Kind == ':':
		return ":" + strconv.FormatInt(v.n, 10)
	case v.Kind == '*' || v.Kind == '%' || v.Kind == '~' || v.Kind == '>':
		parts := make([]string, len(v.Elems))
		for i, e := range v.Elems {
			parts[i] = e.String()
		}
		return string(v.Kind) + "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprintf("%c%q", v.Kind, v.Str)
}

// Conn is a connection.
type Conn struct {
	t        testing.TB
	c        net.Conn
	r        *bufio.Reader
	patience time.Duration
	out      []byte // commands that aren't sent yet
}

func dial(addr string) (*Conn, error) { return Dial(addr, patience) }

// Dial connects to a server that may die, stop or be cut off meanwhile, so errors fail no
// test. If no answer comes within patience, the result is a Value without a kind, and the
// connection is of no more use. The caller closes it.
func Dial(addr string, patience time.Duration) (*Conn, error) {
	c, err := net.DialTimeout("tcp", addr, max(time.Second, patience/4)) // a machine can be busy
	if err != nil {
		return nil, err
	}
	return &Conn{c: c, r: bufio.NewReader(c), patience: patience}, nil
}

// For makes errors on a connection of [Dial] fail a test.
func For(t testing.TB, c *Conn) *Conn {
	c.t = t
	return c
}

// Dial connects; the connection closes with the test.
func (s *Server) Dial() *Conn {
	s.t.Helper()
	c, err := dial(s.Addr())
	require.NoError(s.t, err)
	c.t = s.t
	s.t.Cleanup(c.Close)
	return c
}

// Dial3 connects with RESP3.
func (s *Server) Dial3() *Conn {
	c := s.Dial()
	require.Equal(s.t, byte('%'), c.Do("HELLO", "3").Kind)
	return c
}

// Do sends a command on a connection of its own, and reads its reply.
func (s *Server) Do(args ...any) Value {
	s.t.Helper()
	c, err := dial(s.Addr())
	require.NoError(s.t, err)
	c.t = s.t
	defer c.Close()
	return c.Do(args...)
}

// Close closes the connection.
func (c *Conn) Close() { c.c.Close() }

// Do sends a command and reads its reply.
func (c *Conn) Do(args ...any) Value {
	c.Send(args...)
	return c.Receive()
}

// Send sends a command and reads nothing. Several in a row are a pipeline.
func (c *Conn) Send(args ...any) {
	c.Later(args...)
	c.Flush()
}

// Later keeps a command until Flush, Send or Receive sends it, or until many bytes are kept. Very
// many commands cost far less so, since neither side has a system call for each.
func (c *Conn) Later(args ...any) {
	c.out = fmt.Appendf(c.out, "*%d\r\n", len(args))
	for _, a := range args {
		switch a := a.(type) {
		case string:
			c.out = fmt.Appendf(c.out, "$%d\r\n", len(a))
			c.out = append(c.out, a...)
		case []byte:
			c.out = fmt.Appendf(c.out, "$%d\r\n", len(a))
			c.out = append(c.out, a...)
		default:
			text := fmt.Sprint(a)
			c.out = fmt.Appendf(c.out, "$%d\r\n%s", len(text), text)
		}
		c.out = append(c.out, "\r\n"...)
	}
	if len(c.out) >= full {
		c.Flush()
	}
}

// full is how many bytes a connection holds back at most.
const full = 16 << 10

// Flush sends what [Conn.Later] has kept.
func (c *Conn) Flush() {
	if len(c.out) == 0 {
		return
	}
	c.c.SetWriteDeadline(time.Now().Add(c.patience))
	_, err := c.c.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > 4*full {
		c.out = nil
	}
	if c.t != nil {
		require.NoError(c.t, err)
	}
}

// patience is how long a connection waits for the server.
const patience = 60 * time.Second

// Receive reads a reply. It waits a minute at most, or as long as [Dial] was told. If the
// connection is closed, it returns a Value without a kind.
func (c *Conn) Receive() Value {
	c.Flush()
	c.c.SetReadDeadline(time.Now().Add(c.patience))
	v, err := c.read()
	if err != nil {
		return Value{t: c.t}
	}
	return v
}

// Silent says whether nothing comes for a while.
func (c *Conn) Silent(d time.Duration) bool {
	c.Flush()
	c.c.SetReadDeadline(time.Now().Add(d))
	_, err := c.r.Peek(1)
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

func (c *Conn) read() (v Value, err error) {
	v.t = c.t
	line, err := c.r.ReadString('\n')
	if err != nil {
		return v, err
	}
	if line = strings.TrimSuffix(line, "\r\n"); line == "" {
		return v, errors.New("a reply without a type")
	}
	v.Kind, v.Str = line[0], line[1:]
	var n int64
	if strings.IndexByte(":$=!*%~>", v.Kind) >= 0 {
		if n, err = strconv.ParseInt(v.Str, 10, 64); err != nil {
			return v, err
		}
	}
	switch v.Kind {
	case ':':
		v.n = n
	case '_':
		v.Null = true
	case '$', '=', '!':
		if v.Str = ""; n < 0 {
			v.Null = true
			return v, nil
		}
		buf := make([]byte, n+2)
		if _, err = io.ReadFull(c.r, buf); err != nil {
			return v, err
		}
		v.Str = string(buf[:n])
	case '*', '%', '~', '>':
		v.Str, v.Null = "", n < 0
		if v.Kind == '%' {
			n *= 2
		}
		for ; n > 0; n-- {
			e, err := c.read()
			if err != nil {
				return v, err
			}
			v.Elems = append(v.Elems, e)
		}
	}
	return v, nil
}

// Ends are the outcomes in an answer of WAITJOB, each with its detail behind a blank, if there is one.
func Ends(t testing.TB, v Value) (all []string) {
	t.Helper()
	require.Equal(t, byte('*'), v.Kind, "%v", v)
	for _, e := range v.Elems {
		require.Len(t, e.Elems, 3)
		end := e.Elems[1].Str
		if !e.Elems[2].Null {
			end += " " + e.Elems[2].Str
		}
		all = append(all, end)
	}
	return all
}
