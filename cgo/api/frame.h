/* C and Go share these structures for one call: the flattened arguments on the way in,
 * the reply and its side effects on the way out, and the pool of memory blocks. One
 * crossing into Go serves a whole command (see doc.go). */
#ifndef JOBMESH_FRAME_H
#define JOBMESH_FRAME_H

#include "redis.h"

/* Filled by RedisModule_OnLoad, constant after that. */
extern struct redis_api redis;

struct slice { const char *p; size_t n; };

/* One step of the answer. A string is either pointed to (in memory that stays valid
 * until the frame is played), or lies in the frame's text buffer at offset v. */
enum opcode {
    OP_ARRAY,      /* v elements follow */
    OP_MAP,        /* v pairs follow; an array of 2v under RESP2 */
    OP_INT,        /* v */
    OP_BULK,       /* n bytes at pointer v */
    OP_BULK_TEXT,  /* n bytes in the text buffer at v */
    OP_PROSE,      /* n bytes in the text buffer at v, for people: a verbatim string under RESP3 */
    OP_SIMPLE,     /* NUL-terminated in the text buffer at v */
    OP_ERROR,      /* likewise */
    OP_NULL,
    OP_NULL_ARRAY,
    OP_WRONG_ARITY,
    OP_REPLICATE,  /* to AOF and replicas: command name at pointer v, n OP_BULK/OP_BULK_TEXT arguments follow */
    OP_VERBATIM,   /* replicate the command as it came; without a command, or without AOF and replica, only count the change */
    OP_TOUCH,      /* key name (a RedisModuleString) at pointer v was modified: WATCH, client-side caching */
    OP_NOTIFY,     /* a keyspace event of the module's own: its name is in the text buffer at n; the key's name follows it and has v bytes */
    OP_STREAM,     /* an entry for a stream in database 0 of about v entries; n OP_BULK/OP_BULK_TEXT follow: the command that replicates
                    * it and its subcommand, both NUL-terminated, the stream's key, and the entry's fields. See stream_op */
    OP_PUT,        /* the key named v gets a value of the type in slot n: the next operation's v */
    OP_REMOVE,     /* the key named v goes */
    OP_FREE        /* free the n bytes at pointer v; earlier operations may point into them */
};

struct op { uint32_t code, n; int64_t v; };

/* What became of the entries of OP_STREAM. Go reads it. */
struct streamed {
    uint64_t written, lost;
    int refused; /* the last entry was lost, since its key holds something else */
};
extern struct streamed streamed;

struct frame {
    RedisModuleCtx *ctx;
    RedisModuleString **argv;
    struct slice *args;
    int32_t argc, argcap;
    int64_t now;              /* unix ms */
    int32_t db;
    int32_t depth;            /* nesting depth: a command may call a command */
    struct op *ops;
    uint32_t nops, opcap;
    char *text;
    uint32_t ntext, textcap;
    int32_t played;
    int32_t slot;             /* of the command */
    int32_t held;             /* what the command's key holds: enum holds */
    RedisModuleString *key;   /* that key, looked up before the call, or NULL */
    void *value;              /* that key's value, if it is of the command's type */
    RedisModuleBlockedClient *to; /* the client whose answer this is, until the server has it */
    struct frame *next, *prev;    /* in the list of such answers */
};

enum holds { HOLDS_NOTHING, HOLDS_OURS, HOLDS_OTHER };

/* Blocks of memory that C and Go pass to each other without a crossing. Go takes and
 * gives back blocks; C tops up and drains the pool after the crossing. Class k contains
 * blocks of 16k bytes. AddressSanitizer can't distinguish a block in the pool from one
 * in use, nor a block's end from its class's end. So with it the pool is there in name
 * only. */
#ifdef __SANITIZE_ADDRESS__
enum { POOL_CLASSES = 1 };
#else
enum { POOL_CLASSES = 64 };
#endif
enum { POOL_DEPTH = 32, POOL_LOW = 4, POOL_FILL = 16 };
struct pool_class { uint32_t n; void *block[POOL_DEPTH]; };
struct pool { uint64_t uneven[2]; struct pool_class c[POOL_CLASSES + 1]; };
extern struct pool pool;

/* True in a child that Redis forked: no Go may run there. */
extern int in_child;

struct frame *frame_push(RedisModuleCtx *ctx);
void frame_play(struct frame *f, RedisModuleCtx *ctx);
void frame_play_home(struct frame *f, RedisModuleCtx *ctx); /* in database 0 */
void frame_pop(struct frame *f);
struct frame *frame_new(void);
void frame_free(struct frame *f);
/* Go sets it so that C calls goTurn once, when this turn of the event loop is over. */
extern int turn_wanted, asleep;
int api_wake(void); /* the server's next sleep, or the one that it is in, ends at once */
extern int aof_of_commands; /* see AOFOfCommands */
int64_t frame_now(void); /* unix ms */
void frame_turn(void); /* a turn of the event loop begins: the clock is read again */
int frame_grow_ops(struct frame *f, uint32_t n);
int frame_grow_text(struct frame *f, uint32_t n);
void pool_balance(void);
void *fresh_block(size_t size); /* size >= 8 */
void *pool_refill(int k);

/* Command slot i's entry point, or NULL past the last. */
RedisCmdFunc command_entry(int slot);

/* The argument of a command that is the key to look up before the call (0: none), and
 * the slot of the type that its value should have. */
struct command_key { uint8_t arg, type; };
enum { COMMANDS = 128, TYPES = 4 };
extern struct command_key command_keys[COMMANDS];
extern RedisModuleType *types[TYPES];

struct frame *frame_call(RedisModuleCtx *ctx, int slot, RedisModuleString **argv, int argc);
void frame_look_up(struct frame *f, RedisModuleString *key, int type);
int api_key_holds(RedisModuleCtx *ctx, RedisModuleString *name, RedisModuleType *t, int mode, void **value);

/* Everything else that Go calls in C; the Go wrappers say what each function does. */
int api_load(RedisModuleCtx *ctx, const char *name, int version);
int api_info(RedisModuleCtx *ctx);
int api_subscribe(RedisModuleCtx *ctx);
RedisModuleType *api_create_type(RedisModuleCtx *ctx, int slot, const char *name, int encver, RedisTypeMethods *m, int unlinks, int copies);
RedisModuleBlockedClient *api_block(RedisModuleCtx *ctx, int64_t timeout);
void api_unblock(RedisModuleBlockedClient *bc, struct frame *answer);
int api_rewrite_aux(RedisModuleCtx *ctx, RedisModuleType *type);
void api_give_up(RedisModuleIO *io, void *value);
int api_stream_apply(struct frame *f, int key, int first, uint64_t ms, uint64_t seq, int64_t length);
int api_block_on_keys(struct frame *f, int first, int n, int64_t timeout);
uint64_t api_timer(RedisModuleCtx *ctx, int64_t after, uintptr_t id);
int api_config(RedisModuleCtx *ctx, int slot, int kind, const char *name, const char *text, long long num, long long min, long long max, unsigned flags);
int api_post(void);
void *api_symbol(const char *name);
int api_command_info(RedisModuleCommand *cmd, const char *summary, const char *complexity, const char *since, int arity, const char *tips, RedisKeySpec *specs, RedisCommandArg *args);
RedisModuleCallReply *api_call(RedisModuleCtx *ctx, const char *cmd, RedisModuleString **argv, size_t argc);
RedisModuleString *api_user(RedisModuleCtx *ctx);
int api_may_use(RedisModuleString *name, const char *key, size_t len, int use);
int api_caller_may_use(RedisModuleCtx *ctx, const char *key, size_t len, int use);
void api_publish(RedisModuleCtx *ctx, const char *channel, size_t channel_len, const char *message, size_t message_len);
int api_may_run(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);
int api_server_info(RedisModuleCtx *ctx, const char *section, const char *field, char *buf, size_t cap);

#endif
