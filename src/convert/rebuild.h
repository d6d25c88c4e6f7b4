/* An unfinished conversion's folder looked over: what is whole stays, what is damaged goes, and a
 * ledger in a file is made anew by the next start. Going back drops sealed layers, down to the
 * newest stream that is there. */
#ifndef KD_CONVERT_REBUILD_H
#define KD_CONVERT_REBUILD_H

#include "base/err.h"

#include <stdint.h>

struct kd_rebuild {
    int64_t shards, units, damaged; /* sealed; whole units of open layers; removed ones */
    int64_t from_layer;             /* where the next start begins again; -1: where it was */
    int64_t dropped;                /* sealed layers that went */
};
/* from_layer < 0: only looks over. Nobody may be working in dst (KD_EUSAGE). */
int kd_convert_rebuild(const char *dst, int64_t from_layer, struct kd_rebuild *out,
                       struct kd_err *err) KD_MUST;

#endif
