package rm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"jobmesh/cgo/api"
)

// Documentation of commands, as COMMAND DOCS shows it.
type (
	// Info documents a command.
	Info = api.CommandInfo
	// Arg documents one argument.
	Arg = api.Arg
	// KeySpec says which arguments are keys, and what the command does to them.
	KeySpec = api.KeySpec
)

// Kinds of documented argument, and uses of a key.
const (
	ArgString  = api.ArgString
	ArgInteger = api.ArgInteger
	ArgDouble  = api.ArgDouble
	ArgKey     = api.ArgKey
	ArgToken   = api.ArgToken
	ArgOneOf   = api.ArgOneOf
	ArgBlock   = api.ArgBlock

	KeyRead   = api.KeyRead
	KeyModify = api.KeyModify
	KeyInsert = api.KeyInsert
)

// Command is one command, or a container of subcommands (then Run is nil).
type Command struct {
	Name string
	// Run serves the command. Its Ctx is valid until Run returns.
	Run func(*Ctx)
	// Key is the index of the argument that names the key which the command works on, of
	// type Type; 0 for none. C looks the key up before Run, see [Ctx.Held], without a
	// crossing between C and Go.
	Key  int
	Type *DataType
	// Ready serves a client that [Ctx.BlockOnKeys] suspended in this command: one of its
	// keys, [Ctx.Key], now holds something. Ready returns false if it has no answer and has
	// done nothing: then the client goes on waiting.
	Ready func(*Ctx) bool
	// Flags are those of RedisModule_CreateCommand, "write deny-oom fast".
	Flags string
	// Info documents the command. An Arity other than zero is enforced.
	Info Info
	// Categories are ACL categories besides the module's own, "read fast". They are used if
	// the server has categories for modules (7.4).
	Categories string
	Sub        []Command

	kind callKind
}

// Events are the server events a module may want; any may be nil.
type Events struct {
	// Flush: a database (or all, -1) is about to be emptied. The server frees its values
	// without unlinking them.
	Flush func(c *Ctx, db int)
	// Loading: the loading of a data set begins, or has ended.
	Loading func(c *Ctx, phase LoadPhase)
	// Role: the server has become a replica, or a master.
	Role func(c *Ctx, replica bool)
	// Following: this replica has reached its master, and follows it from here on.
	Following func(c *Ctx)
	// Swap: two databases have changed places.
	Swap func(c *Ctx, a, b int)
	// Config: a CONFIG SET changed one of the server's own parameters.
	Config func(c *Ctx)
	// Turn: a turn of the event loop is over, and [Server.WantTurn] asked for this call. The
	// AOF is written. Turn must not replicate commands.
	Turn func()
	// Fork: the server has just made a child that saves. Whatever is replicated from here on
	// isn't in the child's data.
	Fork func(c *Ctx)
	// ForkEnded: that child has ended, and the file that it made is in place.
	ForkEnded func(c *Ctx)
	// Shutdown: the server is about to exit; everything is saved already.
	Shutdown func(c *Ctx)
	// Key: a key that holds a value of one of the module's types was loaded,
	// restored, renamed or moved ("loaded", "restore", "rename_to", "move_to").
	Key func(c *Ctx, event string, key String, t *DataType, value unsafe.Pointer)
}

// LoadPhase tells what is being loaded, or how the loading ended.
type LoadPhase int

// The phases: three beginnings, two ends.
const (
	LoadRDB     LoadPhase = iota // from an RDB file
	LoadAOF                      // from an AOF, its RDB preamble included
	LoadReplica                  // from this replica's master
	LoadEnded
	LoadFailed
)

// Module describes a module.
type Module struct {
	Name     string
	Version  int
	Commands []Command
	Types    []*DataType
	Configs  []*Config
	Events   Events
	// Info fills INFO <name>.
	Info func(*InfoWriter)
	// Before runs before anything is registered; an error refuses the load.
	Before func(s *Server) error
	// Start runs when everything is registered and configured; an error
	// refuses the load.
	Start func(s *Server) error
}

// Register makes m the module of this shared object. Call it from init.
func Register(m *Module) { api.SetHandler(&Server{module: m}) }

// Server is the running module's view of the server.
type Server struct {
	module   *Module
	ctx      api.Context // lives as long as the module
	commands []*Command  // by slot
	ctxs     [16]Ctx     // by nesting depth
	timers   timers
	blocked  map[api.Blocked]*Client
	answers  map[*api.Frame]answer // to clients in blocked
	door     door
	pace     pace
	panics   int64
	loaded   bool
	rewrites []Rewrite // SetRewrites applies them once the module is loaded

	mu     sync.Mutex
	posted []func(*Server)
	awake  bool
}

func (s *Server) ctxFor(f *api.Frame, kind callKind) *Ctx {
	c := &s.ctxs[f.Depth()]
	*c = Ctx{f: f, s: s, kind: kind}
	return c
}

// Load implements api.Handler.
func (s *Server) Load(f *api.Frame) error {
	if err := s.load(f); err != nil {
		api.Log(s.ctx, "warning", fmt.Sprintf("%s can't be loaded: %v", s.module.Name, err))
		return err
	}
	return nil
}

func (s *Server) load(f *api.Frame) error {
	m, ctx := s.module, f.Context()
	if err := api.Load(ctx, m.Name, m.Version); err != nil {
		return fmt.Errorf("a module named %s is loaded already", m.Name)
	}
	s.ctx = api.Detached(ctx)
	s.timers.init()
	s.blocked = map[api.Blocked]*Client{}
	s.answers = map[*api.Frame]answer{}
	if m.Before != nil {
		if err := m.Before(s); err != nil {
			return err
		}
	}
	for i, t := range m.Types {
		if err := t.register(ctx, i); err != nil {
			return fmt.Errorf("data type %s: %w", t.Name, err)
		}
	}
	own := api.AddCategory(ctx, m.Name)
	for i := range m.Commands {
		if err := s.create(ctx, &m.Commands[i], "", own); err != nil {
			return err
		}
	}
	for i, c := range m.Configs {
		if err := c.register(ctx, i); err != nil {
			return fmt.Errorf("parameter %s: %w", c.Name, err)
		}
	}
	if err := api.Subscribe(ctx); err != nil {
		return fmt.Errorf("server events: %w", err)
	}
	if v, ok := api.ServerInfo(ctx, "server", "valkey_version"); ok && strays(v) {
		s.Log(Warning, "Valkey %s leaves a client in the target's database after COPY … DB …, and replicates that command wrongly, where a module like this one is loaded. Don't use COPY between databases, or update to 8.1.9, 9.0.6, 9.1.1 or newer", v)
	}
	if err := api.LoadConfigs(ctx); err != nil {
		return fmt.Errorf("a line %s.… in redis.conf: %w", m.Name, err)
	}
	if err := s.arguments(f); err != nil {
		return err
	}
	if m.Start != nil {
		if err := m.Start(s); err != nil {
			return err
		}
	}
	s.watchTimers()
	// Nothing may fail after this: if the load fails, the server keeps the filter.
	s.loaded = true
	return s.SetRewrites(s.rewrites)
}

// strays says whether a release of Valkey can leave a client in another database while a
// module listens to key events, as each module on this package does. cgo/api corrects that
// for MOVE.
func strays(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
		return false
	}
	mended, some := map[[2]int]int{{8, 1}: 9, {9, 0}: 6, {9, 1}: 1}[[2]int{major, minor}]
	return some && patch < mended
}

func (s *Server) create(ctx api.Context, c *Command, parent string, own bool) error {
	slot, full := -1, c.Name
	if c.Run != nil {
		slot = len(s.commands)
		s.commands = append(s.commands, c)
		if !slices.Contains(strings.Fields(c.Flags), "write") {
			c.kind = aTurn
		}
	}
	if c.Key > 0 {
		api.SetKey(slot, c.Key, c.Type.slot)
	}
	var err error
	if parent == "" {
		err = api.CreateCommand(ctx, c.Name, slot, c.Flags)
	} else {
		full = parent + "|" + c.Name
		err = api.CreateSubcommand(ctx, parent, c.Name, slot, c.Flags)
	}
	if err != nil {
		return fmt.Errorf("command %s can't be registered: is there another command of that name?", full)
	}
	if err := api.SetCommandInfo(ctx, full, &c.Info); err != nil {
		return fmt.Errorf("command %s: its documentation: %w", full, err)
	}
	if own {
		api.SetCategory(ctx, full, strings.TrimSpace(s.module.Name+" "+c.Categories))
	}
	for i := range c.Sub {
		if err := s.create(ctx, &c.Sub[i], c.Name, own); err != nil {
			return err
		}
	}
	return nil
}

// arguments applies loadmodule's arguments: pairs of a parameter's name, with or without
// the module's name before it, and a value. They override redis.conf's lines.
func (s *Server) arguments(f *api.Frame) error {
	if f.NArgs()%2 != 0 {
		return fmt.Errorf("arguments come in pairs, name and value; %q has none", f.Arg(f.NArgs()-1))
	}
next:
	for i := 0; i < f.NArgs(); i += 2 {
		name := strings.TrimPrefix(strings.ToLower(string(f.Arg(i))), s.module.Name+".")
		for _, c := range s.module.Configs {
			if c.Name == name {
				if err := c.parse(string(f.Arg(i + 1))); err != nil {
					return fmt.Errorf("argument %s: %w", name, err)
				}
				continue next
			}
		}
		return fmt.Errorf("unknown argument %q", name)
	}
	return nil
}

// Command implements api.Handler.
func (s *Server) Command(slot int, f *api.Frame) {
	cmd := s.commands[slot]
	if n := cmd.Info.Arity; n > 0 && f.NArgs() != n || n < 0 && f.NArgs() < -n {
		f.WrongArity()
		return
	}
	c := s.ctxFor(f, cmd.kind)
	if s.door.late != nil {
		s.sendLate(c)
	}
	cmd.Run(c)
	s.pace.breathe(f.Now())
}

// Ready implements api.Handler.
func (s *Server) Ready(slot int, f *api.Frame) bool {
	cmd := s.commands[slot]
	return cmd.Ready != nil && cmd.Ready(s.ctxFor(f, aWrite))
}

// Event implements api.Handler.
func (s *Server) Event(f *api.Frame, event, sub int, a, b int64) {
	s.doorEvent(event, sub)
	e, c := &s.module.Events, s.ctxFor(f, anEvent)
	switch event {
	case api.EventFlush:
		if sub == 0 && e.Flush != nil {
			e.Flush(c, int(a))
		}
	case api.EventLoading:
		if e.Loading != nil {
			e.Loading(c, LoadPhase(sub))
		}
	case api.EventRole:
		if e.Role != nil {
			e.Role(c, sub == 1)
		}
	case api.EventLink:
		if sub == 0 && e.Following != nil {
			e.Following(c)
		}
	case api.EventFork:
		if sub == 0 && e.Fork != nil {
			e.Fork(c)
		} else if sub != 0 && e.ForkEnded != nil {
			e.ForkEnded(c)
		}
	case api.EventSwapDB:
		if e.Swap != nil {
			e.Swap(c, int(a), int(b))
		}
	case api.EventConfig:
		if e.Config != nil {
			e.Config(c)
		}
	case api.EventShutdown:
		if e.Shutdown != nil {
			e.Shutdown(c)
		}
	}
}

// KeyEvent implements api.Handler.
func (s *Server) KeyEvent(f *api.Frame, event string, key api.String) {
	if s.module.Events.Key == nil {
		return
	}
	for _, t := range s.module.Types {
		if value, held := api.KeyGet(f.Context(), key, t.handle); held == api.KeyOurs {
			s.module.Events.Key(s.ctxFor(f, anEvent), event, String{key}, t, value)
			return
		}
	}
}

// TypeLoad implements api.Handler.
func (s *Server) TypeLoad(slot int, io api.IO, encver int) unsafe.Pointer {
	t := s.module.Types[slot]
	r := &Reader{io: io}
	value, err := t.Load(r, encver)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		if value != nil {
			t.Drop(value)
		}
		api.Log(s.ctx, "warning", fmt.Sprintf("key %q: its value of type %s (encoding version %d) is refused: %v", api.IOKey(io), t.Name, encver, err))
		return nil
	}
	return value
}

// TypeUnlink implements api.Handler.
func (s *Server) TypeUnlink(slot int, value unsafe.Pointer) {
	if t := s.module.Types[slot]; t.Unlink != nil {
		t.Unlink(value)
	}
}

// TypeCopy implements api.Handler.
func (s *Server) TypeCopy(slot int, value unsafe.Pointer) unsafe.Pointer {
	return s.module.Types[slot].Copy(value)
}

// TypeAux implements api.Handler.
func (s *Server) TypeAux(slot int, io api.IO, encver int) bool {
	t := s.module.Types[slot]
	r := &Reader{io: io}
	err := errors.New("this version of the module saves none")
	if t.LoadAux != nil {
		if err = t.LoadAux(r, encver); err == nil {
			err = r.Err()
		}
	}
	if err != nil {
		api.Log(s.ctx, "warning", fmt.Sprintf("what type %s saved beside the keys (encoding version %d) is refused: %v", t.Name, encver, err))
	}
	return err == nil
}

// Info implements api.Handler.
func (s *Server) Info(info unsafe.Pointer) {
	if s.module.Info != nil {
		s.module.Info(&InfoWriter{info})
	}
}

// ConfigGet implements api.Handler.
func (s *Server) ConfigGet(slot int) int64 { return s.module.Configs[slot].num() }

// ConfigGetString implements api.Handler.
func (s *Server) ConfigGetString(slot int) api.String { return s.module.Configs[slot].text() }

// ConfigSet implements api.Handler.
func (s *Server) ConfigSet(slot int, text []byte, num int64) error {
	return s.module.Configs[slot].set(string(text), num)
}

// Panicked implements api.Handler.
func (s *Server) Panicked(value any, stack []byte) {
	s.panics++
	api.Log(s.ctx, "warning", fmt.Sprintf("panic (recovered; please report it): %v", value))
	for line := range strings.Lines(string(stack)) {
		api.Log(s.ctx, "warning", strings.TrimRight(line, "\n"))
	}
}

// Panics counts the panics recovered so far.
func (s *Server) Panics() int64 { return s.panics }

// Log writes to the server's log. Safe from any goroutine.
func (s *Server) Log(level Level, format string, args ...any) {
	api.Log(s.ctx, string(level), fmt.Sprintf(format, args...))
}

// Level is a log level of the server.
type Level string

// The server's log levels.
const (
	Debug   Level = "debug"
	Verbose Level = "verbose"
	Notice  Level = "notice"
	Warning Level = "warning"
)

// ClusterMode says whether the server runs with cluster-enabled yes.
func (s *Server) ClusterMode() bool { return api.ContextFlags(s.ctx)&api.FlagCluster != 0 }

// Replica says whether the server is a replica now.
func (s *Server) Replica() bool { return api.ContextFlags(s.ctx)&api.FlagReplica != 0 }

// MemoryRatio returns used memory divided by maxmemory; 0 without a limit. It costs some
// tens of nanoseconds and a crossing.
func (s *Server) MemoryRatio() float64 { return api.MemoryRatio() }

// WritesPaused says whether writes are paused (CLIENT PAUSE). Then a timer must not
// replicate: the server would end by an assertion.
func (s *Server) WritesPaused() bool { return api.WritesPaused() }

// AOFOfCommands says whether Methods.AuxRewrite writes to AOFs that are rewritten from now
// on, see [api.AOFOfCommands]. It returns what was said before.
func (s *Server) AOFOfCommands(yes bool) (before bool) { return api.AOFOfCommands(yes) }

// Call runs a command as the module and returns its reply as RESP2 text.
func (s *Server) Call(command string, args ...string) (string, error) {
	list := make([][]byte, len(args))
	for i, a := range args {
		list[i] = []byte(a)
	}
	out, err := api.Call(s.ctx, command, list...)
	return string(out), err
}

// CallStrings is [Server.Call] for commands that answer a string or an array of
// strings. An error reply is an error.
func (s *Server) CallStrings(command string, args ...string) ([]string, error) {
	reply, err := s.Call(command, args...)
	if err != nil {
		return nil, err
	}
	return replyStrings(reply)
}

// InfoField returns a field of a section of INFO; ok is false if there is none.
// rename-command doesn't affect it.
func (s *Server) InfoField(section, field string) (value string, ok bool) {
	return api.ServerInfo(s.ctx, section, field)
}

// ConfigValue returns one of the server's own parameters (CONFIG GET). It fails if the
// operator has renamed CONFIG. Then assume the worst value, or use [Server.InfoField] if
// INFO has the parameter too.
func (s *Server) ConfigValue(name string) (string, error) {
	pair, err := s.CallStrings("CONFIG", "GET", name)
	if err == nil && len(pair) != 2 {
		err = fmt.Errorf("CONFIG GET %s: unexpected reply %q", name, pair)
	}
	if err != nil {
		return "", err
	}
	return pair[1], nil
}

// replyStrings reads a reply (RESP2) that is a string or an array of strings;
// an error reply is an error.
func replyStrings(reply string) ([]string, error) {
	unexpected := fmt.Errorf("unexpected reply %.100q", reply)
	head, rest, ok := strings.Cut(reply, "\r\n")
	if !ok || head == "" {
		return nil, unexpected
	}
	count := 1
	switch head[0] {
	case '-':
		return nil, errors.New(head[1:])
	case '+':
		return []string{head[1:]}, nil
	case '*':
		n, err := strconv.Atoi(head[1:])
		if err != nil {
			return nil, unexpected
		}
		count = n
	default:
		rest = reply
	}
	var out []string
	for range count {
		head, body, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.Atoi(strings.TrimPrefix(head, "$"))
		if err != nil || !strings.HasPrefix(head, "$") || n < 0 || n+2 > len(body) {
			return nil, unexpected
		}
		out = append(out, body[:n])
		rest = body[n+2:]
	}
	return out, nil
}

// Memory allocates the server's memory: counted in used_memory, unknown to
// Go's collector, safe to walk in a forked child. Main thread only.
type Memory struct{}

// Alloc returns size bytes, uninitialised.
func (Memory) Alloc(size int) unsafe.Pointer { return api.Alloc(size) }

// Free frees what Alloc returned; size is that of Alloc.
func (Memory) Free(p unsafe.Pointer, size int) { api.Free(p, size) }

// Free frees what [Memory] returned for the same size, after the call has returned and the
// bytes that [Ctx.Bulk] answered from it are sent.
func (c *Ctx) Free(p unsafe.Pointer, size int) { c.f.Free(p, size) }

// Post runs f on the main thread, soon: 10 µs later if the server is idle, one turn of the
// event loop later if it is busy. It is safe from any goroutine. f itself must not
// replicate (package cgo/api says why). But f may call, by [Server.Call], a command of the
// module's own that replicates.
func (s *Server) Post(f func(*Server)) {
	s.mu.Lock()
	s.posted = append(s.posted, f)
	wake := !s.awake
	s.awake = true
	s.mu.Unlock()
	// One wake-up at a time serves any number of messages.
	if wake {
		if err := api.Post(); err != nil {
			s.Log(Warning, "the event loop takes no more callbacks: %v", err)
		}
	}
}

// Posted implements api.Handler.
func (s *Server) Posted() {
	s.mu.Lock()
	batch := s.posted
	s.posted, s.awake = nil, false
	s.mu.Unlock()
	for _, f := range batch {
		s.run(f)
	}
	// A server may get hardly any commands, and do all its work in posted functions.
	s.pace.breathe(time.Now().UnixMilli())
}

// Turn implements api.Handler.
func (s *Server) Turn() {
	if s.module.Events.Turn != nil {
		s.module.Events.Turn()
	}
}

// WantTurn makes the server call Events.Turn once, when this turn of the event loop is
// over.
func (s *Server) WantTurn() { api.WantTurn() }

// run calls f, so that a panic doesn't lose the rest of the batch.
func (s *Server) run(f func(*Server)) {
	defer func() {
		if r := recover(); r != nil {
			s.Panicked(r, stack())
		}
	}()
	f(s)
}

// Go runs f on a goroutine. If f panics, that is logged and counted, and the server goes
// on.
func (s *Server) Go(f func()) {
	go func() {
		defer func() {
			if r := recover(); r != nil {
				trace := stack()
				s.Post(func(s *Server) { s.Panicked(r, trace) })
			}
		}()
		f()
	}()
}
