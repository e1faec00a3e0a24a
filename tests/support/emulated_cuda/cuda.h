/* The part of CUDA's driver that arena.c calls, and that cudaGetDriverEntryPointByVersion finds: ranges of addresses,
 * and memory behind them. */
#ifndef QR_TESTS_EMULATED_DRIVER_H
#define QR_TESTS_EMULATED_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2 } CUresult;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;

enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
typedef struct {
    int type, id;
} CUmemLocation;
typedef struct {
    int type;
    CUmemLocation location;
} CUmemAllocationProp;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

#endif
