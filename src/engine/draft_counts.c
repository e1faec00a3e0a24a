#include "engine/draft_counts.h"

static int32_t clamp(int32_t value, int32_t most) { return value < 0 ? 0 : value < most ? value : most; }

static void note_estimate(struct draft_bin *bins, double estimate, bool hit)
{
    struct draft_bin *bin = &bins[clamp((int32_t)(estimate * DRAFT_BINS), DRAFT_BINS - 1)];
    bin->count++;
    bin->hits += hit;
    bin->estimate += estimate;
}

void draft_counts_verdict(struct draft_counts *c, const struct draft_verdict *v)
{
    qr_draft_metrics *m = &c->sums;
    const int32_t verified = clamp(v->verified, QR_MAX_DRAFTS), accepted = clamp(v->accepted, verified);
    m->decode_steps++;
    m->verify_steps += verified > 0;
    m->verified += (uint64_t)verified;
    m->unverified += (uint64_t)(v->proposed > verified ? v->proposed - verified : 0);
    m->accepted += (uint64_t)accepted;
    m->emitted += (uint64_t)v->emitted;
    m->dropped_by_stop += (uint64_t)(accepted + 1 > v->emitted ? accepted + 1 - v->emitted : 0);
    m->verified_histogram[verified]++;
    if (verified == 0) {
        m->rests[v->rest]++;
        return;
    }
    m->accepted_histogram[accepted]++;
    for (int32_t k = 0; k < verified; k++) {
        m->position_verified[k]++;
        m->position_reached[k] += accepted >= k;
        m->position_accepted[k] += accepted > k;
        if (v->survival)
            note_estimate(c->bins[k], v->survival[k], accepted > k);
    }
}

void draft_counts_discard(struct draft_counts *c, int32_t drafts) { c->sums.discarded += (uint64_t)drafts; }

void draft_counts_pass(struct draft_counts *c, int32_t requests, int32_t drafts, double seconds)
{
    c->sums.draft_passes++;
    c->sums.drafted_requests += (uint64_t)requests;
    c->sums.proposed += (uint64_t)drafts;
    c->sums.draft_seconds += seconds;
}

void draft_counts_step(struct draft_counts *c, double seconds)
{
    c->sums.batch_steps++;
    c->sums.verify_seconds += seconds;
}

/* ---- ratios ---- */

static double ratio(uint64_t part, uint64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

static void tell_calibration(const struct draft_bin *bins, double *survival, double *error)
{
    double estimate = 0, off = 0;
    uint64_t count = 0;
    for (int i = 0; i < DRAFT_BINS; i++) {
        const double gap = bins[i].estimate - (double)bins[i].hits;
        estimate += bins[i].estimate;
        off += gap < 0 ? -gap : gap;
        count += bins[i].count;
    }
    *survival = count > 0 ? estimate / (double)count : -1;
    *error = count > 0 ? off / (double)count : -1;
}

void draft_counts_told(const struct draft_counts *c, qr_draft_metrics *out)
{
    *out = c->sums;
    out->acceptance_length_verify_steps = out->verify_steps > 0 ? 1 + ratio(out->accepted, out->verify_steps) : 0;
    out->acceptance_length_decode_steps = out->decode_steps > 0 ? 1 + ratio(out->accepted, out->decode_steps) : 0;
    out->acceptance_rate = ratio(out->accepted, out->verified);
    for (int k = 0; k < QR_MAX_DRAFTS; k++) {
        out->unconditional[k] = ratio(out->position_accepted[k], out->position_verified[k]);
        out->conditional[k] = ratio(out->position_accepted[k], out->position_reached[k]);
        tell_calibration(c->bins[k], &out->survival_estimate[k], &out->calibration_error[k]);
    }
}
