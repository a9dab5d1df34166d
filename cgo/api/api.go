package api

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
// #include <stdlib.h>
// #include "frame.h"
// static void log_text(RedisModuleCtx *ctx, const char *level, const char *text) { redis.Log(ctx, level, "%s", text); }
// static void *r_alloc(size_t n) { return redis.Alloc(n); }
// static void r_free(void *p) { redis.Free(p); }
// static RedisModuleString *r_string(const char *p, size_t n) { return redis.CreateString(NULL, p, n); }
// static void r_free_string(RedisModuleString *s) { redis.FreeString(NULL, s); }
// static const char *r_string_ptr(const RedisModuleString *s, size_t *n) { return redis.StringPtrLen(s, n); }
// static int r_context_flags(RedisModuleCtx *ctx) { return redis.GetContextFlags(ctx); }
// static float r_memory_ratio(void) { return redis.GetUsedMemoryRatio(); }
// static int r_writes_paused(void) { return redis.AvoidReplicaTraffic(); }
// static unsigned long long r_client_id(RedisModuleCtx *ctx) { return redis.GetClientId(ctx); }
// static RedisModuleCtx *r_detached(RedisModuleCtx *ctx) { return redis.GetDetachedThreadSafeContext(ctx); }
// static void r_stop_timer(RedisModuleCtx *ctx, uint64_t id) { redis.StopTimer(ctx, id, NULL); }
// static int r_create_command(RedisModuleCtx *ctx, const char *name, int slot, const char *flags) {
//     RedisCmdFunc entry = command_entry(slot);
//     return entry ? redis.CreateCommand(ctx, name, entry, flags, 0, 0, 0) : REDIS_ERR;
// }
// static int r_create_container(RedisModuleCtx *ctx, const char *name, const char *flags) {
//     return redis.CreateCommand(ctx, name, NULL, flags, 0, 0, 0);
// }
// static int r_create_subcommand(RedisModuleCtx *ctx, const char *parent, const char *name, int slot, const char *flags) {
//     RedisModuleCommand *p = redis.GetCommand(ctx, parent);
//     RedisCmdFunc entry = command_entry(slot);
//     return p && entry ? redis.CreateSubcommand(p, name, entry, flags, 0, 0, 0) : REDIS_ERR;
// }
// static RedisModuleCommand *r_command(RedisModuleCtx *ctx, const char *name) { return redis.GetCommand(ctx, name); }
// static int r_category(RedisModuleCtx *ctx, const char *name) { return redis.AddACLCategory ? redis.AddACLCategory(ctx, name) : REDIS_ERR; }
// static int r_set_category(RedisModuleCommand *c, const char *name) { return redis.SetCommandACLCategories ? redis.SetCommandACLCategories(c, name) : REDIS_ERR; }
// static int r_load_configs(RedisModuleCtx *ctx) { return redis.LoadConfigs(ctx); }
// static int r_key_set(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *t, void *value) {
//     RedisModuleKey *k = redis.OpenKey(ctx, name, KEY_READ | KEY_WRITE);
//     int ok = redis.ModuleTypeSetValue(k, t, value);
//     redis.CloseKey(k);
//     return ok;
// }
// static int r_key_delete(RedisModuleCtx *ctx, RedisModuleString *name) {
//     RedisModuleKey *k = redis.OpenKey(ctx, name, KEY_READ | KEY_WRITE);
//     int ok = redis.DeleteKey(k);
//     redis.CloseKey(k);
//     return ok;
// }
// static int r_key_lives(RedisModuleCtx *ctx, RedisModuleString *name, int *expires) {
//     RedisModuleKey *k = redis.OpenKey(ctx, name, KEY_READ | KEY_NOTOUCH);
//     int lives = k && redis.KeyType(k) != KEYTYPE_EMPTY;
//     *expires = lives && redis.GetExpire(k) >= 0;
//     redis.CloseKey(k);
//     return lives;
// }
// static const char *r_reply_proto(RedisModuleCallReply *r, size_t *n) { return redis.CallReplyProto(r, n); }
// static void r_free_reply(RedisModuleCallReply *r) { redis.FreeCallReply(r); }
// static uint64_t r_load_unsigned(RedisModuleIO *io) { return redis.LoadUnsigned(io); }
// static char *r_load_bytes(RedisModuleIO *io, size_t *n) { return redis.LoadStringBuffer(io, n); }
// static int r_io_error(RedisModuleIO *io) { return redis.IsIOError(io); }
// static const RedisModuleString *r_io_key(RedisModuleIO *io) { return redis.GetKeyNameFromIO(io); }
// static void r_info_section(RedisModuleInfoCtx *c, const char *name) { redis.InfoAddSection(c, name); }
// static void r_info_int(RedisModuleInfoCtx *c, const char *name, long long v) { redis.InfoAddFieldLongLong(c, name, v); }
// static void r_info_text(RedisModuleInfoCtx *c, const char *name, const char *v) { redis.InfoAddFieldCString(c, name, v); }
import "C"

import (
	"errors"
	"unsafe"
)

// ErrRefused is the API's REDISMODULE_ERR: the server's log usually says why.
var ErrRefused = errors.New("refused by the server")

// Context is a RedisModuleCtx.
type Context = unsafe.Pointer

// String is a RedisModuleString.
type String = unsafe.Pointer

// Type is a RedisModuleType.
type Type = unsafe.Pointer

// Context flags (RedisModule_GetContextFlags) that callers ask about.
const (
	FlagLua          = C.CTX_LUA
	FlagMulti        = C.CTX_MULTI
	FlagReplica      = C.CTX_SLAVE
	FlagCluster      = C.CTX_CLUSTER
	FlagAOF          = C.CTX_AOF
	FlagReplicated   = C.CTX_REPLICATED
	FlagLoading      = C.CTX_LOADING
	FlagDenyBlocking = C.CTX_DENY_BLOCKING
	FlagRESP3        = C.CTX_RESP3
)

// Server events and their subevents, as given to [Handler.Event].
const (
	EventRole     = C.EVENT_ROLE // sub 0 now master, 1 now replica
	EventFlush    = C.EVENT_FLUSHDB
	EventLoading  = C.EVENT_LOADING // sub 0 RDB, 1 AOF, 2 replication, 3 ended, 4 failed
	EventShutdown = C.EVENT_SHUTDOWN
	EventReplica  = C.EVENT_REPLICA     // sub 0 online, 1 offline
	EventLink     = C.EVENT_MASTER_LINK // sub 0 up, 1 down
	EventSwapDB   = C.EVENT_SWAPDB
	EventFork     = C.EVENT_FORK // sub 0 born, 1 died
	EventConfig   = C.EVENT_CONFIG
)

func status(code C.int) error {
	if code != C.REDIS_OK {
		return ErrRefused
	}
	return nil
}

func ctxOf(c Context) *C.RedisModuleCtx { return (*C.RedisModuleCtx)(c) }

// cstring makes a NUL-terminated copy in C memory, to be freed with freeC.
func cstring(s string) *C.char { return C.CString(s) }

func freeC(p *C.char) { C.free(unsafe.Pointer(p)) }

// Symbol finds an API function by its name without RedisModule_, for C code of other
// packages. It returns nil if the server has no such function.
func Symbol(name string) unsafe.Pointer {
	c := cstring("RedisModule_" + name)
	defer freeC(c)
	return unsafe.Pointer(C.api_symbol(c))
}

// Load tells the server the module's name. Call it once, from [Handler.Load].
func Load(ctx Context, name string, version int) error {
	c := cstring(name)
	defer freeC(c)
	return status(C.api_load(ctxOf(ctx), c, C.int(version)))
}

// Subscribe turns on server events, key events and the INFO callback.
func Subscribe(ctx Context) error {
	if err := status(C.api_subscribe(ctxOf(ctx))); err != nil {
		return err
	}
	return status(C.api_info(ctxOf(ctx)))
}

// Detached returns a context that lives as long as the module, for timers and logs.
func Detached(ctx Context) Context { return Context(C.r_detached(ctxOf(ctx))) }

// CreateCommand registers command slot (0 to 127) under a name. A slot below
// zero makes a container: only its subcommands can be called.
func CreateCommand(ctx Context, name string, slot int, flags string) error {
	n, f := cstring(name), cstring(flags)
	defer freeC(n)
	defer freeC(f)
	if slot < 0 {
		return status(C.r_create_container(ctxOf(ctx), n, f))
	}
	return status(C.r_create_command(ctxOf(ctx), n, C.int(slot), f))
}

// SetKey makes C look up, before each call of a command, the key that argument arg names,
// for [Frame.Held]. Its value should be of the type in a slot.
func SetKey(slot, arg, typeSlot int) {
	C.command_keys[slot] = C.struct_command_key{arg: C.uint8_t(arg), _type: C.uint8_t(typeSlot)}
}

// CreateSubcommand registers a subcommand of a container.
func CreateSubcommand(ctx Context, parent, name string, slot int, flags string) error {
	p, n, f := cstring(parent), cstring(name), cstring(flags)
	defer freeC(p)
	defer freeC(n)
	defer freeC(f)
	return status(C.r_create_subcommand(ctxOf(ctx), p, n, C.int(slot), f))
}

// AddCategory makes an ACL category. It returns false if the server can't (before 7.4).
func AddCategory(ctx Context, name string) bool {
	c := cstring(name)
	defer freeC(c)
	return C.r_category(ctxOf(ctx), c) == C.REDIS_OK
}

// SetCategory puts a command ("name" or "container|sub") into ACL categories.
func SetCategory(ctx Context, command, categories string) bool {
	n, c := cstring(command), cstring(categories)
	defer freeC(n)
	defer freeC(c)
	cmd := C.r_command(ctxOf(ctx), n)
	return cmd != nil && C.r_set_category(cmd, c) == C.REDIS_OK
}

// TypeMethods are a data type's C callbacks: function pointers of the types in redis.h.
// They run in forked children and on other threads, and must not enter Go. Nil ones are
// left out.
type TypeMethods struct {
	Save, Rewrite, MemUsage, Digest, Free, FreeEffort unsafe.Pointer
	// AuxSave saves what is in no key, after all keys. If the server can (7.2), it calls
	// AuxSaveSome instead, which may save nothing.
	AuxSave, AuxSaveSome unsafe.Pointer
	// AuxRewrite writes what is in no key to a rewritten AOF that has no RDB at its head, see
	// [AOFOfCommands]. At most one type may have it; that type must have no keys.
	AuxRewrite unsafe.Pointer
}

// CreateType registers a data type (its name has exactly 9 characters) in slot 0 to 3. Its
// rdb_load callback calls [Handler.TypeLoad], for data of AuxSave [Handler.TypeAux]; with
// unlinks its unlink callback calls [Handler.TypeUnlink], with copies its copy callback
// [Handler.TypeCopy].
func CreateType(ctx Context, slot int, name string, encver int, m TypeMethods, unlinks, copies bool) (Type, error) {
	c := cstring(name)
	defer freeC(c)
	var t C.RedisTypeMethods
	*(*unsafe.Pointer)(unsafe.Pointer(&t.rdb_save)) = m.Save
	*(*unsafe.Pointer)(unsafe.Pointer(&t.aof_rewrite)) = m.Rewrite
	if m.AuxRewrite != nil {
		*(*unsafe.Pointer)(unsafe.Pointer(&t.aof_rewrite)) = m.AuxRewrite
		*(*unsafe.Pointer)(unsafe.Pointer(&t.rdb_save)) = C.api_give_up
	}
	*(*unsafe.Pointer)(unsafe.Pointer(&t.mem_usage)) = m.MemUsage
	*(*unsafe.Pointer)(unsafe.Pointer(&t.digest)) = m.Digest
	*(*unsafe.Pointer)(unsafe.Pointer(&t.free)) = m.Free
	*(*unsafe.Pointer)(unsafe.Pointer(&t.free_effort)) = m.FreeEffort
	*(*unsafe.Pointer)(unsafe.Pointer(&t.aux_save)) = m.AuxSave
	*(*unsafe.Pointer)(unsafe.Pointer(&t.aux_save2)) = m.AuxSaveSome
	flag := map[bool]C.int{true: 1}
	p := C.api_create_type(ctxOf(ctx), C.int(slot), c, C.int(encver), &t, flag[unlinks], flag[copies])
	if p == nil {
		return nil, ErrRefused
	}
	if m.AuxRewrite != nil {
		if err := status(C.api_rewrite_aux(ctxOf(ctx), p)); err != nil {
			return nil, err
		}
	}
	return Type(p), nil
}

// AOFOfCommands says whether AuxRewrite writes to AOFs that are rewritten from now on, and
// returns what was said before. Say yes only if the server is known to write them without
// an RDB at their head: a child that was told yes, and then has to write an RDB, gives up.
func AOFOfCommands(yes bool) (before bool) {
	before = C.aof_of_commands != 0
	C.aof_of_commands = 0
	if yes {
		C.aof_of_commands = 1
	}
	return before
}

// KeyHolds says what a key holds.
type KeyHolds int

// The results of [KeyGet] and [Frame.Held].
const (
	KeyEmpty KeyHolds = C.HOLDS_NOTHING
	KeyOurs  KeyHolds = C.HOLDS_OURS
	KeyOther KeyHolds = C.HOLDS_OTHER
)

// KeyGet looks a key up without touching its idle time.
func KeyGet(ctx Context, name String, t Type) (unsafe.Pointer, KeyHolds) {
	var value unsafe.Pointer
	held := C.api_key_holds(ctxOf(ctx), (*C.RedisModuleString)(name), (*C.RedisModuleType)(t), C.KEY_READ|C.KEY_NOTOUCH, &value)
	return value, KeyHolds(held)
}

// KeyLives says whether there is a key, and whether it has a time to live. If that time is
// over, this call removes the key, unless the server leaves that to its master, or does it
// later.
func KeyLives(ctx Context, name String) (lives, expires bool) {
	var e C.int
	lives = C.r_key_lives(ctxOf(ctx), (*C.RedisModuleString)(name), &e) != 0
	return lives, e != 0
}

// KeySet puts a value into a key, and replaces what was there.
func KeySet(ctx Context, name String, t Type, value unsafe.Pointer) error {
	return status(C.r_key_set(ctxOf(ctx), (*C.RedisModuleString)(name), (*C.RedisModuleType)(t), value))
}

// KeyDelete removes a key.
func KeyDelete(ctx Context, name String) error {
	return status(C.r_key_delete(ctxOf(ctx), (*C.RedisModuleString)(name)))
}

// NewString makes a RedisModuleString, to be freed with [FreeString].
func NewString(b []byte) String {
	return String(C.r_string((*C.char)(unsafe.Pointer(unsafe.SliceData(b))), C.size_t(len(b))))
}

// FreeString drops one reference to a string.
func FreeString(s String) { C.r_free_string((*C.RedisModuleString)(s)) }

// StringBytes views a string's bytes; valid as long as the string.
func StringBytes(s String) []byte {
	var n C.size_t
	p := C.r_string_ptr((*C.RedisModuleString)(s), &n)
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), int(n))
}

// ContextFlags returns the Flag bits of a context.
func ContextFlags(ctx Context) int { return int(C.r_context_flags(ctxOf(ctx))) }

// ClientID returns the calling client's ID. It is all ones while the AOF is replayed.
func ClientID(ctx Context) uint64 { return uint64(C.r_client_id(ctxOf(ctx))) }

// MemoryRatio returns used memory divided by maxmemory; 0 if there is no limit.
func MemoryRatio() float64 { return float64(C.r_memory_ratio()) }

// WritesPaused says whether writes are paused (CLIENT PAUSE): then nothing may be
// replicated.
func WritesPaused() bool { return C.r_writes_paused() != 0 }

// Log writes a line to the server's log. level: debug, verbose, notice, warning. Safe on any thread.
func Log(ctx Context, level, text string) {
	l, t := cstring(level), cstring(text)
	defer freeC(l)
	defer freeC(t)
	C.log_text(ctxOf(ctx), l, t)
}

// StartTimer makes the server call [Handler.Timer] once with id, after ms milliseconds.
func StartTimer(ctx Context, ms int64, id uintptr) uint64 {
	return uint64(C.api_timer(ctxOf(ctx), C.int64_t(max(ms, 0)), C.uintptr_t(id)))
}

// StopTimer cancels a timer that hasn't fired.
func StopTimer(ctx Context, timer uint64) { C.r_stop_timer(ctxOf(ctx), C.uint64_t(timer)) }

// WantTurn makes C call [Handler.Turn] once, when this turn of the event loop is over. The
// AOF, if there is one, is written by then.
func WantTurn() {
	if C.turn_wanted = 1; C.asleep != 0 {
		C.api_wake() // commands that run behind the report that the server is about to sleep
	}
}

// Post makes the server call [Handler.Posted] once, on the main thread. Safe on any thread.
func Post() error { return status(C.api_post()) }

// Blocked is a RedisModuleBlockedClient.
type Blocked = unsafe.Pointer

// Block suspends the calling client for at most timeout ms (0: without limit).
// Every Blocked needs exactly one [Unblock], except after [Handler.Unblocked]
// answered true for it.
func Block(ctx Context, timeout int64) Blocked {
	return Blocked(C.api_block(ctxOf(ctx), C.int64_t(timeout)))
}

// Unblock gives a blocked client its answer, a frame from [NewFrame], at the end of this turn of the event loop. From then on the
// frame belongs to the server.
func Unblock(b Blocked, answer *Frame) {
	C.api_unblock((*C.RedisModuleBlockedClient)(b), answer.c())
}

// Call runs a command as the module and returns its reply as protocol text (RESP2).
func Call(ctx Context, command string, args ...[]byte) ([]byte, error) {
	name := cstring(command)
	defer freeC(name)
	argv, free := stringList(args)
	defer free()
	reply := C.api_call(ctxOf(ctx), name, unsafe.SliceData(argv), C.size_t(len(argv)))
	if reply == nil {
		return nil, ErrRefused
	}
	var size C.size_t
	p := C.r_reply_proto(reply, &size)
	out := C.GoBytes(unsafe.Pointer(p), C.int(size))
	C.r_free_reply(reply)
	return out, nil
}

// MayRun says whether the ACL lets the user of the client that ctx serves run a command;
// true if there is no user. known says whether there is such a command.
func MayRun(ctx Context, command ...[]byte) (may, known bool) {
	argv, free := stringList(command)
	defer free()
	r := C.api_may_run(ctxOf(ctx), unsafe.SliceData(argv), C.int(len(argv)))
	return r > 0, r >= 0
}

// KeyUse says what is done to a key, for [UserMay] and [CallerMay].
type KeyUse int

// Uses of a key.
const (
	UseRead  KeyUse = 1 << 4
	UseWrite KeyUse = 1 << 5
)

// User returns the name of the user of the client that ctx serves; free it with
// [FreeString]. Nil: there is no user.
func User(ctx Context) String { return String(C.api_user(ctxOf(ctx))) }

// UserMay says whether the ACL lets a user use a key; with key nil, whether it may use all
// keys. False if the user no longer exists.
func UserMay(user String, key []byte, use KeyUse) bool {
	return C.api_may_use((*C.RedisModuleString)(user), (*C.char)(unsafe.Pointer(unsafe.SliceData(key))), C.size_t(len(key)), C.int(use)) != 0
}

// CallerMay is [UserMay] for the user of the client that ctx serves; true if there is no
// user.
func CallerMay(ctx Context, key []byte, use KeyUse) bool {
	return C.api_caller_may_use(ctxOf(ctx), (*C.char)(unsafe.Pointer(unsafe.SliceData(key))), C.size_t(len(key)), C.int(use)) != 0
}

// Publish publishes a message in a channel, to this server's subscribers alone: the server doesn't tell its replicas.
func Publish(ctx Context, channel, message []byte) {
	C.api_publish(ctxOf(ctx), (*C.char)(unsafe.Pointer(unsafe.SliceData(channel))), C.size_t(len(channel)), (*C.char)(unsafe.Pointer(unsafe.SliceData(message))), C.size_t(len(message)))
}

// stringList makes an array of strings in C memory.
func stringList(args [][]byte) (list []*C.RedisModuleString, free func()) {
	n := len(args)
	list = (*[1 << 20]*C.RedisModuleString)(C.r_alloc(C.size_t(max(n, 1)) * C.size_t(unsafe.Sizeof(uintptr(0)))))[:n:n]
	for i, a := range args {
		list[i] = (*C.RedisModuleString)(NewString(a))
	}
	return list, func() {
		for _, s := range list {
			FreeString(String(s))
		}
		C.r_free(unsafe.Pointer(unsafe.SliceData(list)))
	}
}

// ServerInfo returns one field of a section of INFO; ok is false if there is no such field.
func ServerInfo(ctx Context, section, field string) (string, bool) {
	s, f := cstring(section), cstring(field)
	defer freeC(s)
	defer freeC(f)
	var buf [256]C.char
	n := C.api_server_info(ctxOf(ctx), s, f, &buf[0], C.size_t(len(buf)))
	if n < 0 {
		return "", false
	}
	return C.GoStringN(&buf[0], n), true
}

// ConfigKind is a configuration parameter's type.
type ConfigKind int

// The kinds of configuration parameter.
const (
	ConfigBool ConfigKind = iota
	ConfigNumeric
	ConfigString
)

// RegisterConfig registers a parameter. num is the default of a bool or numeric one. A
// secret parameter isn't shown in answers to patterns, in the log, or by MONITOR.
func RegisterConfig(ctx Context, slot int, kind ConfigKind, name, text string, num, lo, hi int64, immutable, secret bool) error {
	n, t := cstring(name), cstring(text)
	defer freeC(n)
	defer freeC(t)
	var flags C.uint
	if immutable {
		flags = C.CONFIG_IMMUTABLE
	}
	if secret {
		flags |= C.CONFIG_SENSITIVE | C.CONFIG_HIDDEN
	}
	return status(C.api_config(ctxOf(ctx), C.int(slot), C.int(kind), n, t, C.longlong(num), C.longlong(lo), C.longlong(hi), flags))
}

// LoadConfigs applies redis.conf's lines to the registered parameters.
func LoadConfigs(ctx Context) error { return status(C.r_load_configs(ctxOf(ctx))) }

// IO is a RedisModuleIO: an RDB being read.
type IO = unsafe.Pointer

// LoadUnsigned reads a number; 0 after an error, see [IOError].
func LoadUnsigned(io IO) uint64 { return uint64(C.r_load_unsigned((*C.RedisModuleIO)(io))) }

// LoadBytes reads a string into the server's memory; free it with [FreeRaw]. Nil after an
// error.
func LoadBytes(io IO) []byte {
	var n C.size_t
	p := C.r_load_bytes((*C.RedisModuleIO)(io), &n)
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), int(n))
}

// IOError says whether reading has failed.
func IOError(io IO) bool { return C.r_io_error((*C.RedisModuleIO)(io)) != 0 }

// IOKey returns the name of the key that is being read, nil if it isn't known.
func IOKey(io IO) []byte {
	s := C.r_io_key((*C.RedisModuleIO)(io))
	if s == nil {
		return nil
	}
	return StringBytes(String(s))
}

// InfoSection starts a section of INFO; the server puts the module's name before it.
func InfoSection(info unsafe.Pointer, name string) {
	n := cstring(name)
	defer freeC(n)
	C.r_info_section((*C.RedisModuleInfoCtx)(info), n)
}

// InfoInt adds a number to the section.
func InfoInt(info unsafe.Pointer, name string, v int64) {
	n := cstring(name)
	defer freeC(n)
	C.r_info_int((*C.RedisModuleInfoCtx)(info), n, C.longlong(v))
}

// InfoText adds a text to the section.
func InfoText(info unsafe.Pointer, name, v string) {
	n, t := cstring(name), cstring(v)
	defer freeC(n)
	defer freeC(t)
	C.r_info_text((*C.RedisModuleInfoCtx)(info), n, t)
}
