/* memory.h: how much memory there is. */
#ifndef QR_BASE_MEMORY_H
#define QR_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that can be allocated without swapping: MemAvailable, or what the process's control group leaves where that is
 * less. 0 where the system does not say. */
int64_t memory_available(void);

#endif
