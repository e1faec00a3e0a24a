/* qr_parser: the parser of text/parser.h for the answer of a qr_chat. */
#include "base/alloc.h"
#include "engine/chats.h"
#include "engine/structs.h"
#include "text/parser.h"

struct qr_parser {
    const qr_model *model;
    struct parser *parser;
    struct deltas deltas;
    qr_delta *told;
    size_t room;
};

const char *qr_answer_end_name(qr_answer_end end)
{
    static const char *const names[] = {"", "stop", "tool_calls", "length"};
    return (unsigned)end < sizeof names / sizeof *names ? names[end] : "";
}

qr_status qr_parser_open(const qr_chat *chat, const qr_parser_options *given, qr_parser **out, qr_error *err)
{
    qr_parser_options how = QR_PARSER_OPTIONS;
    *out = NULL;
    if (given) {
        qr_status st = struct_take("qr_parser_options", given, sizeof how, &how, err);
        if (st != QR_OK)
            return st;
    }
    const struct chat *c = &chat->rendered.chat;
    const struct parser_options options = {.tok = chat->model->tokenizer,
                                           .tools = &c->tools,
                                           .start = c->start,
                                           .continued = c->continued,
                                           .ignore_eos = how.ignore_eos,
                                           .lenient_tools = chat->lenient_tools,
                                           .recovery = chat->tool_recovery,
                                           .single_call = !c->parallel_calls,
                                           .stops = how.stop,
                                           .stop_count = (int32_t)how.stop_count,
                                           .include_stop = how.include_stop,
                                           .min_ids = how.min_tokens};
    qr_parser *p = qr_calloc(1, sizeof *p);
    if (!p)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a parser");
    p->model = chat->model;
    qr_status st = parser_open(&options, &p->parser, err);
    if (st != QR_OK) {
        qr_free(p);
        return st;
    }
    *out = p;
    return QR_OK;
}

void qr_parser_close(qr_parser *parser)
{
    if (!parser)
        return;
    parser_close(parser->parser);
    deltas_free(&parser->deltas);
    qr_free(parser->told);
    qr_free(parser);
}

static qr_delta_kind kind_of(enum delta_kind kind)
{
    switch (kind) {
    case DELTA_REASONING: return QR_DELTA_REASONING;
    case DELTA_CONTENT: return QR_DELTA_CONTENT;
    case DELTA_CALL: return QR_DELTA_CALL;
    case DELTA_ARGUMENTS: return QR_DELTA_ARGUMENTS;
    case DELTA_CALL_END: return QR_DELTA_CALL_END;
    case DELTA_CALL_LOST: break;
    }
    return QR_DELTA_CALL_LOST;
}

/* The list of the last call in the caller's terms. */
static qr_status tell(qr_parser *p, const qr_delta **out, size_t *count, qr_error *err)
{
    const struct deltas *d = &p->deltas;
    if (d->text.failed)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a piece of an answer");
    if (d->count > p->room) {
        qr_delta *grown = qr_realloc(p->told, d->count * sizeof *grown);
        if (!grown)
            return qr_fail(err, QR_NO_MEMORY, "no memory for %zu pieces of an answer", d->count);
        p->told = grown;
        p->room = d->count;
    }
    for (size_t i = 0; i < d->count; i++)
        p->told[i] = (qr_delta){.kind = kind_of(d->items[i].kind),
                                .call = d->items[i].call,
                                .text = deltas_text(d, &d->items[i]),
                                .length = d->items[i].length};
    *out = p->told;
    *count = d->count;
    return QR_OK;
}

qr_status qr_parser_push(qr_parser *parser, int32_t token, const qr_delta **out, size_t *count, qr_error *err)
{
    *out = NULL;
    *count = 0;
    deltas_clear(&parser->deltas);
    qr_status st = parser_push(parser->parser, token, &parser->deltas, err);
    return st == QR_OK ? tell(parser, out, count, err) : st;
}

qr_status qr_parser_finish(qr_parser *parser, const qr_event *last, const qr_delta **out, size_t *count, qr_error *err)
{
    *out = NULL;
    *count = 0;
    enum parser_end why = END_LENGTH;
    if (last->finish == QR_FINISH_STOP)
        why = last->stop_token >= 0 && last->stop_token == tok_eos(parser->model->tokenizer) ? END_EOS : END_STOP_ID;
    deltas_clear(&parser->deltas);
    qr_status st = parser_end(parser->parser, why, &parser->deltas, err);
    return st == QR_OK ? tell(parser, out, count, err) : st;
}

void qr_parser_get_state(const qr_parser *parser, qr_parser_state *out)
{
    static const qr_answer_end ends[] = {[FINISH_NONE] = QR_ANSWER_OPEN,
                                         [FINISH_STOP] = QR_ANSWER_STOP,
                                         [FINISH_TOOL_CALLS] = QR_ANSWER_TOOL_CALLS,
                                         [FINISH_LENGTH] = QR_ANSWER_LENGTH};
    static const qr_place places[] = {[PLACE_HIDDEN] = QR_PLACE_HIDDEN,
                                      [PLACE_REASONING] = QR_PLACE_REASONING,
                                      [PLACE_CONTENT] = QR_PLACE_CONTENT,
                                      [PLACE_HELD] = QR_PLACE_HELD};
    const struct parser_counts *c = parser_counts(parser->parser);
    *out = (qr_parser_state){.end = ends[parser_finish(parser->parser)],
                             .stop_string = parser_matched_stop(parser->parser),
                             .place = places[parser_place(parser->parser)],
                             .place_of_held = places[parser_place_of_held(parser->parser)],
                             .tokens = c->ids,
                             .reasoning_tokens = c->reasoning_ids,
                             .calls = c->calls,
                             .refused_calls = c->refused_calls,
                             .cut_calls = c->cut_calls,
                             .discarded_tokens = c->discarded_ids};
}
