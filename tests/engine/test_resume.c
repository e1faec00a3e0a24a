/* label: release A04 A05 A06 A09 A11 A12 A25 */
/* A prompt that starts from the prefix cache at any boundary, by a rerun or an image, whole, preempted or forked, gives the
 * bits of the same prompt computed cold with every layer on every row (runtime.md 7.5, 13: A04 to A06, A09, A11, A12, A25). */
#include "support/resume.h"

#include "support/support.h"

#define COUNT(list) (int)(sizeof(list) / sizeof *(list))
#define V41 "tests/data/config/small-v41.json"
#define V4 "tests/golden/v4/tiny/model/config.json"

/* The window is 8 and there are 5 layers: a rerun is 35 rows; a block 32. */
static const int32_t near[] = {1, 2, 7, 8, 9, 31, 32, 33, 35, 36, 65, 129};

static void a_v41_resumes_at_every_boundary(void **state)
{
    (void)state;
    const int32_t boundaries[] = {32, 64, 96, 256};
    resume_all(&(struct resume_world){.config = V41, .block = 32, .rows = 100}, boundaries, 4, near, COUNT(near));
}

static void a_v41_resumes_with_other_containers(void **state)
{
    (void)state;
    const int32_t boundaries[] = {64}, suffixes[] = {1, 9, 33, 58};
    resume_all(&(struct resume_world){.config = V41, .block = 32, .kv = "bf16", .index = "fp8", .rows = 70}, boundaries, 1,
               suffixes, COUNT(suffixes));
}

static void a_v41_resumes_from_images_alone(void **state)
{
    (void)state;
    const int32_t boundaries[] = {32, 96}, suffixes[] = {1, 8, 32, 33, 57};
    resume_all(&(struct resume_world){.config = V41, .block = 32, .encoder_replay = "off", .rows = 100}, boundaries, 2,
               suffixes, COUNT(suffixes));
}

/* A step has fewer rows than the rerun. */
static void a_rerun_is_cut_into_chunks(void **state)
{
    (void)state;
    const int32_t boundaries[] = {96}, suffixes[] = {1, 2, 33, 60};
    resume_all(&(struct resume_world){.config = V41, .block = 32, .rows = 17}, boundaries, 1, suffixes, COUNT(suffixes));
}

/* The window is 128, there are 4 layers; ratios of 4 and 128. */
static void a_v4_resumes_at_every_boundary(void **state)
{
    (void)state;
    const int32_t boundaries[] = {128, 256}, suffixes[] = {1, 3, 4, 5, 127, 128, 129};
    resume_all(&(struct resume_world){.config = V4, .block = 128, .rows = 300}, boundaries, 2, suffixes, COUNT(suffixes));
}

static void a_v4_resumes_from_images_alone(void **state)
{
    (void)state;
    const int32_t boundaries[] = {128}, suffixes[] = {1, 5, 129};
    resume_all(&(struct resume_world){.config = V4, .block = 128, .encoder_replay = "off", .rows = 300}, boundaries, 1,
               suffixes, COUNT(suffixes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_resumes_at_every_boundary), cmocka_unit_test(a_v41_resumes_with_other_containers),
        cmocka_unit_test(a_v41_resumes_from_images_alone), cmocka_unit_test(a_rerun_is_cut_into_chunks),
        cmocka_unit_test(a_v4_resumes_at_every_boundary),  cmocka_unit_test(a_v4_resumes_from_images_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
