package compat

import (
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"jobmesh/tests/harness"
)

// pair is two servers that differ only in the module.
type pair struct {
	with, plain *harness.Server
	resp3       bool
	conns       map[string][2]*harness.Conn
}

func newPair(t *testing.T, lines ...string) *pair {
	// The slow log would differ by how busy the machine is.
	lines = append(lines, "slowlog-log-slower-than -1")
	return &pair{
		with:  harness.Start(t, harness.WithConfig(lines...)),
		plain: harness.Start(t, harness.WithoutModule(), harness.WithConfig(lines...)),
		conns: map[string][2]*harness.Conn{},
	}
}

func (p *pair) servers() [2]*harness.Server { return [2]*harness.Server{p.with, p.plain} }

// on returns a connection to each of the servers.
func (p *pair) on(name string) [2]*harness.Conn {
	if _, ok := p.conns[name]; !ok {
		var both [2]*harness.Conn
		for i, s := range p.servers() {
			if both[i] = s.Dial(); p.resp3 {
				both[i].Do("HELLO", 3)
			}
		}
		p.conns[name] = both
	}
	return p.conns[name]
}

// do sends a command to both.
func (p *pair) do(args ...any) (with, plain harness.Value) {
	both := p.on("a")
	return both[0].Do(args...), both[1].Do(args...)
}

var (
	address = regexp.MustCompile(`0x[0-9a-f]+`)
	digits  = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
)

// comparable returns the part of a reply that is compared, see testdata/stock.txt.
func comparable(v harness.Value, how string) string {
	switch how {
	case "kind":
		return string(v.Kind)
	case "digits":
		return digits.ReplaceAllString(address.ReplaceAllString(v.String(), "0"), "N")
	case "words":
		v = sortWords(v)
	case "sorted":
		sortDeep(v)
	}
	return v.String()
}

func sortWords(v harness.Value) harness.Value {
	words := strings.Fields(v.Str)
	slices.Sort(words)
	v.Str = strings.Join(words, " ")
	for i, e := range v.Elems {
		v.Elems[i] = sortWords(e)
	}
	return v
}

func sortDeep(v harness.Value) {
	for _, e := range v.Elems {
		sortDeep(e)
	}
	if v.Kind == '%' { // pairs stay together
		pairs := make([][2]harness.Value, len(v.Elems)/2)
		for i := range pairs {
			pairs[i] = [2]harness.Value{v.Elems[2*i], v.Elems[2*i+1]}
		}
		slices.SortFunc(pairs, func(a, b [2]harness.Value) int { return strings.Compare(a[0].String(), b[0].String()) })
		for i, kv := range pairs {
			v.Elems[2*i], v.Elems[2*i+1] = kv[0], kv[1]
		}
		return
	}
	slices.SortFunc(v.Elems, func(a, b harness.Value) int { return strings.Compare(a.String(), b.String()) })
}

// step is a line of the script.
type step struct {
	line, how, conn, act string // act: > asks, >> only sends, < only hears
	args                 []any
}

var stepHead = regexp.MustCompile(`^(?:\{(kind|sorted|words|digits)\} )?(?:([a-z])(>>|>|<) ?)?`)

func readScript(t *testing.T, path string) (steps []step) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" || line[0] == '#' {
			continue
		}
		for strings.Count(line, "'")%2 == 1 { // a quoted text goes on
			i++
			require.Less(t, i, len(lines), "no end of %q", line)
			line += "\n" + lines[i]
		}
		head := stepHead.FindStringSubmatch(line)
		s := step{line: line, how: head[1], conn: head[2], act: head[3]}
		if s.conn == "" {
			s.conn, s.act = "a", ">"
		}
		for rest := line[len(head[0]):]; rest != ""; {
			var word string
			switch rest[0] {
			case ' ':
				rest = rest[1:]
				continue
			case '\'':
				word, rest, _ = strings.Cut(rest[1:], "'")
			case '"':
				quoted, err := strconv.QuotedPrefix(rest)
				require.NoError(t, err, line)
				rest = rest[len(quoted):]
				word, _ = strconv.Unquote(quoted)
			default:
				word, rest, _ = strings.Cut(rest, " ")
			}
			s.args = append(s.args, []byte(word))
		}
		steps = append(steps, s)
	}
	return steps
}

// Loading the module changes the meaning of no stock command.
func TestStockStaysStock(t *testing.T) {
	steps := readScript(t, "testdata/stock.txt")
	require.Greater(t, len(steps), 900)
	for _, proto := range []string{"RESP2", "RESP3"} {
		t.Run(proto, func(t *testing.T) {
			p := newPair(t)
			p.resp3 = proto == "RESP3"
			compared := 0
			for _, s := range steps {
				var replies [2]string
				for i, c := range p.on(s.conn) {
					if s.act != "<" {
						c.Send(s.args...)
					}
					if s.act == ">>" {
						server := p.servers()[i]
						harness.Await(t, 5*time.Second, "a client to wait", func() bool { return server.Info("clients", "blocked_clients") == "1" })
						continue
					}
					v := c.Receive()
					require.NotZero(t, v.Kind, "no reply: %s", s.line)
					replies[i] = comparable(v, s.how)
				}
				compared++
				assert.Equal(t, replies[1], replies[0], "%s", s.line)
			}
			t.Logf("%d replies compared", compared)
		})
	}
}

// The server's answers about itself differ only by the module's own entries.
func TestWhatTheServerTells(t *testing.T) {
	p := newPair(t)
	admin := p.on("a")
	own := admin[0].Do("COMMAND", "LIST", "FILTERBY", "MODULE", "jobmesh").Strings()
	require.NotEmpty(t, own)
	mine := func(name string) bool { return slices.Contains(own, name) }

	with, plain := p.do("COMMAND", "LIST")
	names := sortedStrings(plain)
	assert.Equal(t, names, without(sortedStrings(with), mine))
	with, plain = p.do("COMMAND", "COUNT")
	top := without(slices.Clone(own), func(name string) bool { return strings.Contains(name, "|") })
	assert.Equal(t, plain.Int()+int64(len(top)), with.Int())

	p.resp3 = true
	for _, conn := range []string{"a", "three"} {
		for _, name := range names {
			for _, args := range [][]any{{"COMMAND", "INFO", name}, {"COMMAND", "DOCS", name}} {
				both := p.on(conn)
				// Subcommands and key specs' flags are in the order of a hash table.
				assert.Equal(t, comparable(both[1].Do(args...), "sorted"), comparable(both[0].Do(args...), "sorted"), "%v", args)
			}
		}
	}

	with, plain = p.do("ACL", "CAT")
	categories := sortedStrings(plain)
	assert.Equal(t, categories, without(sortedStrings(with), func(name string) bool { return name == "jobmesh" }))
	for _, category := range categories {
		with, plain = p.do("ACL", "CAT", category)
		assert.Equal(t, sortedStrings(plain), without(sortedStrings(with), mine), category)
		with, plain = p.do("COMMAND", "LIST", "FILTERBY", "ACLCAT", category)
		assert.Equal(t, sortedStrings(plain), without(sortedStrings(with), mine), category)
	}

	with, plain = p.do("MODULE", "LIST")
	assert.Len(t, with.Elems, len(plain.Elems)+1)

	// Parameters: the same, except for the module's, and those that differ between any two servers.
	with, plain = p.do("CONFIG", "GET", "*")
	apart := []string{"port", "dir", "logfile"}
	for i := 0; i+1 < len(with.Elems); i += 2 {
		name, value := with.Elems[i].Str, with.Elems[i+1]
		if strings.HasPrefix(name, "jobmesh.") {
			continue
		}
		if other := plain.Field(name); !slices.Contains(apart, name) {
			assert.Equal(t, other, value, name)
		} else {
			assert.Equal(t, other.Kind, value.Kind, name)
		}
	}
	ownParameters := len(admin[0].Do("CONFIG", "GET", "jobmesh.*").Elems)
	assert.Equal(t, len(plain.Elems)+ownParameters, len(with.Elems))

	// HELLO: the same, except for the client's ID, since modules have clients too, and the list of
	// modules.
	for _, args := range [][]any{{"HELLO"}, {"HELLO", 3}, {"HELLO", 2, "SETNAME", "x"}, {"HELLO", 3, "AUTH", "default", ""}, {"HELLO"}} {
		with, plain = p.do(args...)
		require.Equal(t, len(plain.Elems), len(with.Elems))
		assert.Equal(t, plain.Kind, with.Kind)
		for i := 0; i+1 < len(with.Elems); i += 2 {
			assert.Equal(t, plain.Elems[i], with.Elems[i])
			if name := with.Elems[i].Str; name != "id" && name != "modules" {
				assert.Equal(t, plain.Elems[i+1], with.Elems[i+1], name)
			}
		}
	}

	// INFO has the same fields. Beside them it has the module's section, if sections of modules are
	// shown, the module's line in Modules, and the module's calls of commands in Commandstats.
	for _, section := range []any{nil, "default", "all", "everything", "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "modules", "cluster"} {
		args := []any{"INFO"}
		if section != nil {
			args = append(args, section)
		}
		with, plain = p.do(args...)
		assert.Equal(t, plain.Kind, with.Kind)
		assert.Equal(t, infoFields(plain.Str), infoFields(with.Str), "%v", section)
	}
}

// infoFields returns the names in a text of INFO, without those that come with a module.
func infoFields(text string) (names []string) {
	section := ""
	for line := range strings.SplitSeq(text, "\r\n") {
		if head, ok := strings.CutPrefix(line, "# "); ok {
			section = head
		}
		name, value, _ := strings.Cut(line, ":")
		switch {
		case section == "Commandstats" || section == "Latencystats" || section == "Errorstats":
		case name == "" || strings.HasPrefix(section, "jobmesh"):
		case name == "module" && strings.HasPrefix(value, "name=jobmesh"):
		default:
			names = append(names, name)
		}
	}
	return names
}

func sortedStrings(v harness.Value) []string {
	names := v.Strings()
	slices.Sort(names)
	return names
}

func without(names []string, leave func(string) bool) []string {
	return slices.DeleteFunc(names, leave)
}

// Every stock command is called with each number of arguments up to two more than it needs, first
// words, then numbers. The replies, mostly errors, are the same.
func TestStockErrors(t *testing.T) {
	p := newPair(t)
	// These commands wouldn't answer, or would change the connection, or their answers depend on time
	// and chance. testdata/stock.txt has those that can be compared.
	skipped := []string{"monitor", "sync", "psync", "shutdown", "quit", "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe",
		"time", "lastsave", "lolwut", "randomkey", "info", "command", "command|count", "command|docs", "command|info", "command|list", "module|list", "hello",
		"ttl", "pttl", "expiretime", "pexpiretime", "object|idletime", "slowlog|get", "acl|genpass", "acl|log", "client|id", "client|info", "client|list", "memory|stats", "memory|doctor", "memory|malloc-stats", "latency|histogram",
		"debug", "client|reply", "client|pause", "replicaof", "slaveof", "acl|cat", "role", "bgsave", "bgrewriteaof", "failover", "wait", "waitaof", "replconf"}
	_, plain := p.do("COMMAND", "LIST")
	names := sortedStrings(plain)
	require.Greater(t, len(names), 300)
	compared := 0
	for _, name := range names {
		if slices.Contains(skipped, name) {
			continue
		}
		_, info := p.do("COMMAND", "INFO", name)
		require.Len(t, info.Elems, 1)
		arity := info.Elems[0].Elems[1].Int()
		words := []any{}
		for word := range strings.SplitSeq(name, "|") {
			words = append(words, word)
		}
		for _, filler := range []string{"x", "100000"} {
			if strings.HasPrefix(name, "b") && filler != "x" { // they would wait
				continue
			}
			for n := 0; n <= int(max(arity, -arity))-len(words)+2; n++ {
				args := slices.Clone(words)
				for range n {
					args = append(args, filler)
				}
				var replies [2]harness.Value
				for i, s := range p.servers() {
					replies[i] = s.Do(args...)
				}
				require.NotZero(t, replies[1].Kind, "no reply: %v", args)
				assert.Equal(t, comparable(replies[1], "sorted"), comparable(replies[0], "sorted"), "%v", args)
				compared++
			}
		}
	}
	t.Logf("%d replies to %d commands compared", compared, len(names)-len(skipped))
}

// A client stays in its database, whatever it does to another one. Some releases of Valkey move
// the client: see the limits in README.md.
func TestClientsStayInTheirDatabase(t *testing.T) {
	p := newPair(t)
	if strings.Contains(p.with.Log(), "leaves a client in the target's database") {
		t.Skip("this release of Valkey lets clients stray where a module listens to key events, and the log warns of it")
	}
	for _, args := range [][]any{
		{"SET", "k", "v"}, {"COPY", "k", "k", "DB", 3}, {"COPY", "k", "k", "DB", 3}, {"COPY", "k", "k2", "DB", 3, "REPLACE"}, {"GET", "k2"}, {"DBSIZE"},
		{"DEBUG", "RELOAD"}, {"DBSIZE"}, {"MOVE", "k", 5}, {"DBSIZE"}, {"SELECT", 3}, {"SET", "here", 3}, {"DEBUG", "RELOAD"}, {"GET", "here"}, {"SWAPDB", 3, 5}, {"DBSIZE"},
	} {
		with, plain := p.do(args...)
		assert.Equal(t, plain.String(), with.String(), "%v", args)
	}
}

// MONITOR shows stock commands as it does without the module, except for time and address.
func TestMonitor(t *testing.T) {
	p := newPair(t)
	monitors := p.on("m")
	for _, m := range monitors {
		require.Equal(t, "OK", m.Do("MONITOR").Str)
	}
	for _, args := range [][]any{{"SET", "k", "v w"}, {"EVAL", "return redis.call('get', KEYS[1])", 1, "k"}, {"HELLO"}, {"INFO", "jobs"}, {"CLUSTER", "NODES"}, {"NOSUCH"}, {"GET"}, {"PING"}} {
		p.do(args...)
	}
	for seen := ""; !strings.Contains(seen, "PING"); {
		var lines [2]string
		for i, m := range monitors {
			lines[i] = digits.ReplaceAllString(m.Receive().Str, "N")
		}
		require.NotEmpty(t, lines[0])
		require.Equal(t, lines[1], lines[0])
		seen = lines[0]
	}
}

// Requests that aren't arrays of strings, and those that aren't requests.
func TestProtocol(t *testing.T) {
	p := newPair(t)
	for _, request := range []string{
		"PING\r\n", "ping\r\nPING x\r\n", "SET k \"a b\\x00\"\r\n", "SET k \"a\r\n", "\r\nPING\r\n", "INFO jobs\r\n", "CLUSTER NODES\r\n", "nosuch\r\n",
		"*1\r\n$4\r\nPING\r\n", "*0\r\n*1\r\n$4\r\nPING\r\n", "*-1\r\n*1\r\n$4\r\nPING\r\n", "*1\r\n$0\r\n\r\n", "*2\r\n$7\r\nCLUSTER\r\n$5\r\nNODES\r\n",
		"*x\r\n", "*1\r\n:4\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n", "*1\r\n$600000000\r\n", "*2000000000\r\n",
	} {
		var replies [2]string
		for i, s := range p.servers() {
			replies[i] = converse(t, s.Addr(), request)
		}
		assert.Equal(t, replies[1], replies[0], "%q", request)
		assert.NotEmpty(t, replies[0], "%q", request)
	}
}

// converse sends a request and QUIT, and returns all that comes back.
func converse(t *testing.T, addr, request string) string {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(c, request+"*1\r\n$4\r\nQUIT\r\n")
	require.NoError(t, err)
	// After an error the server may close before it has read QUIT.
	out, _ := io.ReadAll(c)
	return string(out)
}
