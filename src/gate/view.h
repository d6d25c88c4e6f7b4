/* A model anywhere of which only heads and chosen experts are here: it opens as a checkpoint like
 * any other, where it is or as files with holes. For whoever looks at a model that is not here
 * (audit, plan). */
#ifndef KD_GATE_VIEW_H
#define KD_GATE_VIEW_H

#include "fmt/ckpt.h"
#include "net/source.h"

struct kd_heads;

struct kd_view {
    struct kd_source *src;
    struct kd_ckpt *ck;     /* of a GGUF from kd_view_open on, else from kd_view_take on */
    struct kd_heads *heads; /* of a remote GGUF */
    struct kd_json *json;   /* config.json, where there is one */
    char dir[4096];         /* of a remote one: config.json and files with holes */
    int64_t all_bytes;      /* of its weight files */
};

/* Opens the source. Of a remote one, config.json or a GGUF's heads come into dir; a local GGUF is
 * opened where it is. */
int kd_view_open(struct kd_view *v, const char *where, const struct kd_source_opts *opts,
                 const char *dir, struct kd_err *err) KD_MUST;
/* The view's own. */
int kd_view_config(struct kd_view *v, const struct kd_json **config, struct kd_err *err) KD_MUST;
/* Brings the bytes of experts for which chosen(ctx, layer, expert) holds (NULL: of none), and opens
 * v->ck. */
int kd_view_take(struct kd_view *v, bool (*chosen)(void *ctx, int64_t layer, int64_t expert),
                 void *ctx, struct kd_err *err) KD_MUST;
void kd_view_close(struct kd_view *v);

#endif
