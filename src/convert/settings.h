/* What decides a conversion's bytes, as .work/settings.json and the receipt have it, against what
 * stands under its destination. source_json: kd_job_source_json, or kd_job_source_known for a look.
 */
#ifndef KD_CONVERT_SETTINGS_H
#define KD_CONVERT_SETTINGS_H

#include "convert/job.h"

/* A model is there. A run killed after its last file leaves the work folder, and one of several
 * rates may be finished before the others: a resume with the same settings then has nothing left to
 * do (job.finished). */
int kd_settings_finished(struct kd_job *j, const char *source_json, bool resume,
                         struct kd_err *err) KD_MUST;
/* Writes the settings, or holds those of an unfinished conversion against them; job.digest. */
int kd_settings_take(struct kd_job *j, const char *source_json, bool resume,
                     struct kd_err *err) KD_MUST;
/* What kd_settings_take would say, as far as source_json knows; writes nothing. */
int kd_settings_look(const struct kd_job *j, const char *source_json, bool resume,
                     struct kd_err *err) KD_MUST;

#endif
