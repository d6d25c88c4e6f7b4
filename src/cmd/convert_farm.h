/* `convert --farm`: this process is the coordinator of a farm. */
#ifndef KD_CMD_CONVERT_FARM_H
#define KD_CMD_CONVERT_FARM_H

#include "convert/job.h"

struct kd_convert_farm {
    const char *url, *dir, *report; /* url NULL: no farm; report may be NULL */
    double lease_s;
    int64_t sample;
    bool only_workers, silent; /* silent: nothing on standard output */
};
/* What is wrong with these options, or with the farm's folder, before any work: for models of
 * `count` rates. */
int kd_convert_farm_check(const struct kd_convert_farm *o, int count, struct kd_err *err) KD_MUST;
/* Opens the farm of the only job. `home` lives as long as the job. */
int kd_convert_farm_open(const struct kd_convert_farm *o, struct kd_job *jobs, struct kd_home *home,
                         struct kd_err *err) KD_MUST;

#endif
