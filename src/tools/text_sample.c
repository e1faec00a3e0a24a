#include "tools/text_sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "run/sampling.h"
#include "run/verify.h"
#include "tools/text.h"

qr_status sample_read_int(const struct json *line, const char *member, int64_t *out, qr_error *err)
{
    if (json_int64(json_get(line, member), out))
        return QR_OK;
    return qr_fail(err, QR_BAD_REQUEST, "%s is missing or no integer", member);
}

qr_status sample_read_seed(const struct json *line, uint64_t *out, qr_error *err)
{
    int64_t negative;
    if (json_uint64(json_get(line, "seed"), out))
        return QR_OK;
    if (!json_int64(json_get(line, "seed"), &negative))
        return qr_fail(err, QR_BAD_REQUEST, "seed is missing or no 64-bit integer");
    *out = (uint64_t)negative;
    return QR_OK;
}

static qr_status open_array(const struct json *array, const char *member, int64_t *n, size_t element, void *out,
                            qr_error *err)
{
    void *memory = NULL;
    if (!array || array->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "%s is missing or no list", member);
    if (*n >= 0 && (uint64_t)*n != array->count)
        return qr_fail(err, QR_BAD_REQUEST, "%s has %zu elements, wanted %lld", member, array->count, (long long)*n);
    if (!(memory = qr_calloc(array->count, element)))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the %zu elements of %s", array->count, member);
    *n = (int64_t)array->count;
    memcpy(out, &memory, sizeof memory);
    return QR_OK;
}

qr_status sample_read_doubles(const struct json *array, const char *member, int64_t *n, double **out, qr_error *err)
{
    qr_status st = open_array(array, member, n, sizeof **out, out, err);
    if (st != QR_OK)
        return st;
    int64_t i = 0;
    for (const struct json *e = array->child; e; e = e->next)
        if (!json_double(e, &(*out)[i++])) {
            qr_free(*out);
            *out = NULL;
            return qr_fail(err, QR_BAD_REQUEST, "element %lld of %s is no number", (long long)i - 1, member);
        }
    return QR_OK;
}

qr_status sample_read_ids(const struct json *array, const char *member, int64_t *n, int32_t **out, qr_error *err)
{
    qr_status st = open_array(array, member, n, sizeof **out, out, err);
    if (st != QR_OK)
        return st;
    int64_t i = 0;
    for (const struct json *e = array->child; e; e = e->next) {
        int64_t id;
        if (!json_int64(e, &id) || id < 0 || id > INT32_MAX) {
            qr_free(*out);
            *out = NULL;
            return qr_fail(err, QR_BAD_REQUEST, "element %lld of %s is no id", (long long)i, member);
        }
        (*out)[i++] = (int32_t)id;
    }
    return QR_OK;
}

void sample_write_doubles(struct json_writer *w, const char *key, const double *values, int64_t n)
{
    json_w_key(w, key);
    json_w_array(w);
    for (int64_t i = 0; i < n; i++)
        json_w_double(w, values[i]);
    json_w_end_array(w);
}

void sample_write_ids(struct json_writer *w, const char *key, const int32_t *ids, int64_t n)
{
    json_w_key(w, key);
    json_w_array(w);
    for (int64_t i = 0; i < n; i++)
        json_w_int(w, ids[i]);
    json_w_end_array(w);
}

/* philox, stream */

static void write_word(struct json_writer *w, uint32_t word)
{
    char text[9];
    snprintf(text, sizeof text, "%08x", word);
    json_w_string(w, text);
}

static qr_status read_words(const struct json *line, const char *member, uint32_t *words, size_t n, qr_error *err)
{
    const struct json *array = json_get(line, member);
    if (!array || array->kind != JSON_ARRAY || array->count != n)
        return qr_fail(err, QR_BAD_REQUEST, "%s is no list of %zu words", member, n);
    for (size_t i = 0; i < n; i++) {
        const struct json *e = json_at(array, i);
        char *end = NULL;
        if (e->kind == JSON_STRING && e->length == 8)
            words[i] = (uint32_t)strtoul(e->text, &end, 16);
        if (!end || *end || strspn(e->text, "0123456789abcdefABCDEF") != 8)
            return qr_fail(err, QR_BAD_REQUEST, "%s[%zu] is no word of eight hexadecimal digits", member, i);
    }
    return QR_OK;
}

static qr_status philox(const struct json *line, struct json_writer *w, qr_error *err)
{
    uint32_t counter[4], key[2], out[4];
    qr_status st = read_words(line, "counter", counter, 4, err);
    if (st == QR_OK)
        st = read_words(line, "key", key, 2, err);
    if (st != QR_OK)
        return st;
    philox4x32(counter, key, out);
    json_w_key(w, "out");
    json_w_array(w);
    for (int i = 0; i < 4; i++)
        write_word(w, out[i]);
    json_w_end_array(w);
    return QR_OK;
}

static qr_status read_stream(const struct json *line, const char *position, struct keyed_stream *stream, qr_error *err)
{
    int64_t tag = 0;
    qr_status st = sample_read_seed(line, &stream->seed, err);
    if (st == QR_OK)
        st = sample_read_int(line, "tag", &tag, err);
    if (st == QR_OK && position)
        st = sample_read_int(line, position, &stream->position, err);
    if (st == QR_OK && (tag < 0 || tag > UINT32_MAX))
        st = qr_fail(err, QR_BAD_REQUEST, "tag is %lld, wanted 0 to 4294967295", (long long)tag);
    stream->tag = (uint32_t)tag;
    return st;
}

static qr_status stream(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct keyed_stream s = {0};
    int64_t id;
    char hex[40];
    qr_status st = read_stream(line, "position", &s, err);
    if (st == QR_OK)
        st = sample_read_int(line, "vocab", &id, err);
    if (st != QR_OK)
        return st;
    if (id < 0 || id > UINT32_MAX)
        return qr_fail(err, QR_BAD_REQUEST, "vocab is %lld, wanted an id", (long long)id);
    uint32_t word = stream_word(&s, (uint32_t)id);
    json_w_key(w, "word");
    write_word(w, word);
    json_w_member_number(w, "uniform", stream_uniform(word));
    snprintf(hex, sizeof hex, "%.13a", stream_uniform(word));
    json_w_member_string(w, "uniform_hex", hex);
    json_w_member_number(w, "gumbel", stream_gumbel(word));
    json_w_member_number(w, "exponential", stream_exponential(word));
    return QR_OK;
}

/* chain, draw, match: a line's parameters and everything a row of them needs */

struct sampler {
    struct sampling_params params;
    struct logit_bias *bias;
    int32_t vocab;
    struct sampler_scratch *scratch;
    struct token_counts *counts;
    int32_t *banned;
    uint32_t *allowed;
    struct id_list ban_list;
};

static void sampler_close(struct sampler *s)
{
    qr_free(s->bias);
    qr_free(s->banned);
    qr_free(s->allowed);
    sampler_scratch_close(s->scratch);
    token_counts_close(s->counts);
}

static qr_status read_parameter(const struct json *line, const char *member, double *out, qr_error *err)
{
    const struct json *value = json_get(line, member);
    if (value && !json_double(value, out))
        return qr_fail(err, QR_BAD_REQUEST, "%s is no number", member);
    return QR_OK;
}

static qr_status read_bias(const struct json *line, struct sampler *s, qr_error *err)
{
    const struct json *bias = json_get(line, "logit_bias");
    if (!bias)
        return QR_OK;
    if (bias->kind != JSON_OBJECT)
        return qr_fail(err, QR_BAD_REQUEST, "logit_bias is no object");
    if (!(s->bias = qr_calloc(bias->count, sizeof *s->bias)))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the %zu entries of logit_bias", bias->count);
    for (const struct json *e = bias->child; e; e = e->next) {
        struct logit_bias *b = &s->bias[s->params.bias_count++];
        char *end;
        long id = strtol(e->key, &end, 10);
        if (end == e->key || *end || id < 0 || id >= s->vocab || !json_double(e, &b->value))
            return qr_fail(err, QR_BAD_REQUEST, "logit_bias has \"%s\", wanted an id below %d with a number", e->key,
                           s->vocab);
        b->id = (int32_t)id;
    }
    s->params.bias = s->bias;
    return QR_OK;
}

static qr_status read_params(const struct json *line, struct sampler *s, qr_error *err)
{
    struct sampling_params *p = &s->params;
    int64_t top_k = 0;
    qr_status st = QR_OK;
    const struct {
        const char *name;
        double *target;
    } numbers[] = {
        {"temperature", &p->temperature},
        {"top_p", &p->top_p},
        {"min_p", &p->min_p},
        {"repetition_penalty", &p->repetition_penalty},
        {"frequency_penalty", &p->frequency_penalty},
        {"presence_penalty", &p->presence_penalty},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && st == QR_OK; i++)
        st = read_parameter(line, numbers[i].name, numbers[i].target, err);
    if (st == QR_OK && json_get(line, "top_k"))
        st = sample_read_int(line, "top_k", &top_k, err);
    p->top_k = (int32_t)(top_k > INT32_MAX ? INT32_MAX : top_k < 0 ? 0 : top_k);
    if (st == QR_OK)
        st = read_bias(line, s, err);
    return st == QR_OK ? sampling_check(p, s->vocab, err) : st;
}

static qr_status read_history(const struct json *line, struct sampler *s, qr_error *err)
{
    int32_t *ids = NULL;
    int64_t n = -1;
    qr_status st = token_counts_open(s->vocab, &s->counts, err);
    if (st == QR_OK && json_get(line, "prompt")) {
        st = sample_read_ids(json_get(line, "prompt"), "prompt", &n, &ids, err);
        if (st == QR_OK)
            token_counts_prompt(s->counts, ids, n);
        qr_free(ids);
        ids = NULL;
    }
    n = -1;
    if (st == QR_OK && json_get(line, "output")) {
        st = sample_read_ids(json_get(line, "output"), "output", &n, &ids, err);
        for (int64_t i = 0; st == QR_OK && i < n; i++)
            token_counts_push(s->counts, ids[i]);
        qr_free(ids);
    }
    return st;
}

static qr_status read_allowed(const struct json *line, struct sampler *s, qr_error *err)
{
    int32_t *ids = NULL;
    int64_t n = -1;
    if (!json_get(line, "allowed"))
        return QR_OK;
    qr_status st = sample_read_ids(json_get(line, "allowed"), "allowed", &n, &ids, err);
    if (st == QR_OK && !(s->allowed = qr_calloc(((size_t)s->vocab + 31) / 32, sizeof *s->allowed)))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for the allowed ids");
    for (int64_t i = 0; st == QR_OK && i < n; i++)
        if (ids[i] < s->vocab)
            s->allowed[ids[i] / 32] |= 1u << ids[i] % 32;
    qr_free(ids);
    return st;
}

/* Close it in every case. */
static qr_status sampler_open(const struct json *line, int64_t vocab, struct sampler *s, qr_error *err)
{
    *s = (struct sampler){.params = SAMPLING_PARAMS_DEFAULT, .vocab = (int32_t)vocab};
    int64_t banned = -1;
    if (vocab < 1 || vocab > INT32_MAX)
        return qr_fail(err, QR_BAD_REQUEST, "logits has %lld elements, wanted a row", (long long)vocab);
    qr_status st = sampler_scratch_open(s->vocab, &s->scratch, err);
    if (st == QR_OK)
        st = read_params(line, s, err);
    if (st == QR_OK)
        st = read_history(line, s, err);
    if (st == QR_OK)
        st = read_allowed(line, s, err);
    if (st == QR_OK && json_get(line, "banned")) {
        st = sample_read_ids(json_get(line, "banned"), "banned", &banned, &s->banned, err);
        s->ban_list = (struct id_list){s->banned, st == QR_OK ? (int32_t)banned : 0};
    }
    return st;
}

static struct sampling_row row_of(const struct sampler *s, const float *logits)
{
    return (struct sampling_row){
        .logits = logits, .counts = s->counts, .banned = &s->ban_list, .banned_lists = 1, .allowed = s->allowed};
}

static qr_status read_logits(const struct json *array, int64_t *vocab, float **out, qr_error *err)
{
    double *wide = NULL;
    *out = NULL;
    qr_status st = sample_read_doubles(array, "logits", vocab, &wide, err);
    if (st == QR_OK && !(*out = qr_calloc((size_t)*vocab, sizeof **out)))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for %lld logits", (long long)*vocab);
    for (int64_t i = 0; st == QR_OK && i < *vocab; i++)
        (*out)[i] = (float)wide[i];
    qr_free(wide);
    return st;
}

static qr_status write_probs(const struct distribution *d, int32_t vocab, struct json_writer *w, qr_error *err)
{
    double *p = qr_calloc((size_t)vocab, sizeof *p);
    if (!p)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d probabilities", vocab);
    distribution_dense(d, p, vocab);
    sample_write_doubles(w, "probs", p, vocab);
    qr_free(p);
    return QR_OK;
}

static qr_status chain(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct sampler s = {0};
    struct distribution d;
    float *logits;
    int64_t vocab = -1;
    qr_status st = read_logits(json_get(line, "logits"), &vocab, &logits, err);
    if (st != QR_OK)
        return st;
    st = sampler_open(line, vocab, &s, err);
    if (st == QR_OK) {
        struct sampling_row row = row_of(&s, logits);
        st = sampling_distribution(&s.params, &row, s.scratch, &d, err);
        if (st == QR_BAD_REQUEST) { /* the golden's answer, not a failure of the line */
            json_w_member_string(w, "error", "all masked");
            st = QR_OK;
        } else if (st == QR_OK) {
            st = write_probs(&d, s.vocab, w, err);
            if (s.params.temperature == 0)
                json_w_member_int(w, "greedy", d.ids[0]);
        }
    }
    sampler_close(&s);
    qr_free(logits);
    return st;
}

/* By how much the best key ln p + G leads, to six places; 99 when there is no second. */
static double margin_of(const struct distribution *d, const struct keyed_stream *stream)
{
    double first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < d->count; i++) {
        if (!(d->p[i] > 0))
            continue;
        double key = log(d->p[i]) + stream_gumbel(stream_word(stream, (uint32_t)d->ids[i]));
        if (key > first) {
            second = first;
            first = key;
        } else if (key > second) {
            second = key;
        }
    }
    return second > -INFINITY ? round((first - second) * 1e6) / 1e6 : 99.0;
}

static qr_status draw_range(const struct json *line, const struct distribution *d, struct keyed_stream *s,
                            struct json_writer *w, qr_error *err)
{
    int64_t first, last;
    const struct json *range = json_get(line, "positions");
    if (range->kind != JSON_ARRAY || range->count != 2 || !json_int64(json_at(range, 0), &first) ||
        !json_int64(json_at(range, 1), &last) || first < 0 || last < first)
        return qr_fail(err, QR_BAD_REQUEST, "positions is no [first, last]");
    if (last - first >= 10000000)
        return qr_fail(err, QR_BAD_REQUEST, "positions names %lld, wanted at most 10000000", (long long)(last - first));
    json_w_key(w, "tokens");
    json_w_array(w);
    for (s->position = first; s->position <= last; s->position++)
        json_w_int(w, distribution_draw(d, s));
    json_w_end_array(w);
    return QR_OK;
}

static qr_status draw(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct sampler s = {0};
    struct distribution d;
    struct keyed_stream noise = {0};
    float *logits;
    int64_t vocab = -1;
    bool range = json_get(line, "positions") != NULL;
    qr_status st = read_logits(json_get(line, "logits"), &vocab, &logits, err);
    if (st != QR_OK)
        return st;
    st = sampler_open(line, vocab, &s, err);
    if (st == QR_OK)
        st = read_stream(line, range ? NULL : "position", &noise, err);
    if (st == QR_OK) {
        struct sampling_row row = row_of(&s, logits);
        st = sampling_distribution(&s.params, &row, s.scratch, &d, err);
    }
    if (st == QR_OK && range) {
        st = draw_range(line, &d, &noise, w, err);
    } else if (st == QR_OK) {
        json_w_member_int(w, "token", distribution_draw(&d, &noise));
        json_w_member_number(w, "margin", margin_of(&d, &noise));
    }
    sampler_close(&s);
    qr_free(logits);
    return st;
}

/* The target's token of every row; the drafts before a row belong to its output. */
static qr_status draw_rows(const struct json *rows, struct sampler *s, int64_t cursor, const int32_t *drafts, int64_t n,
                           int32_t *tokens, qr_error *err)
{
    qr_status st = QR_OK;
    for (int64_t r = 0; r <= n && st == QR_OK; r++) {
        float *logits;
        int64_t vocab = s->vocab;
        if (r > 0)
            token_counts_push(s->counts, drafts[r - 1]);
        st = read_logits(json_at(rows, (size_t)r), &vocab, &logits, err);
        if (st != QR_OK)
            return st;
        struct sampling_row row = row_of(s, logits);
        st = sampling_draw(&s->params, &row, cursor + r + 1, s->scratch, &tokens[r], err);
        qr_free(logits);
    }
    return st;
}

static void write_match(struct json_writer *w, const int32_t *drafts, int64_t n, const int32_t *tokens, int64_t cursor)
{
    int32_t a = verify_match(drafts, (int32_t)n, tokens);
    sample_write_ids(w, "row_tokens", tokens, n + 1);
    json_w_member_int(w, "accepted", a);
    sample_write_ids(w, "emitted", tokens, a + 1); /* accepted drafts are their rows' tokens */
    json_w_member_int(w, "new_cursor", cursor + a + 1);
    json_w_member_int(w, "new_anchor", tokens[a]);
}

static qr_status match(const struct json *line, struct json_writer *w, qr_error *err)
{
    struct sampler s = {0};
    const struct json *rows = json_get(line, "logits");
    int32_t *drafts = NULL, *tokens = NULL;
    int64_t n = -1, cursor;
    qr_status st = sample_read_ids(json_get(line, "drafts"), "drafts", &n, &drafts, err);
    if (st == QR_OK)
        st = sample_read_int(line, "cursor", &cursor, err);
    if (st == QR_OK && (!rows || rows->kind != JSON_ARRAY || rows->count != (size_t)n + 1 || !rows->child))
        st = qr_fail(err, QR_BAD_REQUEST, "logits is no list of %lld rows, one more than drafts", (long long)n + 1);
    if (st == QR_OK)
        st = sampler_open(line, (int64_t)rows->child->count, &s, err);
    if (st == QR_OK)
        st = sample_read_seed(line, &s.params.seed, err);
    if (st == QR_OK && !(tokens = qr_calloc((size_t)n + 1, sizeof *tokens)))
        st = qr_fail(err, QR_NO_MEMORY, "no memory for %lld tokens", (long long)n + 1);
    if (st == QR_OK)
        st = draw_rows(rows, &s, cursor, drafts, n, tokens, err);
    if (st == QR_OK)
        write_match(w, drafts, n, tokens, cursor);
    sampler_close(&s);
    qr_free(drafts);
    qr_free(tokens);
    return st;
}

/* the command */

static const char *const philox_members[] = {"out", NULL};
static const char *const stream_members[] = {"word", "uniform", "uniform_hex", "gumbel", "exponential", NULL};
static const char *const chain_members[] = {"probs", "greedy", "error", NULL};
static const char *const draw_members[] = {"token", "tokens", "margin", NULL};
static const char *const match_members[] = {"row_tokens", "accepted", "emitted", "new_cursor", "new_anchor", NULL};
static const char *const keyed_members[] = {"drafts", "u", "ratio", "block", NULL};
static const char *const law_members[] = {"ratio", "block", NULL};

static const struct sample_kind kinds[] = {
    {"philox", philox_members, philox},
    {"stream", stream_members, stream},
    {"chain", chain_members, chain},
    {"draw", draw_members, draw},
    {"match", match_members, match},
    {"verify_keyed", keyed_members, sample_verify_keyed},
    {"verify_law", law_members, sample_verify_law},
};

const struct sample_kind *sample_kind_find(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

static bool is_computed(const struct sample_kind *kind, const char *member)
{
    for (const char *const *c = kind->computed; *c; c++)
        if (strcmp(*c, member) == 0)
            return true;
    return false;
}

qr_status sample_answer(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    const struct sample_kind *kind = user;
    for (const struct json *m = line->child; m; m = m->next) {
        if (strcmp(m->key, "id") == 0 || is_computed(kind, m->key))
            continue;
        json_w_key(w, m->key);
        json_w_value(w, m);
    }
    return kind->compute(line, w, err);
}

int text_sample(int argc, char **argv)
{
    struct text_options options = TEXT_OPTIONS_DEFAULT;
    const char *name = NULL;
    int status;
    const struct option table[] = {
        TEXT_OPTIONS(options),
        {.name = "kind",
         .kind = OPTION_CHOICE,
         .target = &name,
         .value = "philox|stream|chain|draw|match|verify_keyed|verify_law",
         .help = "what the lines ask"},
        {0},
    };
    struct command_line line = {.command = "text sample",
                                .synopsis = "--kind KIND [--in FILE]",
                                .about = "Answers each line with itself and what sampling makes of it: words of the "
                                         "keyed stream, probabilities, tokens, accepted drafts.",
                                .options = table};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!name)
        return options_wrong(&line, "--kind KIND is missing");
    return text_answer(&options, &line, sample_answer, (void *)(uintptr_t)sample_kind_find(name));
}
