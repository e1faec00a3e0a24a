/* text_sample.h: what the kinds of `quire text sample` share. A kind reads the line's inputs and writes the members
 * that golden/sampling computes from them. */
#ifndef QR_TOOLS_TEXT_SAMPLE_H
#define QR_TOOLS_TEXT_SAMPLE_H

#include "tools/answer.h"

/* One kind of line, by name; NULL when there is no such kind. Its `answer` copies the members of the line, leaves out
 * those it computes and writes them anew. `user` is the kind. */
struct sample_kind {
    const char *name;
    const char *const *computed; /* members, NULL-terminated */
    qr_status (*compute)(const struct json *line, struct json_writer *w, qr_error *err);
};
const struct sample_kind *sample_kind_find(const char *name);
qr_status sample_answer(void *user, const struct json *line, struct json_writer *w, qr_error *err);

/* The kinds that live in a file of their own. */
qr_status sample_verify_keyed(const struct json *line, struct json_writer *w, qr_error *err);
qr_status sample_verify_law(const struct json *line, struct json_writer *w, qr_error *err);

/* Readers; QR_BAD_REQUEST names the member. */
qr_status sample_read_int(const struct json *line, const char *member, int64_t *out, qr_error *err);
/* A seed: any 64-bit number, signed or not. */
qr_status sample_read_seed(const struct json *line, uint64_t *out, qr_error *err);
/* `array` (called `member` in messages) into a fresh array (qr_free) of its `*n` numbers; `n` given as >= 0 is wanted.
 */
qr_status sample_read_doubles(const struct json *array, const char *member, int64_t *n, double **out, qr_error *err);
qr_status sample_read_ids(const struct json *array, const char *member, int64_t *n, int32_t **out, qr_error *err);

void sample_write_doubles(struct json_writer *w, const char *key, const double *values, int64_t n);
void sample_write_ids(struct json_writer *w, const char *key, const int32_t *ids, int64_t n);

#endif
