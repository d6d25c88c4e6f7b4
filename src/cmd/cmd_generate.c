#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "cmd/model_device.h"
#include "fmt/gguf.h"
#include "model/k3.h"
#include "model/sample.h"
#include "text/tok.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct {
    const char *prompt, *ids, *trace, *device;
    int64_t count, top_k, seed, experts_used, threads;
    double temp, top_p, min_p, latent_eps;
    bool exact, json;
} o = {.count = 128, .top_p = 1.0};

static const struct kd_opt opts[] = {
    {"prompt", 'p', KD_OPT_STR, &o.prompt, "TEXT",
     "text to go on from, as it is, without any template"},
    {"ids", 'i', KD_OPT_STR, &o.ids, "1,2,3", "token ids instead of a text"},
    {"tokens", 'n', KD_OPT_INT, &o.count, "N", "tokens to make at most (128)", .min = 1,
     .max = 1 << 20},
    {"temp", 0, KD_OPT_NUM, &o.temp, "T", "temperature; 0 always takes the likeliest token (0)",
     .num_min = 0, .num_max = 100},
    {"top-p", 0, KD_OPT_NUM, &o.top_p, "P", "keep the likeliest tokens that make up P (1)",
     .num_min = 0, .num_max = 1},
    {"top-k", 0, KD_OPT_INT, &o.top_k, "K", "keep the K likeliest tokens; 0 keeps all (0)",
     .min = 0, .max = 1 << 20},
    {"min-p", 0, KD_OPT_NUM, &o.min_p, "P", "drop tokens under P times the likeliest (0)",
     .num_min = 0, .num_max = 1},
    {"seed", 0, KD_OPT_INT, &o.seed, "N", "of the draws; same seed, same answer (0)", .min = 0,
     .max = INT64_MAX},
    {"experts-used", 0, KD_OPT_INT, &o.experts_used, "N",
     "experts a token goes through (the model's)", .min = 1, .max = 1 << 16},
    {"latent-eps", 0, KD_OPT_NUM, &o.latent_eps, "X", "epsilon of the q_a and kv_a norms (1e-6)",
     .num_min = 1e-12, .num_max = 1e-2},
    {"trace", 0, KD_OPT_STR, &o.trace, "FILE",
     "write the routing: pairs of 32-bit layer and expert, as they were chosen"},
    KD_OPT_ROW_MODEL_DEVICE(&o.device),
    KD_OPT_ROW_EXACT(&o.exact),
    KD_OPT_ROW_THREADS(&o.threads),
    {"json", 0, KD_OPT_FLAG, &o.json, NULL,
     "ids, text and tokens per second as JSON instead of the text"},
    {0}};

struct job {
    struct kd_kern kern;
    struct kd_run run;
    struct kd_k3_model *model;
    struct kd_k3_seq *seq;
    struct kd_tok *tok; /* NULL: the folder has no tokenizer */
    struct kd_ids prompt, made;
    struct kd_buf text;
    float *logits;
    bool stopped; /* at the stop token */
    double prefill_s, decode_s;
    struct kd_outfile trace;
    struct kd_buf routed; /* of the call under way */
};

static int parse_ids(struct job *j, int64_t vocab, struct kd_err *err)
{
    for (const char *at = o.ids;; at++) {
        char one[24];
        int64_t id;
        size_t n = strcspn(at, ",");
        if (n >= sizeof one)
            return kd_fail(err, KD_EUSAGE, "--ids: '%.20s...' is not a token id", at);
        memcpy(one, at, n);
        one[n] = 0;
        if (kd_parse_int(one, 0, vocab - 1, &id, err)) {
            err->code = KD_EUSAGE;
            return kd_wrap(err, "--ids");
        }
        if (kd_ids_add(&j->prompt, (int32_t)id, err))
            return -1;
        at += n;
        if (!*at)
            return 0;
    }
}

static int open_tokenizer(struct job *j, const char *dir, struct kd_err *err)
{
    char path[4096];
    if (kd_gguf_is(dir)) { /* ids need no tokenizer */
        struct kd_err why;
        if (!kd_tok_open(&j->tok, dir, &why) || !o.prompt)
            return 0;
        *err = why;
        return -1;
    }
    if (kd_path_join(path, sizeof path, dir, "tiktoken.model", err))
        return -1;
    if (kd_file_exists(path))
        return kd_tok_open(&j->tok, dir, err);
    if (!kd_dir_exists(dir))
        return kd_fail(err, KD_EIO,
                       kd_path_there(dir) ? "cannot open '%s': it is no model's folder and no GGUF"
                                          : "cannot open '%s': it is not there",
                       dir);
    if (o.prompt)
        return kd_fail(err, KD_EINVAL, "%s is not there, so only --ids can be used", path);
    return 0;
}

static int read_prompt(struct job *j, struct kd_err *err)
{
    const struct kd_k3_cfg *c = kd_k3_config(j->model);
    int rc = o.ids ? parse_ids(j, c->vocab, err)
                   : kd_tok_encode(j->tok, o.prompt, strlen(o.prompt), &j->prompt, err);
    if (rc)
        return -1;
    if (!j->prompt.count)
        return kd_fail(err, KD_EUSAGE, "the prompt is empty");
    if (j->prompt.count > c->context || o.count > c->context - j->prompt.count)
        return kd_fail(err, KD_EUSAGE,
                       "%lld tokens of prompt and %lld more: the model's context is %lld",
                       (long long)j->prompt.count, (long long)o.count, (long long)c->context);
    return 0;
}

static void routed(void *ctx, int64_t layer, int64_t seq, int64_t pos, const int32_t *ids,
                   const float *w)
{
    struct job *j = ctx;
    int64_t used = o.experts_used ? o.experts_used : kd_k3_config(j->model)->topk;
    (void)seq;
    (void)pos;
    (void)w;
    for (int64_t i = 0; i < used; i++) {
        uint32_t pair[2] = {(uint32_t)layer, (uint32_t)ids[i]};
        kd_buf_add(&j->routed, pair, sizeof pair);
    }
}

/* Feeds tokens and leaves the last one's logits. */
static int feed(struct job *j, const int32_t *ids, int64_t count, double *seconds,
                struct kd_err *err)
{
    struct kd_k3_feed f = {j->seq, ids, count, 1};
    struct kd_k3_options opt = {
        .experts_used = o.experts_used, .trace = o.trace ? routed : NULL, .trace_ctx = j};
    double start = kd_clock_s();
    if (kd_k3_forward(j->model, &f, 1, &opt, j->logits, err))
        return -1;
    *seconds += kd_clock_s() - start;
    if (!o.trace)
        return 0;
    if (kd_buf_ok(&j->routed, "routing of one call", err) ||
        kd_out_write(&j->trace, j->routed.data, (int64_t)j->routed.size_bytes, err))
        return -1;
    kd_buf_clear(&j->routed);
    return 0;
}

static int show(struct job *j, int32_t id, struct kd_err *err)
{
    size_t bytes;
    const char *text = j->tok ? kd_tok_bytes(j->tok, id, &bytes) : NULL;
    if (o.json) {
        if (text)
            kd_buf_add(&j->text, text, bytes);
        return kd_buf_ok(&j->text, "generated text", err);
    }
    if (text)
        fwrite(text, 1, bytes, stdout);
    else
        printf("%s%d", j->made.count > 1 ? "," : "", id);
    if (fflush(stdout) || ferror(stdout))
        return kd_fail_sys(err, "cannot write the text to standard output");
    return 0;
}

static int generate(struct job *j, struct kd_err *err)
{
    const struct kd_k3_cfg *c = kd_k3_config(j->model);
    const struct kd_sampling s = {.temperature = o.temp,
                                  .top_p = o.top_p,
                                  .top_k = o.top_k,
                                  .min_p = o.min_p,
                                  .seed = (uint64_t)o.seed};
    if (feed(j, j->prompt.id, j->prompt.count, &j->prefill_s, err))
        return -1;
    while (j->made.count < o.count) {
        int32_t id;
        if (kd_cmd_stop)
            return kd_fail(err, KD_ECANCEL, "stopped after %lld tokens", (long long)j->made.count);
        if (kd_sample(&s, j->logits, c->vocab, kd_k3_seq_pos(j->seq), &id, err))
            return -1;
        j->stopped = id == c->eos;
        if (j->stopped)
            break;
        if (kd_ids_add(&j->made, id, err) || show(j, id, err))
            return -1;
        if (j->made.count < o.count && feed(j, &id, 1, &j->decode_s, err))
            return -1;
    }
    return 0;
}

static double rate(int64_t tokens, double seconds)
{
    return tokens > 0 && seconds > 0 ? (double)tokens / seconds : 0.0;
}

static int result(struct job *j, struct kd_err *err)
{
    if (!o.json) {
        putchar('\n');
        return 0;
    }
    struct kd_buf b;
    kd_buf_init(&b, 1 << 28);
    struct kd_jw w = {.out = &b};
    kd_jw_open(&w, NULL, '{');
    kd_jw_open(&w, "ids", '[');
    for (int64_t i = 0; i < j->made.count; i++)
        kd_jw_int(&w, NULL, j->made.id[i]);
    kd_jw_close(&w, ']');
    if (j->tok)
        kd_jw_strn(&w, "text", j->text.data ? j->text.data : "", j->text.size_bytes);
    else
        kd_jw_null(&w, "text");
    kd_jw_int(&w, "prompt_tokens", j->prompt.count);
    kd_jw_str(&w, "finish", j->stopped ? "stop" : "length");
    kd_jw_open(&w, "tokens_per_second", '{');
    kd_jw_num(&w, "prefill", rate(j->prompt.count, j->prefill_s));
    /* The last token made is not fed unless the stop token came after it. */
    kd_jw_num(&w, "decode", rate(j->made.count - !j->stopped, j->decode_s));
    kd_jw_close(&w, '}');
    kd_jw_str(&w, "kernels", j->kern.name);
    kd_jw_int(&w, "threads", kd_pool_threads(j->run.pool));
    kd_jw_close(&w, '}');
    kd_buf_char(&b, '\n');
    int rc = kd_buf_ok(&b, "the result", err);
    if (!rc)
        fwrite(b.data, 1, b.size_bytes, stdout);
    kd_buf_release(&b);
    return rc;
}

static int work(struct job *j, const char *dir, struct kd_err *err)
{
    struct kd_k3_open open = {.eps_latent = (float)o.latent_eps, .fast = !o.exact};
    if (kd_cmd_model_device(o.device, &open.device, err) || open_tokenizer(j, dir, err) ||
        kd_k3_open(&j->model, dir, &j->run, &open, err))
        return -1;
    const struct kd_k3_cfg *c = kd_k3_config(j->model);
    if (o.experts_used > c->topk)
        return kd_fail(err, KD_EUSAGE, "--experts-used %lld: the model is made for up to %lld",
                       (long long)o.experts_used, (long long)c->topk);
    if (read_prompt(j, err) || kd_k3_seq_open(&j->seq, j->model, err) ||
        kd_k3_logits_new(j->model, &j->logits, 1, err) ||
        (o.trace && kd_out_open(&j->trace, o.trace, err)) || generate(j, err) ||
        (o.trace && kd_out_commit(&j->trace, err)))
        return -1;
    return result(j, err);
}

static int run(int argc, const char **argv, struct kd_err *err)
{
    struct job j = {.trace = {.fd = -1}};
    (void)argc;
    if (!o.prompt == !o.ids)
        return kd_fail(err, KD_EUSAGE, "give either -p TEXT or --ids 1,2,3");
    if (o.trace && kd_out_could(o.trace, err))
        return -1;
    kd_buf_init(&j.text, 1 << 28);
    kd_buf_init(&j.routed, 1u << 31);
    int rc = kd_cmd_run_open(&j.run, &j.kern, o.threads, err);
    if (!rc)
        rc = work(&j, argv[0], err);
    if (rc && o.trace && j.trace.fd >= 0)
        kd_out_abort(&j.trace);
    kd_k3_seq_close(j.seq);
    kd_k3_logits_free(j.model, j.logits);
    kd_k3_close(j.model);
    if (j.tok)
        kd_tok_close(j.tok);
    kd_ids_release(&j.prompt);
    kd_ids_release(&j.made);
    kd_buf_release(&j.text);
    kd_buf_release(&j.routed);
    kd_cmd_run_close(&j.run);
    return rc;
}

const struct kd_cmd kd_cmd_generate = {
    .name = "generate",
    .summary = "go on with a text",
    .args = "MODEL",
    .example = "kondense generate k3-nano -p 'The old man looked at the sea and said' -n 24\n"
               "kondense generate k3-nano --ids 529,955,503 -n 8 --json",
    .opts = opts,
    .args_min = 1,
    .args_max = 1,
    .run = run,
    .details =
        "The model's own stop token ends the text and is not shown. Draws depend on the seed, the "
        "position and the logits alone.\n\n"
        "JSON: ids (generated, without the stop token), text (null without a tokenizer), "
        "prompt_tokens, finish (stop or length), tokens_per_second (prefill, decode), kernels, "
        "threads."};
