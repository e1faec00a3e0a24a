/* An index of any bytes, then (after a NUL) a shard of any bytes read as the index's first file. */
#include "fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/safetensors_header.h"

static const char *shard_name(const void *user, int32_t shard)
{
    const struct shard_list *shards = user;
    must(shard >= 0 && (size_t)shard < shards->count);
    return shards->names[shard];
}

static void check_names(const struct tensor_table *table, const struct shard_list *shards)
{
    for (size_t i = 0; i < table->count; i++) {
        must(table->views[i].dtype == DTYPE_COUNT);
        shard_name(shards, table->views[i].shard);
    }
    for (size_t i = 0; i < shards->count; i++) {
        const char *name = shards->names[i], *up = strstr(name, "..");
        must(name[0] && name[0] != '/' && strcmp(name, "..") && strncmp(name, "../", 3) && !strstr(name, "/../"));
        must(!up || strcmp(name + strlen(name) - 2, "..") || (strlen(name) > 2 && name[strlen(name) - 3] != '/'));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t length = nul ? (size_t)(nul - data) : size;
    struct tensor_table table;
    struct shard_list shards = {0};
    qr_error err = {0};
    tensor_table_init(&table);
    qr_status st = checkpoint_index_parse((const char *)data, length, "index", &table, &shards, &err);
    must(st == QR_OK || (st == QR_BAD_FILE && strstr(err.message, "index")));
    if (st == QR_OK) {
        check_names(&table, &shards);
        if (nul) {
            struct mapped_file file = {nul + 1, size - length - 1, "shard"};
            struct header_sink sink = {&table, 0, true, shard_name, &shards, NULL};
            st = safetensors_header_read(&file, &sink, &err);
            must(st == QR_OK || (st == QR_BAD_FILE && strstr(err.message, "shard")));
        }
    }
    shard_list_free(&shards);
    tensor_table_free(&table);
    return 0;
}
