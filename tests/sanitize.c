/* Preloaded beside AddressSanitizer, for Redis 8 and Valkey: these allocate by
 * functions of jemalloc's that the sanitizer doesn't replace, and Valkey loads
 * modules in a way that it refuses. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

void *mallocx(size_t n, int flags) { (void)flags; return malloc(n); }
void *rallocx(void *p, size_t n, int flags) { (void)flags; return realloc(p, n); }
void dallocx(void *p, int flags) { (void)flags; free(p); }
void sdallocx(void *p, size_t n, int flags) { (void)n; (void)flags; free(p); }
size_t nallocx(size_t n, int flags) { (void)flags; return n; }

void *dlopen(const char *file, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(file, flags & ~RTLD_DEEPBIND);
}
