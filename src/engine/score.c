#include "engine/engine.h"

#include "run/logprobs.h"

static qr_status score(struct qr_engine *engine, const struct score_job *job, qr_error *err)
{
    struct sequence s;
    qr_status st = sequence_open(engine, 0, &s, err);
    if (st != QR_OK)
        return st;
    s.tokens = job->tokens;
    sequence_plan(&s, job->count - 1, job->from - 1);
    /* the row at position i predicts token i + 1; the last token predicts nothing that is asked for */
    while (st == QR_OK && s.position < job->count - 1) {
        const int32_t first = s.position, wanted = job->from - 1;
        int32_t end = job->count - 1;
        const int32_t room = first >= wanted ? engine->max_logits : engine->max_rows;
        if (end - first > room)
            end = first + room;
        if (first < wanted && end > wanted)
            end = wanted; /* rows without logits by themselves, so that the rest fits the logits buffer */
        st = sequence_forward(&s, end, first >= wanted ? first : end, err);
        for (int32_t i = 0; st == QR_OK && first >= wanted && i < end - first; i++) {
            const float *logits;
            struct token_logprob chosen;
            st = sequence_logits(&s, i, &logits, err);
            if (st == QR_OK)
                st = logprobs_of_row(logits, engine->model->config.vocab_size, job->tokens[first + i + 1], 0, &chosen,
                                     NULL, err);
            if (st == QR_OK)
                job->out[first + i + 1 - job->from] = chosen.logprob;
        }
        engine_sweep(engine);
    }
    sequence_close(&s);
    return st;
}

void score_run(struct qr_engine *engine, struct score_job *job) { job->status = score(engine, job, job->err); }

qr_status qr_score(qr_engine *engine, const int32_t *tokens, size_t count, size_t from, double *out, qr_error *err)
{
    const int32_t vocab = engine->model->config.vocab_size;
    if (!tokens || !out)
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_score: %s at NULL", tokens ? "the scores" : "tokens");
    if (count < 2 || from < 1 || from >= count)
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_score: tokens %zu to %zu, wanted 1 <= from < count", from, count);
    if (count > (size_t)engine->max_model_len)
        return qr_fail(err, QR_BAD_REQUEST, "tokens: %zu of them, the context holds %d", count, engine->max_model_len);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return qr_fail(err, QR_BAD_REQUEST, "tokens: entry %zu is token %d, the vocabulary has 0 to %d (E39)", i,
                           tokens[i], vocab - 1);
    struct score_job job = {.tokens = tokens, .count = (int32_t)count, .from = (int32_t)from, .out = out, .err = err};
    pthread_mutex_lock(&engine->lock);
    struct score_job **end = &engine->scores;
    while (*end)
        end = &(*end)->next;
    *end = &job;
    pthread_cond_signal(&engine->work);
    while (!job.done)
        pthread_cond_wait(&engine->event, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    return job.status;
}
