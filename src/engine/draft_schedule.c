#include "engine/draft_schedule.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/pool.h"
#include "engine/engine.h"

enum { LARGEST_PROFILE = 1 << 20 };

static void copy_word(char out[DRAFT_PROFILE_WORD], const char *word) { snprintf(out, DRAFT_PROFILE_WORD, "%s", word); }

struct draft_place draft_place_of(const struct model_plan *plan, const struct engine_place *place, const struct engine_size *size)
{
    const struct geometry_options *formats = &size->geometry.options;
    struct draft_place out = {.threads = pool_threads_wanted(place->threads),
                              .width = size->drafts.width,
                              .requests = size->limits.max_requests,
                              .rows = size->limits.max_requests * (size->drafts.limit + 1)};
    copy_word(out.model_type, config_family_title(&plan->config));
    copy_word(out.device, place->device);
    copy_word(out.profile, config_profile_name(plan->profile));
    copy_word(out.kv_cache_dtype, row_format_name(formats->main_format));
    copy_word(out.index_cache_dtype, row_format_name(formats->index_format));
    return out;
}

/* Of a file that may be missing: then 64 noughts. */
static qr_status hash_file(const char *dir, const char *name, char out[SHA256_HEX], qr_error *err)
{
    struct mapped_file file;
    char *path = path_join(dir, name);
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the path of %s", name);
    memset(out, '0', SHA256_HEX - 1);
    out[SHA256_HEX - 1] = 0;
    if (file_map(path, &file, NULL) == QR_OK) {
        sha256_hex(file.data, (size_t)file.size, out);
        file_unmap(&file);
    }
    qr_free(path);
    return QR_OK;
}

qr_status draft_place_hash(const char *dir, struct draft_place *out, qr_error *err)
{
    TRY(hash_file(dir, "config.json", out->config, err));
    return hash_file(dir, "model.safetensors.index.json", out->index, err);
}

static const char *profile_path(const struct engine_size *size)
{
    const char *path = size->options.speculation_profile;
    return path && strcmp(path, "none") != 0 ? path : NULL;
}

/* Rules that need no file. */
static void check_choice(const struct draft_choice *c, struct rule_list *broken)
{
    if (c->drafter != QR_DRAFTER_DSPARK)
        rule_broken(broken, "E10 a speculation profile with %s: only a DSpark drafter says how sure it is",
                    c->drafter == QR_DRAFTER_MTP ? "an mtp drafter" : "nothing that drafts");
    if (c->verifier != VERIFIER_MATCH)
        rule_broken(broken, "E10 a speculation profile with verifier %s, wanted match: lengths that look at later drafts would "
                            "bend what it promises", c->verifier == VERIFIER_RATIO ? "ratio" : "block");
    if (c->forced > 0)
        rule_broken(broken, "E09 a forced acceptance length of %g with a speculation profile, which would cut it short", c->forced);
}

qr_status draft_schedule(const struct model_plan *plan, const struct engine_place *place, struct engine_size *size,
                         struct rule_list *broken, qr_error *err)
{
    const char *path = profile_path(size);
    const struct draft_place here = draft_place_of(plan, place, size);
    const int before = broken->count;
    qr_error found = {0};
    char *text = NULL;
    size_t length;
    if (!path)
        return QR_OK;
    check_choice(&size->drafts, broken);
    if (broken->count > before)
        return QR_OK;
    qr_status st = file_read(path, LARGEST_PROFILE, &text, &length, &found);
    if (st == QR_OK)
        st = draft_profile_read(text, length, path, &here, &size->drafts.profile, &found);
    else if (st == QR_BAD_FILE)
        rule_broken(broken, "E10 speculation profile %s", found.message);
    qr_free(text);
    if (st == QR_REFUSED)
        rules_join(broken, &found);
    else if (st != QR_OK && st != QR_BAD_FILE)
        return qr_fail(err, st, "%s", found.message);
    size->drafts.scheduled = st == QR_OK;
    return QR_OK;
}

qr_status draft_schedule_check(const char *dir, const struct engine_size *size, qr_error *err)
{
    const struct draft_place *is = &size->drafts.profile.place;
    struct draft_place here;
    if (!size->drafts.scheduled)
        return QR_OK;
    TRY(draft_place_hash(dir, &here, err));
    const bool config = strcmp(here.config, is->config) == 0;
    if (config && strcmp(here.index, is->index) == 0)
        return QR_OK;
    return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s is \"%s\", here it is \"%s\"", profile_path(size),
                   config ? "index_sha256" : "config_sha256", config ? is->index : is->config, config ? here.index : here.config);
}
