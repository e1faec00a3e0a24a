#include "support/drafters.h"

#include "support/scratch.h"

static const struct {
    const char *name, *config, *method;
} drafters[DRAFTERS] = {{"V4.1", "tests/data/config/small-v41-dspark.json", "dspark"},
                        {"V4", "tests/data/config/small-v4-dspark.json", "dspark"},
                        {"MTP", "tests/data/config/small-v4-mtp.json", "mtp"}};
static char *folders[DRAFTERS];

int drafters_make(void **state)
{
    (void)state;
    for (int i = 0; i < DRAFTERS; i++)
        folders[i] = small_folder_of(drafters[i].config);
    return 0;
}

int drafters_remove(void **state)
{
    (void)state;
    for (int i = 0; i < DRAFTERS; i++)
        scratch_remove(folders[i]);
    return 0;
}

const char *drafter_name(int which) { return drafters[which].name; }
const char *drafter_folder(int which) { return folders[which]; }

const int32_t *drafter_silent(int which, size_t *count)
{
    enum { SPOKEN = 260, LARGEST = 512 };
    static int32_t silent[LARGEST - SPOKEN];
    for (int32_t i = 0; i < LARGEST - SPOKEN; i++)
        silent[i] = SPOKEN + i;
    *count = which == 0 ? 263 - SPOKEN : LARGEST - SPOKEN;
    return silent;
}

struct opened drafter_open(int which, const char *verifier, const char *sampling)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = verifier ? drafters[which].method : "none";
    o.verifier = verifier;
    o.draft_sampling = sampling;
    o.max_num_seqs = 8;
    o.max_model_len = 128;
    return engine_open(folders[which], NULL, 2, &o);
}
