/* Delays or fails calls of the C library on files below a folder: a slow, full or broken file system.

   FAULT_BELOW   folder; only files and folders in it are concerned
   FAULT_CALL    open, mkdir, rename, fsync or write; none: all of them
   FAULT_AFTER   how many of these calls do as they should before
   FAULT_COUNT   how many fail then
   FAULT_ERRNO   with this error
   FAULT_DELAY   milliseconds that each of these calls takes longer
   FAULT_LOG     file that gets a line for each call that failed
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_int calls;

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* Waits, then returns whether the call is to fail; errno says how. */
static int faulty(const char *call, const char *path) {
    const char *below = getenv("FAULT_BELOW"), *chosen = getenv("FAULT_CALL");
    if (!below || !path || strncmp(path, below, strlen(below)) || (chosen && strcmp(chosen, call))) return 0;
    long delay = number("FAULT_DELAY");
    struct timespec pause = {delay / 1000, delay % 1000 * 1000000};
    if (delay) nanosleep(&pause, NULL);
    long count = atomic_fetch_add(&calls, 1), after = number("FAULT_AFTER");
    if (count < after || count >= after + number("FAULT_COUNT")) return 0;
    const char *log = getenv("FAULT_LOG");
    FILE *(*opens)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    FILE *file = log ? opens(log, "a") : NULL;
    if (file) {
        fprintf(file, "%s %s\n", call, path);
        fclose(file);
    }
    errno = number("FAULT_ERRNO");
    return 1;
}

static int faulty_file(const char *call, int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return faulty(call, path);
}

/* A path relative to a folder that is open, as an absolute one. */
static const char *absolute(int folder, const char *path, char *buffer) {
    if (!path || path[0] == '/' || folder == AT_FDCWD) return path;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, buffer, PATH_MAX - 1);
    if (length < 0) return path;
    snprintf(buffer + length, PATH_MAX - length, "/%s", path);
    return buffer;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(last) va_list rest; va_start(rest, last); mode_t mode = va_arg(rest, mode_t); va_end(rest)

int open(const char *path, int flags, ...) {
    MODE(flags);
    return faulty("open", path) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags);
    return faulty("open", path) ? -1 : REAL(open64)(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    char buffer[PATH_MAX];
    return faulty("open", absolute(folder, path, buffer)) ? -1 : REAL(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    char buffer[PATH_MAX];
    return faulty("open", absolute(folder, path, buffer)) ? -1 : REAL(openat64)(folder, path, flags, mode);
}
int mkdir(const char *path, mode_t mode) { return faulty("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return faulty("rename", to) ? -1 : REAL(rename)(from, to); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char buffer[PATH_MAX];
    return faulty("rename", absolute(to_folder, to, buffer)) ? -1 : REAL(renameat)(from_folder, from, to_folder, to);
}
int fsync(int file) { return faulty_file("fsync", file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return faulty_file("fsync", file) ? -1 : REAL(fdatasync)(file); }
ssize_t write(int file, const void *data, size_t size) {
    return faulty_file("write", file) ? -1 : REAL(write)(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return faulty_file("write", file) ? -1 : REAL(pwrite)(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return faulty_file("write", file) ? -1 : REAL(pwrite64)(file, data, size, at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    return faulty_file("write", file) ? -1 : REAL(writev)(file, parts, count);
}
