#define _GNU_SOURCE
#include "support/engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/commands.h"
#include "engine/model.h"
#include "support/scratch.h"
#include "support/support.h"
#include "support/tokenizers.h"
#include "text/token_map.h"

/* ---- a small model ---- */

static int32_t keys_of(const char *tokenizer)
{
    struct tok_source source = {.json = tokenizer, .size = strlen(tokenizer), .name = "small"};
    struct tokenizer *tok;
    struct token_map map = {0};
    qr_error err = {0};
    must(tok_load(&source, NULL, &tok, &err), &err);
    must(token_map_build(tok, &map, &err), &err);
    const int32_t keys = map.keys;
    token_map_free(&map);
    tok_close(tok);
    return keys;
}

/* The config `from` of the source tree, where it has n-grams with the number of keys that the tokenizer has (0 in `from`). */
static void write_config(const char *from, const char *path, int32_t keys)
{
    static const char member[] = "\"engram_compressed_vocab_size\": ";
    size_t size;
    char *text = read_source(from, &size);
    char *at = strstr(text, member);
    struct buffer out = {0};
    qr_error err = {0};
    if (at) {
        at += strlen(member);
        buffer_append(&out, text, (size_t)(at - text));
        buffer_printf(&out, "%d%s", keys, at + 1);
    } else {
        buffer_append(&out, text, strlen(text));
    }
    must(file_write_atomic(path, out.data, out.length, &err), &err);
    buffer_free(&out);
    qr_free(text);
}

char *small_model_folder(void) { return small_folder_of("tests/data/config/small-v41.json"); }

char *small_folder_of(const char *from)
{
    char *dir = scratch_make(), *aside = scratch_make(), *config, *tokenizer_path, *tokenizer = small_tokenizer_json();
    qr_error err = {0};
    assert_true(asprintf(&config, "%s/config.json", aside) > 0);
    assert_true(asprintf(&tokenizer_path, "%s/tokenizer.json", dir) > 0);
    write_config(from, config, keys_of(tokenizer));
    assert_int_equal(
        tool_synth(8, (char *[]){"synth", "--quiet", "--config", config, "--out", dir, "--seed", "1", NULL}), 0);
    must(file_write_atomic(tokenizer_path, tokenizer, strlen(tokenizer), &err), &err);
    qr_free(tokenizer);
    scratch_remove(aside);
    free(tokenizer_path);
    free(config);
    return dir;
}

/* ---- opening ---- */

struct opened engine_open(const char *dir, const char *device, int threads, const qr_engine_options *options)
{
    qr_model_options model = QR_MODEL_OPTIONS;
    qr_engine_options engine = QR_ENGINE_OPTIONS;
    struct opened o;
    qr_error err = {0};
    model.device = device;
    model.threads = threads;
    if (options)
        engine = *options;
    if (engine.kv_ram_bytes == 0)
        engine.kv_ram_bytes = 64 << 20;
    if (!engine.method)
        engine.method = "none";
    must(qr_model_open(dir[0] == '/' ? dir : source_path(dir), &model, &o.model, &err), &err);
    must(qr_engine_create(o.model, &engine, &o.engine, &err), &err);
    return o;
}

struct opened engine_open_ids(const char *dir, int threads, const qr_engine_options *options)
{
    qr_model_options model = QR_MODEL_OPTIONS;
    qr_engine_options engine = *options;
    const char *path = dir[0] == '/' ? dir : source_path(dir);
    struct opened o;
    qr_error err = {0};
    model.threads = threads;
    if (engine.kv_ram_bytes == 0)
        engine.kv_ram_bytes = 64 << 20;
    if (!engine.method)
        engine.method = "none";
    must(model_open_parts(path, &model, false, &o.model, &err), &err);
    must(tok_open_ids(path, NULL, &o.model->tokenizer, &err), &err);
    must(tok_ban_list(o.model->tokenizer, &o.model->banned, &err), &err);
    if (o.model->config.n_engram > 0)
        must(token_map_build(o.model->tokenizer, &o.model->map, &err), &err);
    must(qr_engine_create(o.model, &engine, &o.engine, &err), &err);
    return o;
}

void engine_close(struct opened *o)
{
    qr_engine_destroy(o->engine);
    qr_model_close(o->model);
}

/* ---- replies ---- */

void reply_free(struct reply *r)
{
    free(r->tokens);
    free(r->logprobs);
    free(r->top);
    free(r->prompt);
    free(r->prompt_top);
    buffer_free(&r->text);
    *r = (struct reply){0};
}

static void *copy_of(const void *from, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    if (bytes)
        memcpy(p, from, bytes);
    return p;
}

static void take_token(struct reply *r, const qr_event *event)
{
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->tokens = realloc(r->tokens, r->room * sizeof *r->tokens);
        r->logprobs = realloc(r->logprobs, r->room * sizeof *r->logprobs);
        r->top = realloc(r->top, r->room * sizeof *r->top);
        assert_true(r->tokens && r->logprobs && r->top);
    }
    assert_true(event->top_count <= REPLY_TOP);
    memset(r->top[r->count], 0, sizeof r->top[0]);
    if (event->top_count)
        memcpy(r->top[r->count], event->top, event->top_count * sizeof *event->top);
    r->top_count = event->top_count;
    r->tokens[r->count] = event->token;
    r->logprobs[r->count++] = event->logprob;
}

void reply_take(struct reply *r, const qr_event *event)
{
    assert_int_equal(r->finish, QR_FINISH_NONE);
    if (event->token >= 0)
        take_token(r, event);
    if (event->text_length)
        buffer_append(&r->text, event->text, event->text_length);
    if (event->prompt) {
        assert_null(r->prompt);
        r->prompt = copy_of(event->prompt, event->prompt_count * sizeof *event->prompt);
        r->prompt_top =
            copy_of(event->prompt_top, event->prompt_count * event->prompt_top_count * sizeof *event->prompt_top);
        r->prompt_count = event->prompt_count;
        r->prompt_top_count = event->prompt_top_count;
    }
    r->finish = event->finish;
    r->stop_token = event->stop_token;
    r->stop_string = event->stop_string;
    assert_int_equal(event->error != NULL, event->finish == QR_FINISH_ERROR);
    if (event->error)
        r->error = *event->error;
}

void reply_rest(const struct opened *o, qr_handle handle, struct reply *r)
{
    while (r->finish == QR_FINISH_NONE) {
        qr_event event;
        qr_error err = {0};
        must(qr_poll(o->engine, handle, -1, &event, &err), &err);
        assert_int_equal(event.handle, handle);
        reply_take(r, &event);
        must(qr_get_usage(o->engine, handle, &r->usage, &err), &err);
    }
    qr_release(o->engine, handle);
}

struct reply reply_of(const struct opened *o, const qr_request *request)
{
    struct reply r = {0};
    qr_handle handle;
    qr_error err = {0};
    must(qr_submit(o->engine, request, NULL, NULL, &handle, &err), &err);
    reply_rest(o, handle, &r);
    return r;
}

static void same_bytes(const void *a, const void *b, size_t bytes, const char *what, const char *part)
{
    if (bytes && memcmp(a, b, bytes) != 0)
        fail_msg("%s: %s differ", what, part);
}

void assert_same_reply(const struct reply *a, const struct reply *b, const char *what)
{
    if (a->count != b->count || a->finish != b->finish || a->stop_token != b->stop_token ||
        a->stop_string != b->stop_string)
        fail_msg("%s: %zu tokens ended by %s, and %zu ended by %s", what, a->count, qr_finish_name(a->finish), b->count,
                 qr_finish_name(b->finish));
    same_bytes(a->tokens, b->tokens, a->count * sizeof *a->tokens, what, "tokens");
    same_bytes(a->logprobs, b->logprobs, a->count * sizeof *a->logprobs, what, "log probabilities");
    same_bytes(a->top, b->top, a->count * sizeof *a->top, what, "best tokens");
    assert_int_equal(a->text.length, b->text.length);
    same_bytes(a->text.data, b->text.data, a->text.length, what, "texts");
    assert_int_equal(a->prompt_count, b->prompt_count);
    assert_int_equal(a->prompt_top_count, b->prompt_top_count);
    same_bytes(a->prompt, b->prompt, a->prompt_count * sizeof *a->prompt, what, "log probabilities of the prompt");
    same_bytes(a->prompt_top, b->prompt_top, a->prompt_count * a->prompt_top_count * sizeof *a->prompt_top, what,
               "best tokens of the prompt");
}

qr_prompt chat_prompt(const struct opened *o, const char *question)
{
    char *json;
    qr_prompt prompt;
    qr_error err = {0};
    const int length = asprintf(&json, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", question);
    assert_true(length > 0);
    must(qr_render_chat(o->model, json, (size_t)length, &prompt, &err), &err);
    free(json);
    return prompt;
}

void assert_refused(qr_status st, const qr_error *err, qr_status wanted, const char *word)
{
    if (st != wanted || err->status != wanted || !strstr(err->message, word))
        fail_msg("%s: \"%s\", wanted %s and \"%s\"", qr_status_name(st), err->message, qr_status_name(wanted), word);
}
