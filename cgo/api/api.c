#include "frame.h"
#include "_cgo_export.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct redis_api redis;
int in_child;

/* The server's look-up function; it stays valid after OnLoad. */
static int (*lookup)(const char *, void *);

static void forked(void) { in_child = 1; }

/* Resolves the API table. Returns how many required functions are missing, and writes
 * their names into missing. */
static int resolve(RedisModuleCtx *ctx, char *missing, size_t cap) {
    lookup = (int (*)(const char *, void *))(uintptr_t)((void **)ctx)[0];
    int lost = 0;
    size_t at = 0;
    missing[0] = 0;
#define REQUIRE(result, name, params) \
    if (lookup("RedisModule_" #name, &redis.name) != REDIS_OK || !redis.name) { \
        lost++; \
        int n = snprintf(missing + at, cap - at, "%s%s", at ? ", " : "", #name); \
        if (n > 0 && (size_t)n < cap - at) at += (size_t)n; \
    }
    REDIS_REQUIRED(REQUIRE)
#define TRY(result, name, params) if (lookup("RedisModule_" #name, &redis.name) != REDIS_OK) redis.name = NULL;
    REDIS_OPTIONAL(TRY)
    return lost;
}

__attribute__((visibility("default")))
int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    char missing[1024];
    int lost = resolve(ctx, missing, sizeof missing);
    if (lost) {
        /* Before SetModuleAttribs there is no module to log for, so the context is
         * NULL. */
        if (redis.Log)
            redis.Log(NULL, "warning", "jobmesh: this server lacks %d function(s) of the modules API that are needed: %s. Use Redis 7.0 or newer, or Valkey 8 or newer.", lost, missing);
        else
            fprintf(stderr, "jobmesh: this server's modules API is too old. Use Redis 7.0 or newer, or Valkey 8 or newer.\n");
        return REDIS_ERR;
    }
    struct frame *f = frame_push(ctx);
    f->args = redis.Realloc(f->args, ((size_t)argc + 1) * sizeof *f->args);
    f->argcap = argc + 1;
    f->argc = argc;
    f->argv = argv;
    for (int i = 0; i < argc; i++) f->args[i].p = redis.StringPtrLen(argv[i], &f->args[i].n);
    int status = goLoad(f);
    frame_pop(f);
    return status;
}

void *api_symbol(const char *name) {
    void *f = NULL;
    return lookup(name, &f) == REDIS_OK ? f : NULL;
}

int api_load(RedisModuleCtx *ctx, const char *name, int version) {
    if (redis.IsModuleNameBusy(name)) return REDIS_ERR;
    redis.SetModuleAttribs(ctx, name, version, REDIS_API_VERSION);
    redis.SetModuleOptions(ctx, OPTION_HANDLE_IO_ERRORS);
    return pthread_atfork(NULL, NULL, forked) == 0 ? REDIS_OK : REDIS_ERR;
}

/* --- events ------------------------------------------------------------- */

static void on_event(RedisModuleCtx *ctx, RedisModuleEvent e, uint64_t sub, void *data) {
    if (in_child) return;
    /* Some events, as loading, take long and are not part of a turn. */
    frame_turn();
    int64_t a = 0, b = 0;
    if (e.id == EVENT_FLUSHDB && data) a = ((RedisFlushInfo *)data)->dbnum;
    if (e.id == EVENT_SWAPDB && data) {
        a = ((RedisSwapInfo *)data)->first;
        b = ((RedisSwapInfo *)data)->second;
    }
    struct frame *f = frame_push(ctx);
    if (!f) return;
    goEvent(f, (int)e.id, (int)sub, a, b);
    frame_play(f, ctx);
    frame_pop(f);
}

int turn_wanted;

static void on_woken(void *unused) { (void)unused; }

int api_wake(void) { return redis.EventLoopAddOneShot(on_woken, NULL); }

/* Answers to blocked clients wait here for the end of the turn, the oldest first. Redis 7.0 never answers a client that CLIENT UNBLOCK
 * names after UnblockClient and before the server comes to the unblocked clients, which it does just after the first report of on_turn.
 * Then it carries out what these clients have sent besides, before it sleeps: an answer that comes then ends the sleep at once. */
static struct frame *answers, *last_answer;
int asleep;

static void hand_over(struct frame *answer) {
    RedisModuleBlockedClient *to = answer->to;
    *(answer->prev ? &answer->prev->next : &answers) = answer->next;
    *(answer->next ? &answer->next->prev : &last_answer) = answer->prev;
    answer->to = NULL;
    redis.UnblockClient(to, answer);
}

void api_unblock(RedisModuleBlockedClient *bc, struct frame *answer) {
    answer->to = bc;
    answer->next = NULL;
    answer->prev = last_answer;
    *(last_answer ? &last_answer->next : &answers) = answer;
    last_answer = answer;
    if (asleep) api_wake();
}

/* The server reports that it is about to sleep before it writes the AOF. It has written
 * the AOF when it reports that it has slept. So with an AOF the turn ends at the second
 * report, and the one-shot callback makes the sleep end at once. */
static void on_turn(RedisModuleCtx *ctx, RedisModuleEvent e, uint64_t sub, void *data) {
    static int due;
    (void)e;
    (void)data;
    if (in_child) return;
    asleep = sub != AFTER_SLEEP;
    if (sub == AFTER_SLEEP) {
        frame_turn();
        if (!due) return;
        due = 0;
        goTurn();
    } else if (turn_wanted) {
        turn_wanted = 0;
        if (redis.GetContextFlags(ctx) & CTX_AOF) {
            due = 1;
            api_wake();
        } else {
            goTurn();
        }
    }
    while (sub != AFTER_SLEEP && answers) hand_over(answers);
}

/* A key, of this module's types or another, may have a new name or a time to live. */
static void key_came(RedisModuleCtx *ctx, const char *event, RedisModuleString *key, int db) {
    struct frame *f = frame_push(ctx);
    if (!f) return;
    f->db = db;
    /* While an RDB is loaded, the name lies on the server's stack. The server aborts if
     * anybody retains it, as OpenKey does. */
    size_t n;
    const char *p = redis.StringPtrLen(key, &n);
    RedisModuleString *name = redis.CreateString(NULL, p, n);
    goKeyEvent(f, (char *)event, name);
    redis.FreeString(NULL, name);
    frame_play(f, ctx);
    frame_pop(f);
}

/* The value of a key, if it is of one of this module's types. Redis 7.0 counts this
 * look as a hit. */
static void *value_at(RedisModuleCtx *ctx, RedisModuleString *key) {
    RedisModuleKey *k = redis.OpenKey(ctx, key, KEY_READ | KEY_NOTOUCH | KEY_NOSTATS);
    void *value = NULL;
    if (k && redis.KeyType(k) == KEYTYPE_MODULE) {
        RedisModuleType *t = redis.ModuleTypeGetType(k);
        for (int i = 0; i < TYPES; i++)
            if (t == types[i]) value = redis.ModuleTypeGetValue(k);
    }
    redis.CloseKey(k);
    return value;
}

/* The database that a key was moved to from another one. In a transaction of Valkey
 * 9.1.2 the target is selected, but GetSelectedDb returns the client's database. */
static int moved_to(RedisModuleCtx *ctx, RedisModuleString *key, int from) {
    int named = redis.GetSelectedDb(ctx);
    if (named != from) return named;
    void *value = value_at(ctx, key);
    for (int db = 0; value && redis.SelectDb(ctx, db) == REDIS_OK; db++)
        if (db != from && value_at(ctx, key) == value) return db;
    return named;
}

static int on_key(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    static int left; /* the database that MOVE takes its key from */
    (void)type;
    if (in_child) return REDIS_OK;
    /* Every DEL, EXPIRE and RENAME of the server comes here. Only the few that concern
     * a data type cross into Go. */
    if (strcmp(event, "loaded") == 0 || strcmp(event, "restore") == 0 || strcmp(event, "rename_to") == 0) {
        key_came(ctx, event, key, redis.GetSelectedDb(ctx));
    } else if (strcmp(event, "expire") == 0) {
        if (value_at(ctx, key)) key_came(ctx, event, key, redis.GetSelectedDb(ctx));
    } else if (strcmp(event, "move_from") == 0) {
        left = redis.GetSelectedDb(ctx);
    } else if (strcmp(event, "move_to") == 0) {
        key_came(ctx, event, key, moved_to(ctx, key, left));
        /* Some releases of Valkey 8.1 and 9 pass the client itself, with the target
         * selected, and leave that selected: the client would go on in the target, and
         * MOVE would be replicated as if it had come from there. */
        redis.SelectDb(ctx, left);
    }
    return REDIS_OK;
}

int api_subscribe(RedisModuleCtx *ctx) {
    static const uint64_t wanted[] = { EVENT_ROLE, EVENT_FLUSHDB, EVENT_LOADING, EVENT_SHUTDOWN, EVENT_REPLICA, EVENT_MASTER_LINK, EVENT_SWAPDB, EVENT_FORK };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (redis.SubscribeToServerEvent(ctx, (RedisModuleEvent){ wanted[i], 1 }, on_event) != REDIS_OK) return REDIS_ERR;
    if (redis.SubscribeToServerEvent(ctx, (RedisModuleEvent){ EVENT_EVENTLOOP, 1 }, on_turn) != REDIS_OK) return REDIS_ERR;
    /* Some 7.0 releases don't know this event. Then a changed policy is noticed only at
     * the next timer. */
    redis.SubscribeToServerEvent(ctx, (RedisModuleEvent){ EVENT_CONFIG, 1 }, on_event);
    return redis.SubscribeToKeyspaceEvents(ctx, NOTIFY_GENERIC | NOTIFY_LOADED, on_key);
}

/* One alarm serves all timers that are due. Each gets a frame of its own, because
 * memory that a frame points to must not change before it is played. */
static void on_timer(RedisModuleCtx *ctx, void *id) {
    if (in_child) return;
    for (int more = 1; more;) {
        struct frame *f = frame_push(ctx);
        if (!f) return;
        more = goTimer(f, (uintptr_t)id);
        frame_play(f, ctx);
        frame_pop(f);
    }
}

uint64_t api_timer(RedisModuleCtx *ctx, int64_t after, uintptr_t id) {
    return redis.CreateTimer(ctx, after, on_timer, (void *)id);
}

static void on_post(void *unused) {
    (void)unused;
    if (in_child) return;
    goPosted();
}

int api_post(void) { return redis.EventLoopAddOneShot(on_post, NULL); }

static void on_info(RedisModuleInfoCtx *ctx, int crash) {
    /* After a crash no Go code can be trusted to run. */
    if (crash || in_child) return;
    goInfo(ctx);
}

/* --- blocked clients ----------------------------------------------------- */

static int on_reply(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    struct frame *f = redis.GetBlockedClientPrivateData(ctx);
    if (f) frame_play(f, ctx);
    return REDIS_OK;
}

/* A client was unblocked, or is gone, that has waited until now (its answer is the frame f of this call), or whose answer is on its way. */
static void unblocked(struct frame *f, struct frame *answer, RedisModuleBlockedClient *bc) {
    frame_pop(f);
    if (answer == f) redis.UnblockClient(bc, NULL);
    else if (answer->to) hand_over(answer);
}

static int on_timeout(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    RedisModuleBlockedClient *bc = redis.GetBlockedClientHandle(ctx);
    struct frame *f = frame_push(ctx);
    if (!f) return redis.ReplyWithNull(ctx);
    struct frame *answer = goUnblocked(f, bc, 0);
    frame_play(answer, ctx);
    unblocked(f, answer, bc);
    return REDIS_OK;
}

static void on_disconnect(RedisModuleCtx *ctx, RedisModuleBlockedClient *bc) {
    struct frame *f = frame_push(ctx);
    if (!f) return;
    unblocked(f, goUnblocked(f, bc, 1), bc);
}

static void on_free_privdata(RedisModuleCtx *ctx, void *data) {
    (void)ctx;
    struct frame *answer = data;
    goAnswered(answer, answer->played);
    frame_free(answer);
}

RedisModuleBlockedClient *api_block(RedisModuleCtx *ctx, int64_t timeout) {
    RedisModuleBlockedClient *bc = redis.BlockClient(ctx, on_reply, on_timeout, on_free_privdata, timeout);
    if (bc) redis.SetDisconnectCallback(bc, on_disconnect);
    return bc;
}

/* --- clients that wait for keys ------------------------------------------ */

/* A key that the client waits for holds something now. The private data is the
 * command's slot plus 1. Without an answer the client goes on waiting. */
static int on_ready(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (in_child) return REDIS_ERR;
    int slot = (int)(intptr_t)redis.GetBlockedClientPrivateData(ctx) - 1;
    struct frame *f = frame_call(ctx, slot, argv, argc);
    if (!f) return REDIS_ERR;
    frame_look_up(f, redis.GetBlockedClientReadyKey(ctx), command_keys[slot].type);
    int served = goReady(slot, f);
    if (served) frame_play(f, ctx);
    frame_pop(f);
    return served ? REDIS_OK : REDIS_ERR;
}

static int on_waited(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    (void)argc;
    return redis.ReplyWithNullArray(ctx);
}

int api_block_on_keys(struct frame *f, int first, int n, int64_t timeout) {
    return redis.BlockClientOnKeys(f->ctx, on_ready, on_waited, NULL, timeout, f->argv + first, n, (void *)(intptr_t)(f->slot + 1)) != NULL;
}

/* --- data types ---------------------------------------------------------- */

/* As with commands, the callbacks aren't told which type they serve. */
#define TYPE_SLOT(n) \
    static void *load##n(RedisModuleIO *io, int encver) { return goTypeLoad(n, io, encver); } \
    static void unlink##n(RedisModuleString *key, const void *value) { (void)key; if (!in_child) goTypeUnlink(n, (void *)value); } \
    static void *copy##n(RedisModuleString *from, RedisModuleString *to, const void *value) { (void)from; (void)to; return goTypeCopy(n, (void *)value); } \
    static int aux##n(RedisModuleIO *io, int encver, int when) { (void)when; return goTypeAux(n, io, encver); }
TYPE_SLOT(0) TYPE_SLOT(1) TYPE_SLOT(2) TYPE_SLOT(3)

RedisModuleType *api_create_type(RedisModuleCtx *ctx, int slot, const char *name, int encver, RedisTypeMethods *m, int unlinks, int copies) {
    static void *(*const loads[])(RedisModuleIO *, int) = { load0, load1, load2, load3 };
    static void (*const unlink[])(RedisModuleString *, const void *) = { unlink0, unlink1, unlink2, unlink3 };
    static void *(*const copy[])(RedisModuleString *, RedisModuleString *, const void *) = { copy0, copy1, copy2, copy3 };
    static int (*const aux[])(RedisModuleIO *, int, int) = { aux0, aux1, aux2, aux3 };
    if (slot < 0 || slot >= TYPES) return NULL;
    m->version = REDIS_TYPE_METHODS_VERSION;
    m->rdb_load = loads[slot];
    if (unlinks) m->unlink = unlink[slot];
    if (copies) m->copy = copy[slot];
    if (m->aux_save) {
        m->aux_load = aux[slot];
        m->aux_save_triggers = AUX_AFTER_RDB;
    }
    return types[slot] = redis.CreateDataType(ctx, name, encver, m);
}

/* --- data in no key, in an AOF of commands --------------------------------- */

int aof_of_commands;
static RedisModuleType *keyless;

/* For an AOF of commands the server calls only the rewrite callbacks of keys' values.
 * So the child that writes the AOF makes a key, which exists only in the child. */
static void on_saving(RedisModuleCtx *ctx, RedisModuleEvent e, uint64_t sub, void *data) {
    (void)e;
    (void)data;
    if (!in_child || sub != AOF_START || !aof_of_commands) return;
    redis.SelectDb(ctx, 0);
    for (int i = 0;; i++) {
        char name[32];
        int n = snprintf(name, sizeof name, "in no key %d", i);
        RedisModuleString *s = redis.CreateString(NULL, name, (size_t)n);
        RedisModuleKey *k = redis.OpenKey(ctx, s, KEY_WRITE);
        int free = k && redis.KeyType(k) == KEYTYPE_EMPTY; /* otherwise it is a user's key */
        if (free && redis.ModuleTypeSetValue(k, keyless, &keyless) != REDIS_OK) _exit(1);
        redis.CloseKey(k);
        redis.FreeString(NULL, s);
        if (free) return;
    }
}

int api_rewrite_aux(RedisModuleCtx *ctx, RedisModuleType *type) {
    keyless = type;
    return redis.SubscribeToServerEvent(ctx, (RedisModuleEvent){ EVENT_PERSISTENCE, 1 }, on_saving);
}

/* The child writes an RDB after all, which must not contain the child's key. The parent
 * takes the exit for a failed rewrite. */
void api_give_up(RedisModuleIO *io, void *value) {
    (void)io;
    (void)value;
    _exit(1);
}

/* --- configuration ------------------------------------------------------- */

static RedisModuleString *get_string(const char *name, void *slot) { (void)name; return goConfigGetString((int)(intptr_t)slot); }
static long long get_numeric(const char *name, void *slot) { (void)name; return goConfigGet((int)(intptr_t)slot); }
static int get_bool(const char *name, void *slot) { (void)name; return (int)goConfigGet((int)(intptr_t)slot); }
static int set_string(const char *name, RedisModuleString *v, void *slot, RedisModuleString **err) {
    (void)name;
    size_t n;
    const char *p = redis.StringPtrLen(v, &n);
    return goConfigSet((int)(intptr_t)slot, (char *)p, n, 0, err);
}
static int set_numeric(const char *name, long long v, void *slot, RedisModuleString **err) { (void)name; return goConfigSet((int)(intptr_t)slot, NULL, 0, v, err); }
static int set_bool(const char *name, int v, void *slot, RedisModuleString **err) { (void)name; return goConfigSet((int)(intptr_t)slot, NULL, 0, v, err); }

int api_config(RedisModuleCtx *ctx, int slot, int kind, const char *name, const char *text, long long num, long long min, long long max, unsigned flags) {
    void *data = (void *)(intptr_t)slot;
    switch (kind) {
    case 0: return redis.RegisterBoolConfig(ctx, name, (int)num, flags, get_bool, set_bool, NULL, data);
    case 1: return redis.RegisterNumericConfig(ctx, name, num, flags, min, max, get_numeric, set_numeric, NULL, data);
    default: return redis.RegisterStringConfig(ctx, name, text, flags, get_string, set_string, NULL, data);
    }
}

/* --- the rest ------------------------------------------------------------ */

int api_info(RedisModuleCtx *ctx) { return redis.RegisterInfoFunc(ctx, on_info); }

int api_command_info(RedisModuleCommand *cmd, const char *summary, const char *complexity, const char *since, int arity, const char *tips, RedisKeySpec *specs, RedisCommandArg *args) {
    static const RedisCommandInfoVersion version = { 1, sizeof(RedisCommandHistory), sizeof(RedisKeySpec), sizeof(RedisCommandArg) };
    RedisCommandInfo info = { &version, summary, complexity, since, NULL, tips, arity, specs, args };
    return redis.SetCommandInfo(cmd, &info);
}

RedisModuleCallReply *api_call(RedisModuleCtx *ctx, const char *cmd, RedisModuleString **argv, size_t argc) {
    return redis.Call(ctx, cmd, "v", argv, argc);
}

/* The name of the client's user; the caller frees it. NULL for the AOF, a master, and a
 * module that calls for itself: they have no user, and may do everything. Asking for a
 * name then would crash some servers. So a call as the user, of no command, finds out
 * first. */
RedisModuleString *api_user(RedisModuleCtx *ctx) {
    errno = 0;
    RedisModuleCallReply *none = redis.Call(ctx, "", "C");
    if (none) redis.FreeCallReply(none);
    else if (errno == ENOTSUP) return NULL;
    return redis.GetCurrentUserName(ctx);
}

/* Whether a user may use a key; without a key, whether it may use all keys. */
int api_may_use(RedisModuleString *name, const char *key, size_t len, int use) {
    RedisModuleUser *user = redis.GetModuleUserFromUserName(name);
    if (!user) return 0;
    int ok = 0;
    if (key) {
        RedisModuleString *k = redis.CreateString(NULL, key, len);
        ok = redis.ACLCheckKeyPermissions(user, k, use) == REDIS_OK;
        redis.FreeString(NULL, k);
    } else if (redis.GetModuleUserACLString) {
        /* Words in parentheses are a selector, which gives its keys to some commands
         * only. */
        RedisModuleString *rules = redis.GetModuleUserACLString(user);
        size_t n;
        const char *p = redis.StringPtrLen(rules, &n), *all = strstr(p, " ~* "), *selector = strchr(p, '(');
        ok = all && (!selector || all < selector);
        redis.FreeString(NULL, rules);
    }
    redis.FreeModuleUser(user);
    return ok;
}

/* api_may_use for the client's user. */
int api_caller_may_use(RedisModuleCtx *ctx, const char *key, size_t len, int use) {
    RedisModuleString *name = api_user(ctx);
    if (!name) return 1;
    int ok = api_may_use(name, key, len, use);
    redis.FreeString(ctx, name);
    return ok;
}

/* Whether the client's user may run a command, judged by the command's name: 1 or 0;
 * -1: there is no such command. */
int api_may_run(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    RedisModuleString *name = api_user(ctx);
    if (!name) return 1;
    RedisModuleUser *user = redis.GetModuleUserFromUserName(name);
    redis.FreeString(ctx, name);
    if (!user) return 0;
    /* Newer servers require as many arguments as the command needs. */
    enum { PADDED = 8 };
    RedisModuleString *args[PADDED];
    int ok = 0;
    for (int n = 0; n < PADDED && !ok; n++) {
        args[n] = argv[n < argc ? n : argc - 1];
        if (n + 1 < argc) continue;
        errno = 0;
        ok = redis.ACLCheckCommandPermissions(user, args, n + 1) == REDIS_OK;
        if (!ok && errno == ENOENT) ok = -1;
        if (errno == EACCES || errno == ENOENT) break;
    }
    redis.FreeModuleUser(user);
    return ok;
}

/* Publishes a message in a channel, to this server's subscribers. */
void api_publish(RedisModuleCtx *ctx, const char *channel, size_t channel_len, const char *message, size_t message_len) {
    RedisModuleString *c = redis.CreateString(NULL, channel, channel_len), *m = redis.CreateString(NULL, message, message_len);
    redis.PublishMessage(ctx, c, m);
    redis.FreeString(NULL, c);
    redis.FreeString(NULL, m);
}

/* Copies one field of INFO. Returns its length, -1 if there is no such field. */
int api_server_info(RedisModuleCtx *ctx, const char *section, const char *field, char *buf, size_t cap) {
    RedisModuleServerInfoData *d = redis.GetServerInfo(ctx, section);
    const char *v = redis.ServerInfoGetFieldC(d, field);
    int n = -1;
    if (v) n = snprintf(buf, cap, "%s", v);
    redis.FreeServerInfo(ctx, d);
    return n < (int)cap ? n : (int)cap - 1;
}
