/* A data type for modules that have no C code: a value is one run of bytes. These
 * callbacks run in forked children and on other threads. */
#include "flat.h"

static void flat_save(RedisModuleIO *io, void *value) {
    struct flat *v = value;
    redis.SaveStringBuffer(io, v->data, v->n);
}

static void flat_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    struct flat *v = value;
    redis.EmitAOF(io, v->restore, "sb", key, v->data, v->n);
}

static size_t flat_usage(const void *value) { return sizeof(struct flat) + ((const struct flat *)value)->n; }

static void flat_digest(RedisModuleDigest *d, void *value) {
    struct flat *v = value;
    redis.DigestAddStringBuffer(d, v->data, v->n);
    redis.DigestEndSequence(d);
}

static void flat_free(void *value) { redis.Free(value); }

struct flat *flat_new(const char *restore, size_t n) {
    struct flat *v = redis.Calloc(1, sizeof *v + n);
    v->restore = restore;
    v->n = n;
    return v;
}

const struct flat_methods flat_methods = { flat_save, flat_rewrite, flat_usage, flat_digest, flat_free };
