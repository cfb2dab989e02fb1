/* Loaded before libc (LD_PRELOAD), it counts the calls that write below one folder and lets one of them go wrong.

   FAULT_ROOT   the folder; what is written elsewhere is neither counted nor attacked
   FAULT_PLAN   a file with a Plan, shared by all processes that the attacked one starts
   FAULT_LOG    a file that is told each counted call: its kind and its path

   Without these, or before fault_arm() has read them, every call is what it always was. What is written into mapped
   memory, and by fwrite(), is not counted; opening the file for it is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, NAME = 8, REMOVE = 16, MODE = 32 };      /* kinds of calls, bits of Plan.kinds */
enum { FAIL_ONCE, FAIL_ON, SHORT_ONCE, SHORT_THEN_FAIL, CUT_TO_NOTHING, CUT_TO_HALF }; /* Plan.manner */
enum { MOST_UNSYNCED = 4096, MOST_PROCESSES = 64, LONGEST = 1024 };
static const unsigned long SHARE_BLOCKS = 0x40049409; /* FICLONE */

typedef struct {
    int64_t at;      /* which of the counted calls is attacked, from 1; 0: none */
    int64_t kinds;   /* which kinds are counted and can be attacked */
    int64_t error;   /* the errno that it fails with */
    int64_t manner;
    int64_t count;   /* counted calls so far */
    int64_t struck;  /* calls that were attacked so far */
    int64_t locked;
    int64_t pids[MOST_PROCESSES];
    int64_t safe[MOST_UNSYNCED];           /* their first bytes that were synced before */
    char unsynced[MOST_UNSYNCED][LONGEST]; /* files that were written and not synced since; empty: free */
} Plan;

static Plan *plan;
static char root[LONGEST];
static int log_file = -1;

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))next(#name))

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void lock(void) {
    while (__sync_lock_test_and_set(&plan->locked, 1)) usleep(10);
}

static void unlock(void) { __sync_lock_release(&plan->locked); }

void fault_arm(void) {
    const char *folder = getenv("FAULT_ROOT"), *shared = getenv("FAULT_PLAN"), *told = getenv("FAULT_LOG");
    if (!folder || !shared || !told) return;
    int file = REAL(int, open, const char *, int, ...)(shared, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return;
    snprintf(root, sizeof root, "%s", folder);
    log_file = REAL(int, open, const char *, int, ...)(told, O_WRONLY | O_APPEND | O_CLOEXEC);
    plan = memory;
}

__attribute__((constructor)) static void start(void) {
    if (getenv("FAULT_AT_ONCE")) fault_arm(); /* a process that an attacked one has started */
}

/* --- paths ---------------------------------------------------------------------------------------------------- */

static const char *path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, LONGEST - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

static const char *path_at(int folder, const char *name, char *path) {
    char base[LONGEST];
    if (name[0] == '/') {
        snprintf(path, LONGEST, "%s", name);
    } else {
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) base[0] = 0;
        } else {
            path_of(folder, base);
        }
        if (strlen(base) + strlen(name) + 2 > LONGEST) path[0] = 0;
        else sprintf(path, "%s/%s", base, name);
    }
    return path;
}

static int is_below(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == 0 || path[length] == '/');
}

/* --- what a power cut takes ----------------------------------------------------------------------------------- */

static void note_written(const char *path, int64_t safe) {
    if (!plan || !is_below(path, root)) return;
    lock();
    int free_place = -1, place = 0;
    for (; place < MOST_UNSYNCED; place++) {
        if (!plan->unsynced[place][0] && free_place < 0) free_place = place;
        if (strcmp(plan->unsynced[place], path) == 0) break;
    }
    if (place == MOST_UNSYNCED && free_place >= 0) strcpy(plan->unsynced[place = free_place], path);
    else if (place < MOST_UNSYNCED && plan->safe[place] < safe) safe = plan->safe[place];
    if (place < MOST_UNSYNCED) plan->safe[place] = safe;
    unlock();
}

static void note_safe(const char *path) { /* synced, or gone */
    if (!plan) return;
    lock();
    for (int place = 0; place < MOST_UNSYNCED; place++)
        if (plan->unsynced[place][0] && is_below(plan->unsynced[place], path)) plan->unsynced[place][0] = 0;
    unlock();
}

static void note_renamed(const char *from, const char *to) {
    if (!plan) return;
    note_safe(to);
    lock();
    for (int place = 0; place < MOST_UNSYNCED; place++) {
        char *path = plan->unsynced[place], rest[LONGEST];
        if (!path[0] || !is_below(path, from)) continue;
        strcpy(rest, path + strlen(from));
        if (strlen(to) + strlen(rest) < LONGEST) sprintf(path, "%s%s", to, rest);
    }
    unlock();
}

static void cut_power(void) {
    for (int place = 0; place < MOST_UNSYNCED; place++) {
        struct stat was;
        if (!plan->unsynced[place][0] || stat(plan->unsynced[place], &was)) continue;
        chmod(plan->unsynced[place], was.st_mode | 0200);
        int64_t safe = plan->safe[place] < was.st_size ? plan->safe[place] : was.st_size;
        int64_t left = plan->manner == CUT_TO_HALF ? (was.st_size - safe) / 2 : 0;
        if (truncate(plan->unsynced[place], safe + left)) continue;
        chmod(plan->unsynced[place], was.st_mode);
    }
    for (int place = 0; place < MOST_PROCESSES; place++)
        if (plan->pids[place] && plan->pids[place] != getpid()) kill((pid_t)plan->pids[place], SIGKILL);
    kill(getpid(), SIGKILL);
}

/* --- the attack ----------------------------------------------------------------------------------------------- */

static void join_in(void) {
    static pid_t known;
    if (known == getpid()) return;
    known = getpid();
    for (int place = 0; place < MOST_PROCESSES; place++)
        if (__sync_bool_compare_and_swap(&plan->pids[place], 0, known)) return;
}

static void tell(int kind, const char *path) {
    char line[LONGEST + 32];
    int length = snprintf(line, sizeof line, "%d %s\n", kind, path);
    REAL(ssize_t, write, int, const void *, size_t)(log_file, line, (size_t)length);
}

/* 0: let it be done; 1: do half of it; -1: it has failed, errno says how. */
static int attack(int kind, const char *path) {
    if (!plan || !is_below(path, root) || !(plan->kinds & kind)) return 0;
    int before = errno;
    join_in();
    int64_t number = __sync_add_and_fetch(&plan->count, 1);
    tell(kind, path);
    errno = before;
    if (!plan->at || number < plan->at) return 0;
    int is_first = number == plan->at;
    if (!is_first && plan->manner != FAIL_ON && plan->manner != SHORT_THEN_FAIL) return 0;
    __sync_add_and_fetch(&plan->struck, 1);
    if (plan->manner >= CUT_TO_NOTHING) cut_power();
    if (is_first && plan->manner >= SHORT_ONCE) return 1;
    errno = (int)plan->error;
    return -1;
}

static int64_t size_of(int file) {
    struct stat what;
    return fstat(file, &what) == 0 ? what.st_size : 0;
}

static size_t part(int struck, size_t whole) { return struck && whole > 1 ? whole / 2 : whole; }

/* --- the calls ------------------------------------------------------------------------------------------------ */

static int opens_for_writing(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC); }

#define OPENS(name)                                                                                   \
    int name(const char *file, int flags, ...) {                                                      \
        char path[LONGEST];                                                                           \
        va_list rest;                                                                                 \
        va_start(rest, flags);                                                                        \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                       \
        va_end(rest);                                                                                 \
        int writes = plan && opens_for_writing(flags);                                                \
        if (writes && attack(OPEN, path_at(AT_FDCWD, file, path)) < 0) return -1;                     \
        int opened = REAL(int, name, const char *, int, ...)(file, flags, mode);                      \
        if (writes && opened >= 0 && flags & O_TRUNC) note_written(path, 0);                             \
        return opened;                                                                                \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                                \
    int name(int folder, const char *file, int flags, ...) {                                          \
        char path[LONGEST];                                                                           \
        va_list rest;                                                                                 \
        va_start(rest, flags);                                                                        \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                       \
        va_end(rest);                                                                                 \
        int writes = plan && opens_for_writing(flags);                                                \
        if (writes && attack(OPEN, path_at(folder, file, path)) < 0) return -1;                       \
        int opened = REAL(int, name, int, const char *, int, ...)(folder, file, flags, mode);         \
        if (writes && opened >= 0 && flags & O_TRUNC) note_written(path, 0);                             \
        return opened;                                                                                \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define OPENS_STREAM(name)                                                                            \
    FILE *name(const char *file, const char *how) {                                                   \
        char path[LONGEST];                                                                           \
        int writes = plan && strpbrk(how, "wa+");                                                     \
        if (writes && attack(OPEN, path_at(AT_FDCWD, file, path)) < 0) return NULL;                   \
        FILE *opened = REAL(FILE *, name, const char *, const char *)(file, how);                     \
        if (writes && opened) note_written(path, 0);                                                     \
        return opened;                                                                                \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

#define ON_DESCRIPTOR(type, kind, name, declared, given, passed)                                      \
    type name declared {                                                                              \
        char path[LONGEST];                                                                           \
        int struck = plan ? attack(kind, path_of(file, path)) : 0;                                    \
        if (struck < 0) return -1;                                                                    \
        if (plan) note_written(path, size_of(file));                                                  \
        return REAL(type, name, given) passed;                                                        \
    }
#define GIVEN(...) __VA_ARGS__
ON_DESCRIPTOR(ssize_t, WRITE, write, (int file, const void *data, size_t size), GIVEN(int, const void *, size_t),
              (file, data, part(struck, size)))
ON_DESCRIPTOR(ssize_t, WRITE, pwrite, (int file, const void *data, size_t size, off_t at),
              GIVEN(int, const void *, size_t, off_t), (file, data, part(struck, size), at))
ON_DESCRIPTOR(ssize_t, WRITE, pwrite64, (int file, const void *data, size_t size, off_t at),
              GIVEN(int, const void *, size_t, off_t), (file, data, part(struck, size), at))
ON_DESCRIPTOR(ssize_t, WRITE, writev, (int file, const struct iovec *parts, int count),
              GIVEN(int, const struct iovec *, int), (file, parts, (int)part(struck, (size_t)count)))
ON_DESCRIPTOR(ssize_t, WRITE, sendfile, (int file, int from, off_t *at, size_t size), GIVEN(int, int, off_t *, size_t),
              (file, from, at, part(struck, size)))
ON_DESCRIPTOR(ssize_t, WRITE, sendfile64, (int file, int from, off_t *at, size_t size),
              GIVEN(int, int, off_t *, size_t), (file, from, at, part(struck, size)))
ON_DESCRIPTOR(int, WRITE, ftruncate, (int file, off_t size), GIVEN(int, off_t), (file, size))
ON_DESCRIPTOR(int, WRITE, ftruncate64, (int file, off_t size), GIVEN(int, off_t), (file, size))
ON_DESCRIPTOR(int, WRITE, fallocate, (int file, int mode, off_t at, off_t size), GIVEN(int, int, off_t, off_t),
              (file, mode, at, size))
ON_DESCRIPTOR(int, WRITE, fallocate64, (int file, int mode, off_t at, off_t size), GIVEN(int, int, off_t, off_t),
              (file, mode, at, size))

#define ALLOCATES(name)                                                                               \
    int name(int file, off_t at, off_t size) { /* gives its error back */                             \
        char path[LONGEST];                                                                           \
        if (plan && attack(WRITE, path_of(file, path)) < 0) return errno;                             \
        return REAL(int, name, int, off_t, off_t)(file, at, size);                                    \
    }
ALLOCATES(posix_fallocate)
ALLOCATES(posix_fallocate64)

ssize_t copy_file_range(int from, off_t *at, int file, off_t *to, size_t size, unsigned flags) {
    char path[LONGEST];
    int struck = plan ? attack(WRITE, path_of(file, path)) : 0;
    if (struck < 0) return -1;
    if (plan) note_written(path, size_of(file));
    return REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned)(from, at, file, to,
                                                                                        part(struck, size), flags);
}

int ioctl(int file, unsigned long request, ...) {
    char path[LONGEST];
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int shares = plan && request == SHARE_BLOCKS;
    if (shares && attack(WRITE, path_of(file, path)) < 0) return -1;
    int done = REAL(int, ioctl, int, unsigned long, ...)(file, request, argument);
    if (shares && done == 0) note_written(path, 0);
    return done;
}

#define SYNCS(name)                                                                                   \
    int name(int file) {                                                                              \
        char path[LONGEST];                                                                           \
        struct stat what;                                                                             \
        if (plan && attack(SYNC, path_of(file, path)) < 0) return -1;                                 \
        int done = REAL(int, name, int)(file);                                                        \
        /* a synced folder has its names, not what is in its files */                                 \
        if (plan && done == 0 && fstat(file, &what) == 0 && S_ISREG(what.st_mode)) note_safe(path);   \
        return done;                                                                                  \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define RENAMES(name, declared, given, passed, folder, other)                                         \
    int name declared {                                                                               \
        char here[LONGEST], there[LONGEST];                                                           \
        if (!plan) return REAL(int, name, given) passed;                                              \
        path_at(folder, from, here);                                                                  \
        if (attack(NAME, path_at(other, to, there)) < 0) return -1;                                   \
        int done = REAL(int, name, given) passed;                                                     \
        if (done == 0) note_renamed(here, there);                                                     \
        return done;                                                                                  \
    }
RENAMES(rename, (const char *from, const char *to), GIVEN(const char *, const char *), (from, to), AT_FDCWD, AT_FDCWD)
RENAMES(renameat, (int old, const char *from, int new, const char *to), GIVEN(int, const char *, int, const char *),
        (old, from, new, to), old, new)
RENAMES(renameat2, (int old, const char *from, int new, const char *to, unsigned flags),
        GIVEN(int, const char *, int, const char *, unsigned), (old, from, new, to, flags), old, new)

#define BY_NAME(kind, name, declared, given, passed, folder, after)                                   \
    int name declared {                                                                               \
        char path[LONGEST];                                                                           \
        if (!plan) return REAL(int, name, given) passed;                                              \
        if (attack(kind, path_at(folder, file, path)) < 0) return -1;                                 \
        int done = REAL(int, name, given) passed;                                                     \
        if (done == 0) after(path);                                                                   \
        return done;                                                                                  \
    }
#define NOTHING(path) (void)path
BY_NAME(NAME, link, (const char *from, const char *file), GIVEN(const char *, const char *), (from, file), AT_FDCWD,
        NOTHING)
BY_NAME(NAME, linkat, (int old, const char *from, int new, const char *file, int flags),
        GIVEN(int, const char *, int, const char *, int), (old, from, new, file, flags), new, NOTHING)
BY_NAME(NAME, symlink, (const char *to, const char *file), GIVEN(const char *, const char *), (to, file), AT_FDCWD,
        NOTHING)
BY_NAME(NAME, symlinkat, (const char *to, int new, const char *file), GIVEN(const char *, int, const char *),
        (to, new, file), new, NOTHING)
BY_NAME(NAME, mkdir, (const char *file, mode_t mode), GIVEN(const char *, mode_t), (file, mode), AT_FDCWD, NOTHING)
BY_NAME(NAME, mkdirat, (int folder, const char *file, mode_t mode), GIVEN(int, const char *, mode_t),
        (folder, file, mode), folder, NOTHING)
BY_NAME(REMOVE, unlink, (const char *file), GIVEN(const char *), (file), AT_FDCWD, note_safe)
BY_NAME(REMOVE, unlinkat, (int folder, const char *file, int flags), GIVEN(int, const char *, int),
        (folder, file, flags), folder, note_safe)
BY_NAME(REMOVE, rmdir, (const char *file), GIVEN(const char *), (file), AT_FDCWD, note_safe)
BY_NAME(MODE, chmod, (const char *file, mode_t mode), GIVEN(const char *, mode_t), (file, mode), AT_FDCWD, NOTHING)
BY_NAME(MODE, fchmodat, (int folder, const char *file, mode_t mode, int flags), GIVEN(int, const char *, mode_t, int),
        (folder, file, mode, flags), folder, NOTHING)
