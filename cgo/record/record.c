#include "record.h"

static struct {
#define FIELD_OF(result, name, params) result (*name) params;
    JM_API(FIELD_OF)
} redis;
static struct jm_epoch epoch;
static const uint32_t *flushes;
static const struct jm_lock_list *locks;
static struct { char *data; size_t n; } pages[JM_NOTE_PAGES];
static size_t pages_size; /* of all together */

static const struct { const char *name; size_t offset; } needs[] = {
#define NEED(result, name, params) { #name, __builtin_offsetof(__typeof__(redis), name) },
    JM_API(NEED)
};

const char *jm_needs(int i) { return i >= 0 && i < (int)(sizeof needs / sizeof *needs) ? needs[i].name : NULL; }
void jm_bind(int i, void *function) { *(void **)((char *)&redis + needs[i].offset) = function; }
struct jm_epoch *jm_epoch(void) { return &epoch; }

static const char *record(const struct jm_job *j) { return (const char *)&j->format; }
static size_t record_len(const struct jm_job *j) { return sizeof *j - offsetof(struct jm_job, format) + j->body_len + j->parts; }

enum { WAIT_REPL = 0 };

void jm_flushes(const uint32_t *n) { flushes = n; }

/* A flushed queue, whose key is removed later, counts as empty. */
static const struct jm_queue *content(const void *value) {
    const struct jm_queue *q = ((const struct jm_box *)value)->queue;
    return q && q->state == JM_ATTACHED && flushes && q->flushes != *flushes ? NULL : q;
}

static void save_epoch(RedisModuleIO *io) {
    redis.SaveUnsigned(io, epoch.process);
    redis.SaveUnsigned(io, epoch.changes);
    redis.SaveUnsigned(io, epoch.final);
}

/* Format 1: the epoch, then each job's record, then an empty string. A job that still
 * waits for its copies isn't saved, because it was promised to nobody. */
static void save_list(RedisModuleIO *io, const struct jm_job *j) {
    for (; j; j = j->next)
        if (j->state != WAIT_REPL) redis.SaveStringBuffer(io, record(j), record_len(j));
}

void jm_save(RedisModuleIO *io, void *value) {
    const struct jm_queue *q = content(value);
    save_epoch(io);
    if (q) {
        save_list(io, q->waiting.head);
        save_list(io, q->working.head);
        save_list(io, q->held.head);
        for (const struct jm_key_queue *l = q->key_queues.head; l; l = l->next)
            if (l->list) save_list(io, l->list->head);
    }
    redis.SaveStringBuffer(io, "", 0);
}

/* Returns whether it wrote any job. */
static int rewrite_list(RedisModuleIO *io, RedisModuleString *key, const struct jm_job *j) {
    int any = 0;
    for (; j; j = j->next) {
        if (j->state == WAIT_REPL) continue;
        redis.EmitAOF(io, "LOADJOB", "sb", key, record(j), record_len(j));
        any = 1;
    }
    return any;
}

/* A queue without a job to save is a key all the same: entries in the log after the
 * rewritten AOF may rename or move it. */
void jm_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    const struct jm_queue *q = content(value);
    int any = 0;
    if (q) {
        any |= rewrite_list(io, key, q->waiting.head);
        any |= rewrite_list(io, key, q->working.head);
        any |= rewrite_list(io, key, q->held.head);
        for (const struct jm_key_queue *l = q->key_queues.head; l; l = l->next)
            if (l->list) any |= rewrite_list(io, key, l->list->head);
    }
    if (!any) redis.EmitAOF(io, "MAKEQUEUE", "s", key);
}

size_t jm_usage(const void *value) {
    const struct jm_queue *q = ((const struct jm_box *)value)->queue;
    return sizeof(struct jm_box) + (q ? sizeof *q + q->name_len + q->bytes : 0);
}

static void digest_list(RedisModuleDigest *d, const struct jm_job *j) {
    for (; j; j = j->next) {
        redis.DigestAddStringBuffer(d, record(j), record_len(j));
        redis.DigestEndSequence(d);
    }
}

void jm_digest(RedisModuleDigest *d, void *value) {
    const struct jm_queue *q = content(value);
    if (!q) return;
    digest_list(d, q->waiting.head);
    digest_list(d, q->working.head);
    digest_list(d, q->held.head);
    for (const struct jm_key_queue *l = q->key_queues.head; l; l = l->next)
        if (l->list) digest_list(d, l->list->head);
}

static void free_jobs(struct jm_job *j) {
    while (j) {
        struct jm_job *next = j->next;
        redis.Free(j);
        j = next;
    }
}

static void free_index(struct jm_skip_node *t) {
    while (t) {
        struct jm_skip_node *next = t->next[0];
        redis.Free(t);
        t = next;
    }
}

static void free_list(struct jm_list *l) {
    free_jobs(l->head);
    free_index(l->index[0]);
}

/* May run on the lazy-free thread: it must touch nothing but this value. */
void jm_free(void *value) {
    struct jm_box *box = value;
    struct jm_queue *q = box->queue;
    redis.Free(box);
    if (!q) return;
    free_list(&q->waiting);
    free_list(&q->working);
    free_jobs(q->held.head);
    if (q->delayed) free_index(q->delayed->index[0]);
    redis.Free(q->delayed);
    for (struct jm_key_queue *l = q->key_queues.head; l;) {
        struct jm_key_queue *next = l->next;
        if (l->list) free_list(l->list);
        redis.Free(l->list);
        redis.Free(l);
        l = next;
    }
    redis.Free(q->name);
    redis.Free(q->levels);
    if (q->key) redis.FreeString(NULL, q->key);
    redis.Free(q);
}

size_t jm_effort(RedisModuleString *key, const void *value) {
    (void)key;
    const struct jm_queue *q = ((const struct jm_box *)value)->queue;
    return q ? q->waiting.len + q->working.len + q->held.len + q->held_back + 1 : 1;
}

void jm_note(int page, char *data, size_t n) {
    char *copy = NULL;
    if (n) __builtin_memcpy(copy = redis.Alloc(n), data, n);
    redis.Free(pages[page].data);
    pages_size += n - pages[page].n;
    pages[page].data = copy;
    pages[page].n = n;
}

/* All pages behind the format, in memory that the caller frees; NULL: there are none. */
static char *note(size_t *n) {
    if (!pages_size) return *n = 0, NULL;
    char *all = redis.Alloc(1 + pages_size);
    all[0] = JM_NOTE_FORMAT;
    *n = 1;
    for (int i = 0; i < JM_NOTE_PAGES; i++) {
        if (pages[i].n) __builtin_memcpy(all + *n, pages[i].data, pages[i].n);
        *n += pages[i].n;
    }
    return all;
}

void jm_save_note(RedisModuleIO *io, int when) {
    (void)when;
    size_t n;
    char *all = note(&n);
    redis.SaveStringBuffer(io, all ? all : "", n);
    redis.Free(all);
}

void jm_save_some_note(RedisModuleIO *io, int when) {
    if (pages_size) jm_save_note(io, when);
}

void jm_locks(const struct jm_lock_list *all) { locks = all; }

static const char *lock_record(const struct jm_lock *l) { return (const char *)&l->token; }
static size_t lock_record_len(const struct jm_lock *l) {
    return sizeof *l - offsetof(struct jm_lock, token) + l->name_len + l->owner_len;
}

/* Whether a flush has ended a lock that is in the list still, see endedByFlush in module/lock. */
static int ended_by_flush(const struct jm_lock *l) {
    return (l->flags & JM_LOCK_OUTLIVES) && l->era != locks->epoch && !((l->flags & JM_LOCK_FOREIGN) && locks->others);
}

/* Passes a lock's record on to be saved. A lock that a flush has ended is saved as one that
 * is over: only its token counts. */
static void save_lock(RedisModuleIO *io, const struct jm_lock *l, void (*save)(RedisModuleIO *, const char *, size_t)) {
    size_t n = lock_record_len(l);
    if (!ended_by_flush(l)) {
        save(io, lock_record(l), n);
        return;
    }
    struct jm_lock *over = redis.Alloc(offsetof(struct jm_lock, token) + n);
    __builtin_memcpy(&over->token, &l->token, n);
    over->until = -1;
    save(io, lock_record(over), n);
    redis.Free(over);
}

static void emit_lock(RedisModuleIO *io, const char *rec, size_t n) { redis.EmitAOF(io, "SETLOCK", "b", rec, n); }

/* The epoch (from type version 3 on), the floor, whether the table is complete, each
 * lock's record, and an empty string. */
void jm_save_locks(RedisModuleIO *io, int when) {
    (void)when;
    save_epoch(io);
    redis.SaveUnsigned(io, locks ? locks->floor : 0);
    redis.SaveUnsigned(io, locks ? locks->complete : 0);
    for (const struct jm_lock *l = locks ? locks->head : NULL; l; l = l->next) save_lock(io, l, redis.SaveStringBuffer);
    redis.SaveStringBuffer(io, "", 0);
}

void jm_save_some_locks(RedisModuleIO *io, int when) {
    if (locks && (locks->head || locks->floor || locks->complete)) jm_save_locks(io, when);
}

/* The same for an AOF that begins without an RDB, with the settings. The two entries
 * about the whole table come after its locks, see Relog in module/lock. */
void jm_rewrite_keyless(RedisModuleIO *io, RedisModuleString *key, void *value) {
    (void)key;
    (void)value;
    for (const struct jm_lock *l = locks ? locks->head : NULL; l; l = l->next) save_lock(io, l, emit_lock);
    if (locks && (locks->head || locks->floor || locks->complete)) {
        redis.EmitAOF(io, "DELLOCK", "cl", "", (long long)locks->floor);
        redis.EmitAOF(io, "DELLOCK", "cl", "table", (long long)locks->complete);
    }
    size_t n;
    char *all = note(&n);
    if (all) redis.EmitAOF(io, "QCONFIG", "cb", "RESTORE", all, n);
    redis.Free(all);
}

#define FIELD(s, f) { #s "." #f, offsetof(struct s, f), sizeof(((struct s *)0)->f) }
#define WHOLE(s) { #s, 0, sizeof(struct s) }
static const struct jm_field layout[] = {
    WHOLE(jm_job), FIELD(jm_job, hash_next), FIELD(jm_job, next), FIELD(jm_job, prev), FIELD(jm_job, timer_next),
    FIELD(jm_job, timer_prev), FIELD(jm_job, queue), FIELD(jm_job, format), FIELD(jm_job, state), FIELD(jm_job, flags),
    FIELD(jm_job, place), FIELD(jm_job, body_len), FIELD(jm_job, id), FIELD(jm_job, ctime), FIELD(jm_job, qtime),
    FIELD(jm_job, etime), FIELD(jm_job, retry), FIELD(jm_job, delay), FIELD(jm_job, repl), FIELD(jm_job, nacks),
    FIELD(jm_job, deliveries), FIELD(jm_job, parts),
    WHOLE(jm_skip_node), FIELD(jm_skip_node, job), FIELD(jm_skip_node, level),
    WHOLE(jm_list), FIELD(jm_list, head), FIELD(jm_list, tail), FIELD(jm_list, len), FIELD(jm_list, index), FIELD(jm_list, index_tail),
    WHOLE(jm_key_queue), FIELD(jm_key_queue, hash_next), FIELD(jm_key_queue, next), FIELD(jm_key_queue, prev), FIELD(jm_key_queue, queue), FIELD(jm_key_queue, hash), FIELD(jm_key_queue, list),
    WHOLE(jm_queue), FIELD(jm_queue, hash_next), FIELD(jm_queue, hash), FIELD(jm_queue, box), FIELD(jm_queue, key),
    FIELD(jm_queue, waiting), FIELD(jm_queue, working), FIELD(jm_queue, held), FIELD(jm_queue, key_queues), FIELD(jm_queue, held_back), FIELD(jm_queue, uniques), FIELD(jm_queue, bytes), FIELD(jm_queue, overdue),
    FIELD(jm_queue, created), FIELD(jm_queue, atime), FIELD(jm_queue, jobs_in),
    FIELD(jm_queue, jobs_out), FIELD(jm_queue, waiters), FIELD(jm_queue, db), FIELD(jm_queue, pause), FIELD(jm_queue, flags),
    FIELD(jm_queue, state), FIELD(jm_queue, flushes),
    FIELD(jm_queue, name_len), FIELD(jm_queue, name), FIELD(jm_queue, counted), FIELD(jm_queue, here), FIELD(jm_queue, levels),
    FIELD(jm_queue, kept_bytes), FIELD(jm_queue, unrated), FIELD(jm_queue, delayed), FIELD(jm_queue, dead),
    WHOLE(jm_delayed), FIELD(jm_delayed, first), FIELD(jm_delayed, index), FIELD(jm_delayed, index_tail),
    WHOLE(jm_lock), FIELD(jm_lock, hash_next), FIELD(jm_lock, next), FIELD(jm_lock, prev), FIELD(jm_lock, token),
    FIELD(jm_lock, until), FIELD(jm_lock, lease), FIELD(jm_lock, job), FIELD(jm_lock, flags), FIELD(jm_lock, format),
    FIELD(jm_lock, name_len), FIELD(jm_lock, owner_len), FIELD(jm_lock, by), FIELD(jm_lock, era),
    WHOLE(jm_lock_list), FIELD(jm_lock_list, head), FIELD(jm_lock_list, tail), FIELD(jm_lock_list, len), FIELD(jm_lock_list, bytes),
    FIELD(jm_lock_list, floor), FIELD(jm_lock_list, complete),
    FIELD(jm_lock_list, epoch), FIELD(jm_lock_list, others),
    { NULL, 0, 0 },
};

const struct jm_field *jm_layout(void) { return layout; }
