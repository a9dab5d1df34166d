#ifndef JOBMESH_FILTER_H
#define JOBMESH_FILTER_H

#include "frame.h"

enum { FILTER_WORDS = 4 };

/* One rule: a command that begins with the words, in any case, and has up to
 * more arguments behind them (-1: any number), gets others in their place. */
struct rule {
    int nfrom, nto, more;
    int same; /* begins with the same word as the rule before it; set by filter_set */
    struct slice from[FILTER_WORDS], to[FILTER_WORDS];
};

/* Puts rules in force in place of those before; n 0 takes the filter off, and
 * commands cost what they did without it. The rules are the filter's to free. */
int filter_set(RedisModuleCtx *ctx, struct rule *rules, int n);

#endif
