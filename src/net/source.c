#include "net/source.h"

#include "base/mem.h"
#include "base/pieces.h"
#include "net/source_int.h"

#include <stdlib.h>
#include <string.h>

bool kd_source_is_remote(const char *where)
{
    return !strncmp(where, "hf:", 3) || !strncmp(where, "http://", 7) ||
           !strncmp(where, "https://", 8);
}

static int copy(char **out, const char *text, struct kd_err *err)
{
    size_t n = strlen(text) + 1;
    if (kd_mem_new(out, (int64_t)n, 1, "name", err))
        return -1;
    memcpy(*out, text, n);
    return 0;
}

static int more_room(struct kd_source *s, struct kd_err *err)
{
    if (s->part_count < s->part_cap)
        return 0;
    if (s->part_count >= KD_SOURCE_PARTS_MAX)
        return kd_fail(err, KD_EREMOTE, "more than %d files", KD_SOURCE_PARTS_MAX);
    int cap = s->part_cap ? 2 * s->part_cap : 64;
    struct kd_source_part *more;
    if (kd_mem_new(&more, cap, sizeof *more, "file list", err))
        return -1;
    if (s->part_count)
        memcpy(more, s->parts, (size_t)s->part_count * sizeof *more);
    kd_mem_free(s->parts);
    s->parts = more;
    s->part_cap = cap;
    return 0;
}

int kd_source_put(struct kd_source *s, const char *name, const char *path, const char *url,
                  const char *token, int64_t bytes, const char *sha256, struct kd_err *err)
{
    if (kd_path_check(name, err) || more_room(s, err))
        return -1;
    struct kd_source_part *p = &s->parts[s->part_count];
    memset(p, 0, sizeof *p);
    p->bytes = bytes;
    p->get = -1;
    if (sha256 && strlen(sha256) == 64 && strspn(sha256, "0123456789abcdef") == 64)
        memcpy(p->sha256, sha256, 65);
    if (url && (p->get = kd_get_add(s->get, url, token, bytes, err)) < 0)
        return -1;
    if (copy(&p->name, name, err))
        return -1;
    if (path && copy(&p->path, path, err)) {
        kd_mem_free(p->name);
        return -1;
    }
    s->part_count++;
    return 0;
}

/* By the whole file's name, then by the piece's number: pieces of one file stand together, in
 * order. */
static int by_place(const void *a, const void *b)
{
    const struct kd_source_part *x = a, *y = b;
    struct kd_piece p, q;
    bool cx = kd_piece_parse(&p, x->name) && p.chopped,
         cy = kd_piece_parse(&q, y->name) && q.chopped;
    size_t nx = cx ? p.base_bytes : strlen(x->name), ny = cy ? q.base_bytes : strlen(y->name);
    int c = memcmp(x->name, y->name, nx < ny ? nx : ny);
    if (c || nx != ny)
        return c ? c : nx < ny ? -1 : 1;
    if (cx != cy)
        return cx ? 1 : -1;
    if (cx && p.no != q.no)
        return p.no < q.no ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* How many parts from `first` on are the pieces of one file, all of them there; 1: no such group.
 */
static int group(const struct kd_source *s, int first)
{
    const struct kd_source_part *a = &s->parts[first];
    struct kd_piece p, q;
    if (!kd_piece_parse(&p, a->name) || !p.chopped || p.no != 1)
        return 1;
    if (first && strlen(a[-1].name) == p.base_bytes && !memcmp(a[-1].name, a->name, p.base_bytes))
        return 1; /* the whole file is there too */
    int n = 1;
    while (first + n < s->part_count && kd_piece_parse(&q, a[n].name) && q.chopped &&
           q.base_bytes == p.base_bytes && !memcmp(a[n].name, a->name, p.base_bytes) &&
           q.no == n + 1 && q.count == p.count)
        n++;
    return p.count && n != p.count ? 1 : n;
}

/* Where pieces begin in their file, and its size, as far as sizes are known. */
static void measure(struct kd_source *s, struct kd_source_entry *f)
{
    int64_t total = 0;
    for (int i = 0; i < f->pub.pieces; i++) {
        struct kd_source_part *p = &s->parts[f->first + i];
        p->start = total;
        if (p->bytes < 0 || __builtin_add_overflow(total, p->bytes, &total)) {
            f->pub.bytes = -1;
            return;
        }
    }
    f->pub.bytes = total;
}

/* From the parts, as listed, to files. */
static int make_files(struct kd_source *s, struct kd_err *err)
{
    if (s->part_count)
        qsort(s->parts, (size_t)s->part_count, sizeof *s->parts, by_place);
    for (int i = 1; i < s->part_count; i++)
        if (!strcmp(s->parts[i - 1].name, s->parts[i].name))
            return kd_fail(err, KD_EREMOTE, "the file '%s' is listed twice", s->parts[i].name);
    int groups = 0;
    for (int i = 0, n; i < s->part_count; i += n)
        groups += (n = group(s, i)) > 1;
    if (kd_mem_zero(&s->files, s->part_count, sizeof *s->files, "file list", err) ||
        kd_mem_zero(&s->names, groups, sizeof *s->names, "file list", err))
        return -1;
    groups = 0;
    for (int i = 0, n; i < s->part_count; i += n) {
        struct kd_source_entry *f = &s->files[s->file_count++];
        const struct kd_source_part *p = &s->parts[i];
        struct kd_piece piece;
        n = group(s, i);
        f->first = i;
        f->pub.pieces = n;
        f->pub.name = p->name;
        if (n > 1 && kd_piece_parse(&piece, p->name)) {
            char *name = s->names[groups++];
            memcpy(name, p->name, piece.base_bytes);
            f->pub.name = name;
        } else if (*p->sha256) {
            f->pub.sha256 = p->sha256;
        }
        measure(s, f);
    }
    return 0;
}

int kd_source_open(struct kd_source **out, const char *where, const struct kd_source_opts *opts,
                   struct kd_err *err)
{
    struct kd_source *s;
    char shown[1024];
    *out = NULL;
    if (kd_mem_zero(&s, 1, sizeof *s, "source", err))
        return -1;
    if (opts)
        s->o = *opts;
    if (!s->o.gap_bytes)
        s->o.gap_bytes = 1 << 20;
    bool remote = kd_source_is_remote(where);
    int rc = copy(&s->where, kd_url_show(shown, sizeof shown, where), err);
    if (!rc && remote)
        rc = kd_get_open(&s->get, &s->o.get, err);
    if (!rc)
        rc = !strncmp(where, "hf:", 3) ? kd_source_list_hub(s, where, err)
             : remote                  ? kd_source_list_web(s, where, err)
                                       : kd_source_list_local(s, where, err);
    if (!rc)
        rc = make_files(s, err);
    if (!rc && !s->file_count)
        rc = kd_fail(err, KD_EINVAL, "'%s' holds no file", s->where);
    if (rc) {
        kd_source_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void kd_source_close(struct kd_source *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->part_count; i++) {
        kd_mem_free(s->parts[i].name);
        kd_mem_free(s->parts[i].path);
    }
    kd_mem_free(s->parts);
    kd_mem_free(s->files);
    kd_mem_free(s->names);
    kd_get_close(s->get);
    kd_mem_free(s->dir);
    kd_mem_free(s->where);
    kd_mem_free(s);
}

const char *kd_source_where(const struct kd_source *s)
{
    return s->where;
}

const char *kd_source_commit(const struct kd_source *s)
{
    return s->commit;
}

const char *kd_source_dir(const struct kd_source *s)
{
    return s->dir;
}

int kd_source_count(const struct kd_source *s)
{
    return s->file_count;
}

const struct kd_source_file *kd_source_at(const struct kd_source *s, int file)
{
    return file < 0 || file >= s->file_count ? NULL : &s->files[file].pub;
}

int kd_source_find(const struct kd_source *s, const char *name)
{
    int low = 0, high = s->file_count;
    while (low < high) {
        int mid = (low + high) / 2;
        int c = strcmp(s->files[mid].pub.name, name);
        if (!c)
            return mid;
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

const char *kd_source_path(const struct kd_source *s, int file)
{
    const struct kd_source_entry *f = &s->files[file];
    return f->pub.pieces == 1 ? s->parts[f->first].path : NULL;
}

const char *kd_source_tag(const struct kd_source *s, int file)
{
    const struct kd_source_part *p = &s->parts[s->files[file].first];
    return p->get < 0 ? "" : kd_get_etag(s->get, p->get);
}

const char *kd_source_piece(const struct kd_source *s, int file, int piece, int64_t *begin,
                            int64_t *bytes)
{
    const struct kd_source_part *p = &s->parts[s->files[file].first + piece];
    *begin = p->start;
    *bytes = p->bytes;
    return *p->sha256 ? p->sha256 : NULL;
}

const struct kd_source_stats *kd_source_stats(const struct kd_source *s)
{
    return &s->stats;
}

int kd_source_stat(struct kd_source *s, int file, struct kd_err *err)
{
    int first = file < 0 ? 0 : s->files[file].first;
    int count = file < 0 ? s->part_count : s->files[file].pub.pieces, n = 0;
    int *gets = NULL, *which = NULL;
    int64_t *sizes = NULL;
    int rc = kd_mem_new(&gets, count, sizeof *gets, "sizes", err) ||
                     kd_mem_new(&which, count, sizeof *which, "sizes", err) ||
                     kd_mem_new(&sizes, count, sizeof *sizes, "sizes", err)
                 ? -1
                 : 0;
    for (int i = 0; i < count && !rc; i++)
        if (s->parts[first + i].bytes < 0) {
            gets[n] = s->parts[first + i].get;
            which[n++] = first + i;
        }
    if (!rc && n)
        rc = kd_get_sizes(s->get, gets, n, sizes, err);
    for (int i = 0; i < n && !rc; i++) {
        struct kd_source_part *p = &s->parts[which[i]];
        p->bytes = sizes[i];
        if (p->bytes < 0)
            rc = kd_fail(err, KD_EREMOTE, "%s: the file '%s' is not there (status 404)", s->where,
                         p->name);
    }
    for (int i = file < 0 ? 0 : file; i < s->file_count && n && (file < 0 || i == file); i++)
        measure(s, &s->files[i]);
    kd_mem_free(gets);
    kd_mem_free(which);
    kd_mem_free(sizes);
    return rc;
}
