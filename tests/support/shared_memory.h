/* shared_memory.h: the CUDA backend over a test's own memory. With QUIRE_TEST_DEVICE=cuda in the environment, operator
 * tests that name the reference path run on the first CUDA device instead: heap, stack and data of the test are shown
 * to the device, so that the pointers they pass hold there, and every call waits for its kernels. */
#ifndef QR_TESTS_SHARED_MEMORY_H
#define QR_TESTS_SHARED_MEMORY_H

#include "ops/ops.h"

bool test_device_is_cuda(void);
/* The device of tests that compare a fast path with the reference: "cuda" then, else "cpu". */
const char *fast_device(void);
/* Operators only: no copies. */
qr_status shared_cuda_open(struct backend **out, qr_error *err);

#endif
