#include "tools/text.h"

#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/nearest.h"

struct part {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct part parts[] = {
    {"tokenize", text_tokenize, "{id, text | bytes_hex} -> {id, ids}"},
    {"detokenize", text_detokenize, "{id, ids} -> {id, text}"},
    {"render", text_render, "{id, members of a chat request} -> {id, prompt, ids, ...}"},
    {"parse", text_parse, "{id, ids, start, tools, ...} -> {id, reasoning, content, tool_calls, finish_reason}"},
    {"sample", text_sample, "sampling cases, completed"},
    {NULL, NULL, NULL},
};

static void print_usage(FILE *to)
{
    fprintf(to, "Usage: quire text PART [--tokenizer DIR] [--in FILE] [OPTION...]\n"
                "       quire text PART --help\n"
                "\nReads JSON lines and writes one JSON line for each; what cannot be done becomes {id, error}.\n"
                "\nParts:\n");
    for (const struct part *p = parts; p->name; p++)
        fprintf(to, "  %-10s %s\n", p->name, p->summary);
}

static int unknown_part(const char *name)
{
    const char *nearest = parts[0].name;
    for (const struct part *p = parts; p->name; p++)
        if (edit_distance(name, p->name) < edit_distance(name, nearest))
            nearest = p->name;
    fprintf(stderr, "quire text: unknown %s %s%s\nTry 'quire text --help'.\n", name[0] == '-' ? "option" : "part", name,
            nearest_hint(name, nearest).text);
    return 2;
}

int tool_text(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return 0;
    }
    for (const struct part *p = parts; p->name; p++)
        if (strcmp(p->name, argv[1]) == 0)
            return p->run(argc - 1, argv + 1);
    return unknown_part(argv[1]);
}

static struct qr_log log_of(const struct text_options *options)
{
    struct model_options m = MODEL_OPTIONS_DEFAULT;
    m.log_level = options->log_level;
    m.quiet = options->quiet;
    return model_options_log(&m);
}

bool text_open_tokenizer(const struct text_options *options, const struct command_line *line, struct tokenizer **out,
                         int *status)
{
    qr_error err = {0};
    struct qr_log log = log_of(options);
    *out = NULL;
    if (!options->tokenizer) {
        *status = options_wrong(line, "--tokenizer DIR is missing");
        return false;
    }
    if (tok_open(options->tokenizer, &log, out, &err) == QR_OK)
        return true;
    *status = report_failure(line->command, &err);
    return false;
}

int text_answer(const struct text_options *options, const struct command_line *line, answer_line answer, void *user)
{
    qr_error err = {0};
    qr_status st = answer_files(options->in, options->out, answer, user, &err);
    return st == QR_OK ? 0 : report_failure(line->command, &err);
}

int text_part(struct text_options *options, struct command_line *line, int argc, char **argv, struct tokenizer **tok,
              answer_line answer, void *user)
{
    int status;
    if (!options_parse(line, argc, argv, &status) || !text_open_tokenizer(options, line, tok, &status))
        return status;
    status = text_answer(options, line, answer, user);
    tok_close(*tok);
    return status;
}

qr_status text_read_ids(const struct json *array, const char *member, struct tok_ids *ids, qr_error *err)
{
    if (!array || array->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "%s is no list of ids", member);
    for (const struct json *e = array->child; e; e = e->next) {
        int64_t id;
        if (!json_int64(e, &id) || id < 0 || id > INT32_MAX)
            return qr_fail(err, QR_BAD_REQUEST, "%s holds something that is no id", member);
        if (!tok_ids_push(ids, (int32_t)id))
            return qr_fail(err, QR_NO_MEMORY, "no memory for %zu ids", array->count);
    }
    return QR_OK;
}

void text_write_ids(struct json_writer *w, const char *key, const struct tok_ids *ids)
{
    json_w_key(w, key);
    json_w_array(w);
    for (size_t i = 0; i < ids->count; i++)
        json_w_int(w, ids->data[i]);
    json_w_end_array(w);
}
