#include "kern/kern.h"

#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

static const char *const names[KD_ISA_COUNT] = {"ref", "avx2", "avx512", "avx512fp16", "neon"};

const char *kd_isa_name(enum kd_isa isa)
{
    return names[isa];
}

static bool runs_here(enum kd_isa isa)
{
    switch (isa) {
    case KD_ISA_REF:
        return true;
#if defined(__x86_64__)
    case KD_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    case KD_ISA_AVX512:
        return runs_here(KD_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
               __builtin_cpu_supports("avx512vnni");
    case KD_ISA_AVX512FP16:
        return runs_here(KD_ISA_AVX512) && __builtin_cpu_supports("avx512fp16");
    case KD_ISA_NEON:
    case KD_ISA_COUNT:
        return false;
#elif defined(__aarch64__)
    case KD_ISA_NEON: {
        unsigned long need = HWCAP_ASIMDDP | HWCAP_ASIMDHP | HWCAP_FPHP;
        return (getauxval(AT_HWCAP) & need) == need;
    }
    case KD_ISA_AVX2:
    case KD_ISA_AVX512:
    case KD_ISA_AVX512FP16:
    case KD_ISA_COUNT:
        return false;
#else
    case KD_ISA_AVX2:
    case KD_ISA_AVX512:
    case KD_ISA_AVX512FP16:
    case KD_ISA_NEON:
    case KD_ISA_COUNT:
        return false;
#endif
    }
    return false;
}

int kd_kern_for(struct kd_kern *k, enum kd_isa isa, struct kd_err *err)
{
    memset(k, 0, sizeof *k);
    if (!runs_here(isa))
        return kd_fail(err, KD_ENOTSUP, "this CPU cannot run the %s kernels", names[isa]);
    kd_kern_set_ref(k);
    kd_kern_set_exl3_ref(k);
#if defined(__x86_64__)
    if (isa != KD_ISA_REF) {
        kd_kern_set_avx2(k);
        kd_kern_set_exl3_avx2(k);
    }
    if (isa == KD_ISA_AVX512 || isa == KD_ISA_AVX512FP16) {
        kd_kern_set_avx512(k);
        kd_kern_set_exl3_avx512(k);
    }
    if (isa == KD_ISA_AVX512FP16)
        kd_kern_set_exl3_avx512fp16(k);
#elif defined(__aarch64__)
    if (isa == KD_ISA_NEON) {
        kd_kern_set_neon(k);
        kd_kern_set_exl3_neon(k);
    }
#endif
    k->name = names[isa];
    k->isa = isa;
    return 0;
}

int kd_kern_pick(struct kd_kern *k, struct kd_err *err)
{
    const char *want = getenv("KONDENSE_ISA");
    if (want && *want) {
        for (int i = 0; i < KD_ISA_COUNT; i++)
            if (!strcmp(want, names[i]))
                return kd_kern_for(k, (enum kd_isa)i, err) ? kd_wrap(err, "KONDENSE_ISA") : 0;
        return kd_fail(err, KD_EUSAGE,
                       "KONDENSE_ISA is \"%s\": give ref, avx2, avx512, avx512fp16 or neon", want);
    }
    static const enum kd_isa best[] = {KD_ISA_AVX512FP16, KD_ISA_AVX512, KD_ISA_AVX2, KD_ISA_NEON};
    for (size_t i = 0; i < sizeof best / sizeof *best; i++)
        if (runs_here(best[i]))
            return kd_kern_for(k, best[i], err);
    return kd_kern_for(k, KD_ISA_REF, err);
}
