/* A folder that the coordinator and its workers both see (NFS, Lustre): blobs and units go through
 * it instead of HTTPS, which still says what there is. Such folders show a file late, or before its
 * bytes: nothing counts before its digest is right, a reader waits a little, and then HTTPS serves.
 *
 *   DIR/b/DIGEST          blobs of the open stage, written by the coordinator
 *   DIR/in/DIGEST.WORKER  units, written by workers, taken away by the coordinator */
#ifndef KD_FARM_SHARE_H
#define KD_FARM_SHARE_H

#include "base/file.h"

enum { KD_SHARE_WAIT_MS = 6000, KD_SHARE_TRY_MS = 200 };

/* The coordinator's start: makes both folders, and empties them. */
int kd_share_open(const char *dir, struct kd_err *err) KD_MUST;
/* Whether a worker sees the coordinator's folders there. */
bool kd_share_seen(const char *dir);
/* Blobs that no stage needs any more. */
void kd_share_sweep(const char *dir);
/* The paths of a blob, and of a unit made by `worker`, into out[4096]. Both names are checked:
 * nothing that a wire said leads elsewhere. */
int kd_share_blob(const char *dir, const char *sha256, char *out, struct kd_err *err) KD_MUST;
int kd_share_unit(const char *dir, const char *sha256, const char *worker, char *out,
                  struct kd_err *err) KD_MUST;
/* A file of these bytes and digest, into out or to `file` (the other NULL). KD_ECORRUPT: it is not
 * there, or not yet whole; out is emptied, `file` is to be aborted. */
int kd_share_read(const char *path, const char *sha256, int64_t bytes, struct kd_buf *out,
                  struct kd_outfile *file, struct kd_err *err) KD_MUST;

#endif
