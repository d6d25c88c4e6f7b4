/* Files of a source onto this disk: whole files under their final names or not at all, resumed
 * after anything. A file grows as NAME.part; each piece that is there is written down in DST/.fetch
 * (net/journal.h) with its hash once it is on disk; a resume holds the bytes against those hashes
 * and asks for the rest. When all pieces are there the file's SHA-256 is held against the source's
 * where that says one, its first bytes against what its name promises, and it gets its name.
 *
 * One thread per job; checking of finished files runs beside on a thread of the job's own. */
#ifndef KD_NET_FETCH_H
#define KD_NET_FETCH_H

#include "net/source.h"

struct kd_fetch;

struct kd_fetch_opts {
    int64_t piece_bytes;   /* of the journal (KD_GET_PIECE_BYTES) */
    bool (*stopped)(void); /* true ends with KD_ECANCEL; what is there stays */
    bool quiet;            /* no progress line (another one runs) */
};

enum kd_fetch_state {
    KD_FETCH_WANTED, /* nothing of it is there */
    KD_FETCH_PARTLY, /* some pieces are */
    KD_FETCH_THERE,  /* it was there before */
    KD_FETCH_FETCHED /* now it is */
};

struct kd_fetch_file {
    int file; /* of the source */
    const char *name;
    int64_t bytes, had_bytes; /* had: pieces found there and sound */
    enum kd_fetch_state state;
    bool verified; /* its SHA-256 is the source's */
};

/* Looks at what is there. The source is best opened with gap_bytes -1. dst is made and locked.
 * `files`: numbers in the source, `count` of them; their sizes are asked for. An existing file of
 * another size is an error. */
int kd_fetch_open(struct kd_fetch **out, struct kd_source *s, const int *files, int count,
                  const char *dst, const struct kd_fetch_opts *opts, struct kd_err *err) KD_MUST;
/* Fetches what is wanted. Checks first that the disk has room for it. */
int kd_fetch_run(struct kd_fetch *f, struct kd_err *err) KD_MUST;
/* Also after a failure: everything journalled. */
void kd_fetch_close(struct kd_fetch *f);

int kd_fetch_count(const struct kd_fetch *f);
const struct kd_fetch_file *kd_fetch_at(const struct kd_fetch *f, int i);
/* Bytes of files not yet under their names, and of those what must still come. */
int64_t kd_fetch_left_bytes(const struct kd_fetch *f);

/* The first bytes of a file against its name's ending (.safetensors, .gguf, .json): -1 with "a web
 * page" or what else is wrong. head holds the first n bytes, n <= 64. */
int kd_fetch_magic(const char *name, const uint8_t *head, int64_t n, int64_t bytes,
                   struct kd_err *err) KD_MUST;

#endif
