#include "base/yajl_memory.h"

#include <stddef.h>

#include "base/alloc.h"

/* Lies in front of every block given to yajl. */
struct yajl_block {
    struct yajl_block *next, *previous;
    _Alignas(max_align_t) unsigned char data[];
};

static struct yajl_block *block_of(void *data)
{
    return (struct yajl_block *)((unsigned char *)data - offsetof(struct yajl_block, data));
}

static void *link_in(struct yajl_memory *memory, struct yajl_block *block)
{
    block->previous = NULL;
    block->next = memory->blocks;
    if (block->next)
        block->next->previous = block;
    memory->blocks = block;
    return block->data;
}

static void take_out(struct yajl_memory *memory, struct yajl_block *block)
{
    if (block->previous)
        block->previous->next = block->next;
    else
        memory->blocks = block->next;
    if (block->next)
        block->next->previous = block->previous;
}

static void *yajl_realloc(void *user, void *data, size_t size)
{
    struct yajl_memory *memory = user;
    struct yajl_block *old = data ? block_of(data) : NULL;
    if (size > SIZE_MAX - sizeof *old)
        longjmp(memory->no_memory, 1);
    if (old)
        take_out(memory, old);
    struct yajl_block *block = qr_realloc(old, sizeof *block + size);
    if (!block) {
        if (old)
            link_in(memory, old);
        longjmp(memory->no_memory, 1);
    }
    return link_in(memory, block);
}

static void *yajl_malloc(void *user, size_t size) { return yajl_realloc(user, NULL, size); }

static void yajl_release(void *user, void *data)
{
    if (!data)
        return;
    take_out(user, block_of(data));
    qr_free(block_of(data));
}

void yajl_memory_init(struct yajl_memory *memory)
{
    memory->functions = (yajl_alloc_funcs){yajl_malloc, yajl_realloc, yajl_release, memory};
    memory->blocks = NULL;
}

void yajl_memory_free(struct yajl_memory *memory)
{
    for (struct yajl_block *block = memory->blocks, *next; block; block = next) {
        next = block->next;
        qr_free(block);
    }
    memory->blocks = NULL;
}
