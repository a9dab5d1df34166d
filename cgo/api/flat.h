#ifndef JOBMESH_FLAT_H
#define JOBMESH_FLAT_H

#include "frame.h"

struct flat {
    const char *restore; /* the command that sets such a value: name key bytes */
    size_t n;
    char data[];
};

struct flat *flat_new(const char *restore, size_t n);

struct flat_methods {
    void (*save)(RedisModuleIO *, void *);
    void (*rewrite)(RedisModuleIO *, RedisModuleString *, void *);
    size_t (*usage)(const void *);
    void (*digest)(RedisModuleDigest *, void *);
    void (*free)(void *);
};
extern const struct flat_methods flat_methods;

#endif
