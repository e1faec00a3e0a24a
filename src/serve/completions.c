#include "serve/completions.h"

#include "base/alloc.h"
#include "serve/chat_say.h"
#include "serve/choice.h"
#include "serve/legacy_logprobs.h"
#include "serve/logprobs.h"
#include "serve/server.h"
#include "serve/usage.h"

/* choice->own: */
struct said {
    struct legacy_logprobs logprobs;
    struct buffer echo; /* the prompt's text, not said yet */
};

void completion_free(struct completion *c)
{
    for (size_t p = 0; c->prompts && p < c->prompt_count; p++)
        qr_tokens_free(&c->prompts[p]);
    qr_free(c->prompts);
    qr_free(c->begun);
    qr_free(c);
}

static const struct completion *how(const struct job *job) { return job->own; }

static struct said *said_of(struct choice *c)
{
    if (!c->own)
        c->own = qr_calloc(1, sizeof(struct said));
    return c->own;
}

static void close_completion(struct job *job)
{
    for (int i = 0; i < job->count; i++) {
        struct said *s = job->choices[i].own;
        if (s) {
            legacy_free(&s->logprobs);
            buffer_free(&s->echo);
            qr_free(s);
        }
    }
    completion_free(job->own);
}

/* Tokens at the prompt's beginning that the client did not send. */
static size_t added_to(const struct job *job, const struct choice *c) { return how(job)->begun[c->index / job->answers]; }

static const qr_tokens *prompt_of(const struct job *job, const struct choice *c)
{
    return &job->prompts[c->index / job->answers];
}

/* ---- chunks ---- */

static void write_choice(struct job *job, struct choice *c, struct json_writer *w, const char *text, size_t length, const char *reason)
{
    struct said *s = said_of(c);
    json_w_object(w);
    json_w_member_int(w, "index", c->index);
    json_w_member_string_n(w, "text", text, length);
    if (how(job)->logprobs && s)
        legacy_write(&s->logprobs, w);
    else
        json_w_member_null(w, "logprobs");
    json_w_member_string(w, "finish_reason", reason);
    if (job->return_token_ids && c->done) {
        ids_write(w, "token_ids", (const int32_t *)(void *)c->ids.data, job->no_answer ? 0 : c->ids.length / sizeof(int32_t));
        ids_write(w, "prompt_token_ids", prompt_of(job, c)->data, prompt_of(job, c)->count);
    }
    json_w_end_object(w);
}

static void chunk(struct job *job, struct choice *c, const char *text, size_t length, const char *reason)
{
    struct json_writer *w = json_writer_open(false);
    if (w) {
        stamp_write(job, "text_completion", w);
        json_w_key(w, "choices");
        json_w_array(w);
        write_choice(job, c, w, text, length, reason);
        json_w_end_array(w);
        if (job->usage_always)
            usage_write(job, w);
        json_w_end_object(w);
    }
    job_event(job, NULL, w);
    json_writer_close(w);
}

/* The prompt as text, before anything that is made. */
static void say_prompt(struct job *job, struct choice *c)
{
    qr_text text;
    const qr_tokens *prompt = prompt_of(job, c);
    if (c->begun)
        return;
    c->begun = true;
    const size_t added = added_to(job, c);
    if (!how(job)->echo ||
        qr_detokenize(job->server->model, prompt->data + added, prompt->count - added, &text, NULL) != QR_OK)
        return;
    struct said *s = said_of(c);
    if (job->stream)
        chunk(job, c, text.data, text.length, NULL);
    else if (s)
        buffer_append(&s->echo, text.data, text.length);
    qr_text_free(&text);
}

static void take_prompt(struct job *job, struct choice *c, const qr_event *e)
{
    struct said *s = said_of(c);
    for (size_t i = 0; s && how(job)->echo && i < e->prompt_count; i++) {
        legacy_add(&s->logprobs, job->server->model, prompt_of(job, c)->data[i], i ? &e->prompt[i] : NULL,
                   e->prompt_top + i * e->prompt_top_count, e->prompt_top_count);
        if (i < added_to(job, c))
            s->logprobs.characters = 0;
    }
    if (s)
        legacy_break(&s->logprobs); /* the answer is decoded as a text of its own */
    if (!how(job)->echo && c->index == 0) {
        struct json_writer *w = json_writer_open(false);
        const char *text;
        size_t length;
        if (w) {
            prompt_logprobs_write(job->server->model, e, w);
            if (json_finish(w, &text, &length, NULL) == QR_OK)
                buffer_append(&c->prompt_logprobs, text, length);
        }
        json_writer_close(w);
    }
}

static void token(struct job *job, struct choice *c, const qr_event *e)
{
    struct said *s = said_of(c);
    say_prompt(job, c);
    if (s && how(job)->logprobs && !job->no_answer && e->logprob.rank)
        legacy_add(&s->logprobs, job->server->model, e->token, &e->logprob, e->top, e->top_count);
}

static void delta(struct job *job, struct choice *c, qr_delta_kind kind, uint32_t call, const char *text, size_t length)
{
    (void)kind;
    (void)call;
    if (job->stream && !job->no_answer && length)
        chunk(job, c, text, length, NULL);
}

static const char *reason_of(const struct job *job, const struct choice *c)
{
    return c->finish == QR_FINISH_LENGTH || job->no_answer ? "length" : "stop";
}

static void done(struct job *job, struct choice *c)
{
    say_prompt(job, c);
    if (job->stream)
        chunk(job, c, "", 0, reason_of(job, c));
}

static void end(struct job *job) { openai_end(job, "text_completion"); }

/* ---- the whole ---- */

static void body(struct job *job, struct json_writer *w)
{
    stamp_write(job, "text_completion", w);
    json_w_key(w, "choices");
    json_w_array(w);
    for (int i = 0; i < job->count; i++) {
        struct choice *c = &job->choices[i];
        struct said *s = said_of(c);
        struct buffer text = {0};
        if (s)
            buffer_append(&text, s->echo.data, s->echo.length);
        if (!job->no_answer)
            buffer_append(&text, c->content.data, c->content.length);
        write_choice(job, c, w, text.data ? text.data : "", text.length, reason_of(job, c));
        buffer_free(&text);
    }
    json_w_end_array(w);
    usage_write(job, w);
    if (job->choices[0].prompt_logprobs.length) {
        json_w_key(w, "prompt_logprobs");
        json_w_raw(w, job->choices[0].prompt_logprobs.data, job->choices[0].prompt_logprobs.length);
    }
    json_w_end_object(w);
}

const struct dialect completions_dialect = {.id_prefix = "cmpl-", .text_only = true, .delta = delta, .token = token,
                                            .prompt = take_prompt, .done = done, .end = end, .body = body,
                                            .fail = openai_fail, .alive = openai_alive, .close = close_completion};
