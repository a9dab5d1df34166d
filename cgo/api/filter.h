#ifndef JOBMESH_FILTER_H
#define JOBMESH_FILTER_H

#include "frame.h"

enum { FILTER_WORDS = 4 };

/* One rule: a command that begins with the words from, in any case, and has up to more
 * arguments after them (-1: any number), gets the words to in their place. */
struct rule {
    int nfrom, nto, more;
    int same; /* from begins with the same word as the previous rule's; set by filter_set */
    struct slice from[FILTER_WORDS], to[FILTER_WORDS];
};

/* Replaces the rules in force. With n 0 it removes the filter, and commands cost what
 * they did without it. The filter frees the rules. */
int filter_set(RedisModuleCtx *ctx, struct rule *rules, int n);

#endif
