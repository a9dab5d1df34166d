/* A job and a queue as they lie in Redis' memory. package module/store has the same
 * structures in Go, and writes them; C only walks and frees them. Little endian, 64
 * bit. */
#ifndef JOBMESH_RECORD_H
#define JOBMESH_RECORD_H

#include <stddef.h>
#include <stdint.h>

typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleDigest RedisModuleDigest;

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "jobmesh saves its structures as they lie: it needs a little-endian 64-bit machine"
#endif

struct jm_queue;

struct jm_job {
    struct jm_job *hash_next;
    struct jm_job *next, *prev;
    struct jm_job *timer_next, **timer_prev;
    struct jm_queue *queue;
    /* From here to the end of the body: the record. */
    uint8_t format, state, flags, place;
    uint32_t body_len;
    uint8_t id[24];
    uint64_t ctime;
    int64_t qtime, etime;
    uint32_t retry, delay;
    uint16_t repl, nacks, deliveries, parts;
    uint8_t body[];
};

struct jm_skip_node {
    struct jm_job *job;
    uint32_t level, unused;
    struct jm_skip_node *next[];
};

enum { JM_LEVELS = 10 };

/* A list without order, and one in order, with a skip list over it. */
struct jm_jobs {
    struct jm_job *head, *tail;
    uint64_t len;
};

struct jm_list {
    struct jm_job *head, *tail;
    uint64_t len;
    struct jm_skip_node *index[JM_LEVELS], *index_tail[JM_LEVELS];
};

/* A per-key queue: the waiting jobs of one key. All but one of them are held back, in
 * the list. More may follow the name. */
struct jm_key_queue {
    struct jm_key_queue *hash_next;
    struct jm_key_queue *next, *prev;
    struct jm_queue *queue;
    uint64_t hash;
    struct jm_list *list;
    uint8_t front[24];
    uint64_t front_time;
    uint32_t name_len;
    uint8_t has_front, needs_promotion;
    uint16_t unused;
    char name[];
};

struct jm_queue {
    struct jm_queue *hash_next;
    uint64_t hash;
    int32_t db;
    uint32_t waiters;
    uint8_t pause, flags, state, ever;
    uint32_t flushes, listed, working_len;
    uint32_t overdue, row;
    uint64_t held_back;
    int64_t atime;
    struct jm_jobs held;
    uint64_t uniques;
    struct jm_list waiting, working;
    int64_t created;
    uint64_t jobs_in, jobs_out, bytes;
    struct { struct jm_key_queue *head, *tail; uint64_t len; } key_queues;
    struct jm_box *box;
    RedisModuleString *key;
    char *name;
    uint32_t name_len, counted[4], here[2];
    void *levels;
    uint64_t kept_bytes;
    uint32_t unrated, flush;
    struct jm_delayed *delayed;
    uint64_t dead;
};

/* Where the delayed jobs begin in their queue's list of held jobs, and a skip list over them. */
struct jm_delayed {
    struct jm_job *first;
    struct jm_skip_node *index[JM_LEVELS], *index_tail[JM_LEVELS];
};

/* A lock that is held, or a vote for one. Its name and owner follow the structure. */
struct jm_lock {
    struct jm_lock *hash_next;
    struct jm_lock *next, *prev;
    /* From here to the end of the owner: the record. */
    uint64_t token;
    int64_t until, lease;
    uint8_t job[24];
    uint8_t flags, format;
    uint16_t age;
    uint32_t name_len;
    uint16_t owner_len, by;
    uint32_t era;
    char text[];
};

struct jm_lock_list {
    struct jm_lock *head, *tail;
    uint64_t len, bytes, floor, complete;
    uint32_t epoch, others;
};

/* Flags of a lock; a test compares them with those of package lock. */
enum { JM_LOCK_OUTLIVES = 4, JM_LOCK_FOREIGN = 16 };

/* The value in the keyspace. It owns the queue, until the module takes the queue out of
 * it (when the key is unlinked). */
struct jm_box { struct jm_queue *queue; };

/* A saved queue says this about the moment when it was saved, so that a server that
 * loads it knows whether the queue positions are still right: the process that saved
 * it, how many changes that process had made, and (older releases) whether it was about
 * to exit. */
struct jm_epoch { uint64_t process, changes, final; };

/* The state of a queue that is known, or that was known at a flush. */
enum { JM_ATTACHED = 1 };

/* X(result, Name, (parameters)): the API functions that the callbacks use, in a table
 * of their own. (Go doesn't count a header of another package as an input of this
 * package's build: after a change there, it would link stale objects.) */
#define JM_API(X) \
    X(void *, Alloc, (size_t)) \
    X(void, Free, (void *)) \
    X(void, FreeString, (void *, RedisModuleString *)) \
    X(void, SaveUnsigned, (RedisModuleIO *, uint64_t)) \
    X(void, SaveStringBuffer, (RedisModuleIO *, const char *, size_t)) \
    X(void, EmitAOF, (RedisModuleIO *, const char *, const char *, ...)) \
    X(void, DigestAddStringBuffer, (RedisModuleDigest *, const char *, size_t)) \
    X(void, DigestEndSequence, (RedisModuleDigest *))

/* jm_needs returns function i's name, NULL after the last one. jm_bind sets its
 * address. */
const char *jm_needs(int i);
void jm_bind(int i, void *function);

struct jm_epoch *jm_epoch(void);
void jm_save(RedisModuleIO *io, void *value);
void jm_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value);
size_t jm_usage(const void *value);
void jm_digest(RedisModuleDigest *d, void *value);
void jm_free(void *value);
size_t jm_effort(RedisModuleString *key, const void *value);

/* Locks are in no key: they are saved beside the keyspace, as auxiliary data. If the
 * server omits such data when they are empty, it calls jm_save_some_locks. */
void jm_locks(const struct jm_lock_list *all);

/* n is where the number of flushes of all queues is. */
void jm_flushes(const uint32_t *n);
void jm_save_locks(RedisModuleIO *io, int when);
void jm_save_some_locks(RedisModuleIO *io, int when);
void jm_rewrite_keyless(RedisModuleIO *io, RedisModuleString *key, void *value);
/* Bytes that are saved beside the keyspace, as auxiliary data of a type of their own:
 * what all nodes are to know alike. They come in pages, so that a change costs little, and
 * are saved as one string: a byte with the format, then all pages. If the server omits
 * such data when they are empty, it calls jm_save_some_note. */
enum { JM_NOTE_FORMAT = 2, JM_NOTE_PAGES = 4096 };
void jm_note(int page, char *data, size_t n);
void jm_save_note(RedisModuleIO *io, int when);
void jm_save_some_note(RedisModuleIO *io, int when);

struct jm_field { const char *name; size_t offset, size; };
/* The structures' fields; a NULL name ends the list. */
const struct jm_field *jm_layout(void);

#endif
