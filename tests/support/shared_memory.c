#define _GNU_SOURCE
#include "support/shared_memory.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ops/device.h"
#include "support/support.h"

enum { HEAP_BYTES = 512 << 20, STACK_BYTES = 4 << 20 };

bool test_device_is_cuda(void)
{
    const char *device = getenv("QUIRE_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

const char *fast_device(void) { return test_device_is_cuda() ? "cuda" : "cpu"; }

/* ---- the test's own memory, seen by the device ---- */

/* All of malloc's memory in one piece, there from the start. */
static __attribute__((constructor)) void keep_one_heap(void)
{
    if (!test_device_is_cuda())
        return;
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, HEAP_BYTES * 2L > INT32_MAX ? INT32_MAX : HEAP_BYTES * 2L);
    volatile char *all = malloc(HEAP_BYTES);
    if (all)
        *all = 0; /* taken in earnest: the heap keeps this size */
    free((void *)(uintptr_t)all);
}

static __attribute__((noinline)) void touch_stack(void)
{
    char deep[STACK_BYTES];
    for (volatile char *at = deep; at < deep + STACK_BYTES; at += 4096)
        *at = 1;
}

typedef int register_call(void *p, size_t bytes, unsigned flags); /* cuMemHostRegister */
typedef int unregister_call(void *p);                             /* cuMemHostUnregister */

static struct {
    register_call *add;
    unregister_call *drop;
    struct {
        char *from, *to;
    } files[256]; /* mapped files that were shown */
    int count;
    bool own; /* the program's own memory is shown */
} driver;

/* The device that is the processor (support/emulated_cuda) sees everything. */
static bool sees_everything(void) { return getenv("QUIRE_TEST_EMULATED") != NULL; }

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *add = library ? dlsym(library, "cuMemHostRegister_v2") : NULL;
    void *drop = library ? dlsym(library, "cuMemHostUnregister") : NULL;
    assert_non_null(add);
    assert_non_null(drop);
    memcpy(&driver.add, &add, sizeof add);
    memcpy(&driver.drop, &drop, sizeof drop);
}

static void share(char *from, char *to, const char *what)
{
    enum { DEVICE_MAP = 2 };
    mprotect(from, (size_t)(to - from), PROT_READ | PROT_WRITE);
    int status = driver.add(from, (size_t)(to - from), DEVICE_MAP);
    if (status != 0)
        fail_msg("the device cannot see %s of this test (%d)", what, status);
}

/* A mapped file becomes memory of the same contents at the same place. One that stood there before is gone. */
static void share_file(char *from, char *to, const char *name)
{
    size_t bytes = (size_t)(to - from);
    char *copy = malloc(bytes);
    for (int i = 0; i < driver.count; i++)
        if (driver.files[i].from < to && from < driver.files[i].to) {
            driver.drop(driver.files[i].from);
            driver.files[i--] = driver.files[--driver.count];
        }
    assert_non_null(copy);
    assert_true(driver.count < (int)(sizeof driver.files / sizeof *driver.files));
    memcpy(copy, from, bytes);
    assert_ptr_equal(mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), from);
    memcpy(from, copy, bytes);
    free(copy);
    share(from, to, name);
    driver.files[driver.count].from = from;
    driver.files[driver.count++].to = to;
}

/* Shows the device the heap, the stack and the program's data, once, and golden files that were mapped since. */
static void share_memory(void)
{
    struct {
        char *from, *to, name[256];
        bool file;
    } found[64];
    char line[512], exe[512] = "", *end = NULL;
    int count = 0;
    if (sees_everything())
        return;
    assert_true(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);

    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        char rights[8] = "", name[256] = "", *from, *to;
        unsigned long a, b;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255[^\n]", &a, &b, rights, name) < 3)
            continue;
        from = (char *)a;
        to = (char *)b;
        bool program = strcmp(name, exe) == 0, heap = strcmp(name, "[heap]") == 0, stack = strcmp(name, "[stack]") == 0;
        bool zeros = !name[0] && from == end; /* data without a file, right behind the program's */
        bool file = strstr(name, ".safetensors") != NULL;
        if (file || (!driver.own && ((program && rights[2] != 'x') || heap || stack || zeros))) {
            assert_true(count < (int)(sizeof found / sizeof *found));
            found[count].from = from;
            found[count].to = to;
            found[count].file = file;
            strcpy(found[count++].name, name[0] ? name : "zeroed data");
        }
        end = program ? to : NULL;
    }
    fclose(maps);
    for (int i = 0; i < count; i++) {
        if (found[i].file)
            share_file(found[i].from, found[i].to, found[i].name);
        else
            share(found[i].from, found[i].to, found[i].name);
    }
    driver.own = true;
}

/* ---- a backend that has finished when it returns ---- */

struct waiting {
    struct backend base;
    struct backend *real;
};

static struct backend *real_of(struct backend *b) { return ((struct waiting *)b)->real; }

static qr_status wait_for(struct backend *b, qr_status st, qr_error *err)
{
    return st == QR_OK ? real_of(b)->fence(real_of(b), err) : st;
}

#define OPERATOR(NAME)                                                                            \
    static qr_status waiting_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err) \
    {                                                                                             \
        share_memory();                                                                           \
        return wait_for(b, real_of(b)->NAME(real_of(b), op, err), err);                           \
    }
QR_OPERATORS(OPERATOR)
#undef OPERATOR

static qr_status waiting_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    return real_of(b)->reserve(real_of(b), limits, bytes, err);
}
static void waiting_close(struct backend *b)
{
    real_of(b)->close(real_of(b));
    qr_free(b);
}
static qr_status waiting_prepare(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    share_memory(); /* a file mapped where another was shown must not be taken for it */
    return wait_for(b, real_of(b)->prepare_weight(real_of(b), spec, out, err), err);
}
static void waiting_release(struct backend *b, struct weight *w) { real_of(b)->release_weight(real_of(b), w); }

qr_status shared_cuda_open(struct backend **out, qr_error *err)
{
    struct backend *real;
    qr_status st = backend_cuda_open(NULL, NULL, &real, err);
    if (st != QR_OK)
        return st;
    if (!driver.add && !sees_everything())
        open_driver();
    if (!driver.own)
        touch_stack();
    share_memory();
    struct waiting *w = qr_calloc(1, sizeof *w);
    assert_non_null(w);
    w->real = real;
    w->base = (struct backend){.name = real->name,
                               .reserve = waiting_reserve,
                               .close = waiting_close,
                               .prepare_weight = waiting_prepare,
                               .release_weight = waiting_release};
#define INSTALL(NAME) w->base.NAME = waiting_##NAME;
    QR_OPERATORS(INSTALL)
#undef INSTALL
    *out = &w->base;
    return QR_OK;
}
