/* The agent battery: chat requests with the one right assistant turn, put to both models. A turn is
 * exact when greedy generation gives exactly the expected ids, and its tool call is valid when the
 * parsed turn holds the expected call (name and arguments) and no other, or none where none is
 * expected. Definitions: docs/quality-metrics.md. */
#ifndef KD_GATE_BATTERY_H
#define KD_GATE_BATTERY_H

#include "base/buf.h"
#include "base/json.h"
#include "gate/stats.h"
#include "kern/mat.h"

#include <stdbool.h>

struct kd_flips {
    int64_t src_right, dst_right;
    int64_t lost, gained;                    /* right -> wrong, wrong -> right, from src to dst */
    struct kd_interval src_range, dst_range; /* Wilson */
    struct kd_interval change;               /* Bonett and Price, of (gained - lost)/requests */
    double probability;                      /* McNemar, exact, two-sided */
};

/* What is known of a server that had the battery (gate/endpoint.h). */
struct kd_battery_remote {
    char url[256], model[128];
    int64_t refused;                   /* requests answered with an error: wrong turns */
    char why[200];                     /* the first of those errors: "400: ..." */
    bool shows_thinking;               /* in any answer; else thinking is not compared */
    int64_t think_wanted, think_shown; /* expected turns that think; answers to them that show it */
};

struct kd_battery {
    int64_t requests, tokens; /* tokens: of the expected turns; 0: not counted */
    bool paired;              /* the source had it too; else src and the flips are not measured */
    struct kd_flips exact, calls;
    bool has_kld;
    double kld, top1; /* over the expected turns, teacher forced */
    bool is_remote;   /* dst is a server */
    struct kd_battery_remote remote;
    char sha256[65];
};

/* The battery's file: an array of {request, expected_call, expected_text}. */
struct kd_battery_item {
    const char *request; /* its JSON text, as spelled in the file */
    size_t request_bytes;
    const struct kd_json *parsed; /* the same */
    const char *expected;         /* turn with control tokens written out */
    size_t expected_bytes;
    const struct kd_json *call; /* {name, arguments} or null */
    bool thinking;
};
struct kd_battery_file {
    struct kd_buf text;
    struct kd_json *root;
    struct kd_battery_item *item;
    int64_t count;
    char sha256[65];
};
/* limit 0: all. */
int kd_battery_load(struct kd_battery_file *f, const char *path, int64_t limit,
                    struct kd_err *err) KD_MUST;
void kd_battery_file_release(struct kd_battery_file *f);

/* Whether calls_json (an array of {name, arguments}) is what is expected: one equal call, or none.
 */
bool kd_battery_call_fits(const struct kd_json *expected, const struct kd_json *calls);

int kd_battery_run(struct kd_battery *b, const struct kd_run *run, const char *src, const char *dst,
                   const struct kd_battery_file *file, const volatile int *stop,
                   struct kd_err *err) KD_MUST;
/* One model alone: its right answers into exact and call, each [file->count], and the number of ids
 * of the expected turns. */
int kd_battery_one(bool *exact, bool *call, int64_t *tokens, const struct kd_run *run,
                   const char *model, const struct kd_battery_file *file, const volatile int *stop,
                   struct kd_err *err) KD_MUST;
/* Counts of right answers of both models into flips with their intervals. */
void kd_battery_flips(struct kd_flips *f, const bool *src, const bool *dst, int64_t count);

#endif
