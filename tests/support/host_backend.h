/* host_backend.h: a backend with memory and copies only, for tests of what stands around the operators. */
#ifndef QR_TESTS_HOST_BACKEND_H
#define QR_TESTS_HOST_BACKEND_H

#include "ops/ops.h"

/* Host memory, immediate copies; every operator is NULL. */
struct backend host_backend(void);

#endif
