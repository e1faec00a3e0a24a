/* label: once */
/* What makes a cached page another page (runtime.md 2.11, 5.1): layout, weights and arithmetic are in the root of every key;
 * what changes no bit of a page is not. */
#include <string.h>

#include "engine/engine.h"
#include "engine/identity.h"
#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

static char *dir;

static int set_up(void **state)
{
    (void)state;
    dir = small_model_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

struct identity {
    char text[ENGINE_IDENTITY];
};

static qr_engine_options plain(void)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.block_size = 64;
    o.max_model_len = 256;
    return o;
}

static struct identity identity_of(const char *device, int threads, const qr_engine_options *options)
{
    struct identity id;
    struct opened o = engine_open(dir, device, threads, options);
    engine_identity(o.engine, id.text);
    engine_close(&o);
    return id;
}

static void told_apart(const struct identity *a, const struct identity *b)
{
    if (strcmp(a->text, b->text) == 0)
        fail_msg("two computations have one name: %s", a->text);
}

static void layout_and_arithmetic_are_in_the_name_of_a_page(void **state)
{
    (void)state;
    static const char *const parts[] = {"quire-page ", " main=fp4", " index=fp4/row", " owners=", " B=64", " W=", " D=", " I=",
                                        " history=", " order=", " model=", " profile=reference", " grid=fp4",
                                        " path=cpu-reference", " splits="};
    qr_engine_options o = plain();
    const struct identity first = identity_of("cpu-reference", 1, &o);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(first.text, parts[i]))
            fail_msg("\"%s\" is not in %s", parts[i], first.text);
    struct identity other = identity_of("cpu-portable", 1, &o);
    told_apart(&first, &other);
    o.block_size = 32;
    other = identity_of("cpu-reference", 1, &o);
    told_apart(&first, &other);
    o = plain();
    o.kv_cache_dtype = "bf16";
    other = identity_of("cpu-reference", 1, &o);
    told_apart(&first, &other);
    o = plain();
    o.index_cache_dtype = "fp8";
    other = identity_of("cpu-reference", 1, &o);
    told_apart(&first, &other);
}

static void what_changes_no_bit_is_not(void **state)
{
    (void)state;
    qr_engine_options o = plain();
    const struct identity first = identity_of("cpu-portable", 1, &o);
    o.max_num_seqs = 3;
    o.max_num_batched_tokens = 100;
    o.attn_prefill_chunk_size = 16;
    o.decoder_replay = "off";
    const struct identity other = identity_of("cpu-portable", 3, &o);
    assert_string_equal(first.text, other.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_and_arithmetic_are_in_the_name_of_a_page),
        cmocka_unit_test(what_changes_no_bit_is_not),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
