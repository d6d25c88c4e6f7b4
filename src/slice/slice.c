/* Carrying a plan out: requests in, places filled, the result held against the plan, renamed. */
#include "slice/slice_int.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/show.h"
#include "fmt/gguf_block.h"
#include "model/k3.h"
#include "net/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    BATCH = 8, /* requests read at once; so much memory times the longest request */
    CHUNK_VALUES = 1 << 18,
    CHUNK_BYTES = 1 << 20,
    HOLE_BYTES = 4096,    /* a range of zeros as long as this may be a hole, not a bias */
    SMALL_MAX = 64 << 20, /* of a file carried along */
    MARGIN_BYTES = 64 << 20
};

/* What came of one request. */
struct outcome {
    uint64_t hash;
    double error, power;
    int64_t zero_spans, zero_scales;
    struct kd_err err; /* code KD_OK: none */
};

struct run {
    struct kd_slice *s;
    const char *dst;
    char work[4096];
    int lock, *fds;
    bool *done; /* by request */
    int64_t done_bytes;
    struct kd_journal journal;
    struct kd_buf lines; /* of the journal, as struct line */
    bool journal_open;
    const struct kd_slice_request *batch[BATCH];
    uint8_t *in[BATCH];
    struct outcome outcome[BATCH];
};

static bool all_zero(const uint8_t *p, int64_t n)
{
    return n <= 0 || (!p[0] && !memcmp(p, p + 1, (size_t)n - 1));
}

static int put(int fd, const void *data, int64_t bytes, int64_t at, const char *what,
               struct kd_err *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = pwrite(fd, p, (size_t)bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot write '%s'", what);
        p += n;
        bytes -= n;
        at += n;
    }
    return 0;
}

static int get(int fd, void *data, int64_t bytes, int64_t at, const char *what, struct kd_err *err)
{
    char *p = data;
    while (bytes) {
        ssize_t n = pread(fd, p, (size_t)bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kd_fail_sys(err, "cannot read '%s'", what);
        if (!n)
            return kd_fail(err, KD_ECORRUPT, "'%s' ends early", what);
        p += n;
        bytes -= n;
        at += n;
    }
    return 0;
}

/* Values of a row of the tensor that a span belongs to. */
static int64_t row_of(const struct kd_slice *s, const struct kd_slice_span *sp)
{
    const struct kd_slice_item *it = &s->items[sp->tensor];
    return it->shape[it->rank - 1];
}

/* Units of a span that are done in one step. */
static int64_t step_of(const struct kd_slice *s, const struct kd_slice_span *sp)
{
    if (sp->to < 0)
        return CHUNK_BYTES;
    int64_t n = CHUNK_VALUES / row_of(s, sp);
    return n ? n : 1;
}

struct scratch {
    float *x, *y;
    uint8_t *out;
};

static void scratch_release(struct scratch *w)
{
    kd_mem_free(w->x);
    kd_mem_free(w->y);
    kd_mem_free(w->out);
}

/* `units` rows in another type into w->out; the error is measured on the way. */
static int convert(const struct kd_slice *s, const struct kd_slice_span *sp, const uint8_t *data,
                   int64_t units, struct scratch *w, struct outcome *o)
{
    const struct kd_head_tensor *t = &s->h->t[sp->tensor];
    const struct kd_block_format *from = kd_gguf_format(t->type), *to = kd_gguf_format(sp->to);
    int64_t row = row_of(s, sp), n = units * row, most = step_of(s, sp) * row;
    if (!w->x && (kd_mem_new(&w->x, most, sizeof *w->x, "values", &o->err) ||
                  kd_mem_new(&w->y, most, sizeof *w->y, "values", &o->err) ||
                  kd_mem_new(&w->out, step_of(s, sp), sp->out_unit, "blocks", &o->err)))
        return -1;
    from->decode(data, n / from->elems, w->x);
    struct kd_gguf_encoded made = {0};
    if (kd_gguf_encode(sp->to, w->x, n, w->out, &made, &o->err))
        return kd_wrap(&o->err, "tensor '%s'", t->name);
    o->zero_scales += made.zero_scale;
    to->decode(w->out, n / to->elems, w->y);
    for (int64_t i = 0; i < n; i++) {
        double d = (double)w->x[i] - (double)w->y[i];
        o->error += d * d;
        o->power += (double)w->x[i] * (double)w->x[i];
    }
    return 0;
}

static int put_span(const struct run *r, const struct kd_slice_span *sp, const uint8_t *data,
                    struct outcome *o)
{
    const struct kd_slice *s = r->s;
    struct scratch w = {NULL, NULL, NULL};
    int64_t left = sp->bytes / sp->unit, at = sp->out_at, step = step_of(s, sp);
    int rc = 0;
    o->zero_spans += sp->bytes >= HOLE_BYTES && all_zero(data, sp->bytes);
    while (!rc && left) {
        int64_t n = left < step ? left : step;
        const uint8_t *out = data;
        if (sp->to >= 0) {
            rc = convert(s, sp, data, n, &w, o);
            out = w.out;
        }
        if (!rc) {
            o->hash = kd_xxh64(out, (size_t)(n * sp->out_unit), o->hash);
            rc = put(r->fds[sp->out], out, n * sp->out_unit, at, s->files[sp->out].name, &o->err);
        }
        data += n * sp->unit;
        at += n * sp->out_unit;
        left -= n;
    }
    scratch_release(&w);
    return rc;
}

static void put_request(void *ctx, int64_t i, int worker)
{
    struct run *r = ctx;
    const struct kd_slice_request *q = r->batch[i];
    struct outcome *o = &r->outcome[i];
    (void)worker;
    memset(o, 0, sizeof *o);
    for (int64_t k = q->first; k < q->first + q->count; k++) {
        const struct kd_slice_span *sp = &r->s->plan.s[k];
        if (put_span(r, sp, r->in[i] + (sp->begin - q->begin), o))
            return;
    }
}

/* The hash that put_request would have given, of what lies on disk. */
static int hash_request(const struct run *r, const struct kd_slice_request *q, uint64_t *hash,
                        struct kd_err *err)
{
    *hash = 0;
    for (int64_t k = q->first; k < q->first + q->count; k++) {
        const struct kd_slice_span *sp = &r->s->plan.s[k];
        int64_t left = sp->bytes / sp->unit, at = sp->out_at, step = step_of(r->s, sp);
        uint8_t *data;
        if (kd_mem_new(&data, step, sp->out_unit, "bytes", err))
            return -1;
        int rc = 0;
        for (; !rc && left; left -= step < left ? step : left) {
            int64_t bytes = (step < left ? step : left) * sp->out_unit;
            rc = get(r->fds[sp->out], data, bytes, at, r->s->files[sp->out].name, err);
            if (!rc)
                *hash = kd_xxh64(data, (size_t)bytes, *hash);
            at += bytes;
        }
        kd_mem_free(data);
        if (rc)
            return -1;
    }
    return 0;
}

/* Lines of the journal are collected first: whose it is shows only when all are read. */
struct line {
    int64_t request;
    uint64_t hash;
};

static int see(void *ctx, const struct kd_journal_line *line, struct kd_err *err)
{
    struct run *r = ctx;
    struct line l = {line->begin, line->xxh};
    kd_buf_add(&r->lines, &l, sizeof l);
    return kd_buf_ok(&r->lines, "journal", err);
}

/* Requests whose bytes on disk still have the hash that was written down are done. */
static int check_lines(struct run *r, struct kd_err *err)
{
    const struct line *l = (const struct line *)(const void *)r->lines.data;
    for (size_t i = 0; i < r->lines.size_bytes / sizeof *l; i++) {
        uint64_t hash;
        if (l[i].request < 0 || l[i].request >= r->s->plan.request_count)
            return kd_fail(err, KD_ECORRUPT, "'%s' has a line of no slice", r->work);
        if (r->done[l[i].request])
            continue;
        const struct kd_slice_request *q = &r->s->plan.r[l[i].request];
        if (hash_request(r, q, &hash, err))
            return -1;
        if (hash != l[i].hash)
            continue;
        r->done[l[i].request] = true;
        r->done_bytes += q->bytes;
        r->s->f.resumed++;
    }
    return 0;
}

static int open_file(struct run *r, int64_t i, struct kd_err *err)
{
    const struct kd_slice_file *f = &r->s->files[i];
    char path[4096];
    if (kd_path_join(path, sizeof path, r->work, f->name, err))
        return -1;
    r->fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (r->fds[i] < 0 || ftruncate(r->fds[i], f->bytes))
        return kd_fail_sys(err, "cannot make '%s'", path);
    return put(r->fds[i], f->head.data, (int64_t)f->head.size_bytes, 0, path, err);
}

/* Whether the disk has room for what is left to come. */
static int check_disk(const struct run *r, int64_t left_bytes, struct kd_err *err)
{
    char needed[32], free_now[32];
    int64_t have = kd_disk_free_bytes(r->work);
    if (have < 0 || have >= left_bytes + MARGIN_BYTES)
        return 0;
    kd_show_bytes(needed, sizeof needed, left_bytes + MARGIN_BYTES);
    kd_show_bytes(free_now, sizeof free_now, have);
    return kd_fail(err, KD_EIO, "'%s' needs %s of disk, %s are free", r->dst, needed, free_now);
}

static int open_work(struct run *r, struct kd_err *err)
{
    struct kd_slice *s = r->s;
    char where[96];
    if (snprintf(r->work, sizeof r->work, "%s.part", r->dst) >= (int)sizeof r->work)
        return kd_fail(err, KD_EINVAL, "'%s' is too long", r->dst);
    kd_buf_init(&r->lines, 256 << 20);
    if (!kd_dir_exists(r->work) && check_disk(r, s->f.out_bytes, err))
        return -1;
    if (kd_dir_make(r->work, err) || kd_dir_lock(r->work, &r->lock, err) ||
        kd_mem_new(&r->fds, s->file_count, sizeof *r->fds, "files", err))
        return -1;
    for (int64_t i = 0; i < s->file_count; i++)
        r->fds[i] = -1;
    if (kd_mem_zero(&r->done, s->plan.request_count, sizeof *r->done, "requests", err))
        return -1;
    snprintf(where, sizeof where, "slice %s", s->hash);
    if (kd_journal_open(&r->journal, r->work, where, "", see, r, err))
        return kd_wrap(err, "what '%s' began", r->work);
    r->journal_open = true;
    for (int64_t i = 0; i < s->file_count; i++)
        if (open_file(r, i, err))
            return -1;
    if (check_lines(r, err))
        return -1;
    int64_t all = s->plan.wanted_bytes + s->plan.gap_bytes;
    double left = all ? (double)s->f.out_bytes * (double)(all - r->done_bytes) / (double)all : 0;
    return check_disk(r, (int64_t)left, err);
}

/* One batch: what was read is put in its places, and written down. */
static int put_batch(struct run *r, int64_t n, const int64_t *ids, struct kd_err *err)
{
    struct kd_source_span spans[BATCH];
    struct kd_slice_figures *f = &r->s->f;
    for (int64_t i = 0; i < n; i++)
        spans[i] = (struct kd_source_span){.file = r->s->h->parts[r->batch[i]->part].file,
                                           .begin = r->batch[i]->begin,
                                           .bytes = r->batch[i]->bytes,
                                           .buf = r->in[i]};
    if (kd_source_read_many(r->s->h->src, spans, n, err))
        return -1;
    kd_pool_run(r->s->o.pool, n, put_request, r);
    for (int64_t i = 0; i < n; i++) {
        const struct outcome *o = &r->outcome[i];
        if (o->err.code != KD_OK) {
            *err = o->err;
            return -1;
        }
        f->error += o->error;
        f->power += o->power;
        f->zero_spans += o->zero_spans;
        f->zero_scales += o->zero_scales;
        kd_journal_add(&r->journal, &(struct kd_journal_line){.kind = KD_JOURNAL_SPAN,
                                                              .name = "request",
                                                              .begin = ids[i],
                                                              .bytes = r->batch[i]->bytes,
                                                              .xxh = o->hash});
        kd_progress_add(r->batch[i]->bytes, NULL);
    }
    return kd_journal_write(&r->journal, err);
}

static int put_all(struct run *r, struct kd_err *err)
{
    const struct kd_slice_spans *p = &r->s->plan;
    int64_t longest = 0, n = 0, ids[BATCH];
    for (int64_t i = 0; i < p->request_count; i++)
        longest = p->r[i].bytes > longest ? p->r[i].bytes : longest;
    for (int i = 0; i < BATCH; i++)
        if (kd_mem_new(&r->in[i], longest, 1, "request", err))
            return -1;
    kd_progress_begin("slice", "bytes", p->wanted_bytes + p->gap_bytes, r->done_bytes);
    for (int64_t i = 0; i <= p->request_count; i++) {
        if (n == BATCH || (i == p->request_count && n)) {
            if (put_batch(r, n, ids, err))
                return -1;
            n = 0;
        }
        if (r->s->o.stopped && r->s->o.stopped())
            return kd_fail(err, KD_ECANCEL, "stopped; the same command goes on from here");
        if (i < p->request_count && !r->done[i]) {
            r->batch[n] = &p->r[i];
            ids[n++] = i;
        }
    }
    kd_progress_end();
    return 0;
}

/* What is taken over as it is; reports and what a fetch left are not. */
static bool carried(const char *name)
{
    static const char *const not_these[] = {".npz", ".part", ".html"};
    if (!kd_ckpt_is_beside(name) || !strcmp(name, "slice.json") || !strcmp(name, "check.json") ||
        strchr(name, '/'))
        return false;
    for (size_t i = 0; i < sizeof not_these / sizeof *not_these; i++)
        if (kd_name_ends(name, not_these[i]))
            return false;
    return true;
}

static int put_text(const struct run *r, const char *name, const struct kd_buf *b,
                    struct kd_err *err)
{
    char path[4096];
    return kd_path_join(path, sizeof path, r->work, name, err) ||
                   kd_file_write(path, b->data ? b->data : "", b->size_bytes, err)
               ? -1
               : 0;
}

static int put_others(const struct run *r, struct kd_err *err)
{
    struct kd_slice *s = r->s;
    struct kd_source *src = s->h->src;
    struct kd_buf b;
    int rc = put_text(r, "config.json", &s->config, err);
    if (!rc && s->index.size_bytes)
        rc = put_text(r, "model.safetensors.index.json", &s->index, err);
    kd_buf_init(&b, SMALL_MAX);
    if (!rc && !s->f.everything)
        rc = kd_slice_record_json(&b, &s->record, err) || put_text(r, "slice.json", &b, err);
    for (int i = 0; !rc && i < kd_source_count(src); i++) {
        const struct kd_source_file *f = kd_source_at(src, i);
        if (!carried(f->name) || kd_name_check(f->name, NULL))
            continue;
        rc = kd_source_stat(src, i, err);
        if (rc || kd_source_at(src, i)->bytes > SMALL_MAX - 1)
            continue;
        kd_buf_clear(&b);
        rc = kd_source_load(src, i, SMALL_MAX, &b, err) || put_text(r, f->name, &b, err);
    }
    kd_buf_release(&b);
    return rc ? -1 : 0;
}

int kd_slice_verify(const struct kd_slice *s, const char *path, struct kd_err *err)
{
    struct kd_ckpt *ck;
    struct kd_k3_cfg cfg;
    if (kd_ckpt_open(&ck, path, false, err))
        return -1;
    int rc = 0;
    if (kd_ckpt_count(ck) != s->f.out_tensors)
        rc = kd_fail(err, KD_ECORRUPT, "%s: %lld tensors instead of %lld", path,
                     (long long)kd_ckpt_count(ck), (long long)s->f.out_tensors);
    for (int64_t i = 0; !rc && i < s->h->count; i++) {
        const struct kd_slice_item *it = &s->items[i];
        if (it->fate == KD_FATE_DROP)
            continue;
        const struct kd_tensor *t = kd_ckpt_find(ck, s->names.at[it->name]);
        if (!t || t->bytes != it->bytes)
            rc = kd_fail(err, KD_ECORRUPT, "%s: tensor '%s' is not what '%s' should become", path,
                         s->names.at[it->name], s->h->t[i].name);
    }
    if (!rc)
        rc = kd_k3_cfg_parse(&cfg, kd_ckpt_config(ck), NULL, err) ||
             kd_k3_cfg_check(&cfg, kd_ckpt_config(ck), err) || kd_k3_known(&cfg, ck, err);
    if (!rc && (cfg.layers != s->f.layers_kept || cfg.experts != s->f.experts_kept ||
                cfg.topk != s->f.used_now))
        rc = kd_fail(err, KD_ECORRUPT, "%s does not read back as the model it should be", path);
    for (int64_t i = 0; !rc && i < s->f.layers_kept; i++)
        if (cfg.mla[i] != s->h->cfg.mla[s->keep.layers[i]])
            rc = kd_fail(err, KD_ECORRUPT, "%s: layer %lld has become one of the other kind", path,
                         (long long)i);
    kd_ckpt_close(ck);
    return rc ? -1 : 0;
}

static void drop_file(const struct run *r, const char *name)
{
    char path[4096];
    if (!kd_path_join(path, sizeof path, r->work, name, NULL))
        unlink(path);
}

/* Its name, once all is on disk. */
static int finish(struct run *r, struct kd_err *err)
{
    struct kd_slice *s = r->s;
    char path[4096];
    bool gguf = s->h->gguf;
    for (int64_t i = 0; i < s->file_count; i++)
        if (fsync(r->fds[i]))
            return kd_fail_sys(err, "cannot sync '%s'", s->files[i].name);
    if ((!gguf && put_others(r, err)) ||
        kd_path_join(path, sizeof path, r->work, gguf ? s->files->name : ".", err) ||
        kd_slice_verify(s, gguf ? path : r->work, err))
        return -1;
    kd_journal_close(&r->journal);
    r->journal_open = false;
    if (!gguf) { /* the whole folder gets its name */
        drop_file(r, ".fetch");
        drop_file(r, ".lock");
    }
    if (rename(gguf ? path : r->work, r->dst))
        return kd_fail_sys(err, "cannot rename to '%s'", r->dst);
    int dir;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", r->dst);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    dir = open(slash ? (*folder ? folder : "/") : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {
        fsync(dir);
        close(dir);
    }
    return gguf ? kd_dir_remove(r->work, err) : 0;
}

/* dst without the slashes that it ends in. */
static int clean_dst(char *out, size_t size, const char *dst, struct kd_err *err)
{
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/')
        n--;
    if (!n)
        return kd_fail(err, KD_EUSAGE, "the destination has no name");
    if (n + 8 > size)
        return kd_fail(err, KD_EINVAL, "'%.60s...' is too long", dst);
    memcpy(out, dst, n);
    out[n] = 0;
    return 0;
}

int kd_slice_could(const struct kd_slice *s, const char *dst, struct kd_err *err)
{
    char clean[4096], work[4096 + 8];
    bool named = kd_name_ends(dst, ".gguf");
    if (clean_dst(clean, sizeof clean, dst, err))
        return -1;
    /* Whatever it is: a link too, that a folder cannot be renamed over. */
    if (kd_path_there(clean))
        return kd_fail(err, KD_EINVAL, "'%s' is there already", clean);
    if (s->h->gguf != named)
        return kd_fail(err, KD_EUSAGE,
                       named ? "'%s': a slice of safetensors is a folder"
                             : "'%s': a slice of a GGUF is a file that ends in .gguf",
                       dst);
    snprintf(work, sizeof work, "%s.part", clean);
    return kd_dir_could(work, err);
}

int kd_slice_run(struct kd_slice *s, const char *dst, struct kd_err *err)
{
    struct run r = {.s = s, .lock = -1};
    char clean[4096];
    r.dst = clean;
    if (clean_dst(clean, sizeof clean, dst, err) || kd_slice_could(s, clean, err))
        return -1;
    int rc = open_work(&r, err) || put_all(&r, err) || finish(&r, err) ? -1 : 0;
    if (r.journal_open)
        kd_journal_close(&r.journal);
    for (int64_t i = 0; r.fds && i < s->file_count; i++)
        if (r.fds[i] >= 0)
            close(r.fds[i]);
    for (int i = 0; i < BATCH; i++)
        kd_mem_free(r.in[i]);
    kd_buf_release(&r.lines);
    kd_mem_free(r.fds);
    kd_mem_free(r.done);
    if (r.lock >= 0)
        close(r.lock);
    return rc;
}
