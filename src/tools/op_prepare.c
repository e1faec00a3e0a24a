/* Operator 35 of v4-model.md section 10: the slots and window lists of a decode step (9.2), pure integers. */
#include "tools/op_adapters.h"

enum { PAGE = 128 };

/* A table whose page p / tokens holds the row of a position; wraps where the row is a state. */
static int32_t slot_of(const int32_t *table, int32_t count, int32_t position, int32_t page_tokens, int32_t page_rows, int32_t ratio)
{
    int32_t page = table[position / page_tokens % count];
    return page < 0 ? -1 : page * page_rows + position % page_tokens / ratio;
}

static int32_t emitted_slot(const int32_t *table, int32_t count, int32_t position, int32_t ratio)
{
    return (position + 1) % ratio ? -1 : slot_of(table, count, position, PAGE, PAGE / ratio, ratio);
}

/* Every page from the window's first to the row's own must be there; only the slot of an unmapped write is -1. */
static qr_status list_window(const int32_t *table, int32_t request, int32_t position, int32_t window, int32_t *out, int32_t *length,
                             qr_error *err)
{
    int32_t first = position - window + 1 > 0 ? position - window + 1 : 0;
    *length = position - first + 1;
    for (int32_t i = 0; i < window; i++) {
        int32_t q = first + i;
        out[i] = -1;
        if (q > position)
            continue;
        if (table[q / PAGE] < 0)
            return op_refuse(err, BAD_TABLE, "table of request %d has no page %d, in which window position %d of %d lies", request,
                             q / PAGE, q, position);
        out[i] = table[q / PAGE] * PAGE + q % PAGE;
    }
    return QR_OK;
}

static qr_status check_table(const struct op_run *r, qr_error *err)
{
    const int32_t *table = op_ints(r, "table"), *positions = op_ints(r, "position_ids");
    int32_t requests = op_dim(r, "B"), width = op_dim(r, "n");
    TRY(op_check_positions(r, positions, 2 * requests, 2, err));
    TRY(op_check_entries("table", table, (int64_t)requests * width, INT32_MAX / PAGE, err));
    for (int32_t b = 0; b < requests; b++) {
        int32_t last = positions[2 * b + 1] / PAGE;
        if (last >= width)
            return op_refuse(err, BAD_TABLE, "table of request %d has %d entries, position %d wants %d", b, width,
                             positions[2 * b + 1], last + 1);
        for (int32_t other = 0; other < b; other++)
            for (int32_t i = 0; i < 4; i++) { /* pages that both write */
                int32_t mine = table[b * width + positions[2 * b + i % 2] / PAGE];
                if (mine >= 0 && mine == table[other * width + positions[2 * other + i / 2] / PAGE])
                    return op_refuse(err, BAD_TABLE, "requests %d and %d both write page %d", other, b, mine);
            }
    }
    return QR_OK;
}

static qr_status run_prepare(struct op_run *r, qr_error *err)
{
    const int32_t *positions = op_ints(r, "position_ids");
    int32_t width = op_dim(r, "n"), window = op_dim(r, "W");
    int32_t *ori = op_out(r, "ori_slot"), *cmp4 = op_out(r, "cmp4_slot"), *cmp128 = op_out(r, "cmp128_slot");
    int32_t *state4 = op_out(r, "state4_slot"), *state128 = op_out(r, "state128_slot");
    int32_t *indices = op_out(r, "swa_indices"), *lengths = op_out(r, "swa_lens");
    TRY(check_table(r, err));
    for (int32_t i = 0; i < 2 * op_dim(r, "B"); i++) {
        const int32_t *table = op_ints(r, "table") + i / 2 * width;
        int32_t p = positions[i];
        ori[i] = slot_of(table, width, p, PAGE, PAGE, 1);
        cmp4[i] = emitted_slot(table, width, p, 4);
        cmp128[i] = emitted_slot(table, width, p, 128);
        state4[i] = slot_of(table, width, p, 4, 4, 1);
        state128[i] = slot_of(table, width, p, 8, 8, 1);
        TRY(list_window(table, i / 2, p, window, indices + (int64_t)i * window, &lengths[i], err));
    }
    return QR_OK;
}

static const struct op_array prepare_in[] = {ARRAY("position_ids", ARRAY_INT, "B S"), ARRAY("table", ARRAY_INT, "B n"), {0}};
static const struct op_array prepare_out[] = {ARRAY("ori_slot", ARRAY_INT, "B S", .tolerance = "exact"),
                                              ARRAY("cmp4_slot", ARRAY_INT, "B S", .tolerance = "exact"),
                                              ARRAY("cmp128_slot", ARRAY_INT, "B S", .tolerance = "exact"),
                                              ARRAY("state4_slot", ARRAY_INT, "B S", .tolerance = "exact"),
                                              ARRAY("state128_slot", ARRAY_INT, "B S", .tolerance = "exact"),
                                              ARRAY("swa_indices", ARRAY_INT, "2*B W", .tolerance = "exact"),
                                              ARRAY("swa_lens", ARRAY_INT, "2*B", .tolerance = "exact"),
                                              {0}};

const struct op_harness op_prepare_harnesses[] = {
    {"decode_prepare", 35, "slots and window lists of a decode step", "sliding_window", prepare_in, prepare_out, "2*B", NULL, run_prepare, NULL},
    {0}};
