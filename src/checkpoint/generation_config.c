#include "checkpoint/generation_config.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/config_reader.h"

enum { FILE_LIMIT = 1 << 20 };

struct generation_config generation_config_default(void)
{
    return (struct generation_config){.temperature = 1, .top_p = 1};
}

static void read_eos(struct config_reader *r, int32_t vocab_size, struct generation_config *out)
{
    const struct json *eos = config_find(r, "eos_token_id", NULL);
    if (!eos)
        return;
    if (eos->kind == JSON_ARRAY)
        config_ints(r, "eos_token_id", NULL, 0, vocab_size - 1, GENERATION_MAX_EOS, out->eos, &out->eos_count);
    else if (config_int(r, "eos_token_id", NULL, 0, vocab_size - 1, &out->eos[0]))
        out->eos_count = 1;
}

qr_status generation_config_parse(const char *json, size_t size, const char *name, int32_t vocab_size,
                                  struct generation_config *out, qr_error *err)
{
    struct json_document *doc;
    struct config_reader r;
    bool sample = true;
    qr_status st = json_parse(json, size, name, true, &doc, err);
    if (st != QR_OK)
        return st;
    *out = generation_config_default();
    config_reader_open(&r, name, json_root(doc));
    config_reader_scope(&r, json_root(doc));
    if (json_root(doc)->kind != JSON_OBJECT)
        config_problem(&r, NULL, "the file holds no JSON object");
    read_eos(&r, vocab_size, out);
    if (config_find(&r, "temperature", NULL))
        config_double(&r, "temperature", NULL, 0, 2, &out->temperature);
    if (config_find(&r, "top_p", NULL))
        config_double(&r, "top_p", NULL, 1e-9, 1, &out->top_p);
    config_bool_or(&r, "do_sample", NULL, &sample);
    if (!sample)
        out->temperature = 0;
    st = config_verdict(&r, err);
    json_close(doc);
    return st;
}

qr_status generation_config_read(const char *dir, int32_t vocab_size, struct generation_config *out, qr_error *err)
{
    char *text = NULL, *path = path_join(dir, "generation_config.json");
    size_t size;
    qr_status st = QR_OK;
    *out = generation_config_default();
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "%s: its path", dir);
    if (access(path, F_OK) == 0) {
        st = file_read(path, FILE_LIMIT, &text, &size, err);
        if (st == QR_OK)
            st = generation_config_parse(text, size, path, vocab_size, out, err);
    }
    qr_free(text);
    qr_free(path);
    return st;
}
