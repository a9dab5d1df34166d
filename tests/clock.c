/* A wall clock that a test can set. Preloaded into a server, it reads the file JOBMESH_CLOCK at each
 * call, and adds the nanoseconds at its head to the kernel's time. If the file says so, the clock is
 * set once more when it has been read so many times. The monotonic
 * clock stays as it is. Go reads the kernel's clocks itself, so this changes only what C sees. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct clock {
    int64_t ahead;
    int64_t reads; /* until it is set to then; not above 0: it stays */
    int64_t then;
};

static struct clock none, *set = &none;

__attribute__((constructor)) static void open_clock(void) {
    const char *name = getenv("JOBMESH_CLOCK");
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = mmap(NULL, sizeof *set, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) set = p;
    close(fd);
}

static int64_t ahead(void) {
    if (__atomic_load_n(&set->reads, __ATOMIC_ACQUIRE) > 0 && __atomic_sub_fetch(&set->reads, 1, __ATOMIC_ACQ_REL) == 0)
        __atomic_store_n(&set->ahead, set->then, __ATOMIC_RELEASE);
    return __atomic_load_n(&set->ahead, __ATOMIC_ACQUIRE);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    const int64_t second = 1000000000;
    if (syscall(SYS_clock_gettime, clock, t) != 0) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        int64_t ns = t->tv_sec * second + t->tv_nsec + ahead();
        t->tv_sec = ns / second;
        t->tv_nsec = ns % second;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
