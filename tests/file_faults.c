/* Lets one system call that writes below a folder fail; loaded with LD_PRELOAD.

   It counts every call that opens a file for writing, writes, syncs, renames, links,
   removes or makes anything below the folder, from whatever language. The call number
   `point` of them fails, or the process dies there. tests/faulty_runs.py drives it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* The same numbers as in tests/faulty_runs.py. */
enum kind { ONCE, FULL, SHORT, FROZEN, TORN, KILLED };
enum { NEEDS_ROOM = 1, WRITES = 2 };
#define GO_ON 0
#define HALF (-1)

static char root[PATH_MAX];
static long count, point; /* calls so far; the call that fails, from 1, 0: none */
static int kind, error_number;
static char *calls; /* a line for each call: its name and its path */
static size_t calls_size, calls_room;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void file_faults_watch(const char *folder) {
  pthread_mutex_lock(&mutex);
  snprintf(root, sizeof root, "%s", folder);
  count = point = 0;
  calls_size = 0;
  if (calls) calls[0] = 0;
  pthread_mutex_unlock(&mutex);
}

void file_faults_arm(long at, int new_kind, int new_error) {
  pthread_mutex_lock(&mutex);
  point = at, kind = new_kind, error_number = new_error;
  pthread_mutex_unlock(&mutex);
}

long file_faults_count(void) { return count; }
const char *file_faults_calls(void) { return calls ? calls : ""; }

__attribute__((constructor)) static void start(void) {
  const char *folder = getenv("FILE_FAULTS_ROOT"), *at = getenv("FILE_FAULTS_POINT");
  if (!folder) return;
  file_faults_watch(folder);
  if (at) file_faults_arm(atol(at), getenv("FILE_FAULTS_FROZEN") ? FROZEN : KILLED, 0);
}

/* Writes the calls to the file FILE_FAULTS_CALLS when the process ends. */
__attribute__((destructor)) static void end(void) {
  const char *path = getenv("FILE_FAULTS_CALLS");
  if (!path || !calls) return;
  root[0] = 0;
  int descriptor = open(path, O_WRONLY | O_CREAT, 0600);
  if (write(descriptor, calls, calls_size) < 0) abort();
  close(descriptor);
}

static void note(const char *name, const char *path) {
  size_t needed = calls_size + strlen(name) + strlen(path) + 3;
  if (needed > calls_room) {
    calls_room = 2 * needed + 4096;
    calls = realloc(calls, calls_room);
    if (!calls) abort();
  }
  calls_size += sprintf(calls + calls_size, "%s %s\n", name, path);
}

static int is_below(const char *path) {
  size_t length = strlen(root);
  return length && !strncmp(path, root, length) &&
         (path[length] == '/' || !path[length]);
}

static void path_of_descriptor(int descriptor, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  path[length < 0 ? 0 : length] = 0;
}

/* Returns GO_ON, HALF, or the error number with which the call is to fail. */
static int decide(const char *name, const char *path, int needs) {
  if (!is_below(path)) return GO_ON;
  int result = GO_ON;
  pthread_mutex_lock(&mutex);
  long number = ++count;
  note(name, path);
  if (point && number >= point) switch (kind) {
      case ONCE:
        if (number == point) result = error_number;
        break;
      case FULL:
        if (needs & NEEDS_ROOM) result = ENOSPC;
        break;
      case SHORT:
        if (number == point && needs & WRITES) result = HALF;
        break;
      case FROZEN:
        result = EIO;
        break;
      case TORN:
        result = number == point && needs & WRITES ? HALF : EIO;
        break;
      case KILLED:
        kill(getpid(), SIGKILL);
    }
  pthread_mutex_unlock(&mutex);
  return result;
}

static int decide_at(const char *name, int folder, const char *path, int needs) {
  char whole[2 * PATH_MAX + 2] = "";
  if (!root[0] || !path) return GO_ON;
  if (path[0] == '/') return decide(name, path, needs);
  if (folder == AT_FDCWD) {
    if (!getcwd(whole, PATH_MAX)) return GO_ON;
  } else {
    path_of_descriptor(folder, whole);
  }
  size_t length = strlen(whole);
  snprintf(whole + length, sizeof whole - length, "/%s", path);
  return decide(name, whole, needs);
}

static int decide_descriptor(const char *name, int descriptor, int needs) {
  char path[PATH_MAX];
  if (!root[0] || descriptor <= 2) return GO_ON;
  path_of_descriptor(descriptor, path);
  return decide(name, path, needs);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL_IF(decision, failed) \
  do {                            \
    int why = (decision);         \
    if (why > 0) {                \
      errno = why;                \
      return failed;              \
    }                             \
  } while (0)

static int for_writing(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
}

static int decide_open(int folder, const char *path, int flags) {
  if (!for_writing(flags)) return GO_ON;
  return decide_at("open", folder, path, flags & O_CREAT ? NEEDS_ROOM : 0);
}

#define OPEN(name)                                       \
  int name(const char *path, int flags, ...) {           \
    va_list rest;                                        \
    va_start(rest, flags);                               \
    mode_t mode = va_arg(rest, mode_t);                  \
    va_end(rest);                                        \
    REAL(name);                                          \
    FAIL_IF(decide_open(AT_FDCWD, path, flags), -1);     \
    return real(path, flags, mode);                      \
  }
#define OPENAT(name)                                     \
  int name(int folder, const char *path, int flags, ...) { \
    va_list rest;                                        \
    va_start(rest, flags);                               \
    mode_t mode = va_arg(rest, mode_t);                  \
    va_end(rest);                                        \
    REAL(name);                                          \
    FAIL_IF(decide_open(folder, path, flags), -1);       \
    return real(folder, path, flags, mode);              \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                        \
  FILE *name(const char *path, const char *mode) {                         \
    REAL(name);                                                            \
    if (strpbrk(mode, "wa+"))                                              \
      FAIL_IF(decide_at("open", AT_FDCWD, path, NEEDS_ROOM), NULL);        \
    return real(path, mode);                                               \
  }
FOPEN(fopen)
FOPEN(fopen64)

/* A stream writes where it is flushed or closed, not through the write below. The C
   library goes on after a short write of it. */
static int decide_stream(FILE *file) {
  if (!root[0] || !file || !__fpending(file)) return GO_ON;
  int what = decide_descriptor("write", fileno(file), NEEDS_ROOM | WRITES);
  return what == HALF ? (kind == TORN ? EIO : GO_ON) : what;
}

int fflush(FILE *file) {
  REAL(fflush);
  FAIL_IF(decide_stream(file), EOF); /* what is pending stays so, as in the library */
  return real(file);
}

int fclose(FILE *file) {
  REAL(fclose);
  int what = decide_stream(file);
  if (what > 0) { /* the stream is gone, and what was pending is lost */
    int null = open("/dev/null", O_WRONLY);
    dup2(null, fileno(file));
    close(null);
    real(file);
    errno = what;
    return EOF;
  }
  return real(file);
}

#define WRITE(name, parameters, arguments, size)                            \
  ssize_t name parameters {                                                 \
    REAL(name);                                                             \
    int what = decide_descriptor("write", descriptor, NEEDS_ROOM | WRITES); \
    FAIL_IF(what, -1);                                                      \
    if (what == HALF && size > 1) size /= 2;                                \
    return real arguments;                                                  \
  }
WRITE(write, (int descriptor, const void *bytes, size_t size),
      (descriptor, bytes, size), size)
WRITE(pwrite, (int descriptor, const void *bytes, size_t size, off_t at),
      (descriptor, bytes, size, at), size)
WRITE(pwrite64, (int descriptor, const void *bytes, size_t size, off64_t at),
      (descriptor, bytes, size, at), size)
WRITE(writev, (int descriptor, const struct iovec *parts, int num_parts),
      (descriptor, parts, num_parts), num_parts)
WRITE(sendfile, (int descriptor, int source, off_t *at, size_t size),
      (descriptor, source, at, size), size)
WRITE(sendfile64, (int descriptor, int source, off64_t *at, size_t size),
      (descriptor, source, at, size), size)

#define ON_DESCRIPTOR(name, shown, needs, parameters, arguments) \
  int name parameters {                                          \
    REAL(name);                                                  \
    FAIL_IF(decide_descriptor(shown, descriptor, needs), -1);    \
    return real arguments;                                       \
  }
ON_DESCRIPTOR(fsync, "sync", 0, (int descriptor), (descriptor))
ON_DESCRIPTOR(fdatasync, "sync", 0, (int descriptor), (descriptor))
ON_DESCRIPTOR(ftruncate, "truncate", 0, (int descriptor, off_t size),
              (descriptor, size))
ON_DESCRIPTOR(ftruncate64, "truncate", 0, (int descriptor, off64_t size),
              (descriptor, size))

#define ON_PATH(name, shown, needs, folder, path, parameters, arguments) \
  int name parameters {                                                  \
    REAL(name);                                                          \
    FAIL_IF(decide_at(shown, folder, path, needs), -1);                  \
    return real arguments;                                               \
  }
ON_PATH(truncate, "truncate", 0, AT_FDCWD, path, (const char *path, off_t size),
        (path, size))
ON_PATH(rename, "rename", 0, AT_FDCWD, to, (const char *from, const char *to),
        (from, to))
ON_PATH(renameat, "rename", 0, folder, to,
        (int from_folder, const char *from, int folder, const char *to),
        (from_folder, from, folder, to))
ON_PATH(renameat2, "rename", 0, folder, to,
        (int from_folder, const char *from, int folder, const char *to, unsigned how),
        (from_folder, from, folder, to, how))
ON_PATH(link, "link", NEEDS_ROOM, AT_FDCWD, to, (const char *from, const char *to),
        (from, to))
ON_PATH(linkat, "link", NEEDS_ROOM, folder, to,
        (int from_folder, const char *from, int folder, const char *to, int how),
        (from_folder, from, folder, to, how))
ON_PATH(symlink, "link", NEEDS_ROOM, AT_FDCWD, to, (const char *from, const char *to),
        (from, to))
ON_PATH(unlink, "unlink", 0, AT_FDCWD, path, (const char *path), (path))
ON_PATH(unlinkat, "unlink", 0, folder, path, (int folder, const char *path, int how),
        (folder, path, how))
ON_PATH(rmdir, "unlink", 0, AT_FDCWD, path, (const char *path), (path))
ON_PATH(mkdir, "mkdir", NEEDS_ROOM, AT_FDCWD, path, (const char *path, mode_t mode),
        (path, mode))
ON_PATH(mkdirat, "mkdir", NEEDS_ROOM, folder, path,
        (int folder, const char *path, mode_t mode), (folder, path, mode))
