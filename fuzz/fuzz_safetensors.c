/* A safetensors file of any bytes: refused with a sentence, or every tensor can be read to its last byte. */
#include "fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint_check.h"
#include "checkpoint/safetensors_header.h"

static void read_all(const struct tensor_table *table, const struct metadata_list *metadata)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct tensor_view *view = &table->views[i];
        int64_t elements = tensor_elements(view->rank, view->shape);
        must(elements >= 0 && (uint64_t)elements * dtype_size(view->dtype) == view->bytes);
        must(tensor_table_find(table, view->name, strlen(view->name)) == (int64_t)i);
        must((uintptr_t)view->data % dtype_size(view->dtype) == 0);
        tensor_check_values("input", view, 0, elements, NULL);
        uint64_t sum = 0;
        for (uint64_t b = 0; b < view->bytes; b++)
            sum += ((const uint8_t *)view->data)[b];
        must(sum <= 255 * view->bytes);
    }
    for (size_t i = 0; i < metadata->count; i++)
        must(strlen(metadata->entries[i].key) + strlen(metadata->entries[i].value) < SIZE_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mapped_file file = {data, size, "input"};
    struct tensor_table table;
    struct metadata_list metadata = {0};
    struct header_sink sink = {.table = &table, .metadata = &metadata};
    qr_error err = {0};
    tensor_table_init(&table);
    qr_status st = safetensors_header_read(&file, &sink, &err);
    must(st == QR_OK || (st == QR_BAD_FILE && strstr(err.message, "input")));
    if (st == QR_OK)
        read_all(&table, &metadata);
    qr_free(metadata.entries);
    tensor_table_free(&table);
    return 0;
}
