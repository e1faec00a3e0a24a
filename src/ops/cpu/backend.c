#include <string.h>

#include "base/alloc.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/reference/reference.h"

/* A path is the reference table, with the inner loops of an instruction set over it. Best first; `kernels` is NULL where
 * the processor lacks the set, and the reference has none. */
struct cpu_path {
    const char *path, *name;
    const struct cpu_kernels *(*kernels)(void);
};

static const struct cpu_path paths[] = {
#if defined(__x86_64__)
    {"avx512", "cpu-avx512", kernels_avx512},
    {"avx2", "cpu-avx2", kernels_avx2},
#endif
    {"portable", "cpu-portable", kernels_portable},
    {"reference", "cpu-reference", NULL},
};
enum { PATHS = sizeof paths / sizeof *paths };

static bool usable(const struct cpu_path *p) { return !p->kernels || p->kernels(); }

static const struct cpu_path *find_path(const char *path, qr_error *err)
{
    bool any = !path || strcmp(path, "auto") == 0, known = false;
    for (int i = 0; i < PATHS; i++)
        if (any || strcmp(path, paths[i].path) == 0) {
            known = true;
            if (usable(&paths[i]))
                return &paths[i];
        }
    qr_fail(err, QR_UNSUPPORTED, "CPU path \"%s\": %s", path,
            known ? "this processor lacks its instructions" : "not one of this build");
    return NULL;
}

const char *backend_cpu_name(const char *path, qr_error *err)
{
    const struct cpu_path *chosen = find_path(path, err);
    return chosen ? chosen->name : NULL;
}

qr_status backend_cpu_scratch(const char *path, int threads, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    const struct cpu_path *chosen = find_path(path, err);
    if (!chosen)
        return QR_UNSUPPORTED;
    const int wanted = pool_threads_wanted(threads);
    *bytes = wanted * cpu_scratch_piece(reference_scratch_bytes(limits));
    if (chosen->kernels)
        *bytes += fast_scratch_bytes(limits, wanted);
    return QR_OK;
}

static void cpu_close(struct backend *b)
{
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    if (!cpu)
        return;
    fast_close(cpu->fast);
    pool_close(cpu->pool);
    qr_free(cpu->scratch);
    qr_free(cpu);
}

qr_status backend_cpu_open(const char *path, int threads, const struct qr_log *log, struct backend **out, qr_error *err)
{
    const struct cpu_path *chosen = find_path(path, err);
    if (!chosen)
        return QR_UNSUPPORTED;

    struct cpu_backend *cpu = qr_calloc(1, sizeof *cpu);
    if (!cpu)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the CPU backend");
    qr_status st = pool_open(threads, &cpu->pool, err);
    if (st != QR_OK) {
        qr_free(cpu);
        return st;
    }
    cpu->threads = pool_threads(cpu->pool);
    cpu->log = log;
    cpu->base.name = chosen->name;
    cpu->base.self = cpu;
    cpu->base.close = cpu_close;
    cpu_memory_install(&cpu->base);
    reference_install(&cpu->base);
    if (chosen->kernels)
        st = fast_install(cpu, chosen->kernels(), err);
    if (st != QR_OK) {
        cpu_close(&cpu->base);
        return st;
    }
    *out = &cpu->base;
    return QR_OK;
}
