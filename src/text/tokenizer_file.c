#include "text/tokenizer_file.h"

#include <string.h>

#include "text/byte_map.h"
#include "text/utf8.h"

enum { PUBLISHED_BASE_COUNT = 128000 };
/* How many entries ahead the slots of strings are fetched: without it loading mostly waits for memory. */
enum { AHEAD = 8 };

static bool is_absent(const struct json *value) { return !value || value->kind == JSON_NULL; }

static bool is_false(const struct json *value)
{
    return is_absent(value) || (value->kind == JSON_BOOL && !value->boolean);
}

static bool is_type(const struct json *value, const char *type) { return json_equals(json_get(value, "type"), type); }

/* What a value is, for a message: a string's or number's text, else its kind. */
static const char *described(const struct json *value)
{
    static const char *const kinds[] = {"null", "a boolean", "a number", "a string", "a list", "an object"};
    if (!value)
        return "absent";
    if (value->kind == JSON_BOOL)
        return value->boolean ? "true" : "false";
    if (value->kind == JSON_STRING || value->kind == JSON_NUMBER)
        return value->text;
    return kinds[value->kind];
}

static qr_status refuse(qr_error *err, const char *what, const struct json *found, const char *wanted)
{
    return qr_fail(err, QR_BAD_FILE, "%s is %.100s, only %s is supported", what, described(found), wanted);
}

/* ---- settings around the model ---- */

static qr_status check_split(const struct json *split, struct split_pattern *pattern, qr_error *err)
{
    const struct json *regex = json_get(json_get(split, "pattern"), "Regex");
    if (!is_type(split, "Split"))
        return refuse(err, "a pre_tokenizer", json_get(split, "type"), "three Split and one ByteLevel");
    if (!regex || regex->kind != JSON_STRING)
        return qr_fail(err, QR_BAD_FILE, "a Split has no pattern.Regex");
    if (!json_equals(json_get(split, "behavior"), "Isolated"))
        return refuse(err, "Split.behavior", json_get(split, "behavior"), "Isolated");
    if (!is_false(json_get(split, "invert")))
        return refuse(err, "Split.invert", json_get(split, "invert"), "false");
    *pattern = (struct split_pattern){regex->text, regex->length};
    return QR_OK;
}

static qr_status check_pre_tokenizer(const struct json *pre, struct split_pattern *patterns, qr_error *err)
{
    const struct json *list = json_get(pre, "pretokenizers");
    if (!is_type(pre, "Sequence"))
        return refuse(err, "pre_tokenizer.type", json_get(pre, "type"), "Sequence");
    if (!list || list->kind != JSON_ARRAY || list->count != REGEX_SPLIT_PASSES + 1)
        return qr_fail(err, QR_BAD_FILE,
                       "pre_tokenizer has %zu members, only three Split and one ByteLevel are supported",
                       list ? list->count : 0);
    for (size_t i = 0; i < REGEX_SPLIT_PASSES; i++) {
        qr_status st = check_split(json_at(list, i), &patterns[i], err);
        if (st != QR_OK)
            return st;
    }
    const struct json *bytes = json_at(list, REGEX_SPLIT_PASSES), *use_regex = json_get(bytes, "use_regex");
    if (!is_type(bytes, "ByteLevel"))
        return refuse(err, "the last pre_tokenizer", json_get(bytes, "type"), "ByteLevel");
    if (!is_false(json_get(bytes, "add_prefix_space")))
        return refuse(err, "ByteLevel.add_prefix_space", json_get(bytes, "add_prefix_space"), "false");
    if (is_absent(use_regex) || !is_false(use_regex)) /* absent means true */
        return refuse(err, "ByteLevel.use_regex", use_regex, "false");
    return QR_OK;
}

static qr_status check_settings(const struct json *root, struct split_pattern *patterns, qr_error *err)
{
    const struct json *normalizer = json_get(root, "normalizer"), *after = json_get(root, "post_processor");
    if (root->kind != JSON_OBJECT)
        return qr_fail(err, QR_BAD_FILE, "not a JSON object");
    if (!is_absent(json_get(root, "truncation")))
        return refuse(err, "truncation", json_get(root, "truncation"), "null");
    if (!is_absent(json_get(root, "padding")))
        return refuse(err, "padding", json_get(root, "padding"), "null");
    if (!is_absent(normalizer)) {
        const struct json *list = json_get(normalizer, "normalizers");
        if (!is_type(normalizer, "Sequence") || !list || list->kind != JSON_ARRAY || list->count)
            return refuse(err, "normalizer", json_get(normalizer, "type"), "an empty Sequence");
    }
    if (!is_absent(after) && !is_type(after, "ByteLevel"))
        return refuse(err, "post_processor.type", json_get(after, "type"), "ByteLevel");
    if (!is_type(json_get(root, "decoder"), "ByteLevel"))
        return refuse(err, "decoder.type", json_get(json_get(root, "decoder"), "type"), "ByteLevel");
    return check_pre_tokenizer(json_get(root, "pre_tokenizer"), patterns, err);
}

static qr_status check_model(const struct json *model, qr_error *err)
{
    static const char *const nulls[] = {"dropout", "unk_token"};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const falses[] = {"fuse_unk", "byte_fallback"};
    if (!is_type(model, "BPE"))
        return refuse(err, "model.type", json_get(model, "type"), "BPE");
    for (int i = 0; i < 2; i++) {
        const struct json *affix = json_get(model, affixes[i]);
        if (!is_absent(json_get(model, nulls[i])))
            return refuse(err, nulls[i], json_get(model, nulls[i]), "null");
        if (!is_absent(affix) && !json_equals(affix, ""))
            return refuse(err, affixes[i], affix, "null");
        if (!is_false(json_get(model, falses[i])))
            return refuse(err, falses[i], json_get(model, falses[i]), "false");
    }
    return QR_OK;
}

/* ---- vocabulary ---- */

/* The child that is AHEAD places behind the first, or NULL. */
static const struct json *child_ahead(const struct json *list)
{
    const struct json *child = list->child;
    for (int i = 0; i < AHEAD && child; i++)
        child = child->next;
    return child;
}

static qr_status read_vocab(const struct json *vocab, struct tokenizer_file *out, qr_error *err)
{
    if (!vocab || vocab->kind != JSON_OBJECT || vocab->count == 0)
        return qr_fail(err, QR_BAD_FILE, "model.vocab is no object with entries");
    if (!vocab_reserve(&out->vocab, vocab->count))
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu tokens", vocab->count);
    const struct json *ahead = child_ahead(vocab);
    for (const struct json *e = vocab->child; e; e = e->next) {
        int64_t id;
        if (ahead) {
            vocab_expect(&out->vocab, ahead->key, ahead->key_length);
            ahead = ahead->next;
        }
        if (!json_int64(e, &id) || id < 0 || id > VOCAB_MAX_ID)
            return qr_fail(err, QR_BAD_FILE, "model.vocab: \"%.100s\" has id %.100s, wanted an integer of 0 to %d",
                           e->key, described(e), VOCAB_MAX_ID);
        qr_status st = vocab_add(&out->vocab, (int32_t)id, e->key, e->key_length, VOCAB_BASE, err);
        if (st != QR_OK)
            return qr_fail_in(err, st, "model.vocab");
    }
    out->base_count = (int32_t)vocab->count;
    return QR_OK;
}

static qr_status read_bytes(struct tokenizer_file *out, qr_error *err)
{
    for (int byte = 0; byte < 256; byte++) {
        char character[4];
        size_t length = utf8_encode(byte_map_character((uint8_t)byte), (uint8_t *)character);
        int32_t id = vocab_find(&out->vocab, character, length);
        if (id < 0)
            return qr_fail(err, QR_BAD_FILE, "model.vocab has no token for byte %02X", byte);
        if (out->vocab.entries[id].kind != VOCAB_BASE)
            return qr_fail(err, QR_BAD_FILE, "the token %d of byte %02X is an added one; plain text would yield it", id,
                           byte);
        out->bpe.byte_id[byte] = id;
    }
    return QR_OK;
}

/* ---- added tokens ---- */

/* An added token that is in the vocabulary has its id there; the others follow the vocabulary in the list's order. */
static qr_status check_added_id(const struct json *token, const char *content, int32_t wanted, bool is_known,
                                qr_error *err)
{
    const struct json *id = json_get(token, "id");
    int64_t value;
    if (!json_int64(id, &value))
        return qr_fail(err, QR_BAD_FILE, "\"%.100s\" has id %.100s, wanted an integer", content, described(id));
    if (value != wanted)
        return qr_fail(err, QR_BAD_FILE, "\"%.100s\" has id %lld, but %s gives %d", content, (long long)value,
                       is_known ? "model.vocab" : "its place in the list", wanted);
    return QR_OK;
}

static qr_status read_added_token(const struct json *token, int32_t *expected, struct vocab *vocab, qr_error *err)
{
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    const struct json *content = json_get(token, "content"), *special = json_get(token, "special");
    if (!content || content->kind != JSON_STRING || content->length == 0)
        return qr_fail(err, QR_BAD_FILE, "a token's content is %.100s, wanted text", described(content));
    for (int i = 0; i < 3; i++)
        if (!is_false(json_get(token, refused[i])))
            return qr_fail(err, QR_BAD_FILE, "\"%.100s\": %s is %.100s, only false is supported", content->text,
                           refused[i], described(json_get(token, refused[i])));
    int32_t known = vocab_find(vocab, content->text, content->length);
    if (known >= 0 && vocab->entries[known].kind != VOCAB_BASE)
        return qr_fail(err, QR_BAD_FILE, "\"%.100s\" is listed twice", content->text);
    int32_t id = known >= 0 ? known : *expected;
    qr_status st = check_added_id(token, content->text, id, known >= 0, err);
    if (st != QR_OK)
        return st;
    enum vocab_kind kind = is_false(special) ? VOCAB_ADDED : VOCAB_SPECIAL;
    if (known >= 0) {
        vocab_promote(vocab, id, kind);
        return QR_OK;
    }
    (*expected)++;
    return vocab_add(vocab, id, content->text, content->length, kind, err);
}

static qr_status read_added(const struct json *list, struct tokenizer_file *out, qr_error *err)
{
    int32_t expected = out->base_count;
    if (is_absent(list))
        return QR_OK;
    if (list->kind != JSON_ARRAY)
        return refuse(err, "added_tokens", list, "a list");
    for (const struct json *token = list->child; token; token = token->next) {
        qr_status st = read_added_token(token, &expected, &out->vocab, err);
        if (st != QR_OK)
            return qr_fail_in(err, st, "added_tokens");
    }
    return QR_OK;
}

/* The names that V4 and V4.1 share, at the ids of the published vocabulary (1.6). */
static qr_status check_published_ids(const struct tokenizer_file *file, qr_error *err)
{
    static const struct {
        const char *name;
        int32_t id;
    } known[] = {
        {"<｜begin▁of▁sentence｜>", 0},
        {"<｜end▁of▁sentence｜>", 1},
        {"<｜▁pad▁｜>", 2},
        {"<｜System｜>", 128799},
        {"<｜User｜>", 128803},
        {"<｜Assistant｜>", 128804},
        {"<|EOT|>", 128805},
        {"<think>", 128821},
        {"</think>", 128822},
        {"｜DSML｜", 128825},
        {"<｜latest_reminder｜>", 128828},
        {"<｜deepseek_image｜>", 129264},
    };
    if (file->base_count != PUBLISHED_BASE_COUNT)
        return QR_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int32_t id = vocab_find(&file->vocab, known[i].name, strlen(known[i].name));
        if (id >= 0 && id != known[i].id)
            return qr_fail(err, QR_BAD_FILE, "\"%s\" is token %d, in the published vocabulary it is %d", known[i].name,
                           id, known[i].id);
    }
    return QR_OK;
}

/* ---- merges ---- */

/* The two halves of a merge, written "left right" or ["left", "right"]. */
static bool halves_of(const struct json *merge, struct json *left, struct json *right)
{
    if (merge->kind == JSON_ARRAY && merge->count == 2) {
        *left = *merge->child;
        *right = *merge->child->next;
        return left->kind == JSON_STRING && right->kind == JSON_STRING;
    }
    if (merge->kind != JSON_STRING)
        return false;
    const char *space = memchr(merge->text, ' ', merge->length);
    if (!space || memchr(space + 1, ' ', merge->length - (size_t)(space + 1 - merge->text)))
        return false;
    left->text = merge->text;
    left->length = (size_t)(space - merge->text);
    right->text = space + 1;
    right->length = merge->length - left->length - 1;
    return true;
}

static void expect_halves(const struct vocab *vocab, const struct json *merge)
{
    struct json half[2] = {{0}, {0}};
    if (!halves_of(merge, &half[0], &half[1]))
        return;
    vocab_expect(vocab, half[0].text, half[0].length);
    vocab_expect(vocab, half[1].text, half[1].length);
}

/* Merge number `rank`. *id is the token that the merge before it makes, and becomes the one that this makes: files list
 * both in one order. */
static qr_status read_merge(const struct json *merge, uint32_t rank, struct buffer *joined, int32_t *id,
                            struct tokenizer_file *out, qr_error *err)
{
    struct json half[2] = {{0}, {0}};
    int32_t ids[2];
    if (!halves_of(merge, &half[0], &half[1]))
        return qr_fail(err, QR_BAD_FILE, "not two strings");
    buffer_clear(joined);
    for (int i = 0; i < 2; i++) {
        ids[i] = vocab_find(&out->vocab, half[i].text, half[i].length);
        if (ids[i] < 0)
            return qr_fail(err, QR_BAD_FILE, "\"%.*s\" is not in model.vocab",
                           half[i].length < 200 ? (int)half[i].length : 200, half[i].text);
        buffer_append(joined, half[i].text, half[i].length);
    }
    if (joined->failed)
        return qr_fail(err, QR_NO_MEMORY, "no memory for it");
    *id = vocab_find_likely(&out->vocab, joined->data, joined->length, *id + 1);
    if (*id < 0)
        return qr_fail(err, QR_BAD_FILE, "\"%.200s\" is not in model.vocab", joined->data);
    if (out->vocab.entries[*id].kind != VOCAB_BASE)
        return qr_fail(err, QR_BAD_FILE, "it makes the added token \"%.200s\"; plain text would yield it",
                       joined->data);
    int64_t earlier = bpe_add(&out->bpe, ids[0], ids[1], rank, *id);
    if (earlier >= 0)
        return qr_fail(err, QR_BAD_FILE, "the same as merge %lld", (long long)earlier);
    return QR_OK;
}

static qr_status read_merges(const struct json *merges, struct tokenizer_file *out, qr_error *err)
{
    uint32_t rank = 0;
    int32_t id = 0;
    qr_status st = QR_OK;
    struct buffer joined = {0};
    if (!merges || merges->kind != JSON_ARRAY || merges->count >= UINT32_MAX)
        return refuse(err, "model.merges", merges, "a list");
    if (!bpe_reserve(&out->bpe, merges->count))
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu merges", merges->count);
    const struct json *ahead = child_ahead(merges);
    for (const struct json *merge = merges->child; merge && st == QR_OK; merge = merge->next, rank++) {
        if (ahead) {
            expect_halves(&out->vocab, ahead);
            ahead = ahead->next;
        }
        if ((st = read_merge(merge, rank, &joined, &id, out, err)) != QR_OK)
            qr_fail_in(err, st, "merge %u", rank);
    }
    buffer_free(&joined);
    return st;
}

static qr_status read_ids(const struct json *root, struct tokenizer_file *out, qr_error *err)
{
    qr_status st;
    if ((st = read_vocab(json_get(json_get(root, "model"), "vocab"), out, err)) != QR_OK ||
        (st = read_added(json_get(root, "added_tokens"), out, err)) != QR_OK)
        return st;
    return check_published_ids(out, err);
}

static qr_status read_all(const struct json *root, struct tokenizer_file *out, qr_error *err)
{
    const struct json *model = json_get(root, "model"), *ignore = json_get(model, "ignore_merges");
    qr_status st;
    if ((st = check_settings(root, out->patterns, err)) != QR_OK || (st = check_model(model, err)) != QR_OK)
        return st;
    if (!is_absent(ignore) && ignore->kind != JSON_BOOL)
        return refuse(err, "model.ignore_merges", ignore, "true or false");
    out->ignore_merges = !is_false(ignore);
    if ((st = read_ids(root, out, err)) != QR_OK || (st = read_bytes(out, err)) != QR_OK)
        return st;
    return read_merges(json_get(model, "merges"), out, err);
}

qr_status tokenizer_file_read(const struct json *root, const char *name, bool ids_only, struct tokenizer_file *out,
                              qr_error *err)
{
    *out = (struct tokenizer_file){0};
    qr_status st = ids_only ? read_ids(root, out, err) : read_all(root, out, err);
    if (st == QR_OK)
        return QR_OK;
    tokenizer_file_free(out);
    return qr_fail_in(err, st, "%s", name);
}

void tokenizer_file_free(struct tokenizer_file *file)
{
    vocab_free(&file->vocab);
    bpe_free(&file->bpe);
    *file = (struct tokenizer_file){0};
}
