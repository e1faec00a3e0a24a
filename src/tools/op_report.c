#include "tools/op_report.h"

#include <stdio.h>
#include <string.h>

#include "cli/print_json.h"

/* ---- the list ---- */

static const char *kind_name(const struct op_array *a)
{
    static const char *const names[] = {"I32", "BF16", "F32", "BF16|F32", "I8", "U8", "F8_E4M3",
                                        "BF16", "BF16", "F32", "F8_E4M3", "I8 (two FP4)", "I8", "I8",
                                        "weight"};
    return names[a->kind];
}

static void list_arrays(const char *prefix, const struct op_array *a)
{
    for (; a->name; a++) {
        char name[80];
        snprintf(name, sizeof name, "%s%s", prefix, a->name);
        printf("    %-32s %-13s [%s]%s%s%s", name, kind_name(a), a->shape, a->flags & ARRAY_REFERENCE ? ", reference" : "",
               a->flags & ARRAY_W8A8 ? ", w8a8" : "", a->flags & ARRAY_OPTIONAL ? ", optional" : "");
        if (a->scales)
            printf(", scales %s%s", prefix, a->scales);
        if (a->tolerance)
            printf(", %s", a->tolerance);
        printf("\n");
    }
}

void report_list(const struct op_harness *only)
{
    const struct op_harness *h;
    for (int32_t i = 0; (h = op_harness_at(i)); i++) {
        if (only && h != only)
            continue;
        printf("%s: %s (operator %d)\n", h->name, h->about, h->number);
        list_arrays("in.", h->in);
        list_arrays("out.", h->out);
    }
}

/* ---- text ---- */

static const char *profile_of(const struct op_run *run) 
{
    return config_profile_name(run->w8a8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE);
}

static void text_verdict(const struct op_verdict *v)
{
    char comparator[96];
    const struct comparison *c = &v->result;
    printf("  %-16s %-28s ", v->name, tolerance_text(&v->tolerance, comparator, sizeof comparator));
    printf("%lld of %lld outside (%lld allowed), largest difference %.3g  %s\n", (long long)c->bad, (long long)c->points,
           (long long)c->allowed, c->largest, c->passed ? "ok" : "FAILED");
    if (!c->passed)
        printf("    worst at %lld: found %.9g, wanted %.9g%s%s\n", (long long)c->worst, c->found, c->want, *v->why ? "; " : "", v->why);
}

void report_text(const struct op_report *r)
{
    printf("%s, %s, on %s\n", r->run->harness->name, profile_of(r->run), r->run->backend->name);
    for (int64_t i = 0; i < r->verdict_count; i++)
        text_verdict(&r->verdicts[i]);
    for (int32_t i = 0; i < r->difference_count; i++) {
        const struct op_difference *d = &r->differences[i];
        printf("  %-16s against %s: %lld of %lld differ, largest difference %.3g (%.3g of the largest value)\n", d->name, r->against,
               (long long)d->different, (long long)d->points, d->largest, d->relative);
    }
    if (!r->calls)
        return;
    printf("  %.6f ms a call (median of %d, least %.6f), %lld bytes moved", r->median * 1e3, r->calls, r->least * 1e3, (long long)r->bytes);
    if (r->median > 0 && r->bandwidth > 0)
        printf(", %.3f GB/s of %.3f GB/s measured (%.1f %%)", (double)r->bytes / r->median / 1e9, r->bandwidth / 1e9,
               100 * (double)r->bytes / r->median / r->bandwidth);
    printf("\n");
}

/* ---- JSON ---- */

static void json_arrays(struct json_writer *w, const char *key, const struct op_array *a)
{
    json_w_key(w, key);
    json_w_array(w);
    for (; a->name; a++) {
        json_w_object(w);
        json_w_member_string(w, "name", a->name);
        json_w_member_string(w, "kind", kind_name(a));
        json_w_member_string(w, "shape", a->shape);
        if (a->scales)
            json_w_member_string(w, "scales", a->scales);
        if (a->tolerance)
            json_w_member_string(w, "tolerance", a->tolerance);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}

qr_status report_list_json(const struct op_harness *only, qr_error *err)
{
    const struct op_harness *h;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the list");
    json_w_object(w);
    json_w_key(w, "operators");
    json_w_array(w);
    for (int32_t i = 0; (h = op_harness_at(i)); i++) {
        if (only && h != only)
            continue;
        json_w_object(w);
        json_w_member_string(w, "name", h->name);
        json_w_member_string(w, "about", h->about);
        json_w_member_int(w, "number", h->number);
        json_arrays(w, "in", h->in);
        json_arrays(w, "out", h->out);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_end_object(w);
    return print_json(w, err);
}

static void json_verdict(struct json_writer *w, const struct op_verdict *v)
{
    char comparator[96];
    json_w_object(w);
    json_w_member_string(w, "name", v->name);
    json_w_member_string(w, "comparator", tolerance_text(&v->tolerance, comparator, sizeof comparator));
    json_w_member_int(w, "points", v->result.points);
    json_w_member_int(w, "bad", v->result.bad);
    json_w_member_int(w, "allowed", v->result.allowed);
    json_w_member_number(w, "largest", v->result.largest);
    json_w_member_bool(w, "passed", v->result.passed);
    if (*v->why)
        json_w_member_string(w, "why", v->why);
    json_w_end_object(w);
}

static void json_difference(struct json_writer *w, const struct op_difference *d)
{
    json_w_object(w);
    json_w_member_string(w, "name", d->name);
    json_w_member_int(w, "points", d->points);
    json_w_member_int(w, "different", d->different);
    json_w_member_number(w, "largest", d->largest);
    json_w_member_number(w, "relative", d->relative);
    json_w_end_object(w);
}

static void json_time(struct json_writer *w, const struct op_report *r)
{
    json_w_key(w, "time");
    json_w_object(w);
    json_w_member_int(w, "calls", r->calls);
    json_w_member_number(w, "median_seconds", r->median);
    json_w_member_number(w, "least_seconds", r->least);
    json_w_member_int(w, "bytes", r->bytes);
    json_w_member_number(w, "bandwidth", r->bandwidth);
    json_w_end_object(w);
}

qr_status report_json(const struct op_report *r, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a report");
    json_w_object(w);
    json_w_member_string(w, "op", r->run->harness->name);
    json_w_member_string(w, "profile", profile_of(r->run));
    json_w_member_string(w, "device", r->run->backend->name);
    if (r->verdict_count) {
        json_w_key(w, "outputs");
        json_w_array(w);
        for (int64_t i = 0; i < r->verdict_count; i++)
            json_verdict(w, &r->verdicts[i]);
        json_w_end_array(w);
    }
    if (r->against) {
        json_w_member_string(w, "against", r->against);
        json_w_key(w, "differences");
        json_w_array(w);
        for (int32_t i = 0; i < r->difference_count; i++)
            json_difference(w, &r->differences[i]);
        json_w_end_array(w);
    }
    if (r->calls)
        json_time(w, r);
    json_w_end_object(w);
    return print_json(w, err);
}
