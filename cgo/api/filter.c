/* Rewrites commands before the server looks them up. The server calls the filter for
 * every command, also for those of scripts. So it is all C, and for a command that it
 * doesn't know it looks only at the first letter. */
#include "filter.h"

#include <strings.h>

enum { FILTER_NOSELF = 1 };

static struct rule *rules;
static int nrules;
static uint32_t letters; /* bit n: some rule begins with letter n of the alphabet */
static RedisModuleCommandFilter *filter;

/* Letters differ in their low five bits. Other characters share these bits, which costs
 * only a comparison. */
static uint32_t letter(const char *p) { return 1u << (*p & 31); }

static int is(const struct slice *word, const char *p, size_t n) {
    return word->n == n && strncasecmp(word->p, p, n) == 0;
}

/* Whether a command with the rule's first word has the rule's other words too. */
static int matches(RedisModuleCommandFilterCtx *c, const struct rule *r, int argc) {
    if (argc < r->nfrom || (r->more >= 0 && argc > r->nfrom + r->more)) return 0;
    for (int i = 1; i < r->nfrom; i++) {
        size_t n;
        const char *p = redis.StringPtrLen(redis.CommandFilterArgGet(c, i), &n);
        if (!is(&r->from[i], p, n)) return 0;
    }
    return 1;
}

static void rewrite(RedisModuleCommandFilterCtx *c, const struct rule *r) {
    for (int i = 0; i < r->nto; i++) {
        RedisModuleString *s = redis.CreateString(NULL, r->to[i].p, r->to[i].n);
        if (i < r->nfrom) redis.CommandFilterArgReplace(c, i, s);
        else redis.CommandFilterArgInsert(c, i, s);
    }
    for (int i = r->nto; i < r->nfrom; i++) redis.CommandFilterArgDelete(c, r->nto);
}

static void on_command(RedisModuleCommandFilterCtx *c) {
    size_t n = 0;
    const RedisModuleString *first = redis.CommandFilterArgGet(c, 0);
    const char *name = first ? redis.StringPtrLen(first, &n) : "";
    if (n == 0 || !(letters & letter(name))) return;
    int argc = redis.CommandFilterArgsCount(c), named = 0;
    for (int i = 0; i < nrules; i++) {
        const struct rule *r = &rules[i];
        if (!r->same) named = is(&r->from[0], name, n);
        if (named && matches(c, r, argc)) {
            rewrite(c, r);
            return;
        }
    }
}

static void drop(struct rule *list, int n) {
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < list[i].nfrom; k++) redis.Free((char *)list[i].from[k].p);
        for (int k = 0; k < list[i].nto; k++) redis.Free((char *)list[i].to[k].p);
    }
    redis.Free(list);
}

int filter_set(RedisModuleCtx *ctx, struct rule *list, int n) {
    if (n > 0 && !filter && !(filter = redis.RegisterCommandFilter(ctx, on_command, FILTER_NOSELF))) {
        drop(list, n);
        return REDIS_ERR;
    }
    if (n == 0 && filter) {
        redis.UnregisterCommandFilter(ctx, filter);
        filter = NULL;
    }
    drop(rules, nrules);
    rules = list;
    nrules = n;
    letters = 0;
    for (int i = 0; i < n; i++) {
        letters |= letter(rules[i].from[0].p);
        rules[i].same = i > 0 && is(&rules[i - 1].from[0], rules[i].from[0].p, rules[i].from[0].n);
    }
    return REDIS_OK;
}
