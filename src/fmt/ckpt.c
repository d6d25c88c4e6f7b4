#include "fmt/ckpt.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/show.h"
#include "fmt/gguf.h"
#include "fmt/gguf_block.h"
#include "fmt/gguf_config.h"
#include "fmt/st.h"
#include "fmt/stindex.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX = 16 << 20 };

struct shard {
    char *name;
    struct kd_map map;
    uint64_t head_hash; /* once dropped: of the head that its file must have */
    bool present;
};

struct kd_ckpt {
    char *dir;
    struct kd_json *config;
    struct shard *shards;
    int shard_count;
    struct kd_names names;
    struct kd_tensor *tensors; /* sorted by name */
    int32_t *sorted;           /* place in tensors, by id of names */
    int64_t count;
    int64_t index_total;
    struct kd_gguf_set gguf; /* part_count 0: it is safetensors */
};

/* What opening collects: tensors by id of names, before they are sorted. */
struct gather {
    struct kd_ckpt *ck;
    struct kd_buf list; /* of struct kd_tensor */
};

static int copy_text(char **out, const char *text, struct kd_err *err)
{
    size_t n = strlen(text) + 1;
    if (kd_mem_new(out, (int64_t)n, 1, "name", err))
        return -1;
    memcpy(*out, text, n);
    return 0;
}

static struct kd_tensor *gathered(struct gather *g, int64_t id)
{
    return (struct kd_tensor *)(void *)g->list.data + id;
}

/* Elements are read in place. The format does not ask for alignment, every known writer keeps it.
 */
static int align_of(const struct kd_tensor *t)
{
    int bits = kd_dtype_bits(t->dtype);
    return bits < 8 ? 1 : bits / 8;
}

/* Adds the tensors of one shard that is there. With an index each must be one that the index puts
 * into this shard; without, one that no earlier shard has. */
static int add_shard(struct gather *g, int shard, bool indexed, struct kd_err *err)
{
    struct kd_ckpt *ck = g->ck;
    struct kd_st st;
    char path[4096], shown[256];
    if (kd_path_join(path, sizeof path, ck->dir, ck->shards[shard].name, err) ||
        kd_st_map(&st, path, err))
        return -1;
    int rc = 0;
    for (int64_t i = 0; i < st.count && !rc; i++) {
        struct kd_tensor t = st.tensors[i].t;
        int64_t id = kd_names_find(&ck->names, t.name);
        bool fresh = id < 0;
        kd_show_text(shown, sizeof shown, t.name);
        if (indexed && fresh)
            rc = kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is not in the index", path, shown);
        else if (!fresh && indexed && gathered(g, id)->shard != shard)
            rc = kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is here, but the index puts it into %s",
                         path, shown, ck->shards[gathered(g, id)->shard].name);
        else if (!fresh && !indexed)
            rc = kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is also in %s", path, shown,
                         ck->shards[gathered(g, id)->shard].name);
        else if (t.bytes && (uintptr_t)t.data % (uintptr_t)align_of(&t))
            rc = kd_fail(err, KD_ENOTSUP,
                         "%s: tensor '%s' (%s) does not begin on a multiple of its element", path,
                         shown, t.dtype_name);
        else if (fresh)
            rc = kd_names_add(&ck->names, t.name, strlen(t.name), &id, &fresh, err);
        if (rc)
            break;
        t.name = ck->names.at[id];
        t.shard = shard;
        if (indexed)
            *gathered(g, id) = t;
        else
            kd_buf_add(&g->list, &t, sizeof t);
    }
    if (!rc) {
        ck->shards[shard].map = st.map;
        ck->shards[shard].present = true;
        memset(&st.map, 0, sizeof st.map);
    }
    kd_st_release(&st);
    return rc ? -1 : kd_buf_ok(&g->list, path, err);
}

static int set_shards(struct kd_ckpt *ck, const char *const *names, int64_t count,
                      struct kd_err *err)
{
    if (kd_mem_zero(&ck->shards, count, sizeof *ck->shards, "shards", err))
        return -1;
    for (; ck->shard_count < count; ck->shard_count++)
        if (copy_text(&ck->shards[ck->shard_count].name, names[ck->shard_count], err))
            return -1;
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The index's tensors by name only, then the shards that are there. */
static int open_indexed(struct gather *g, const char *path, bool allow_missing, struct kd_err *err)
{
    struct kd_ckpt *ck = g->ck;
    struct kd_stindex ix;
    const char **names = NULL;
    int32_t *place = NULL;
    if (kd_stindex_load(&ix, path, err))
        return -1;
    ck->index_total = ix.total_bytes;
    int64_t count = ix.shards.count;
    int rc = kd_mem_new((void *)&names, count, sizeof *names, "shards", err);
    if (!rc)
        rc = kd_mem_new(&place, count, sizeof *place, "shards", err);
    if (!rc && count) {
        memcpy(names, ix.shards.at, (size_t)count * sizeof *names);
        qsort(names, (size_t)count, sizeof *names, by_text);
        for (int64_t i = 0; i < count; i++)
            place[kd_names_find(&ix.shards, names[i])] = (int32_t)i;
        rc = set_shards(ck, names, count, err);
    }
    ck->names = ix.names; /* moved, with its ids */
    kd_names_init(&ix.names);
    for (int64_t id = 0; !rc && id < ck->names.count; id++) {
        struct kd_tensor t = {.name = ck->names.at[id], .dtype = KD_DT_OTHER, .rank = -1};
        t.shard = place[ix.shard[id]];
        kd_buf_add(&g->list, &t, sizeof t);
    }
    kd_mem_free((void *)names);
    kd_mem_free(place);
    kd_stindex_release(&ix);
    if (rc || kd_buf_ok(&g->list, path, err))
        return -1;
    for (int i = 0; i < ck->shard_count; i++) {
        char shard[4096];
        if (kd_path_join(shard, sizeof shard, ck->dir, ck->shards[i].name, err))
            return -1;
        if (!kd_file_exists(shard)) {
            if (!allow_missing)
                return kd_fail(err, KD_EIO, "%s: the shard that the index names is not there",
                               shard);
        } else if (add_shard(g, i, true, err)) {
            return -1;
        }
    }
    for (int64_t id = 0; id < ck->names.count; id++) {
        const struct kd_tensor *t = gathered(g, id);
        char shown[256];
        if (t->rank < 0 && ck->shards[t->shard].present)
            return kd_fail(err, KD_ECORRUPT, "%s/%s: tensor '%s' is in the index but not here",
                           ck->dir, ck->shards[t->shard].name,
                           kd_show_text(shown, sizeof shown, t->name));
    }
    return 0;
}

/* Names of the folder's *.safetensors into names; model.safetensors alone where it is there. */
static int list_folder(const char *dir, struct kd_names *names, struct kd_err *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return kd_fail_sys(err, "cannot read the folder '%s'", dir);
    static const char end[] = ".safetensors";
    struct dirent *e;
    int rc = 0;
    while (!rc && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        int64_t id;
        bool fresh;
        if (n >= sizeof end && e->d_name[0] != '.' &&
            !strcmp(e->d_name + n - (sizeof end - 1), end))
            rc = kd_names_add(names, e->d_name, n, &id, &fresh, err);
    }
    closedir(d);
    return rc;
}

static int open_folder(struct gather *g, struct kd_err *err)
{
    struct kd_ckpt *ck = g->ck;
    struct kd_names names;
    static const char *const one[] = {"model.safetensors"};
    kd_names_init(&names);
    int rc = list_folder(ck->dir, &names, err);
    if (!rc && !names.count)
        rc = kd_fail(err, KD_EINVAL, "'%s' holds no index and no *.safetensors file", ck->dir);
    if (!rc && names.count > KD_SHARDS_MAX)
        rc = kd_fail(err, KD_EINVAL, "'%s' holds more than %d shards", ck->dir, KD_SHARDS_MAX);
    if (!rc && kd_names_find(&names, *one) >= 0) {
        rc = set_shards(ck, one, 1, err);
    } else if (!rc) {
        qsort(names.at, (size_t)names.count, sizeof *names.at, by_text);
        rc = set_shards(ck, names.at, names.count, err);
    }
    kd_names_release(&names);
    for (int i = 0; !rc && i < ck->shard_count; i++)
        rc = add_shard(g, i, false, err);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const struct kd_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Moves the gathered tensors into ck->tensors in the order of their names. */
static int sort(struct gather *g, struct kd_err *err)
{
    struct kd_ckpt *ck = g->ck;
    struct kd_tensor **order;
    ck->count = ck->names.count;
    if (kd_mem_new((void *)&order, ck->count, sizeof *order, "tensor list", err))
        return -1;
    int rc = kd_mem_new(&ck->tensors, ck->count, sizeof *ck->tensors, "tensor list", err);
    if (!rc)
        rc = kd_mem_new(&ck->sorted, ck->count, sizeof *ck->sorted, "tensor list", err);
    if (!rc && ck->count) {
        for (int64_t id = 0; id < ck->count; id++)
            order[id] = gathered(g, id);
        qsort(order, (size_t)ck->count, sizeof *order, by_name);
        for (int64_t i = 0; i < ck->count; i++) {
            ck->tensors[i] = *order[i];
            ck->sorted[order[i] - gathered(g, 0)] = (int32_t)i;
        }
    }
    kd_mem_free((void *)order);
    return rc;
}

static int open_config(struct kd_ckpt *ck, struct kd_err *err)
{
    char path[4096];
    if (kd_path_join(path, sizeof path, ck->dir, "config.json", err))
        return -1;
    if (!kd_file_exists(path))
        return kd_fail(err, KD_EINVAL, "'%s' holds no config.json", ck->dir);
    if (kd_json_load(&ck->config, path, CONFIG_MAX, err))
        return -1;
    if (kd_json_kind(ck->config) != KD_JSON_OBJECT)
        return kd_fail(err, KD_ECORRUPT, "%s: not a JSON object", path);
    return 0;
}

static int open_dir(struct gather *g, bool allow_missing, struct kd_err *err)
{
    static const char *const indexes[] = {"model.safetensors.index.json",
                                          "model.safetensors.index.json.gz"};
    struct kd_ckpt *ck = g->ck;
    if (open_config(ck, err))
        return -1;
    for (int i = 0; i < 2; i++) {
        char path[4096];
        if (kd_path_join(path, sizeof path, ck->dir, indexes[i], err))
            return -1;
        if (kd_file_exists(path))
            return open_indexed(g, path, allow_missing, err);
    }
    return open_folder(g, err);
}

/* One .safetensors file by itself: no config, no index. */
static int open_file(struct gather *g, const char *path, struct kd_err *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    struct kd_ckpt *ck = g->ck;
    if (slash)
        ck->dir[slash == path ? 1 : slash - path] = 0;
    else
        memcpy(ck->dir, ".", 2); /* the name it replaces is at least as long */
    return set_shards(ck, &name, 1, err) || add_shard(g, 0, false, err) ? -1 : 0;
}

static void gguf_tensor(const struct kd_gguf_part *part, const struct kd_gguf_tensor *g,
                        struct kd_tensor *t)
{
    static const struct {
        int type;
        enum kd_dtype dtype;
    } plain[] = {{KD_GT_F32, KD_DT_F32}, {KD_GT_F16, KD_DT_F16}, {KD_GT_BF16, KD_DT_BF16},
                 {KD_GT_F64, KD_DT_F64}, {KD_GT_I8, KD_DT_I8},   {KD_GT_I16, KD_DT_I16},
                 {KD_GT_I32, KD_DT_I32}, {KD_GT_I64, KD_DT_I64}};
    t->dtype = KD_DT_OTHER;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (plain[i].type == g->type)
            t->dtype = plain[i].dtype;
    t->format = t->dtype == KD_DT_OTHER ? kd_gguf_format(g->type) : NULL;
    const char *name = kd_gguf_type_info(g->type)->name;
    memcpy(t->dtype_name, name, strlen(name) + 1);
    t->rank = g->rank;
    for (int i = 0; i < g->rank; i++)
        t->shape[i] = g->ne[g->rank - 1 - i];
    t->bytes = g->bytes;
    t->data = part->map.data + part->head.data_offset + g->offset;
}

static int open_gguf(struct gather *g, const char *path, struct kd_err *err)
{
    struct kd_ckpt *ck = g->ck;
    if (kd_gguf_open(&ck->gguf, path, err) ||
        kd_mem_zero(&ck->shards, ck->gguf.part_count, sizeof *ck->shards, "shards", err))
        return -1;
    for (int64_t i = 0; i < ck->gguf.part_count; i++) {
        const struct kd_gguf_part *part = &ck->gguf.parts[i];
        const char *slash = strrchr(part->path, '/');
        struct shard *sh = &ck->shards[ck->shard_count++];
        sh->present = true; /* its map stays with the set */
        if (copy_text(&sh->name, slash ? slash + 1 : part->path, err))
            return -1;
        for (int64_t j = 0; j < part->head.tensor_count; j++) {
            struct kd_tensor t = {.shard = (int)i};
            int64_t id;
            bool fresh;
            const char *name = part->head.tensors[j].name;
            gguf_tensor(part, &part->head.tensors[j], &t);
            if ((uintptr_t)t.data % (uintptr_t)align_of(&t))
                return kd_fail(err, KD_ENOTSUP,
                               "%s: tensor '%s' does not begin on a multiple of its element",
                               part->path, name);
            if (kd_names_add(&ck->names, name, strlen(name), &id, &fresh, err))
                return -1;
            t.name = ck->names.at[id];
            kd_buf_add(&g->list, &t, sizeof t);
        }
    }
    /* The folder, for what stands beside the file. */
    if (kd_file_exists(ck->dir)) {
        char *slash = strrchr(ck->dir, '/');
        if (slash)
            slash[slash == ck->dir] = 0;
        else
            memcpy(ck->dir, ".", 2);
    }
    return kd_buf_ok(&g->list, path, err) || kd_gguf_config(&ck->config, &ck->gguf, err) ? -1 : 0;
}

int kd_ckpt_open(struct kd_ckpt **out, const char *dir, bool allow_missing, struct kd_err *err)
{
    struct kd_ckpt *ck;
    char shown[1024];
    *out = NULL;
    bool file = kd_file_exists(dir);
    if (!file && !kd_dir_exists(dir))
        return kd_fail(err, KD_EINVAL,
                       kd_path_there(dir) ? "cannot open '%s': it is neither a file nor a folder"
                                          : "cannot open '%s': it is not there",
                       kd_show_text(shown, sizeof shown, dir));
    if (kd_mem_zero(&ck, 1, sizeof *ck, "checkpoint", err))
        return -1;
    ck->index_total = -1;
    kd_names_init(&ck->names);
    struct gather g = {.ck = ck};
    kd_buf_init(&g.list, (size_t)KD_NAMES_MAX * sizeof(struct kd_tensor));
    int rc = copy_text(&ck->dir, dir, err);
    if (!rc && kd_gguf_is(dir))
        rc = open_gguf(&g, dir, err);
    else if (!rc)
        rc = file ? open_file(&g, dir, err) : open_dir(&g, allow_missing, err);
    if (!rc)
        rc = sort(&g, err);
    kd_buf_release(&g.list);
    if (rc) {
        kd_ckpt_close(ck);
        return -1;
    }
    *out = ck;
    return 0;
}

void kd_ckpt_close(struct kd_ckpt *ck)
{
    if (!ck)
        return;
    for (int i = 0; i < ck->shard_count; i++) {
        kd_map_release(&ck->shards[i].map);
        kd_mem_free(ck->shards[i].name);
    }
    kd_mem_free(ck->shards);
    kd_names_release(&ck->names);
    kd_mem_free(ck->tensors);
    kd_mem_free(ck->sorted);
    kd_json_free(ck->config);
    kd_gguf_close(&ck->gguf);
    kd_mem_free(ck->dir);
    kd_mem_free(ck);
}

const struct kd_tensor *kd_ckpt_find(const struct kd_ckpt *ck, const char *name)
{
    int64_t id = kd_names_find(&ck->names, name);
    return id < 0 ? NULL : &ck->tensors[ck->sorted[id]];
}

int64_t kd_ckpt_count(const struct kd_ckpt *ck)
{
    return ck->count;
}

const struct kd_tensor *kd_ckpt_at(const struct kd_ckpt *ck, int64_t i)
{
    return i < 0 || i >= ck->count ? NULL : &ck->tensors[i];
}

const struct kd_json *kd_ckpt_config(const struct kd_ckpt *ck)
{
    return ck->config;
}

const char *kd_ckpt_dir(const struct kd_ckpt *ck)
{
    return ck->dir;
}

int kd_ckpt_shard_count(const struct kd_ckpt *ck)
{
    return ck->shard_count;
}

const char *kd_ckpt_shard_name(const struct kd_ckpt *ck, int shard)
{
    return ck->shards[shard].name;
}

bool kd_ckpt_shard_present(const struct kd_ckpt *ck, int shard)
{
    return ck->shards[shard].present;
}

int64_t kd_ckpt_shard_bytes(const struct kd_ckpt *ck, int shard)
{
    if (!ck->shards[shard].present)
        return -1;
    return ck->gguf.part_count ? ck->gguf.parts[shard].map.size_bytes
                               : ck->shards[shard].map.size_bytes;
}

const struct kd_gguf_set *kd_ckpt_gguf(const struct kd_ckpt *ck)
{
    return ck->gguf.part_count ? &ck->gguf : NULL;
}

/* Hash of a safetensors file's head, which was checked when it was opened. */
static int head_hash(const struct kd_map *m, uint64_t *hash, struct kd_err *err)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0 && m->size_bytes >= 8; i--)
        n = n << 8 | m->data[i];
    if (m->size_bytes < 8 || n > (uint64_t)m->size_bytes - 8)
        return kd_fail(err, KD_ECORRUPT, "its head is longer than the file");
    *hash = kd_xxh64(m->data, (size_t)n + 8, 1);
    return 0;
}

int kd_ckpt_shard_drop(struct kd_ckpt *ck, int shard, struct kd_err *err)
{
    struct shard *sh = &ck->shards[shard];
    if (!sh->map.data)
        return kd_fail(err, KD_EINVAL, "%s: not a shard that comes and goes", sh->name);
    if (!sh->head_hash && head_hash(&sh->map, &sh->head_hash, err))
        return kd_wrap(err, "%s", sh->name);
    return kd_map_close(&sh->map, err);
}

int kd_ckpt_shard_load(struct kd_ckpt *ck, int shard, const char *path, struct kd_err *err)
{
    struct shard *sh = &ck->shards[shard];
    uint64_t hash = 0;
    if (kd_map_refill(&sh->map, path, err))
        return -1;
    if (head_hash(&sh->map, &hash, err))
        return kd_wrap(err, "%s", path);
    if (hash != sh->head_hash)
        return kd_fail(err, KD_ECORRUPT, "'%s' has another head than it had before", path);
    return 0;
}

int64_t kd_ckpt_index_total(const struct kd_ckpt *ck)
{
    return ck->index_total;
}

void kd_ckpt_forget(const struct kd_ckpt *ck, const struct kd_tensor *t)
{
    (void)ck;
    if (t->data)
        kd_map_forget(t->data, t->bytes);
}

bool kd_ckpt_is_beside(const char *name)
{
    static const char *const weights[] = {".safetensors", ".bin", ".ckpt", ".pth", ".pt", ".gguf"};
    static const char *const made_anew[] = {"config.json",
                                            "model.safetensors.index.json",
                                            "model.safetensors.index.json.gz",
                                            "quantization_config.json",
                                            "kondense.json",
                                            "golden.json"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (kd_name_ends(name, weights[i]))
            return false;
    for (size_t i = 0; i < sizeof made_anew / sizeof *made_anew; i++)
        if (!strcmp(name, made_anew[i]))
            return false;
    return *name != '.';
}
