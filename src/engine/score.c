#include "engine/engine.h"

#include "base/alloc.h"
#include "run/logprobs.h"

/* The row at position i predicts token i + 1; the last token predicts nothing that is asked for, so it is no row. */
static qr_status score_row(struct task *t, int32_t position, int32_t at)
{
    const struct score_job *job = t->job;
    const float *logits;
    struct token_logprob chosen, best;
    qr_status st = engine_logits(t->engine, at, &logits, &t->error);
    if (st == QR_OK)
        st = logprobs_of_row(logits, t->engine->model->config.vocab_size, job->tokens[position + 1], job->best ? 1 : 0,
                             &chosen, job->best ? &best : NULL, &t->error);
    if (st == QR_OK)
        job->out[position + 1 - job->from] = chosen.logprob;
    if (st == QR_OK && job->best)
        job->best[position + 1 - job->from] = best.id;
    return st;
}

/* Bounded replay computes no logits before a prompt's last row: the tokens behind the first ones are an answer that is
 * given, one row a step. */
static void give_next(const struct score_job *job, int32_t end, struct sched_result *result)
{
    if (end + 1 >= job->count) {
        result->finish = FINISH_STOP;
        return;
    }
    result->tokens = job->tokens + end;
    result->token_count = 1;
}

void score_rows(struct task *t, const struct span_rows *rows, struct sched_result *result)
{
    const struct batch_span *span = rows->span;
    for (int32_t i = span->logits_from; t->status == QR_OK && i < span->count; i++)
        t->status = score_row(t, span->first_position + i, rows->logits + i - span->logits_from);
    result->failed = t->status != QR_OK;
    if (span->final && t->engine->bounded)
        give_next(t->job, span->first_position + span->count, result);
    else if (span->final)
        result->finish = FINISH_STOP;
}

static void hand_back(struct qr_engine *engine, struct score_job *job, qr_status st, const qr_error *err)
{
    job->status = st == QR_OK ? QR_OK : qr_fail(job->err, st, "%s", err->message);
    pthread_mutex_lock(&engine->lock);
    job->done = true;
    pthread_cond_broadcast(&engine->event);
    pthread_mutex_unlock(&engine->lock);
}

void score_begin(struct qr_engine *engine, struct score_job *job)
{
    qr_error err = {0};
    struct task *t = qr_calloc(1, sizeof *t);
    qr_status st = t ? QR_OK : qr_fail(&err, QR_NO_MEMORY, "no memory for a score");
    if (t) {
        t->engine = engine;
        t->job = job;
        st = task_add(t, job->tokens, engine->bounded ? job->from : job->count - 1, job->count, job->from - 1, &err);
    }
    if (st == QR_OK)
        return;
    qr_free(t);
    hand_back(engine, job, st, &err);
}

void score_end(struct task *t)
{
    hand_back(t->engine, t->job, t->status, &t->error);
    qr_free(t);
}

qr_status qr_score(qr_engine *engine, const int32_t *tokens, size_t count, size_t from, double *out, qr_error *err)
{
    return qr_score_best(engine, tokens, count, from, out, NULL, err);
}

qr_status qr_score_best(qr_engine *engine, const int32_t *tokens, size_t count, size_t from, double *out, int32_t *best,
                        qr_error *err)
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
    struct score_job job = {.tokens = tokens, .count = (int32_t)count, .from = (int32_t)from, .out = out, .best = best,
                            .err = err};
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
