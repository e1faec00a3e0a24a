#include <math.h>
#include <string.h>

#include "number/philox.h"
#include "ops/cpu/reference/reference.h"

/* The likeliest ids of a part, best first, and one more: the bound. */
struct best {
    int32_t count;
    struct {
        int32_t id;
        float logit, key;
    } at[SHORTLIST_LENGTH + 1];
};

static void keep(struct best *b, int32_t id, float logit, float key)
{
    const int32_t most = SHORTLIST_LENGTH + 1;
    int32_t i = b->count;
    if (b->count == most && !(key > b->at[most - 1].key))
        return;
    if (b->count < most)
        b->count++;
    else
        i--;
    for (; i > 0 && key > b->at[i - 1].key; i--)
        b->at[i] = b->at[i - 1];
    b->at[i].id = id;
    b->at[i].logit = logit;
    b->at[i].key = key;
}

static float logit_of(const struct op_shortlist *op, const struct shortlist_ask *ask, int32_t id)
{
    const float l = op->logits[(int64_t)ask->row * op->vocab + id];
    return op->added ? l + op->added[(int64_t)ask->added_row * op->vocab + id] : l;
}

static float key_of(const struct shortlist_ask *ask, int32_t id, float logit)
{
    const struct keyed_stream stream = {.seed = ask->seed, .position = ask->position, .tag = ask->tag};
    if (!ask->race)
        return logit + 0.0f; /* one zero */
    return (float)((double)logit / ask->temperature - log(stream_exponential(stream_word(&stream, (uint32_t)id))));
}

static bool is_left_out(const struct op_shortlist *op, int32_t id)
{
    return op->left_out && op->left_out[id >> 5] >> (id & 31) & 1;
}

static double mass_of(const struct op_shortlist *op, const struct shortlist_ask *ask, int32_t from, int32_t to, float largest)
{
    double sum = 0;
    for (int32_t id = from; id < to; id++) {
        const float l = logit_of(op, ask, id);
        if (!is_left_out(op, id) && l > -INFINITY)
            sum += exp(((double)l - (double)largest) / ask->temperature);
    }
    return sum;
}

static void list_part(const struct op_shortlist *op, const struct shortlist_ask *ask, int32_t from, int32_t to,
                      struct shortlist_part *out)
{
    struct best best = {.count = 0};
    *out = (struct shortlist_part){.bound = -INFINITY, .largest = -INFINITY};
    for (int32_t id = from; id < to; id++) {
        const float l = logit_of(op, ask, id);
        if (!(l < INFINITY))
            out->count = -1;
        if (!(l > -INFINITY))
            continue;
        keep(&best, id, l, key_of(ask, id, l));
        if (!is_left_out(op, id) && l > out->largest)
            out->largest = l;
    }
    if (out->count < 0)
        return;
    if (ask->weigh && out->largest > -INFINITY)
        out->mass = mass_of(op, ask, from, to, out->largest);
    if (best.count > SHORTLIST_LENGTH)
        out->bound = best.at[--best.count].key;
    for (out->count = 0; out->count < best.count; out->count++) {
        out->ids[out->count] = best.at[out->count].id;
        out->logits[out->count] = best.at[out->count].logit;
        out->keys[out->count] = best.at[out->count].key;
    }
}

qr_status reference_shortlist(struct backend *b, const struct op_shortlist *op, qr_error *err)
{
    (void)b;
    if (!shortlist_takes(op->vocab))
        return qr_fail(err, QR_BAD_ARGUMENT, "shortlist: a vocabulary of %d, wanted a multiple of 4 and at most %d", op->vocab,
                       SHORTLIST_PARTS * SHORTLIST_PART);
    const int32_t size = shortlist_part_size(op->vocab);
    for (int32_t i = 0; i < op->rows; i++)
        for (int32_t p = 0; p < SHORTLIST_PARTS; p++) {
            const int32_t from = p * size < op->vocab ? p * size : op->vocab;
            const int32_t to = from + size < op->vocab ? from + size : op->vocab;
            list_part(op, &op->asks[i], from, to, &op->out[(int64_t)i * SHORTLIST_PARTS + p]);
        }
    return QR_OK;
}
