/* Split files: names, the rules of a set, and opening one from disk. */
#include "base/mem.h"
#include "base/pieces.h"
#include "base/show.h"
#include "fmt/gguf.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "-00001-of-00014.gguf" */
enum { TAIL = 20 };

static bool five(const char *s, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return true;
}

bool kd_gguf_split_parse(const char *path, int64_t *number, int64_t *count, size_t *prefix_bytes)
{
    size_t n = strlen(path);
    if (n <= TAIL)
        return false;
    const char *t = path + n - TAIL;
    if (t[0] != '-' || !five(t + 1, number) || strncmp(t + 6, "-of-", 4) != 0 ||
        !five(t + 10, count) || strcmp(t + 15, ".gguf") != 0)
        return false;
    *prefix_bytes = n - TAIL;
    return *number >= 1 && *number <= *count && *count <= KD_GGUF_PARTS_MAX;
}

int kd_gguf_split_path(char *out, size_t size, const char *prefix, size_t prefix_bytes,
                       int64_t number, int64_t count, struct kd_err *err)
{
    int n = prefix_bytes < size
                ? snprintf(out, size, "%.*s-%05lld-of-%05lld.gguf", (int)prefix_bytes, prefix,
                           (long long)number, (long long)count)
                : -1;
    return n < 0 || (size_t)n >= size ? kd_fail(err, KD_EINVAL, "a file name that is too long") : 0;
}

/* The three keys of part i. */
static int part_check(const struct kd_gguf *g, int64_t i, int64_t parts, int64_t *total,
                      struct kd_err *err)
{
    int64_t no, count;
    if (kd_gguf_int_or(g, "split.count", 0, KD_GGUF_PARTS_MAX, 0, &count, err) ||
        kd_gguf_int_or(g, "split.no", 0, KD_GGUF_PARTS_MAX, 0, &no, err) ||
        kd_gguf_int_or(g, "split.tensors.count", 0, KD_GGUF_TENSORS_MAX, -1, total, err))
        return -1;
    if (count <= 1 && parts == 1)
        return 0;
    if (count != parts)
        return kd_fail(err, KD_ECORRUPT,
                       parts == 1 ? "it is one of %lld parts and is not named like one, so the "
                                    "others cannot be found (%lld file given); parts joined into "
                                    "one file are no model, as each has offsets of its own"
                                  : "split.count says %lld parts, the set has %lld",
                       (long long)count, (long long)parts);
    if (no != i)
        return kd_fail(err, KD_ECORRUPT, "split.no says part %lld, it is part %lld",
                       (long long)no + 1, (long long)i + 1);
    return 0;
}

static int names_check(struct kd_names *seen, const struct kd_gguf *g, struct kd_err *err)
{
    for (int64_t t = 0; t < g->tensor_count; t++) {
        int64_t id;
        bool fresh;
        const char *name = g->tensors[t].name;
        if (kd_names_add(seen, name, strlen(name), &id, &fresh, err))
            return -1;
        if (!fresh)
            return kd_fail(err, KD_ECORRUPT, "tensor '%s' is in two parts", name);
    }
    return 0;
}

int kd_gguf_set_check(const struct kd_gguf *const *heads, int64_t parts, struct kd_err *err)
{
    struct kd_names seen;
    int64_t sum = 0, total = -1;
    kd_names_init(&seen);
    int rc = 0;
    for (int64_t i = 0; !rc && i < parts; i++) {
        int64_t mine = -1;
        rc = part_check(heads[i], i, parts, &mine, err) || names_check(&seen, heads[i], err);
        if (!rc && i > 0 && mine != total)
            rc = kd_fail(err, KD_ECORRUPT, "split.tensors.count says %lld, the first part's %lld",
                         (long long)mine, (long long)total);
        if (rc && parts > 1)
            kd_wrap(err, "part %lld", (long long)i + 1);
        total = mine;
        sum += heads[i]->tensor_count;
    }
    kd_names_release(&seen);
    if (!rc && total >= 0 && sum != total)
        rc = kd_fail(err, KD_ECORRUPT, "split.tensors.count says %lld, the parts hold %lld tensors",
                     (long long)total, (long long)sum);
    return rc ? -1 : 0;
}

/* Of a piece of a chopped NAME.gguf: the bytes of the whole file's path, and which piece it is (*no
 * may be NULL); 0 for any other path. */
static size_t whole_bytes(const char *path, int64_t *no)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct kd_piece p;
    if (!kd_piece_parse(&p, name) || !p.chopped || p.base_bytes <= 5 ||
        strncmp(name + p.base_bytes - 5, ".gguf", 5) != 0)
        return 0;
    if (no)
        *no = p.no;
    return (size_t)(name - path) + p.base_bytes;
}

static int open_part(struct kd_gguf_part *p, const char *path, struct kd_err *err)
{
    char whole[4096], shown[256];
    bool chopped = whole_bytes(path, NULL) != 0;
    if (chopped ? kd_pieces_map(&p->map, path, whole, sizeof whole, err)
                : kd_file_map(&p->map, path, err))
        return -1;
    path = chopped ? whole : path;
    size_t n = strlen(path) + 1;
    if (kd_mem_new(&p->path, (int64_t)n, 1, "file name", err))
        return -1;
    memcpy(p->path, path, n);
    return kd_gguf_parse(&p->head, p->map.data, p->map.size_bytes, p->map.size_bytes,
                         kd_show_text(shown, sizeof shown, path), NULL, err);
}

static int check_parts(const struct kd_gguf_set *s, struct kd_err *err)
{
    const struct kd_gguf **heads;
    if (kd_mem_new((void *)&heads, s->part_count, sizeof *heads, "list of parts", err))
        return -1;
    for (int64_t i = 0; i < s->part_count; i++)
        heads[i] = &s->parts[i].head;
    int rc = kd_gguf_set_check(heads, s->part_count, err);
    kd_mem_free((void *)heads);
    char shown[256];
    return rc ? kd_wrap(err, "%s", kd_show_text(shown, sizeof shown, s->parts[0].path)) : 0;
}

static int open_file(struct kd_gguf_set *s, const char *path, struct kd_err *err)
{
    int64_t number, count = 1;
    size_t prefix = 0;
    bool split = kd_gguf_split_parse(path, &number, &count, &prefix);
    if (!split)
        count = 1;
    if (kd_mem_zero(&s->parts, count, sizeof *s->parts, "list of parts", err))
        return -1;
    for (; s->part_count < count; s->part_count++) {
        char name[4096];
        if (split &&
            kd_gguf_split_path(name, sizeof name, path, prefix, s->part_count + 1, count, err))
            return -1;
        if (open_part(&s->parts[s->part_count], split ? name : path, err)) {
            s->part_count++; /* what it holds is to be released */
            return -1;
        }
    }
    return check_parts(s, err);
}

/* Of all files of a model, the one that it is opened by: a .gguf file, the first of a set, the
 * first piece of a chopped one unless the whole lies beside it. */
static bool stands_for_one(const char *path)
{
    char whole[4096];
    int64_t number = 1, parts;
    size_t bytes = whole_bytes(path, &number), prefix;
    if (!bytes)
        return kd_name_ends(path, ".gguf") &&
               (!kd_gguf_split_parse(path, &number, &parts, &prefix) || number == 1);
    snprintf(whole, sizeof whole, "%.*s", (int)bytes, path);
    return number == 1 && !kd_file_exists(whole);
}

/* The file of a folder by which its only model is opened; *count of such. *other: it is a
 * safetensors checkpoint first. */
static int find_in(const char *dir, char *out, size_t size, int64_t *count, bool *other,
                   struct kd_err *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[4096];
    int rc = 0;
    bool config = false, safetensors = false;
    *count = 0;
    if (!d)
        return kd_fail_sys(err, "cannot read the folder '%s'", dir);
    while (!rc && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        config = config || !strcmp(e->d_name, "config.json");
        safetensors = safetensors || kd_name_ends(e->d_name, ".safetensors");
        rc = kd_path_join(path, sizeof path, dir, e->d_name, err);
        if (rc || !stands_for_one(path))
            continue;
        ++*count;
        if (snprintf(out, size, "%s", path) >= (int)size)
            rc = kd_fail(err, KD_EINVAL, "'%s' is too long", path);
    }
    closedir(d);
    *other = config && safetensors;
    return rc;
}

int kd_gguf_open(struct kd_gguf_set *s, const char *path, struct kd_err *err)
{
    char found[4096], shown[256];
    int64_t count;
    bool other;
    memset(s, 0, sizeof *s);
    if (kd_dir_exists(path)) {
        if (find_in(path, found, sizeof found, &count, &other, err))
            return -1;
        if (count != 1)
            return kd_fail(err, KD_EINVAL, "'%s' holds %lld GGUF models; name the file",
                           kd_show_text(shown, sizeof shown, path), (long long)count);
        path = found;
    }
    if (!open_file(s, path, err))
        return 0;
    kd_gguf_close(s);
    return -1;
}

void kd_gguf_close(struct kd_gguf_set *s)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        kd_gguf_release(&s->parts[i].head);
        kd_map_release(&s->parts[i].map);
        kd_mem_free(s->parts[i].path);
    }
    kd_mem_free(s->parts);
    memset(s, 0, sizeof *s);
}

bool kd_gguf_is(const char *path)
{
    char found[4096], magic[4];
    int64_t count;
    bool other;
    if (kd_dir_exists(path))
        return !find_in(path, found, sizeof found, &count, &other, NULL) && count && !other;
    if (kd_name_ends(path, ".gguf") || whole_bytes(path, NULL))
        return true;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool is = read(fd, magic, sizeof magic) == sizeof magic && !memcmp(magic, "GGUF", 4);
    close(fd);
    return is;
}
