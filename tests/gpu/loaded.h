/* Device memory of a test, released with it. */
#ifndef KD_TESTS_GPU_LOADED_H
#define KD_TESTS_GPU_LOADED_H

extern "C" {
#include "gpu/product.h"
}

#include "gpu/must.h"

#include <vector>

static struct kd_err err;

/* Some matrices in device memory, and what their products need. */
struct loaded {
    struct kd_gpu *g;
    std::vector<void *> memory;
    explicit loaded(struct kd_gpu *on) : g(on)
    {
    }
    loaded(const loaded &) = delete;
    loaded &operator=(const loaded &) = delete;
    ~loaded()
    {
        for (void *p : memory)
            kd_gpu_release(g, p);
    }
    void *get(int64_t bytes)
    {
        void *p;
        must(kd_gpu_alloc(g, &p, bytes, "a test", &err));
        memory.push_back(p);
        return p;
    }
    struct kd_gpu_mat load(const struct kd_gpu_source *s)
    {
        struct kd_gpu_mat m;
        must(kd_gpu_mat_load(g, &m, s, get(kd_gpu_mat_bytes(s)), &err));
        return m;
    }
    template <class T> T *copy(const std::vector<T> &v)
    {
        T *p = (T *)get((int64_t)(v.size() * sizeof(T)));
        must(kd_gpu_upload(g, p, v.data(), (int64_t)(v.size() * sizeof(T)), &err));
        return p;
    }
    std::vector<float> floats(const float *from, int64_t count)
    {
        std::vector<float> v((size_t)count);
        must(kd_gpu_download(g, v.data(), from, 4 * count, &err));
        return v;
    }
};

#endif
