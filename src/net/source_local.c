#include "net/source_int.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/pieces.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 4 };

/* Adds the plain files of dir, called `prefix`NAME, and of its folders. Hidden ones are left out;
 * symbolic links are followed, as the hub's cache is made of them. */
static int walk(struct kd_source *s, const char *dir, const char *prefix, int depth,
                struct kd_err *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return kd_fail_sys(err, "cannot read the folder '%s'", dir);
    struct dirent *e;
    int rc = 0;
    while (!rc && (e = readdir(d))) {
        char path[4096], name[KD_SOURCE_NAME_MAX + 1];
        struct stat st;
        if (*e->d_name == '.' || *e->d_name == '-')
            continue;
        if (kd_path_join(path, sizeof path, dir, e->d_name, err) ||
            snprintf(name, sizeof name, "%s%s", prefix, e->d_name) >= (int)sizeof name - 1) {
            rc = kd_fail(err, KD_EINVAL, "'%s' is too long", path);
            break;
        }
        if (stat(path, &st))
            continue; /* a link to nowhere: a file of the cache that was never fetched */
        if (S_ISREG(st.st_mode)) {
            rc = kd_source_put(s, name, path, NULL, NULL, st.st_size, NULL, err);
        } else if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
            memcpy(name + strlen(name), "/", 2);
            rc = walk(s, path, name, depth + 1, err);
        }
    }
    closedir(d);
    return rc;
}

int kd_source_walk(struct kd_source *s, const char *dir, struct kd_err *err)
{
    return walk(s, dir, "", 0, err);
}

/* One file by itself, with its sisters. */
static int one_file(struct kd_source *s, const char *path, struct kd_err *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    struct kd_piece p;
    if (!kd_piece_parse(&p, name) || (!p.count && !p.chopped)) {
        int64_t bytes = kd_file_size(path, err);
        return bytes < 0 ? -1 : kd_source_put(s, name, path, NULL, NULL, bytes, NULL, err);
    }
    char sister[KD_SOURCE_NAME_MAX], at[4096];
    for (int64_t i = 1; kd_piece_sister(sister, sizeof sister, name, &p, i); i++) {
        if (snprintf(at, sizeof at, "%.*s%s", (int)(name - path), path, sister) >= (int)sizeof at)
            return kd_fail(err, KD_EINVAL, "'%s' is too long", path);
        if (!p.count && !kd_file_exists(at)) /* lettered: as far as there are any */
            break;
        int64_t bytes = kd_file_size(at, err);
        if (bytes < 0)
            return kd_wrap(err, "'%s' is one of %lld", path, (long long)p.count);
        if (kd_source_put(s, sister, at, NULL, NULL, bytes, NULL, err))
            return -1;
    }
    return 0;
}

int kd_source_list_local(struct kd_source *s, const char *where, struct kd_err *err)
{
    bool file = kd_file_exists(where);
    if (!file && !kd_dir_exists(where))
        return kd_fail(err, KD_EINVAL,
                       kd_path_there(where) ? "cannot open '%s': it is neither a file nor a folder"
                                            : "cannot open '%s': it is not there",
                       s->where);
    const char *slash = strrchr(where, '/');
    size_t n = !file ? strlen(where) : slash ? (size_t)(slash - where) : 0;
    if (kd_mem_zero(&s->dir, (int64_t)n + 2, 1, "path", err))
        return -1;
    memcpy(s->dir, where, n);
    if (!n)
        *s->dir = slash ? '/' : '.';
    return file ? one_file(s, where, err) : kd_source_walk(s, where, err);
}
