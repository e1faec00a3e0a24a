#define _GNU_SOURCE
#include "cli/loaded.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/interrupt.h"
#include "cli/plan.h"
#include "cli/plural.h"

/* A line that stays, on a terminal. */
static void show_percent(struct loaded *l, uint64_t done, uint64_t total)
{
    const int percent = total ? (int)((double)done / (double)total * 100) : 0;
    if (percent != l->percent)
        fprintf(stderr, "\rloading %d %%", percent);
    l->percent = percent;
}

static bool on_progress(void *user, qr_phase phase, uint64_t done, uint64_t total)
{
    struct loaded *l = user;
    if (l->shown && phase == QR_PHASE_WEIGHTS)
        show_percent(l, done, total);
    return !l->watch.goes_on || l->watch.goes_on(l->watch.user);
}

qr_status loaded_open_watched(const struct model_options *options, const struct load_watch *watch, struct loaded *out, qr_error *err)
{
    qr_model_options model = model_options_model(options);
    qr_engine_options engine = model_options_engine(options);
    *out = (struct loaded){.percent = -1, .shown = !options->quiet && isatty(STDERR_FILENO)};
    if (watch)
        out->watch = *watch;
    model.progress = on_progress;
    model.user = out;
    qr_status st = plan_before_loading(options, &engine, err);
    if (st == QR_OK)
        st = qr_model_open(options->model, &model, &out->model, err);
    if (st == QR_OK && out->watch.look)
        st = out->watch.look(out->watch.user, out->model, err);
    if (st == QR_OK)
        st = qr_engine_create(out->model, &engine, &out->engine, err);
    if (out->shown)
        fputs("\r\033[K", stderr);
    if (st != QR_OK)
        loaded_close(out);
    return st;
}

qr_status loaded_open(const struct model_options *options, struct loaded *out, qr_error *err)
{
    return loaded_open_watched(options, NULL, out, err);
}

void loaded_close(struct loaded *l)
{
    qr_engine_destroy(l->engine);
    qr_model_close(l->model);
    *l = (struct loaded){0};
}

/* ---- an answer ---- */

qr_status loaded_answer(struct loaded *l, qr_session *session, const qr_request *request,
                        void (*show)(void *user, const char *text, size_t length), void *user, struct answer *out,
                        qr_error *err)
{
    qr_handle handle;
    qr_event event = {0};
    *out = (struct answer){0};
    qr_status st = session ? qr_session_start(session, request, &handle, err)
                           : qr_submit(l->engine, request, NULL, NULL, &handle, err);
    if (st != QR_OK)
        return st;
    while (event.finish == QR_FINISH_NONE) {
        st = session ? qr_session_poll(session, 100, &event, err) : qr_poll(l->engine, handle, 100, &event, err);
        if (interrupt_taken() || (show && ferror(stdout))) /* nobody reads on */
            qr_cancel(l->engine, handle);
        if (st == QR_BUSY)
            continue;
        if (st != QR_OK)
            return st;
        buffer_append(&out->text, event.text, event.text ? event.text_length : 0);
        if (show && event.text_length)
            show(user, event.text, event.text_length);
    }
    out->finish = event.finish;
    qr_get_usage(l->engine, handle, &out->usage, NULL);
    if (event.finish == QR_FINISH_ERROR) {
        if (err)
            *err = *event.error;
        st = event.error->status;
    }
    qr_release(l->engine, handle);
    if (st == QR_OK && out->text.failed)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for the answer");
    return st;
}

void print_usage_line(const struct answer *a)
{
    const qr_usage *u = &a->usage;
    const int32_t decoded = u->output_tokens > 1 ? u->output_tokens - 1 : 0;
    fprintf(stderr, "%d prompt token%s (%d cached) at %.0f/s, %d token%s at %.1f/s, first after %.3f s",
            u->prompt_tokens, plural(u->prompt_tokens), u->cached_tokens,
            u->seconds_prefill > 0 ? (u->prompt_tokens - u->cached_tokens) / u->seconds_prefill : 0.0, u->output_tokens,
            plural(u->output_tokens),
            u->seconds_decode > 0 ? decoded / u->seconds_decode : 0.0, u->seconds_to_first_token);
    if (u->draft_steps)
        fprintf(stderr, ", %.2f tokens a step accepted", 1.0 + (double)u->draft_accepted / u->draft_steps);
    fprintf(stderr, ", ended by %s\n", qr_finish_name(a->finish));
}
