/* How many bytes a K3-shaped model takes in each of its forms, by kind of tensor and to the byte:
 * from the shapes of the config alone, so that the answer is there before anything is downloaded.
 * Rules for what is quantized: exl3 specification, Decisions 1 to 3, as convert/rates.h applies
 * them (a test holds the two together).
 *
 *     struct kd_plan_model m;
 *     kd_plan_model_k3(&m, err);                        // Kimi K3 as released
 *     struct kd_plan_target t = kd_plan_exl3(2.3);
 *     kd_plan_count(&b, &m, &t, err);
 */
#ifndef KD_PLAN_BYTES_H
#define KD_PLAN_BYTES_H

#include "fmt/ckpt.h"
#include "model/k3_names.h"

/* A model's shape and its parameters. map points into the struct: do not copy it. */
struct kd_plan_model {
    char name[96];
    bool built_in; /* K3 itself, not read from a file */
    struct kd_k3_cfg cfg;
    struct kd_k3_map map;
    int64_t kda_layers, mla_layers, moe_layers;
    int64_t params[KD_K3_KINDS], total_params;
    int64_t active_params; /* used for a token: all text weights but the embedding, topk experts */
    int64_t expert_params; /* of one routed expert */
};

/* Kimi K3 as released: the config's figures are part of the program. */
int kd_plan_model_k3(struct kd_plan_model *m, struct kd_err *err) KD_MUST;
/* Its config.json, as far as shapes go; the caller's to free. */
int kd_plan_config_k3(struct kd_json **config, struct kd_err *err) KD_MUST;
/* A config.json, or a folder that has one. */
int kd_plan_model_load(struct kd_plan_model *m, const char *path, struct kd_err *err) KD_MUST;
/* From a parsed config. */
int kd_plan_model_of(struct kd_plan_model *m, const struct kd_json *config, const char *name,
                     struct kd_err *err) KD_MUST;

enum kd_plan_form {
    KD_FORM_NATIVE,    /* as released: MXFP4 experts, the rest BF16 and F32 */
    KD_FORM_EXL3,      /* what `kondense convert` writes */
    KD_FORM_DOCUMENT,  /* the plan document's recipe: experts at a rate, 28.9 GB for the trunk */
    KD_FORM_PUBLISHED, /* somebody's quant: only its size is known */
    KD_FORM_STORED     /* a checkpoint at hand: its own tensors are counted */
};

struct kd_plan_target {
    enum kd_plan_form form;
    char name[40];
    double experts_bpw, trunk_bpw, head_bpw;
    int64_t file_bytes;       /* published */
    double kld;               /* published; 0: none given */
    const char *source;       /* published */
    const struct kd_ckpt *ck; /* stored */
};

struct kd_plan_target kd_plan_native(void);
struct kd_plan_target kd_plan_exl3(double experts_bpw); /* trunk 4, head 6 */
struct kd_plan_target kd_plan_document(double experts_bpw);

struct kd_plan_bytes {
    int64_t kind[KD_K3_KINDS]; /* tensor bytes */
    int64_t tensor_bytes;      /* their sum */
    int64_t file_bytes;        /* with the shards' headers (EXL3), or the tensors' alone */
    int64_t routed, embed, vision;
    int64_t trunk;       /* read for every token: text tensors but the experts and the embedding */
    int64_t replicated;  /* of trunk: small or uncuttable matrices that every device holds */
    int64_t cut_block;   /* columns that stay together: 128 for EXL3, 32 for MXFP4 */
    double token_expert; /* routed experts read for a token */
    double real_bpw;     /* of the experts, side vectors included */
    int64_t quantized_weights, trunk_quantized_weights;
};

/* Documents' recipes need K3's shape: KD_EINVAL for another one. */
int kd_plan_count(struct kd_plan_bytes *b, const struct kd_plan_model *m,
                  const struct kd_plan_target *t, struct kd_err *err) KD_MUST;

/* What the fullest of n devices holds after cutting: whole blocks of width and whole heads (serving
 * 5.2, 5.3), replicated tensors, embedding and vision tower in full. Experts are cut by width, or
 * dealt out whole where that leaves the fullest device less. */
struct kd_plan_cut {
    int64_t bytes, experts; /* all of it; the routed experts' part */
    bool whole;             /* experts are dealt out whole */
};
struct kd_plan_cut kd_plan_cut_of(const struct kd_plan_bytes *b, const struct kd_plan_model *m,
                                  int64_t n);

/* Sixteenths of a bit at which a target has the matrix of this row of kd_k3_row_name (rows outputs,
 * cols inputs); 0: it is not quantized. */
unsigned kd_plan_rate16(const struct kd_plan_target *t, const char *row, enum kd_k3_kind kind,
                        int64_t rows, int64_t cols);

/* Caches of one sequence: bytes a token of context (width bytes a value: 4, 2 or 1) and the fixed
 * KDA state in F32. */
int64_t kd_plan_cache_token_bytes(const struct kd_plan_model *m, int64_t width);
int64_t kd_plan_state_bytes(const struct kd_plan_model *m);
/* Distinct experts that n tokens touch in a layer, over those of one token (uniform routing). */
double kd_plan_experts_touched(const struct kd_plan_model *m, double tokens);

/* K3's published quants (model card, see docs/plan.md). Ends with form 0 and an empty name. */
extern const struct kd_plan_target kd_plan_published[];

#endif
