/* The journal of a fetch, DST/.fetch: what of which file lies on disk, so that a killed fetch goes
 * on. Append-only text; a line ends with a hash of itself, so that one torn by a crash is known for
 * what it is. The name comes last, as it may hold blanks.
 *
 *     kondense-fetch 1 COMMIT WHERE       the first line; COMMIT is '-' where none is known
 *     span BEGIN BYTES XXH64 TAG NAME     these bytes of NAME.part are there, with this hash
 *     done BYTES SHA256 - NAME            NAME has its final name; SHA256 '-' when nobody said it
 *     drop 0 - - NAME                     all before this of NAME is void
 *
 * TAG is a hash of the ETag, or '-'. Parsing is pure; a struct kd_journal is used under the
 * caller's lock. */
#ifndef KD_NET_JOURNAL_H
#define KD_NET_JOURNAL_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { KD_JOURNAL_MAX = 256 << 20 };

enum kd_journal_kind { KD_JOURNAL_SPAN, KD_JOURNAL_DONE, KD_JOURNAL_DROP };

struct kd_journal_line {
    enum kd_journal_kind kind;
    const char *name;
    int64_t begin, bytes;
    uint64_t xxh, tag; /* of a span; tag 0: none */
    char sha256[65];   /* of a done file, or "" */
};

typedef int kd_journal_see(void *ctx, const struct kd_journal_line *line, struct kd_err *err);

/* Walks a journal's text. *good: bytes up to the end of the last whole line; what follows is torn.
 * head and where receive the first line's commit ("" for none) and source; both sizes are their
 * rooms. A text without a whole first line is an empty journal (*good 0). KD_ECORRUPT for a whole
 * line that is none. `text` is changed. */
int kd_journal_parse(char *text, size_t bytes, size_t *good, char *commit, size_t commit_size,
                     char *where, size_t where_size, kd_journal_see *see, void *ctx,
                     struct kd_err *err) KD_MUST;

struct kd_journal {
    int fd;
    struct kd_buf pending;
};

/* Opens or makes DST/.fetch; a torn end is cut off. An existing one of another source or commit is
 * an error that says which. Calls see for each line. */
int kd_journal_open(struct kd_journal *j, const char *dst, const char *where, const char *commit,
                    kd_journal_see *see, void *ctx, struct kd_err *err) KD_MUST;
/* Collects a line. _write hands what was collected to the system, so that no kill loses it; _flush
 * also syncs. No order is owed to the data's own sync: a resume believes hashes, not lines. */
void kd_journal_add(struct kd_journal *j, const struct kd_journal_line *line);
int kd_journal_write(struct kd_journal *j, struct kd_err *err) KD_MUST;
int kd_journal_flush(struct kd_journal *j, struct kd_err *err) KD_MUST;
void kd_journal_close(struct kd_journal *j);

#endif
