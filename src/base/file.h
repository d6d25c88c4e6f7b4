/* Files: whole reads with a limit, read-only maps, and writes that never leave a half-written file
 * under its final name (temporary name in the same folder, fsync, rename, fsync of the folder).
 * Functions are thread-safe; one kd_outfile belongs to one thread. */
#ifndef KD_BASE_FILE_H
#define KD_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole file mapped read-only. A file truncated by somebody else while mapped raises SIGBUS. */
struct kd_map {
    const uint8_t *data; /* NULL for an empty file */
    int64_t size_bytes;
};
int kd_file_map(struct kd_map *m, const char *path, struct kd_err *err) KD_MUST;
void kd_map_release(struct kd_map *m);
/* Closes a map's bytes (touching one crashes) while it keeps its addresses; kd_map_refill puts a
 * file of its size there. */
int kd_map_close(struct kd_map *m, struct kd_err *err) KD_MUST;
int kd_map_refill(struct kd_map *m, const char *path, struct kd_err *err) KD_MUST;
/* Tells the kernel that a range of a map will not be needed soon (its clean pages may go). */
void kd_map_forget(const void *data, int64_t bytes);

/* Appends the file's bytes to out; refuses a file over max_bytes. */
int kd_file_read(struct kd_buf *out, const char *path, size_t max_bytes,
                 struct kd_err *err) KD_MUST;
/* Writes `bytes` under `path`, whole or not at all. */
int kd_file_write(const char *path, const void *data, size_t bytes, struct kd_err *err) KD_MUST;
bool kd_file_exists(const char *path);
bool kd_dir_exists(const char *path);
/* Whether anything is there: a device, a pipe and a link that leads nowhere, too. */
bool kd_path_there(const char *path);
/* Whether both are there and are the same file or folder. */
bool kd_path_same(const char *a, const char *b);
/* Size in bytes, or -1. */
int64_t kd_file_size(const char *path, struct kd_err *err);
/* Makes a folder and its parents; fine if it is there. */
int kd_dir_make(const char *path, struct kd_err *err) KD_MUST;
/* What kd_dir_make would say of what is there already; makes nothing. */
int kd_dir_could(const char *path, struct kd_err *err) KD_MUST;
/* Removes a folder and all in it; fine if it is not there. Never follows a symbolic link. */
int kd_dir_remove(const char *path, struct kd_err *err) KD_MUST;
/* Removes what a killed kd_out_open left in a folder (NAME.tmpXXXXXX); nobody else writes there. */
int kd_dir_sweep(const char *path, struct kd_err *err) KD_MUST;
/* The same for one file, in a folder where others may be at work: removes `path`.tmpXXXXXX. */
int kd_out_sweep(const char *path, struct kd_err *err) KD_MUST;
/* "a/b" into out (at most size bytes with the NUL); -1 if it does not fit. */
int kd_path_join(char *out, size_t size, const char *a, const char *b, struct kd_err *err) KD_MUST;
/* Bytes free for us on the file system that holds `path` (or its nearest parent that exists). */
int64_t kd_disk_free_bytes(const char *path);
/* -1 unless `name` is one plain path component: not empty, no '/', not "." or "..", no control
 * bytes. For file names that come from outside. */
int kd_name_check(const char *name, struct kd_err *err) KD_MUST;

/* A file being written. */
struct kd_outfile {
    int fd;
    int64_t written_bytes;
    char path[4096];
    char tmp[4096 + 16];
};
/* What is there under that name must be a plain file. */
int kd_out_open(struct kd_outfile *f, const char *path, struct kd_err *err) KD_MUST;
int kd_out_write(struct kd_outfile *f, const void *data, int64_t bytes, struct kd_err *err) KD_MUST;
/* What kd_out_open would say, told before long work; makes nothing. */
int kd_out_could(const char *path, struct kd_err *err) KD_MUST;
/* Syncs and renames to the final name. After a failure the temporary file is gone. */
int kd_out_commit(struct kd_outfile *f, struct kd_err *err) KD_MUST;
/* Drops the temporary file; does nothing after commit or on a zeroed struct. */
void kd_out_abort(struct kd_outfile *f);

/* A work file mapped for reading and writing, its space reserved on disk at once (so that a full
 * disk is an error here and not a crash later). Its pages are the file's, not anonymous memory.
 * kd_rw_open makes it under a temporary name; kd_rw_commit syncs it and gives it its name, or
 * kd_rw_close drops it when it was never committed. kd_rw_reopen maps a committed one again.
 * kd_rw_memory makes one of memory alone, which goes when it is closed; kd_rw_lend one of somebody
 * else's memory, which stays. */
struct kd_rwmap {
    uint8_t *data;
    int64_t size_bytes;
    bool temporary, memory, lent;
    char path[4096];
};
int kd_rw_open(struct kd_rwmap *m, const char *path, int64_t bytes, struct kd_err *err) KD_MUST;
int kd_rw_reopen(struct kd_rwmap *m, const char *path, int64_t bytes, struct kd_err *err) KD_MUST;
int kd_rw_memory(struct kd_rwmap *m, int64_t bytes, struct kd_err *err) KD_MUST;
void kd_rw_lend(struct kd_rwmap *m, uint8_t *data, int64_t bytes);
int kd_rw_commit(struct kd_rwmap *m, struct kd_err *err) KD_MUST;
void kd_rw_close(struct kd_rwmap *m);

/* An advisory lock on a folder (file ".lock" in it), held until the returned descriptor is closed.
 * -1 with the reason if another process holds it. */
int kd_dir_lock(const char *dir, int *fd, struct kd_err *err) KD_MUST;
/* -1 with the same reason if another process holds it now; takes nothing. */
int kd_dir_unused(const char *dir, struct kd_err *err) KD_MUST;

/* Whether a name ends with `tail` and has something before it. */
bool kd_name_ends(const char *name, const char *tail);

#endif
