#include <string.h>

#include "base/alloc.h"
#include "ops/cpu/memory.h"
#include "ops/cpu/reference/reference.h"

/* A path is the reference table with its own entries over it. Best first. */
struct cpu_path {
    const char *path, *name;
    bool (*usable)(void);               /* looks at the processor */
    void (*install)(struct backend *b); /* replaces entries of the reference table */
};

static bool always(void) { return true; }

static void keep(struct backend *b) { (void)b; }

static const struct cpu_path paths[] = {
    {"reference", "cpu-reference", always, keep},
};
enum { PATHS = sizeof paths / sizeof *paths };

static const struct cpu_path *find_path(const char *path)
{
    bool any = !path || strcmp(path, "auto") == 0;
    for (int i = 0; i < PATHS; i++)
        if (any ? paths[i].usable() : strcmp(path, paths[i].path) == 0)
            return &paths[i];
    return NULL;
}

static void cpu_close(struct backend *b)
{
    struct cpu_backend *cpu = (struct cpu_backend *)b;
    if (!cpu)
        return;
    pool_close(cpu->pool);
    qr_free(cpu->scratch);
    qr_free(cpu);
}

qr_status backend_cpu_open(const char *path, int threads, const struct qr_log *log, struct backend **out, qr_error *err)
{
    const struct cpu_path *chosen = find_path(path);
    if (!chosen || !chosen->usable())
        return qr_fail(err, QR_UNSUPPORTED, "CPU path \"%s\": %s", path,
                       chosen ? "this processor lacks its instructions" : "not one of this build");

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
    chosen->install(&cpu->base);
    *out = &cpu->base;
    return QR_OK;
}
