/* label: full once A09 */
/* As resume, for every length of what follows up to 300 and around the multiples of the window (runtime.md 13, A09). */
#include "support/resume.h"

#include "support/support.h"

enum { MOST = 330 };

static int all_suffixes(int32_t stride, int32_t out[MOST])
{
    static const int32_t edges[] = {127, 128, 129, 255, 256, 257, 511, 512, 513};
    int n = 0;
    for (int32_t s = 1; s <= 300; s += stride)
        out[n++] = s;
    for (int i = 0; i < 9; i++)
        out[n++] = edges[i];
    return n;
}

static void a_v41_resumes_before_every_length(void **state)
{
    (void)state;
    int32_t suffixes[MOST];
    const int32_t boundaries[] = {32, 160};
    const int n = all_suffixes(1, suffixes);
    resume_all(&(struct resume_world){.config = "tests/data/config/small-v41.json", .block = 32, .rows = 256}, boundaries, 2,
               suffixes, n);
    resume_all(&(struct resume_world){.config = "tests/data/config/small-v41.json", .block = 32, .kv = "bf16", .rows = 90},
               boundaries, 1, suffixes, n);
}

static void the_trained_v41_resumes(void **state)
{
    (void)state;
    const int32_t boundaries[] = {64, 256}, suffixes[] = {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    resume_all(&(struct resume_world){.dir = "models/tiny-v41", .block = 64, .rows = 200}, boundaries, 2, suffixes, 11);
}

static void a_v4_resumes_before_every_length(void **state)
{
    (void)state;
    int32_t suffixes[MOST];
    const int32_t boundaries[] = {128, 384};
    const int n = all_suffixes(7, suffixes);
    resume_all(&(struct resume_world){.config = "tests/golden/v4/tiny/model/config.json", .block = 128, .rows = 512}, boundaries, 2,
               suffixes, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_resumes_before_every_length),
        cmocka_unit_test(the_trained_v41_resumes),
        cmocka_unit_test(a_v4_resumes_before_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
