#include "tools/bench_random.h"

#include "base/alloc.h"

static qr_status random_prompt(struct request_text *r, int32_t vocab, uint64_t *state, qr_error *err)
{
    r->tokens.data = qr_calloc(BENCH_RANDOM_PROMPT, sizeof *r->tokens.data);
    if (!r->tokens.data)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a prompt of random tokens");
    for (r->tokens.count = 0; r->tokens.count < BENCH_RANDOM_PROMPT; r->tokens.count++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        r->tokens.data[r->tokens.count] = (int32_t)((*state >> 33) % (uint64_t)vocab);
    }
    return QR_OK;
}

qr_status bench_random(const qr_model *model, int tokens, struct request_text *out, int count, qr_error *err)
{
    qr_model_info info;
    uint64_t state = 1;
    qr_status st = QR_OK;
    qr_model_get_info(model, &info);
    for (int i = 0; st == QR_OK && i < count; i++) {
        struct request_text *r = &out[i];
        st = random_prompt(r, info.vocab_size, &state, err);
        r->sampling = (qr_sampling)QR_SAMPLING;
        r->sampling.seed = (uint64_t)i;
        r->request = (qr_request)QR_REQUEST;
        r->request.tokens = r->tokens.data;
        r->request.token_count = r->tokens.count;
        r->request.sampling = &r->sampling;
        r->request.max_tokens = tokens;
        r->request.ignore_eos = true;
    }
    return st;
}

static qr_status finish(qr_engine *engine, qr_handle handle, qr_error *err)
{
    qr_event event = {0};
    qr_status st = QR_OK;
    while (st == QR_OK && event.finish == QR_FINISH_NONE)
        st = qr_poll(engine, handle, -1, &event, err);
    if (st == QR_OK && event.error)
        st = qr_fail(err, event.error->status, "%s", event.error->message);
    qr_release(engine, handle);
    return st;
}

qr_status bench_answers(qr_engine *engine, const struct request_text *requests, int count, qr_error *err)
{
    qr_handle handles[BENCH_ANSWERS];
    qr_status st = QR_OK;
    int submitted = 0;
    for (int i = 0; st == QR_OK && i < count; i++) {
        st = qr_submit(engine, &requests[i].request, NULL, NULL, &handles[i], err);
        submitted += st == QR_OK;
    }
    for (int i = 0; i < submitted; i++)
        if (st == QR_OK)
            st = finish(engine, handles[i], err);
        else
            qr_release(engine, handles[i]);
    return st;
}
