#define _GNU_SOURCE
#include "tools/open_map.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

int folder_has_tokenizer(const char *dir)
{
    char *path = path_join(dir, "tokenizer.json");
    int there = !path ? -1 : access(path, F_OK) == 0;
    qr_free(path);
    return there;
}

qr_status open_token_map(const char *dir, const struct qr_config *config, const struct qr_log *log, struct token_map *out,
                         qr_error *err)
{
    struct tokenizer *tok;
    if (config->n_engram == 0)
        return QR_OK;
    int there = folder_has_tokenizer(dir);
    if (there < 0)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a path");
    if (!there && config->engram_compressed_vocab_size == config->vocab_size)
        return token_map_identity(config->vocab_size, out, err);
    TRY(tok_open_ids(dir, log, &tok, err));
    qr_status st = token_map_build(tok, out, err);
    tok_close(tok);
    return st;
}
