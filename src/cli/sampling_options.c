#include "cli/sampling_options.h"

#include "base/alloc.h"
#include "base/status.h"
#include "cli/request_members.h"
#include "serve/guided.h"

static void set_defaults(const qr_model *model, const struct sampling_options *o, struct request_text *out)
{
    static const qr_request request = QR_REQUEST;
    static const qr_sampling sampling = QR_SAMPLING;
    qr_model_info info;
    qr_model_get_info(model, &info);
    out->request = request;
    out->sampling = sampling;
    qr_sampling *s = &out->sampling;
    s->temperature = o->has_temperature ? o->temperature : info.temperature;
    s->top_p = o->has_top_p ? o->top_p : info.top_p;
    s->top_k = o->top_k;
    s->min_p = o->min_p;
    s->repetition_penalty = o->repetition_penalty;
    s->frequency_penalty = o->frequency_penalty;
    s->presence_penalty = o->presence_penalty;
    s->seed = (int64_t)o->seed;
    out->request.max_tokens = o->max_tokens;
    out->request.ignore_eos = o->ignore_eos;
    out->request.stop = o->stop.items;
    out->request.stop_count = o->stop.count;
}

void request_from_options(const qr_model *model, const struct sampling_options *options, struct request_text *out,
                          uint64_t *seed)
{
    set_defaults(model, options, out);
    *seed = options->has_seed ? options->seed : random_seed();
    out->sampling.seed = (int64_t)*seed;
    request_text_point(out);
}

static qr_status read_prompt(const qr_model *model, const struct json *line, struct request_text *out, qr_error *err)
{
    const struct json *tokens = member_of(line, "tokens"), *prompt = member_of(line, "prompt");
    if ((tokens != NULL) + (prompt != NULL) + (member_of(line, "messages") != NULL) != 1)
        return qr_fail(err, QR_BAD_REQUEST, "prompt: wanted exactly one of tokens, prompt and messages");
    if (tokens)
        return member_ids(line, "tokens", &out->tokens.data, &out->tokens.count, err);
    if (prompt) {
        if (prompt->kind != JSON_STRING)
            return member_wrong(err, "prompt", prompt, "a string");
        return qr_tokenize(model, prompt->text, prompt->length, true, &out->tokens, err);
    }
    struct json_writer *w = json_writer_open(false);
    const char *text;
    size_t length;
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the request");
    json_w_value(w, line);
    qr_chat *chat = NULL;
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        st = qr_chat_open(model, text, length, NULL, &chat, NULL, err);
    if (st == QR_OK)
        st = request_text_chat(out, chat, err);
    json_writer_close(w);
    return st;
}

/* The members that say what the answer has to be, as the server reads them. */
static qr_status read_guides(const qr_model *model, const struct json *line, struct request_text *out, qr_error *err)
{
    struct refusal refusal = {0};
    if (guided_read(model, line, out->chat == NULL, out, &refusal) && (!out->chat || guided_alone(line, out, out->chat, &refusal)))
        return QR_OK;
    return qr_fail(err, refusal.status < 500 ? QR_BAD_REQUEST : QR_NO_MEMORY, "%s", refusal.message);
}

qr_status request_from_json(const qr_model *model, const struct json *line, const struct sampling_options *defaults,
                            struct request_text *out, qr_error *err)
{
    set_defaults(model, defaults, out);
    const struct json *id = json_get(line, "id");
    qr_status st = request_members_check(line, err);
    if (st == QR_OK)
        st = read_prompt(model, line, out, err);
    if (st == QR_OK)
        st = members_read(line, out, err);
    if (st == QR_OK)
        st = read_guides(model, line, out, err);
    if (st == QR_OK && id && id->text) {
        out->id = qr_strndup(id->text, id->length);
        out->request.id = out->id;
    }
    request_text_point(out);
    return st;
}
