/* What source.c (lists), source_read.c (bytes) and the three kinds of sources share. */
#ifndef KD_NET_SOURCE_INT_H
#define KD_NET_SOURCE_INT_H

#include "net/source.h"
#include "net/url.h"

enum { KD_SOURCE_PARTS_MAX = 200000, KD_SOURCE_NAME_MAX = 1024 };

/* One file as it lies there. */
struct kd_source_part {
    char *name;
    char *path; /* on this machine, or NULL: then `get` */
    int get;    /* of kd_get_add */
    int64_t bytes;
    char sha256[65];
    int64_t start; /* of its first byte in the file that it is a piece of */
};

struct kd_source_entry {
    struct kd_source_file pub;
    int first; /* its parts: [first, first + pub.pieces) */
};

struct kd_source {
    struct kd_source_opts o;
    char *where, *dir;
    char commit[64];
    struct kd_get *get;
    struct kd_source_part *parts;
    int part_count, part_cap;
    struct kd_source_entry *files;
    int file_count;
    char (*names)[KD_SOURCE_NAME_MAX + 1]; /* of chopped files, whose parts are called otherwise */
    struct kd_source_stats stats;
};

/* Adds a file (names checked here); the kinds call this while they list. path or url is NULL. */
int kd_source_put(struct kd_source *s, const char *name, const char *path, const char *url,
                  const char *token, int64_t bytes, const char *sha256, struct kd_err *err) KD_MUST;
int kd_source_list_local(struct kd_source *s, const char *where, struct kd_err *err) KD_MUST;
/* All files under a folder, as `prefix`NAME. */
int kd_source_walk(struct kd_source *s, const char *dir, struct kd_err *err) KD_MUST;
int kd_source_list_hub(struct kd_source *s, const char *where, struct kd_err *err) KD_MUST;
int kd_source_list_web(struct kd_source *s, const char *where, struct kd_err *err) KD_MUST;
/* A page of the hub's tree: adds its files that lie under `under` ("" for all). url is the
 * repository's resolve address, with the '/' at its end. */
int kd_source_tree(struct kd_source *s, const char *text, size_t bytes, const char *under,
                   const char *url, const char *token, struct kd_err *err) KD_MUST;

#endif
