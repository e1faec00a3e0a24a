/* label: faults */
/* Every allocation of a run of quire op fails once: a status, nothing left behind. A file of each family of operators. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/support.h"
#include "tools/op_check.h"
#include "tools/op_cost.h"

static qr_status run_file(const char *path, struct backend *b, bool *passed, qr_error *err)
{
    struct op_file *file = NULL;
    struct op_run *run = NULL;
    struct op_verdict verdicts[64];
    int64_t count, bytes;
    qr_status st = op_file_open(path, &file, err);
    if (st == QR_OK)
        st = op_run_open(file, op_harness_find(op_file_metadata(file, "op")), b, 0, &run, err);
    if (st == QR_OK)
        st = op_run_execute(run, err);
    if (st == QR_OK)
        st = op_check(run, verdicts, &count, passed, err);
    if (st == QR_OK)
        st = op_run_bytes(run, &bytes, err);
    op_run_close(run);
    op_file_close(file);
    return st;
}

static void every_allocation_of_a_run_may_fail(void **state)
{
    (void)state;
    static const char *const files[] = {"03-hc_pre-ref-a",
                                        "06-qkv_proj_rope-w8a8-b",
                                        "09-decode_indexer_compressor-w8a8-a",
                                        "10-decode_indexer-w8a8-b",
                                        "13-decode_sparse_attn_csa-w8a8-a",
                                        "17-gate_hash-w8a8-b",
                                        "20-dispatch_combine-w8a8-b",
                                        "20-moe-ref-b",
                                        "21-lm_head-both-b",
                                        "32-prefill_indexer-ref-a",
                                        "36-quantizers-both-a",
                                        "39-verify_pack_slots-w8a8-d"};
    struct backend *b;
    assert_int_equal(backend_cpu_open("portable", 1, NULL, &b, NULL), QR_OK);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.safetensors", source_path("tests/golden/ops4"), files[f]);
        for (int64_t n = 1;; n++) {
            qr_error err = {0};
            bool passed = false;
            alloc_fault_at(n, 0);
            qr_status st = run_file(path, b, &passed, &err);
            alloc_fault_at(0, 0);
            if (st == QR_OK) {
                assert_true(passed);
                assert_true(n > 10);
                break;
            }
            if (st != QR_NO_MEMORY || !err.message[0])
                fail_msg("%s: allocation %d failing: status %d, \"%s\"", files[f], (int)n, st, err.message);
        }
    }
    b->close(b);
    assert_int_equal(alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_of_a_run_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
