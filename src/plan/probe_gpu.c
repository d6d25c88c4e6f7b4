/* The GPU, asked through its driver, which is looked up at run time: a machine without one needs
 * nothing. Bandwidth is that of copies inside the device, read and written bytes together. */
#include "plan/probe.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The few entry points of libcuda's driver interface that are used, with prototypes of our own. */
struct driver {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*device)(int *dev, int ordinal);
    int (*name)(char *out, int size, int dev);
    int (*context)(void **ctx, unsigned flags, int dev);
    int (*destroy)(void *ctx);
    int (*memory)(size_t *free_bytes, size_t *all_bytes);
    int (*alloc)(unsigned long long *ptr, size_t bytes);
    int (*release)(unsigned long long ptr);
    int (*copy)(unsigned long long to, unsigned long long from, size_t bytes);
    int (*wait)(void);
};

enum { COPIES = 8 };
static const size_t copy_bytes = (size_t)1 << 30;

static bool look_up(struct driver *d, void *lib)
{
    const struct {
        const char *name;
        void *to;
    } names[] = {{"cuInit", &d->init},
                 {"cuDeviceGetCount", &d->count},
                 {"cuDeviceGet", &d->device},
                 {"cuDeviceGetName", &d->name},
                 {"cuCtxCreate_v2", &d->context},
                 {"cuCtxDestroy_v2", &d->destroy},
                 {"cuMemGetInfo_v2", &d->memory},
                 {"cuMemAlloc_v2", &d->alloc},
                 {"cuMemFree_v2", &d->release},
                 {"cuMemcpyDtoD_v2", &d->copy},
                 {"cuCtxSynchronize", &d->wait}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(lib, names[i].name);
        if (!found)
            return false;
        memcpy(names[i].to, &found, sizeof found);
    }
    return true;
}

static double copy_gb_s(const struct driver *d, size_t free_bytes)
{
    unsigned long long a = 0, b = 0;
    size_t bytes = free_bytes / 4 < copy_bytes ? free_bytes / 4 : copy_bytes;
    double rate = 0;
    if (!bytes || d->alloc(&a, bytes))
        return 0;
    if (!d->alloc(&b, bytes)) {
        bool bad = d->copy(b, a, bytes) || d->wait();
        double start = kd_clock_s();
        for (int i = 0; i < COPIES && !bad; i++)
            bad = d->copy(b, a, bytes) != 0;
        bad = bad || d->wait();
        double took = kd_clock_s() - start;
        rate = bad || !(took > 0) ? 0 : 2.0 * COPIES * (double)bytes / took * 1e-9;
        d->release(b);
    }
    d->release(a);
    return rate;
}

static void ask(struct kd_probe_gpu *g, const struct driver *d)
{
    int dev;
    void *ctx;
    size_t free_bytes = 0, all_bytes = 0;
    if (d->init(0) || d->count(&g->count) || g->count < 1 || d->device(&dev, 0)) {
        snprintf(g->why, sizeof g->why, "the driver is there, no device answers");
        return;
    }
    if (d->name(g->name, (int)sizeof g->name, dev) || d->context(&ctx, 0, dev)) {
        snprintf(g->why, sizeof g->why, "a device is there and cannot be used");
        return;
    }
    if (!d->memory(&free_bytes, &all_bytes)) {
        g->gib = (double)all_bytes / 1073741824.0;
        g->free_gib = (double)free_bytes / 1073741824.0;
        g->gb_s = copy_gb_s(d, free_bytes);
        g->there = g->gb_s > 0;
    }
    if (!g->there)
        snprintf(g->why, sizeof g->why, "a device is there, its memory could not be measured");
    d->destroy(ctx);
}

void kd_probe_gpu(struct kd_probe_gpu *g)
{
    struct driver d;
    memset(g, 0, sizeof *g);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        snprintf(g->why, sizeof g->why, "no NVIDIA driver on this machine");
        return;
    }
    if (look_up(&d, lib))
        ask(g, &d);
    else
        snprintf(g->why, sizeof g->why, "the driver library lacks a function");
    dlclose(lib);
}
