/* draft_profile.h: what drafts cost and how sure their drafter is on one machine, as measured and kept in a file
 * (speculation.md 6.5), and the numbers that decide how many drafts a step verifies. Pure.
 *
 * The file is a JSON object: "format" 1; "config_sha256" and "index_sha256" of the folder's two files; "model_type",
 * "device", "threads", "profile", "kv_cache_dtype", "index_cache_dtype", "tp_size"; "width" (tokens of a block), "taus"
 * (as many); "max_requests", "max_rows"; "steps" [[rows, ms] ..] and "drafts" [[requests, ms] ..], both rising in both;
 * "workload_sha256" and "date". */
#ifndef QR_ENGINE_DRAFT_PROFILE_H
#define QR_ENGINE_DRAFT_PROFILE_H

#include "base/json.h"
#include "base/sha256.h"

enum { DRAFT_PROFILE_FORMAT = 1, DRAFT_PROFILE_POINTS = 96, DRAFT_PROFILE_WORD = 40 };

/* What a profile is of. */
struct draft_place {
    char config[SHA256_HEX], index[SHA256_HEX]; /* empty: not known yet, every one will do */
    char model_type[DRAFT_PROFILE_WORD], device[DRAFT_PROFILE_WORD], profile[DRAFT_PROFILE_WORD];
    char kv_cache_dtype[DRAFT_PROFILE_WORD], index_cache_dtype[DRAFT_PROFILE_WORD];
    int32_t threads, width;
    int32_t requests, rows; /* that an engine has at most; a profile covers as many or more */
};

struct draft_cost { /* of steps by their rows, of draft passes by their requests; both rise */
    int32_t count;
    int32_t size[DRAFT_PROFILE_POINTS];
    double ms[DRAFT_PROFILE_POINTS];
};

struct draft_profile {
    struct draft_place place;
    double taus[QR_MAX_DRAFTS];
    struct draft_cost steps, drafts;
    char workload[SHA256_HEX], date[DRAFT_PROFILE_WORD];
};

/* Reads a profile for `here`; `name` is the file's. QR_REFUSED with a sentence that begins with E10: another format or
 * place, a temperature that is not above 0 and finite, times that fall while sizes grow (a rising rate), a batch that is not
 * covered, or no such object. */
qr_status draft_profile_read(const char *text, size_t length, const char *name, const struct draft_place *here,
                             struct draft_profile *out, qr_error *err);
void draft_profile_write(struct json_writer *w, const struct draft_profile *p);

/* Milliseconds of a size: those of the smallest measured one that holds it; beyond the largest its share more. 0 of 0. */
double draft_cost_ms(const struct draft_cost *c, int32_t size);

/* A measured time; sizes may come in any order and often. Full: QR_BAD_ARGUMENT is not needed, it is left out (false). */
bool draft_cost_add(struct draft_cost *c, int32_t size, double ms);
/* Times that fall are raised to the one before. */
void draft_cost_settle(struct draft_cost *c);

#endif
