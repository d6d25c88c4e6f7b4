/* A model's files, wherever they are: one interface for a local folder or file, a hub repository
 * and any web folder or file.
 *
 *     k3-nano                     a folder, or one file in it
 *     hf:owner/name[@rev][/path]  the hub's repository at a branch, tag or commit, resolved to a
 *                                 commit once; files complete in the hub's cache are read there
 *     https://host/folder[/file]  a folder is listed by its page of links, else by its safetensors
 *                                 index; `x-00001-of-00014.gguf` brings its sisters
 *
 * A file that was chopped bytewise (NAME.part-01-of-05 ..., NAME.part1of5, NAME-split-aa ...) is
 * one file here. Names are relative paths, checked part by part (kd_name_check, no leading '-').
 *
 *     struct kd_source *s;
 *     if (kd_source_open(&s, "hf:moonshotai/Kimi-K3", &opts, err)) ...
 *     int f = kd_source_find(s, "config.json");
 *     if (f < 0 || kd_source_read(s, f, 0, 8, head, err)) ...
 *
 * One thread at a time per kd_source; open a second one for a second thread. */
#ifndef KD_NET_SOURCE_H
#define KD_NET_SOURCE_H

#include "base/buf.h"
#include "net/get.h"

struct kd_source;

/* kd_cmd_source_opts (cmd/remote.h) fills this from the options and the environment. Strings must
 * outlive the source; NULL and zero are the defaults. */
struct kd_source_opts {
    struct kd_get_opts get;
    int64_t gap_bytes; /* spans of a batch nearer than this become one request (1 MiB); -1: never */
    const char *endpoint;   /* HF_ENDPOINT; NULL: https://huggingface.co */
    const char *token;      /* HF_TOKEN or a token file's text */
    bool token_to_endpoint; /* the token may go to an endpoint that is not the hub itself */
    const char *hub_cache;  /* $HF_HOME/hub; NULL: do not look */
    bool offline;           /* HF_HUB_OFFLINE: the cache alone */
};

struct kd_source_file {
    const char *name;
    int64_t bytes;      /* -1: not asked for yet, see kd_source_stat */
    const char *sha256; /* 64 hex digits of the whole file where the source says so, else NULL */
    int pieces;         /* 1, or of how many chopped pieces it is made */
};

/* One span of a batch. Bytes go to buf, or to sink (see kd_get_sink) when buf is NULL. */
struct kd_source_span {
    int file;
    int64_t begin, bytes;
    void *buf;
    kd_get_sink *sink;
    void *ctx;
};

struct kd_source_stats {
    int64_t requests, retries, resolves; /* 0 for local files */
    int64_t wanted_bytes;                /* asked for by callers */
    int64_t fetched_bytes;               /* received, gaps included */
};

/* Opens and lists; reads no file. A single file's source holds that file alone (or its sisters). */
int kd_source_open(struct kd_source **out, const char *where, const struct kd_source_opts *opts,
                   struct kd_err *err) KD_MUST;
void kd_source_close(struct kd_source *s);
/* True when `where` names something remote (hf:, http:, https:): decides by the text alone. */
bool kd_source_is_remote(const char *where);

const char *kd_source_where(const struct kd_source *s); /* for people: no key in it */
const char *
kd_source_commit(const struct kd_source *s);          /* 40 hex digits, or "" where none is known */
const char *kd_source_dir(const struct kd_source *s); /* of a local source, else NULL */
int kd_source_count(const struct kd_source *s);
const struct kd_source_file *kd_source_at(const struct kd_source *s, int file); /* sorted by name */
int kd_source_find(const struct kd_source *s, const char *name);                /* -1: not there */
/* The file's bytes on this machine (a local source, or the hub's cache), or NULL. */
const char *kd_source_path(const struct kd_source *s, int file);
/* The ETag that came with a remote file's bytes, or "" before the first. */
const char *kd_source_tag(const struct kd_source *s, int file);
/* Of a chopped file: its pieces' digests as the source says them (or NULL), and where each begins
 * and ends. piece counts from 0. */
const char *kd_source_piece(const struct kd_source *s, int file, int piece, int64_t *begin,
                            int64_t *bytes);
const struct kd_source_stats *kd_source_stats(const struct kd_source *s);

/* Asks for sizes that are not known yet: of one file, or of all (file = -1). */
int kd_source_stat(struct kd_source *s, int file, struct kd_err *err) KD_MUST;
/* Reads exactly [offset, offset + bytes); a range beyond the file's end is an error that says so.
 */
int kd_source_read(struct kd_source *s, int file, int64_t offset, int64_t bytes, void *buf,
                   struct kd_err *err) KD_MUST;
/* Many spans in one go, in any order and over any files; remote ones in parallel, near ones
 * joined. Spans may not overlap when they go to sinks. */
int kd_source_read_many(struct kd_source *s, const struct kd_source_span *spans, int64_t count,
                        struct kd_err *err) KD_MUST;
/* A whole small file, appended to out. */
int kd_source_load(struct kd_source *s, int file, size_t max_bytes, struct kd_buf *out,
                   struct kd_err *err) KD_MUST;
/* What kd_source_read_many would do for these spans: requests, and bytes fetched with the gaps.
 * Needs the sizes; reads nothing. */
int kd_source_cost(struct kd_source *s, const struct kd_source_span *spans, int64_t count,
                   int64_t *requests, int64_t *fetched_bytes, struct kd_err *err) KD_MUST;

#endif
