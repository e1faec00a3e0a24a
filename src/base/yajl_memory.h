/* yajl_memory.h: memory for yajl. yajl does not look whether an allocation succeeded. So a failed one leaves it by a
 * long jump, and the list of its blocks frees what it held. For json.c and json_write.c only. */
#ifndef QR_BASE_YAJL_MEMORY_H
#define QR_BASE_YAJL_MEMORY_H

#include <setjmp.h>
#include <yajl/yajl_common.h>

struct yajl_memory {
    yajl_alloc_funcs functions; /* give its address to yajl */
    struct yajl_block *blocks;
    jmp_buf no_memory; /* set before every call of yajl that may allocate; no frame of ours lies between */
};

void yajl_memory_init(struct yajl_memory *memory);
/* Frees every block that yajl still holds; its handles are dead then. */
void yajl_memory_free(struct yajl_memory *memory);

#endif
