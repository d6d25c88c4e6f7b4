/* How long `kondense bench forward` takes for a token and `kondense convert` for a model of a given
 * shape on this machine, before either is run. Decoding: layers of the model's shape with made-up
 * weights go through the program's own forward pass, all of them when memory allows, else one of
 * each kind. Converting: the operations of convert/layers.c and codec/ counted by stage, at rates
 * of the kernels measured in the same run. */
#ifndef KD_PLAN_FORECAST_H
#define KD_PLAN_FORECAST_H

#include "kern/mat.h"
#include "plan/bytes.h"

struct kd_forecast {
    double token_s; /* one token of one sequence */
    double layers_s, head_s;
    int stand_ins; /* layers that were made */
    bool whole;    /* all of the model's layers */
    double convert_s;
    double search_s, hessian_s, products_s, feedback_s;
    double tiles, hessian_gmac, products_gmac, feedback_gmac;
};

/* The clock of both: see above. */
double kd_forecast_clock(const struct kd_run *run);
/* form: the weights that decode. budget: bytes of memory it may take. */
int kd_forecast_decode(struct kd_forecast *f, const struct kd_run *run,
                       const struct kd_plan_model *m, const struct kd_plan_target *form,
                       int64_t budget, struct kd_err *err) KD_MUST;
/* The default recipe to `exl3`, calibrated with rows of cols tokens. */
int kd_forecast_convert(struct kd_forecast *f, const struct kd_run *run,
                        const struct kd_plan_model *m, const struct kd_plan_target *exl3,
                        int64_t rows, int64_t cols, struct kd_err *err) KD_MUST;

#endif
