/* v4_case.h: the folders of golden/v4: their cases, what was measured about them, and `quire trace` run on them.
 * Failures fail the running test. */
#ifndef QR_TESTS_V4_CASE_H
#define QR_TESTS_V4_CASE_H

#include "base/json.h"
#include "checkpoint/config.h"
#include "support/golden.h"

/* The profile's name on the command line, and in the goldens. */
struct v4_profile {
    const char *option, *golden;
};
extern const struct v4_profile v4_profiles[2]; /* reference, w8a8 */

struct v4_case {
    const struct json *json;
    char name[16];
    int32_t *ids, count;
    int32_t *rows, row_count; /* positions whose logits the golden holds */
};

struct v4_folder {
    const char *name;
    char model[256]; /* official folder */
    struct qr_config config;
    struct json_document *document;
    struct v4_case cases[8];
    int32_t count;
};

void v4_folder_open(struct v4_folder *f, const char *name);
void v4_folder_close(struct v4_folder *f);

/* The numbers of a list as int32; free() them. A missing list has none. */
int32_t *v4_ints(const struct json *list, int32_t *count);

/* "tests/golden/v4/FOLDER/PROFILE-[layers-]CASE.safetensors" */
struct golden *v4_golden(const struct v4_folder *f, const struct v4_profile *p, const char *stem);
/* The case whose blocks are stored alone: t130, or the only one. */
const struct v4_case *v4_blocks_case(const struct v4_folder *f);

/* Of the two summation orders measured (f32, f32r), the larger or the smaller figure; `missing` where neither has one.
 */
double v4_largest(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing);
double v4_smallest(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing);
/* The smallest element of the lists `name`, or `missing`. */
double v4_smallest_of(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing);

/* Runs `quire trace --want all` over ids in `scratch`, all positions; `extra` are more arguments, ended by NULL. The
 * file is the caller's to close. */
struct golden *v4_trace(const char *scratch, const char *model, const int32_t *ids, int32_t count, const char *device,
                        const struct v4_profile *p, const char *const *extra);

/* ---- numbers ---- */

/* |a - b| / |b| of n values; 0 when both are nothing. */
double relative_l2(const float *a, const float *b, int64_t n);
double cosine(const float *a, const float *b, int64_t n);
/* The value that a share of the numbers does not exceed; sorts them. */
double quantile(double *x, int32_t n, double share);
bool same_set(const int32_t *a, const int32_t *b, int32_t n);
/* The first of equal largest ones. */
int32_t best_of(const float *x, int32_t n);

#endif
