/* Shared by the ledger's files only. */
#ifndef KD_FARM_LEDGER_INT_H
#define KD_FARM_LEDGER_INT_H

#include "farm/ledger.h"

/* The answer is in l->rows. */
int kd_ledger_exec(struct kd_ledger *l, const char *sql, const struct kd_db_arg *args, int count,
                   struct kd_err *err) KD_MUST;
/* kd_db_begin, refused when another coordinator has a newer epoch. */
int kd_ledger_begin(struct kd_ledger *l, struct kd_err *err) KD_MUST;
/* The same with kd_db_begin_synced. */
int kd_ledger_begin_synced(struct kd_ledger *l, struct kd_err *err) KD_MUST;
int kd_ledger_event(struct kd_ledger *l, int64_t layer, int64_t expert, int64_t attempt,
                    const char *worker, const char *what, const char *detail,
                    struct kd_err *err) KD_MUST;
/* Deletes a job's leases; each attempt but `but` gets its end in the events. */
int kd_ledger_end_leases(struct kd_ledger *l, int64_t id, int64_t but, const char *what,
                         const char *detail, struct kd_err *err) KD_MUST;
int kd_ledger_schema(struct kd_ledger *l, struct kd_err *err) KD_MUST;

#endif
