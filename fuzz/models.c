#include "models.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/file.h"
#include "fuzz.h"

static void need(qr_status st, const qr_error *err)
{
    if (st == QR_OK)
        return;
    fprintf(stderr, "%s\n", err->message);
    abort();
}

struct tokenizer *fuzz_tokenizer(enum split_engine engine)
{
    struct tokenizer *tok;
    char *json;
    size_t size;
    qr_error err = {0};
    need(file_read("models/tiny-v41/tokenizer.json", 1 << 24, &json, &size, &err), &err);
    const struct tok_source source = {.json = json, .size = size, .name = "tokenizer.json", .engine = engine};
    need(tok_load(&source, NULL, &tok, &err), &err);
    qr_free(json);
    return tok;
}

qr_model *fuzz_model(void)
{
    qr_model_options options = QR_MODEL_OPTIONS;
    qr_model *model;
    qr_error err = {0};
    options.threads = 1;
    need(qr_model_open("models/tiny-v41", &options, &model, &err), &err);
    return model;
}
