#define _GNU_SOURCE
#include "tools/bench_profile.h"

#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/draft_record.h"
#include "engine/draft_schedule.h"
#include "engine/engine.h"

static qr_status answer(qr_engine *engine, const qr_request *const *requests, int32_t count, qr_error *err)
{
    qr_handle *handles = qr_calloc((size_t)count, sizeof *handles);
    qr_status st = handles ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for %d requests", (int)count);
    for (int32_t i = 0; st == QR_OK && i < count; i++)
        st = qr_submit(engine, requests[i], NULL, NULL, &handles[i], err);
    for (int32_t i = 0; st == QR_OK && i < count; i++) {
        qr_event event = {0};
        while (st == QR_OK && event.finish == QR_FINISH_NONE)
            st = qr_poll(engine, handles[i], -1, &event, err);
        if (st == QR_OK && event.error)
            st = qr_fail(err, event.error->status, "%s", event.error->message);
    }
    qr_free(handles);
    return st;
}

static qr_status write_file(const struct draft_profile *p, const char *path, qr_error *err)
{
    const char *text;
    size_t length;
    struct json_writer *w = json_writer_open(true);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a profile");
    draft_profile_write(w, p);
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        st = file_write_atomic(path, text, length, err);
    json_writer_close(w);
    return st;
}

static void note_date(char *out, size_t size)
{
    const time_t now = time(NULL);
    struct tm parts;
    if (!gmtime_r(&now, &parts) || strftime(out, size, "%Y-%m-%d", &parts) == 0)
        *out = 0;
}

qr_status bench_profile(qr_model *model, const qr_engine_options *options, const qr_request *const *requests, int32_t count,
                        const char *workload, const char *path, qr_error *err)
{
    const struct engine_place place = {.device = model->device, .threads = model->threads, .checkpoint = model->checkpoint};
    qr_engine_options always = *options;
    struct engine_size size;
    struct draft_record *record = NULL;
    struct draft_profile profile = {0};
    qr_engine *engine = NULL;
    always.method = "dspark";
    TRY(engine_size(&model->plan, (int64_t)checkpoint_bytes(model->checkpoint), &place, &always, &size, err));
    profile.place = draft_place_of(&model->plan, &place, &size);
    qr_status st = draft_place_hash(model->dir, &profile.place, err);
    if (st == QR_OK)
        st = draft_record_open(profile.place.requests, profile.place.rows, &record, err);
    if (st == QR_OK)
        st = qr_engine_create(model, &always, &engine, err);
    if (st == QR_OK) {
        speculation_record(engine->speculation, record);
        st = answer(engine, requests, count, err);
    }
    qr_engine_destroy(engine);
    if (st == QR_OK)
        st = draft_record_profile(record, profile.place.width, &profile, err);
    snprintf(profile.workload, sizeof profile.workload, "%s", workload);
    note_date(profile.date, sizeof profile.date);
    if (st == QR_OK)
        st = write_file(&profile, path, err);
    draft_record_close(record);
    return st;
}
