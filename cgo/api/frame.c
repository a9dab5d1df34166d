#include "frame.h"
#include "_cgo_export.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_DEPTH = 16 };

struct pool pool;

/* Calls nest (a command may call a command), so each level has a frame of its own. The
 * frames are kept for the life of the process. Only the main thread uses them. */
static struct frame *frames[MAX_DEPTH];
static int depth;

struct frame *frame_new(void) {
    struct frame *f = redis.Calloc(1, sizeof *f);
    f->opcap = 64;
    f->ops = redis.Alloc(f->opcap * sizeof *f->ops);
    f->textcap = 512;
    f->text = redis.Alloc(f->textcap);
    return f;
}

void frame_free(struct frame *f) {
    redis.Free(f->args);
    redis.Free(f->ops);
    redis.Free(f->text);
    redis.Free(f);
}

/* frame_grow_* make room for n more. They return 0 if the size would overflow. */
int frame_grow_ops(struct frame *f, uint32_t n) {
    uint64_t want = (uint64_t)f->nops + n, cap = f->opcap;
    while (cap < want) cap *= 2;
    if (cap > UINT32_MAX) return 0;
    f->ops = redis.Realloc(f->ops, cap * sizeof *f->ops);
    f->opcap = (uint32_t)cap;
    return 1;
}

int frame_grow_text(struct frame *f, uint32_t n) {
    uint64_t want = (uint64_t)f->ntext + n, cap = f->textcap;
    while (cap < want) cap *= 2;
    if (cap > UINT32_MAX) return 0;
    f->text = redis.Realloc(f->text, cap);
    f->textcap = (uint32_t)cap;
    return 1;
}

/* The time of this turn of the event loop. It is 0 until it is asked for, and always 0
 * if the server doesn't tell when a turn begins. */
static int64_t turn_ms;
static int turn_known;

/* If the server offers no cached time, the kernel's coarse clock is used. It is a tick
 * behind at most, and several times cheaper than the exact one. */
static int64_t now_ms(void) {
    if (redis.CachedMicroseconds) return redis.CachedMicroseconds() / 1000;
    if (turn_ms) return turn_ms;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    int64_t ms = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    if (turn_known) turn_ms = ms;
    return ms;
}

int64_t frame_now(void) { return now_ms(); }

void frame_turn(void) {
    turn_known = 1;
    turn_ms = 0;
}

struct frame *frame_push(RedisModuleCtx *ctx) {
    if (depth == MAX_DEPTH) return NULL;
    struct frame *f = frames[depth];
    if (!f) {
        f = frames[depth] = frame_new();
        f->depth = depth;
    }
    depth++;
    f->ctx = ctx;
    f->argc = f->db = 0;
    f->nops = f->ntext = 0;
    f->held = HOLDS_NOTHING;
    f->key = NULL;
    f->value = NULL;
    f->now = now_ms();
    return f;
}

/* Shrinks the buffers of a large reply or call, which must not stay with the frame. */
static void trim(struct frame *f) {
    if (f->opcap > 4096) {
        f->opcap = 64;
        f->ops = redis.Realloc(f->ops, f->opcap * sizeof *f->ops);
    }
    if (f->textcap > 1 << 16) {
        f->textcap = 512;
        f->text = redis.Realloc(f->text, f->textcap);
    }
    if (f->argcap > 4096) {
        redis.Free(f->args);
        f->args = NULL;
        f->argcap = 0;
    }
}

void frame_pop(struct frame *f) {
    f->nops = f->ntext = 0;
    if (f->opcap > 4096 || f->textcap > 1 << 16 || f->argcap > 4096) trim(f);
    depth--;
    if (pool.uneven[0] | pool.uneven[1]) pool_balance();
}

/* Writes to the block. Go's nil check reads a block before it writes to it, and a read
 * from a page that was never used costs a second page fault, at the write after it. */
void *fresh_block(size_t size) {
    uint64_t *p = redis.Alloc(size);
    *p = 0;
    return p;
}

static void fill_class(int k) {
    struct pool_class *c = &pool.c[k];
    while (c->n < POOL_FILL) c->block[c->n++] = fresh_block((size_t)k * 16);
}

/* Fills up a class that Go has emptied, and returns one block more: a call that needs many blocks of
 * a size crosses over once for several. */
void *pool_refill(int k) {
    fill_class(k);
    return fresh_block((size_t)k * 16);
}

/* Fills up the classes that ran low in Go, and drains those that are full, back to the
 * middle. */
void pool_balance(void) {
    for (int w = 0; w < 2; w++) {
        uint64_t bits = pool.uneven[w];
        pool.uneven[w] = 0;
        for (; bits; bits &= bits - 1) {
            int k = w * 64 + __builtin_ctzll(bits);
            struct pool_class *c = &pool.c[k];
            fill_class(k);
            while (c->n > POOL_FILL) redis.Free(c->block[--c->n]);
        }
    }
}

static const char *text_of(struct frame *f, const struct op *o) {
    return o->code == OP_BULK_TEXT ? f->text + o->v : (const char *)(intptr_t)o->v;
}

/* Gives a block back to the pool, if its class has room, or else to the server. */
static void take_back(void *p, size_t size) {
    size_t k = (size + 15) >> 4;
    if (k <= POOL_CLASSES && pool.c[k].n < POOL_FILL)
        pool.c[k].block[pool.c[k].n++] = p;
    else
        redis.Free(p);
}

static void set_key(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *type, void *value) {
    RedisModuleKey *k = redis.OpenKey(ctx, name, KEY_READ | KEY_WRITE);
    if (type) redis.ModuleTypeSetValue(k, type, value);
    else redis.DeleteKey(k);
    redis.CloseKey(k); /* tells WATCH and client-side caching */
}

static void replicate(struct frame *f, RedisModuleCtx *ctx, const struct op *o) {
    enum { FEW = 16 };
    RedisModuleString *few[FEW], **args = few;
    if (o->n > FEW) args = redis.Alloc(o->n * sizeof *args);
    for (uint32_t i = 0; i < o->n; i++) args[i] = redis.CreateString(NULL, text_of(f, o + 1 + i), o[1 + i].n);
    redis.Replicate(ctx, (const char *)(intptr_t)o->v, "v", args, (size_t)o->n);
    for (uint32_t i = 0; i < o->n; i++) redis.FreeString(NULL, args[i]);
    if (args != few) redis.Free(args);
}

struct streamed streamed;

/* They aren't inlined: else frame_play, through which each command goes, would have their stack frames. */
static void stream_op(struct frame *f, RedisModuleCtx *ctx, const struct op *o) __attribute__((noinline));
static void notify(struct frame *f, RedisModuleCtx *ctx, const struct op *o) __attribute__((noinline));

/* Adds an entry of n strings, names and values, to the stream in database 0 that key names, and makes the stream if there is none. If id is
 * 0-0, the server chooses an ID and id becomes that. With approx the stream has about most entries after that, else exactly as many; 0
 * leaves it as it is. Returns how many entries it has if some were trimmed, else 0; -1: nothing is added, since the key holds
 * something else, or the ID isn't the greatest. The caller has selected database 0. */
static int64_t stream_add(RedisModuleCtx *ctx, RedisModuleString *key, RedisStreamID *id, RedisModuleString **fields, long n, int approx, int64_t most) {
    RedisModuleKey *k = redis.OpenKey(ctx, key, KEY_READ | KEY_WRITE);
    int64_t length = -1;
    int type = redis.KeyType(k), chosen = id->ms | id->seq ? 0 : STREAM_ADD_AUTOID;
    if ((type == KEYTYPE_EMPTY || type == KEYTYPE_STREAM) && redis.StreamAdd(k, chosen, id, fields, n / 2) == REDIS_OK) {
        length = 0;
        if (most > 0 && redis.StreamTrimByLength(k, approx ? STREAM_TRIM_APPROX : 0, most) > 0) length = (int64_t)redis.ValueLength(k);
    }
    redis.CloseKey(k); /* serves XREAD BLOCK, and tells WATCH */
    return length;
}

/* Adds an entry to a stream, and replicates that by the module's own command, which nobody renames: command, subcommand, key, ID, length, fields. A
 * replica and the log's reader get the ID and the length that came of it here. */
static void stream_op(struct frame *f, RedisModuleCtx *ctx, const struct op *o) {
    enum { SUB, KEY, ID, LENGTH, FIELDS, MANY = 64 };
    const struct op *text = o + 1;
    RedisModuleString *args[MANY];
    long n = (long)o->n - 3; /* of the fields */
    int db = redis.GetSelectedDb(ctx);
    RedisStreamID id = { 0, 0 };
    char buf[48];
    if (FIELDS + n > MANY) return;
    args[KEY] = redis.CreateString(NULL, text_of(f, text + 2), text[2].n);
    for (long i = 0; i < n; i++) args[FIELDS + i] = redis.CreateString(NULL, text_of(f, text + 3 + i), text[3 + i].n);
    if (db != 0) redis.SelectDb(ctx, 0);
    int64_t length = stream_add(ctx, args[KEY], &id, args + FIELDS, n, 1, o->v);
    streamed.refused = length < 0;
    if (length < 0) {
        streamed.lost++;
    } else {
        streamed.written++;
        args[SUB] = redis.CreateString(NULL, text_of(f, text + 1), strlen(text_of(f, text + 1)));
        args[ID] = redis.CreateString(NULL, buf, (size_t)snprintf(buf, sizeof buf, "%llu-%llu", (unsigned long long)id.ms, (unsigned long long)id.seq));
        args[LENGTH] = redis.CreateString(NULL, buf, (size_t)snprintf(buf, sizeof buf, "%lld", (long long)length));
        redis.Replicate(ctx, text_of(f, text), "v", args, (size_t)(FIELDS + n));
        redis.FreeString(NULL, args[SUB]);
        redis.FreeString(NULL, args[ID]);
        redis.FreeString(NULL, args[LENGTH]);
    }
    if (db != 0) redis.SelectDb(ctx, db);
    redis.FreeString(NULL, args[KEY]);
    for (long i = 0; i < n; i++) redis.FreeString(NULL, args[FIELDS + i]);
}

/* Adds the entry of a call's arguments, from first on, as the log or the master has it. Returns 0 if it can't. */
int api_stream_apply(struct frame *f, int key, int first, uint64_t ms, uint64_t seq, int64_t length) {
    int db = redis.GetSelectedDb(f->ctx);
    RedisStreamID id = { ms, seq };
    if (db != 0) redis.SelectDb(f->ctx, 0);
    int64_t done = stream_add(f->ctx, f->argv[key], &id, f->argv + first, f->argc - first, 0, length);
    if (db != 0) redis.SelectDb(f->ctx, db);
    return done >= 0;
}

static void notify(struct frame *f, RedisModuleCtx *ctx, const struct op *o) {
    const char *event = f->text + o->n;
    RedisModuleString *key = redis.CreateString(NULL, event + strlen(event) + 1, (size_t)o->v);
    redis.NotifyKeyspaceEvent(ctx, NOTIFY_MODULE, event, key);
    redis.FreeString(NULL, key);
}

/* A call that isn't a command's has no arguments. ReplicateVerbatim would then put an
 * empty command into the AOF, at which the server's next start fails. PING changes
 * nothing if there is an AOF or a replica after all. */
static void count_change(struct frame *f, RedisModuleCtx *ctx) {
    if (f->argc > 0) redis.ReplicateVerbatim(ctx);
    else redis.Replicate(ctx, "PING", "");
}

void frame_play(struct frame *f, RedisModuleCtx *ctx) {
    const struct op *o = f->ops, *end = o + f->nops;
    f->played = 1;
    for (; o < end; o++) {
        switch (o->code) {
        case OP_ARRAY: redis.ReplyWithArray(ctx, (long)o->v); break;
        case OP_MAP: redis.ReplyWithMap(ctx, (long)o->v); break;
        case OP_INT: redis.ReplyWithLongLong(ctx, o->v); break;
        case OP_BULK:
        case OP_BULK_TEXT: redis.ReplyWithStringBuffer(ctx, text_of(f, o), o->n); break;
        case OP_PROSE: redis.ReplyWithVerbatimStringType(ctx, f->text + o->v, o->n, "txt"); break;
        case OP_SIMPLE: redis.ReplyWithSimpleString(ctx, f->text + o->v); break;
        case OP_ERROR: redis.ReplyWithError(ctx, f->text + o->v); break;
        case OP_NULL: redis.ReplyWithNull(ctx); break;
        case OP_NULL_ARRAY: redis.ReplyWithNullArray(ctx); break;
        case OP_WRONG_ARITY: redis.WrongArity(ctx); break;
        case OP_REPLICATE: replicate(f, ctx, o); o += o->n; break;
        case OP_VERBATIM: count_change(f, ctx); break;
        case OP_TOUCH: redis.SignalModifiedKey(ctx, (RedisModuleString *)(intptr_t)o->v); break;
        case OP_NOTIFY: notify(f, ctx, o); break;
        case OP_STREAM: stream_op(f, ctx, o); o += o->n; break;
        case OP_PUT: set_key(ctx, (RedisModuleString *)(intptr_t)o->v, types[o->n], (void *)(intptr_t)o[1].v); o++; break;
        case OP_REMOVE: set_key(ctx, (RedisModuleString *)(intptr_t)o->v, NULL, NULL); break;
        case OP_FREE: take_back((void *)(intptr_t)o->v, o->n); break;
        }
    }
}

void frame_play_home(struct frame *f, RedisModuleCtx *ctx) {
    int db = redis.GetSelectedDb(ctx);
    if (db != 0) redis.SelectDb(ctx, 0);
    frame_play(f, ctx);
    if (db != 0) redis.SelectDb(ctx, db);
}

struct command_key command_keys[COMMANDS];
RedisModuleType *types[TYPES];

int api_key_holds(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *t, int mode, void **value) {
    RedisModuleKey *k = redis.OpenKey(ctx, name, mode);
    *value = NULL;
    if (!k) return HOLDS_NOTHING;
    int held = HOLDS_NOTHING;
    if (redis.KeyType(k) != KEYTYPE_EMPTY) {
        held = redis.KeyType(k) == KEYTYPE_MODULE && redis.ModuleTypeGetType(k) == t ? HOLDS_OURS : HOLDS_OTHER;
        if (held == HOLDS_OURS) *value = redis.ModuleTypeGetValue(k);
    }
    redis.CloseKey(k);
    return held;
}

/* The key is opened only for reading: closing a key that was opened for writing counts
 * as a change. */
void frame_look_up(struct frame *f, RedisModuleString *key, int type) {
    f->key = key;
    f->held = api_key_holds(f->ctx, key, types[type], KEY_READ, &f->value);
}

/* Begins a command's call and lays its arguments flat. Returns NULL if calls nest too
 * deeply. */
struct frame *frame_call(RedisModuleCtx *ctx, int slot, RedisModuleString **argv, int argc) {
    struct frame *f = frame_push(ctx);
    if (!f) return NULL;
    if (argc > f->argcap) {
        f->argcap = argc < 32 ? 32 : argc;
        f->args = redis.Realloc(f->args, (size_t)f->argcap * sizeof *f->args);
    }
    f->slot = slot;
    f->argc = argc;
    f->argv = argv;
    f->db = redis.GetSelectedDb(ctx);
    for (int i = 0; i < argc; i++) f->args[i].p = redis.StringPtrLen(argv[i], &f->args[i].n);
    return f;
}

static int dispatch(int slot, RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (in_child) return REDIS_ERR;
    struct frame *f = frame_call(ctx, slot, argv, argc);
    if (!f) return redis.ReplyWithError(ctx, "ERR module commands are nested too deeply");
    struct command_key k = command_keys[slot];
    if (k.arg && k.arg < argc) frame_look_up(f, argv[k.arg], k.type);
    goCommand(slot, f);
    frame_play(f, ctx);
    frame_pop(f);
    return REDIS_OK;
}

/* The API gives a command function no argument that tells which command it serves, so
 * each slot has a function of its own. */
#define ENTRY(n) static int entry##n(RedisModuleCtx *c, RedisModuleString **v, int a) { return dispatch(0x##n, c, v, a); }
#define ROW(F, r) F(r##0) F(r##1) F(r##2) F(r##3) F(r##4) F(r##5) F(r##6) F(r##7) F(r##8) F(r##9) F(r##a) F(r##b) F(r##c) F(r##d) F(r##e) F(r##f)
#define ROWS(F) ROW(F, 0) ROW(F, 1) ROW(F, 2) ROW(F, 3) ROW(F, 4) ROW(F, 5) ROW(F, 6) ROW(F, 7)
ROWS(ENTRY)
#define NAME(n) entry##n,
static const RedisCmdFunc entries[COMMANDS] = { ROWS(NAME) };

RedisCmdFunc command_entry(int slot) {
    return slot >= 0 && slot < COMMANDS ? entries[slot] : NULL;
}
