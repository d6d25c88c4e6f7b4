/* A farm's state for people: text for a terminal, JSON, one HTML page with plots. */
#ifndef KD_FARM_TALLY_H
#define KD_FARM_TALLY_H

#include "base/json.h"
#include "farm/ledger.h"

/* layers_total: of the model, 0 where it is not known. */
void kd_farm_text(struct kd_buf *out, const struct kd_farm_status *s, int64_t layers_total);
void kd_farm_json(struct kd_jw *w, const struct kd_farm_status *s, int64_t layers_total);
void kd_farm_html(struct kd_buf *out, const struct kd_farm_status *s, int64_t layers_total);

/* Of a worker's lanes while it was there: the share that did not encode. */
double kd_farm_idle(const struct kd_farm_status *s, const struct kd_worker_row *w);

/* What the run would take with the rates seen so far. */
struct kd_farm_forecast {
    int64_t jobs_done, jobs_left; /* of layers known, and of those to come by the same count */
    double rate;                  /* jobs a second, of all workers together while they work */
    double share; /* of the wall time spent encoding, the rest is the coordinator's */
    double left_s;
};
void kd_farm_forecast_of(const struct kd_farm_status *s, int64_t layers_total,
                         struct kd_farm_forecast *f);

/* What the whole run would take on n workers like those it has: the experts' time shrinks, the
 * coordinator's own part and the trunk's stay. False: no rate is known yet. */
bool kd_farm_on(const struct kd_farm_status *s, const struct kd_farm_forecast *f, int64_t n,
                double *experts_s, double *rest_s);

#endif
