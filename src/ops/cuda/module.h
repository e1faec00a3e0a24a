/* module.h: the one thing that libquire_cuda.so exports, for ops/device.c, which loads it. */
#ifndef QR_OPS_CUDA_MODULE_H
#define QR_OPS_CUDA_MODULE_H

#include "ops/device.h"

#define CUDA_MODULE_ENTRY "quire_cuda_module"

/* A library and a module that were built from different sources must not meet: ops.h is no stable interface. */
struct cuda_module {          /* the first two members stay where they are */
    const char *version;      /* of quire */
    uint64_t (*layout)(void); /* cuda_module_layout of the sources it was built from */
    /* The backend's name on that device; QR_UNSUPPORTED when there is none. */
    qr_status (*name)(int ordinal, char *out, size_t size, qr_error *err);
    qr_status (*open)(int ordinal, const struct qr_log *log, struct backend **out, qr_error *err);
    /* What the device has and what a backend takes of it (ops/device.h). */
    qr_status (*memory)(int ordinal, struct device_memory *out, qr_error *err);
};
typedef const struct cuda_module *cuda_module_entry(void);

/* The sizes of every struct that crosses the border, folded into a number. */
static inline uint64_t cuda_module_layout(void)
{
    uint64_t layout = sizeof(struct cuda_module) * 31 + sizeof(struct backend);
    layout = layout * 31 + sizeof(struct step);
    layout = layout * 31 + sizeof(struct weight_spec);
    layout = layout * 31 + sizeof(struct model_plan);
    layout = layout * 31 + sizeof(struct op_limits);
    layout = layout * 31 + sizeof(struct device_memory);
    layout = layout * 31 + sizeof(struct backend_counts);
    layout = layout * 31 + sizeof(struct run_mode);
    layout = layout * 31 + sizeof(struct op_shortlist);
    layout = layout * 31 + sizeof(struct shortlist_ask);
    layout = layout * 31 + sizeof(struct shortlist_part);
#define FOLD(NAME) layout = layout * 31 + sizeof(struct op_##NAME);
    QR_OPERATORS(FOLD)
#undef FOLD
    return layout;
}

#endif
