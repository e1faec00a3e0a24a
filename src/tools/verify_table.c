#include "tools/verify_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

void verify_table_free(struct verify_table *t)
{
    qr_free(t->rows);
    arena_free(&t->arena);
    *t = (struct verify_table){0};
}

struct verify_row *verify_table_row(struct verify_table *t, const char *op, const char *array, const char *tolerance)
{
    size_t at = t->count;
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->rows[i]->op, op) == 0) {
            if (strcmp(t->rows[i]->array, array) == 0)
                return t->rows[i];
            at = i + 1;
        }
    struct verify_row *row = arena_alloc(&t->arena, sizeof *row);
    if (!row || !array_grow(&t->rows, &t->capacity, t->count, sizeof *t->rows))
        return NULL;
    row->op = arena_strndup(&t->arena, op, strlen(op));
    row->array = arena_strndup(&t->arena, array, strlen(array));
    row->tolerance = arena_strndup(&t->arena, tolerance, strlen(tolerance));
    if (!row->op || !row->array || !row->tolerance)
        return NULL;
    memmove(t->rows + at + 1, t->rows + at, (t->count - at) * sizeof *t->rows);
    t->rows[at] = row;
    t->count++;
    return row;
}

void verify_row_points(struct verify_row *row, const struct tolerance *t, const double *found, const double *want, int64_t n,
                       int64_t spare, struct findings *findings)
{
    struct comparison c;
    double largest = 0, most = 0;
    compare_points(t, found, want, n, NULL, &c);
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(found[i] - want[i]));
        most = fmax(most, fabs(want[i]));
    }
    row->calls++;
    row->points += n;
    row->bad += c.bad;
    row->largest = fmax(row->largest, largest);
    row->relative = fmax(row->relative, most > 0 ? largest / most : largest);
    if (c.passed || (!c.why && c.bad <= spare))
        return;
    if (!row->failed)
        findings_add(findings, "operator %s: %s: %lld of %lld points are outside %s, %lld may be%s%s; the worst, %lld, is %.9g, wanted %.9g",
                     row->op, row->array, (long long)c.bad, (long long)n, row->tolerance,
                     (long long)(c.allowed > spare ? c.allowed : spare), c.why ? ": " : "", c.why ? c.why : "", (long long)c.worst,
                     c.found, c.want);
    row->failed = true;
}

void verify_table_print(const struct verify_table *t)
{
    printf("%-26s %-10s %6s %10s %10s %10s %-22s %10s %8s\n", "operator", "array", "calls", "points", "error", "relative", "tolerance",
           "us a call", "GB/s");
    for (size_t i = 0; i < t->count; i++) {
        const struct verify_row *r = t->rows[i];
        printf("%-26s %-10s %6lld %10lld %10.3g %10.3g %-22s ", r->op, r->array, (long long)r->calls, (long long)r->points, r->largest,
               r->relative, r->tolerance);
        if (r->timed)
            printf("%10.1f %8.2f ", r->seconds / (double)r->calls * 1e6, r->seconds > 0 ? (double)r->bytes / r->seconds / 1e9 : 0);
        else
            printf("%10s %8s ", "", "");
        printf("%s\n", r->failed ? "FAIL" : "ok");
    }
}

void verify_table_json(const struct verify_table *t, struct json_writer *w)
{
    json_w_array(w);
    for (size_t i = 0; i < t->count; i++) {
        const struct verify_row *r = t->rows[i];
        json_w_object(w);
        json_w_member_string(w, "operator", r->op);
        json_w_member_string(w, "array", r->array);
        json_w_member_string(w, "tolerance", r->tolerance);
        json_w_member_int(w, "calls", r->calls);
        json_w_member_int(w, "points", r->points);
        json_w_member_int(w, "bad", r->bad);
        json_w_member_number(w, "largest", r->largest);
        json_w_member_number(w, "relative", r->relative);
        if (r->timed) {
            json_w_member_number(w, "seconds", r->seconds);
            json_w_member_int(w, "bytes", r->bytes);
        }
        json_w_member_bool(w, "passed", !r->failed);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}
