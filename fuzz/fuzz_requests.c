/* The lines of `quire generate --requests`, of any bytes: each is refused with a sentence, or is a request that the engine
 * could run: its prompt is of the vocabulary and leaves room for an answer, its numbers are finite. Opens models/tiny-v41: run
 * it in the project's folder. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/jsonl.h"
#include "cli/sampling_options.h"
#include "engine/request.h"
#include "models.h"

enum { LONGEST = 512 };

static qr_model *model;

static void check_tokens(const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        must(tokens[i] >= 0 && tokens[i] < model->config.vocab_size);
}

static void check_request(const struct request *r)
{
    const struct sampling_params *s = &r->sampling;
    must(r->prompt_count >= 1 && r->prompt_count < r->limit && r->limit <= LONGEST);
    check_tokens(r->tokens, r->prompt_count);
    check_tokens(r->banned, r->banned_count);
    check_tokens(r->ends, r->end_count);
    must(isfinite(s->temperature) && s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 && isfinite(s->min_p));
    for (int32_t i = 0; i < r->stop_count; i++)
        must(r->stop[i][0]);
    must(r->final);
}

static void answer(const struct json *line)
{
    const struct sampling_options defaults = SAMPLING_OPTIONS_DEFAULT;
    const struct request_bounds bounds = {.max_model_len = LONGEST};
    struct request_text text = {0};
    struct request *request = NULL;
    qr_error err = {0};
    qr_status st = request_from_json(model, line, &defaults, &text, &err);
    must((st == QR_OK) == (err.message[0] == 0));
    if (st == QR_OK) {
        st = request_make(model, &text.request, &bounds, &request, &err);
        must((st == QR_OK) == (err.message[0] == 0));
    }
    must(st == QR_OK || st == QR_BAD_REQUEST || st == QR_UNSUPPORTED);
    if (st == QR_OK)
        check_request(request);
    request_free(request);
    request_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct jsonl_reader reader;
    struct json_document *doc = NULL;
    FILE *file = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;
    if (!model)
        model = fuzz_model();
    if (!file)
        return 0;
    jsonl_open(&reader, file, "input");
    for (;;) {
        qr_status st = jsonl_next(&reader, &doc, NULL);
        if (st == QR_OK && !doc)
            break;
        if (st == QR_OK)
            answer(json_root(doc));
        json_close(doc);
        doc = NULL;
    }
    jsonl_close(&reader);
    fclose(file);
    return 0;
}
