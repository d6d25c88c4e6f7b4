/* As much of a driver (libcuda.so.1) as CUDA's runtime asks before it finds it too old. */
#include <string.h>

enum { VERSION = 12040, DONE = 0, NOT_FOUND = 500 };

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress(const char *name, void **at, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags,
                        int *status);

int cuInit(unsigned flags)
{
    (void)flags;
    return DONE;
}

int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return DONE;
}

int cuGetProcAddress(const char *name, void **at, int version, unsigned long long flags)
{
    (void)version;
    (void)flags;
    *at = !strcmp(name, "cuInit")               ? (void *)cuInit
          : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
          : !strcmp(name, "cuGetProcAddress")   ? (void *)cuGetProcAddress_v2
                                                : NULL;
    return *at ? DONE : NOT_FOUND;
}

int cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags,
                        int *status)
{
    if (status)
        *status = 0;
    return cuGetProcAddress(name, at, version, flags);
}
