/* What the present machine can do, measured: memory, a drive, a GPU if its driver is there, and the
 * rates of the program's own kernels; and from them how long decoding and converting a model of a
 * given shape takes here. */
#ifndef KD_PLAN_PROBE_H
#define KD_PLAN_PROBE_H

#include "kern/mat.h"
#include "plan/bytes.h"
#include "plan/machine.h"

struct kd_probe_gpu {
    bool there;
    char name[96];
    char why[96]; /* when it is not */
    int count;
    double gib, free_gib, gb_s; /* gb_s: measured by copies inside the device, read and written */
};

struct kd_probe {
    char cpu[96];
    int threads;
    const char *isa;
    double ram_gib, ram_free_gib, ram_gb_s;
    double load;      /* runnable threads of others, over the last minute; 0: unknown */
    double disk_gb_s; /* 0: not measured */
    double disk_free_gib;
    char disk_path[256], disk_why[96];
    struct kd_probe_gpu gpu;
    /* kernels, all threads */
    double tiles_s;            /* trellis search at 2 bits */
    double fma_gflops;         /* gemm_tn: Hessians and feedback */
    double mul_gmacs[3];       /* products at many tokens: BF16, MXFP4, EXL3 at 2 bits */
    double decode_gweights[3]; /* at one token, from memory */
    double seconds;            /* that measuring took */
};

/* run: kernels and threads. path: where the drive is measured (a folder; NULL: not). About three
 * seconds. */
int kd_probe_make(struct kd_probe *p, const struct kd_run *run, const char *path,
                  struct kd_err *err) KD_MUST;
/* The same as a machine to plan with. */
void kd_probe_machine(struct kd_machine *m, const struct kd_probe *p);
void kd_probe_gpu(struct kd_probe_gpu *g);

#endif
