#define _GNU_SOURCE
#include "ops/device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/cuda/module.h"

/* ---- the CUDA module ---- */

#define CUDA_MODULE_FILE "libquire_cuda.so"

/* Where the module may lie, seen from the folder of this code. */
static const char *const beside[] = {"", "/..", "/../lib", "/../lib64"};
enum { PLACES = sizeof beside / sizeof *beside };

/* The folder of the file that holds this function. */
static bool own_folder(char *out, size_t size)
{
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr(&beside, &info) || !info.dli_fname)
        return false;
    if (!strchr(info.dli_fname, '/')) { /* a program found by PATH is known by its name alone */
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n < 0)
            return false;
        path[n] = 0;
    } else {
        snprintf(path, sizeof path, "%s", info.dli_fname);
    }
    char *slash = strrchr(path, '/');
    *slash = 0;
    snprintf(out, size, "%s", slash == path ? "/" : path);
    return true;
}

static void *load_module(qr_error *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    bool known = own_folder(folder, sizeof folder);
    for (int i = 0; known && i < PLACES; i++) {
        snprintf(path, sizeof path, "%s%s/%s", folder, beside[i], CUDA_MODULE_FILE);
        if (access(path, R_OK) != 0)
            continue;
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!module)
            qr_fail(err, QR_UNSUPPORTED, "device cuda: %s", dlerror());
        return module;
    }
    void *module = dlopen(CUDA_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        qr_fail(err, QR_UNSUPPORTED, "device cuda: no module %s beside this program (%s)", CUDA_MODULE_FILE, dlerror());
    return module;
}

static bool read_ordinal(const char *text, int *out)
{
    char *end;
    long n = text ? strtol(text, &end, 10) : 0;
    if (text && (end == text || *end || n < 0 || n > 1023))
        return false;
    *out = (int)n;
    return true;
}

/* The module, checked, and the number of the device. */
static qr_status find_module(const char *ordinal, const struct cuda_module **out, int *number, qr_error *err)
{
    cuda_module_entry *entry;
    if (!read_ordinal(ordinal, number))
        return qr_fail(err, QR_BAD_ARGUMENT, "device cuda: \"%s\" is no number of a device", ordinal);
    void *module = load_module(err);
    if (!module)
        return QR_UNSUPPORTED;
    void *symbol = dlsym(module, CUDA_MODULE_ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    if (!entry)
        return qr_fail(err, QR_UNSUPPORTED, "device cuda: %s has no entry %s", CUDA_MODULE_FILE, CUDA_MODULE_ENTRY);
    *out = entry();
    if (strcmp((*out)->version, qr_version()) != 0 || (*out)->layout() != cuda_module_layout())
        return qr_fail(err, QR_UNSUPPORTED, "device cuda: %s is of version %s of another build, wanted %s of this one",
                       CUDA_MODULE_FILE, (*out)->version, qr_version());
    return QR_OK;
}

qr_status backend_cuda_open(const char *ordinal, const struct qr_log *log, struct backend **out, qr_error *err)
{
    const struct cuda_module *module;
    int number;
    qr_status st = find_module(ordinal, &module, &number, err);
    return st == QR_OK ? module->open(number, log, out, err) : st;
}

static qr_status cuda_name(const char *ordinal, char *out, size_t size, qr_error *err)
{
    const struct cuda_module *module;
    int number;
    qr_status st = find_module(ordinal, &module, &number, err);
    return st == QR_OK ? module->name(number, out, size, err) : st;
}

/* ---- names ---- */

enum device_kind { DEVICE_NONE, DEVICE_CPU, DEVICE_CUDA };

/* What a name means; `rest` is the path of the CPU or the number of a CUDA device, NULL: the usual one. */
static enum device_kind kind_of(const char *device, const char **rest)
{
    *rest = NULL;
    if (strcmp(device, "cpu") == 0)
        return DEVICE_CPU;
    if (strcmp(device, "cuda") == 0)
        return DEVICE_CUDA;
    if (strncmp(device, "cpu-", 4) == 0) {
        *rest = device + 4;
        return DEVICE_CPU;
    }
    if (strncmp(device, "cuda:", 5) == 0) {
        *rest = device + 5;
        return DEVICE_CUDA;
    }
    return DEVICE_NONE;
}

static qr_status no_device(const char *device, qr_error *err)
{
    return qr_fail(err, QR_BAD_ARGUMENT,
                   "device: \"%s\", wanted cpu, cpu-reference, cpu-avx512, cpu-avx2, cpu-portable or cuda[:N]", device);
}

qr_status backend_open(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err)
{
    const char *rest;
    switch (kind_of(device, &rest)) {
    case DEVICE_CPU:
        return backend_cpu_open(rest, threads, log, out, err);
    case DEVICE_CUDA:
        return backend_cuda_open(rest, log, out, err);
    case DEVICE_NONE:
        break;
    }
    return no_device(device, err);
}

qr_status backend_name(const char *device, char *out, size_t size, qr_error *err)
{
    const char *rest, *name;
    switch (kind_of(device, &rest)) {
    case DEVICE_CPU:
        name = backend_cpu_name(rest, err);
        if (name)
            snprintf(out, size, "%s", name);
        return name ? QR_OK : QR_UNSUPPORTED;
    case DEVICE_CUDA:
        return cuda_name(rest, out, size, err);
    case DEVICE_NONE:
        break;
    }
    return no_device(device, err);
}

qr_status backend_memory(const char *device, struct device_memory *out, qr_error *err)
{
    const struct cuda_module *module;
    const char *rest;
    int number;
    *out = (struct device_memory){.total = 0};
    switch (kind_of(device, &rest)) {
    case DEVICE_CPU:
        return QR_OK;
    case DEVICE_CUDA:
        TRY(find_module(rest, &module, &number, err));
        return module->memory(number, out, err);
    case DEVICE_NONE:
        break;
    }
    return no_device(device, err);
}

bool backend_records(const char *device)
{
    const char *rest;
    return kind_of(device, &rest) == DEVICE_CUDA;
}

bool backend_clamps_windows(const char *device)
{
    const char *rest;
    switch (kind_of(device, &rest)) {
    case DEVICE_CPU:
    case DEVICE_CUDA:
        return true;
    case DEVICE_NONE:
        break;
    }
    return false;
}

qr_status backend_scratch(const char *device, int threads, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    const char *rest;
    *bytes = 0;
    switch (kind_of(device, &rest)) {
    case DEVICE_CPU:
        return backend_cpu_scratch(rest, threads, limits, bytes, err);
    case DEVICE_CUDA:
        return QR_OK;
    default:
        return no_device(device, err);
    }
}
