#include "unique.h"

static struct {
#define FIELD_OF(result, name, params) result (*name) params;
    UQ_API(FIELD_OF)
} redis;

static const struct { const char *name; size_t offset; } needs[] = {
#define NEED(result, name, params) { #name, __builtin_offsetof(__typeof__(redis), name) },
    UQ_API(NEED)
};

const char *uq_needs(int i) { return i >= 0 && i < (int)(sizeof needs / sizeof *needs) ? needs[i].name : NULL; }
void uq_bind(int i, void *function) { *(void **)((char *)&redis + needs[i].offset) = function; }

enum { ADDRESS_BITS = 48 };

static struct uq_item *next(const struct uq_item *i) {
    return (struct uq_item *)(uintptr_t)(i->next & ((UINT64_C(1) << ADDRESS_BITS) - 1));
}

static uint64_t start(const struct uq_item *i) {
    return i->chain >> ADDRESS_BITS | i->next >> ADDRESS_BITS << 16 | i->prev >> ADDRESS_BITS << 32;
}

/* Version 1: how many items, then the start time and the bytes of each. */
void uq_save(RedisModuleIO *io, void *value) {
    const struct uq_queue *q = value;
    redis.SaveUnsigned(io, q->len);
    for (const struct uq_item *i = q->head; i; i = next(i)) {
        redis.SaveUnsigned(io, start(i));
        redis.SaveStringBuffer(io, i->bytes, i->len);
    }
}

void uq_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    const struct uq_queue *q = value;
    for (const struct uq_item *i = q->head; i; i = next(i))
        redis.EmitAOF(io, "UQ.PUSH", "sbcl", key, i->bytes, (size_t)i->len, "AT", (long long)start(i));
}

size_t uq_usage(const void *value) {
    const struct uq_queue *q = value;
    return sizeof *q + q->bytes;
}

/* One sequence, because the order of the items matters. */
void uq_digest(RedisModuleDigest *d, void *value) {
    const struct uq_queue *q = value;
    for (const struct uq_item *i = q->head; i; i = next(i)) {
        redis.DigestAddStringBuffer(d, i->bytes, i->len);
        redis.DigestAddLongLong(d, (long long)start(i));
    }
    redis.DigestEndSequence(d);
}

/* May run on the lazy-free thread: it must touch nothing but this value. */
void uq_free(void *value) {
    struct uq_queue *q = value;
    for (struct uq_item *i = q->head, *after; i; i = after) {
        after = next(i);
        redis.Free(i);
    }
    for (uint32_t i = 0; i < q->segments_len; i++) redis.Free(q->segments[i]);
    redis.Free(q->segments);
    redis.Free(q);
}

size_t uq_effort(RedisModuleString *key, const void *value) {
    (void)key;
    const struct uq_queue *q = value;
    return q->len + q->segments_len + 1;
}

#define FIELD(s, f) { #s "." #f, offsetof(struct s, f), sizeof(((struct s *)0)->f) }
#define WHOLE(s) { #s, 0, sizeof(struct s) }
static const struct uq_field layout[] = {
    WHOLE(uq_item), FIELD(uq_item, chain), FIELD(uq_item, next), FIELD(uq_item, prev), FIELD(uq_item, len),
    { "uq_item.bytes", offsetof(struct uq_item, bytes), 0 },
    WHOLE(uq_queue), FIELD(uq_queue, head), FIELD(uq_queue, tail), FIELD(uq_queue, segments), FIELD(uq_queue, len),
    FIELD(uq_queue, bytes), FIELD(uq_queue, buckets), FIELD(uq_queue, segment_len), FIELD(uq_queue, segments_len),
    FIELD(uq_queue, segments_cap), FIELD(uq_queue, duplicates),
    { NULL, 0, 0 },
};

const struct uq_field *uq_layout(void) { return layout; }
