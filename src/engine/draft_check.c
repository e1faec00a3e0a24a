#include "engine/draft_check.h"

#include "base/log.h"
#include "engine/model.h"

enum { ANSWER = 32 };
/* Drafts right a step, below which the block is no use: a block that works has two or three (speculation.md 2.9). */
static const double least_right = 0.5;

static qr_status wait_for(qr_engine *engine, qr_handle handle, qr_usage *usage, qr_error *err)
{
    qr_event event = {.finish = QR_FINISH_NONE};
    while (event.finish == QR_FINISH_NONE) {
        qr_status st = qr_poll(engine, handle, -1, &event, err);
        if (st != QR_OK)
            return st;
    }
    if (event.finish == QR_FINISH_ERROR)
        return qr_fail(err, event.error->status, "%s", event.error->message);
    return qr_get_usage(engine, handle, usage, err);
}

static qr_status answer(qr_engine *engine, qr_usage *usage, qr_error *err)
{
    qr_plan_bytes plan;
    qr_sampling greedy = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    qr_handle handle;
    const int32_t bos = engine_model(engine)->config.bos_token_id, first = bos < 0 ? 0 : bos;
    qr_engine_get_plan(engine, &plan);
    greedy.temperature = 0;
    q.tokens = &first;
    q.token_count = 1;
    q.sampling = &greedy;
    q.max_tokens = plan.max_model_len - 1 < ANSWER ? plan.max_model_len - 1 : ANSWER;
    q.ignore_eos = true;
    q.id = "check of the draft width";
    qr_status st = qr_submit(engine, &q, NULL, NULL, &handle, err);
    if (st != QR_OK)
        return st;
    st = wait_for(engine, handle, usage, err);
    qr_release(engine, handle);
    return st;
}

void draft_check(qr_engine *engine, const struct qr_log *log, int32_t width, int32_t own)
{
    qr_usage usage = {0};
    qr_error err = {0};
    if (answer(engine, &usage, &err) != QR_OK) {
        qr_logf(log, QR_LOG_WARN, "the check of draft width %d failed: %s", width, err.message);
        return;
    }
    const double right = usage.draft_steps ? (double)usage.draft_accepted / usage.draft_steps : 0;
    const bool useless = right < least_right;
    qr_logf(log, useless ? QR_LOG_WARN : QR_LOG_INFO, "draft width %d, with a block of %d in the checkpoint: %.2f drafts a step are right in a short check%s",
            width, own, right, useless ? "; the checkpoint's own width may do better" : "");
}
