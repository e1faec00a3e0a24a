/* device.h: the backend that a device's name means. */
#ifndef QR_OPS_DEVICE_H
#define QR_OPS_DEVICE_H

#include "ops/ops.h"

/* "cpu" (the best path of this machine), "cpu-PATH" as backend_cpu_open, "cuda" or "cuda:N". threads: of the CPU.
 * QR_UNSUPPORTED, saying what there is, for a device that this build or machine does not have. */
qr_status backend_open(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err);

/* The name of the backend that backend_open gives for the device, part of the arithmetic identity: "cpu-avx2",
 * "cuda-sm90". QR_BAD_ARGUMENT for what is no name of a device, QR_UNSUPPORTED where there is no such device. */
qr_status backend_name(const char *device, char *out, size_t size, qr_error *err);

/* Memory that is the device's own, and what a backend takes of it beside weights, pools and the buffers of a step. */
struct device_memory {
    int64_t total, free;  /* 0 total: the device computes in host memory */
    int64_t scratch;      /* of the operators, and the backend's books */
    int64_t score_band;   /* of it: index scores of a band of rows (runtime.md 2.10), however long a request is */
    int64_t staging;      /* a weight on its way into its layout; a larger one that is not cut takes its own size */
    int64_t graphs;       /* recorded steps */
    int64_t collective;   /* taken by exchange between devices outside of any allocation here; 0 for one device */
    int64_t weight_chunk; /* weights are taken in chunks of so many bytes */
    /* Experts in host memory (ops.h): what their books take; how many experts of a layer and seats together, and seats, there
     * may be. 0: every expert lies on the device. */
    int64_t expert_books;
    int32_t expert_views, most_seats;
    int64_t (*weight_bytes)(const struct weight_spec *); /* of a weight in the device's layout, by its format and shape */
    int64_t (*staged_bytes)(const struct weight_spec *); /* of it that must be staged at once */
};
qr_status backend_memory(const char *device, struct device_memory *out, qr_error *err);

/* Bytes of host memory that the backend's own scratch will take for steps of these limits; a CUDA device's lies on the
 * device and is not counted. Fails as backend_name does. */
qr_status backend_scratch(const char *device, int threads, const struct op_limits *limits, int64_t *bytes, qr_error *err);

/* Whether the device's backend records lists of operators (runtime.md 8). False for what is no name of a device. */
bool backend_records(const char *device);

/* Whether everything of the device that reads windows begins them where a step says (op_attend.window_low): what bounded
 * replay needs (runtime.md 11, E27). False for what is no name of a device. */
bool backend_clamps_windows(const char *device);

/* Opens CUDA device `ordinal` ("0"; NULL: the first). The backend is a module of its own, libquire_cuda.so, looked for
 * beside this library or program, in its parent and in the lib folder beside it, then where the loader looks; once
 * loaded it stays. QR_UNSUPPORTED when there is no module, one of another build, or no such device. */
qr_status backend_cuda_open(const char *ordinal, const struct qr_log *log, struct backend **out, qr_error *err);

#endif
