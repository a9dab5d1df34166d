/* A unique queue as it lies in Redis' memory. package module/uniquequeue has the same
 * structures in Go, and writes them; C only walks and frees them. 64 bit. */
#ifndef JOBMESH_UNIQUE_H
#define JOBMESH_UNIQUE_H

#include <stddef.h>
#include <stdint.h>

typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleDigest RedisModuleDigest;

#if __SIZEOF_POINTER__ != 8
#error "a unique queue's links have 48 bits of address in 64: it needs a 64-bit machine"
#endif

/* Each of the three links is an address of 48 bits. The 16 bits above it are a part of
 * the start time: the low part in chain, the middle in next, the high in prev. */
struct uq_item {
    uint64_t chain, next, prev;
    uint32_t len;
    char bytes[];
};

struct uq_queue {
    struct uq_item *head, *tail;
    struct uq_item ***segments;
    uint64_t len, bytes, buckets;
    uint32_t segment_len, segments_len, segments_cap, duplicates;
};

/* X(result, Name, (parameters)): the API functions that the callbacks use, in
 * a table of their own, as in cgo/record. */
#define UQ_API(X) \
    X(void, Free, (void *)) \
    X(void, SaveUnsigned, (RedisModuleIO *, uint64_t)) \
    X(void, SaveStringBuffer, (RedisModuleIO *, const char *, size_t)) \
    X(void, EmitAOF, (RedisModuleIO *, const char *, const char *, ...)) \
    X(void, DigestAddStringBuffer, (RedisModuleDigest *, const char *, size_t)) \
    X(void, DigestAddLongLong, (RedisModuleDigest *, long long)) \
    X(void, DigestEndSequence, (RedisModuleDigest *))

/* uq_needs returns function i's name, NULL after the last one. uq_bind sets its
 * address. */
const char *uq_needs(int i);
void uq_bind(int i, void *function);

void uq_save(RedisModuleIO *io, void *value);
void uq_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value);
size_t uq_usage(const void *value);
void uq_digest(RedisModuleDigest *d, void *value);
void uq_free(void *value);
size_t uq_effort(RedisModuleString *key, const void *value);

struct uq_field { const char *name; size_t offset, size; };
/* The structures' fields; a NULL name ends the list. */
const struct uq_field *uq_layout(void);

#endif
