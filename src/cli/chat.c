#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "cli/chat_log.h"
#include "cli/commands.h"
#include "cli/display.h"
#include "cli/lines.h"
#include "cli/loaded.h"
#include "cli/sampling_options.h"

struct chat_program {
    struct model_options model;
    struct sampling_options sampling;
    const char *think, *tools;
    struct loaded loaded;
    struct chat_log log;
    char *tools_text;
    struct lines lines;
    int64_t failed;     /* lines that could not be done */
};

/* ---- one turn ---- */

/* Tokens that an answer should have room for. */
static size_t room_for_answer(int32_t max_model_len)
{
    enum { ROOM = 64 };
    return max_model_len / 8 < ROOM ? (size_t)max_model_len / 8 : ROOM;
}

/* Says that the context is full; whether the oldest turns may go. */
static bool may_drop(struct chat_program *p, int32_t max_model_len)
{
    fflush(stdout);
    fprintf(stderr, "The context of %d tokens is full.\n", max_model_len);
    return lines_yes(&p->lines, "Drop the oldest turns? [Y/n] ");
}

/* Renders the conversation; while it leaves no room for an answer the oldest turns go, if the user agrees. */
static qr_status render(struct chat_program *p, qr_prompt *prompt, qr_error *err)
{
    qr_plan_bytes plan;
    bool agreed = false;
    qr_engine_get_plan(p->loaded.engine, &plan);
    for (;;) {
        qr_status st = chat_log_render(&p->log, p->loaded.model, p->think, p->tools_text, prompt, err);
        if (st != QR_OK || prompt->tokens.count + room_for_answer(plan.max_model_len) <= (size_t)plan.max_model_len)
            return st;
        const size_t count = prompt->tokens.count;
        qr_prompt_free(prompt);
        if (chat_log_turns(&p->log) < 3)
            return qr_fail(err, QR_BAD_REQUEST, "the message has %zu tokens, the context holds %d with the answer", count,
                           plan.max_model_len);
        agreed = agreed || may_drop(p, plan.max_model_len);
        if (!agreed)
            return qr_fail(err, QR_BAD_REQUEST, "the context is full: /save the conversation, or start anew with /new");
        chat_log_drop_oldest(&p->log);
    }
}

static qr_status turn(struct chat_program *p, const char *text, qr_error *err)
{
    qr_prompt prompt = {0};
    struct request_text request = {0};
    struct answer answer = {0};
    uint64_t seed;
    if (!chat_log_add(&p->log, "user", text, strlen(text), NULL))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the message");
    qr_status st = render(p, &prompt, err);
    struct display display;
    const bool reasoning = prompt.starts_in_reasoning;
    if (st == QR_OK)
        st = request_from_options(p->loaded.model, &p->sampling, &prompt.tokens, &request, &seed, err);
    if (st == QR_OK) {
        interrupt_taken();
        display_open(&display, reasoning);
        st = loaded_answer(&p->loaded, &request.request, display_show, &display, &answer, err);
        display_close(&display);
    }
    if (st == QR_OK) {
        const char *raw = answer.text.data ? answer.text.data : "";
        const char *end = reasoning ? strstr(raw, display_end_of_reasoning) : NULL;
        const char *content = end ? end + strlen(display_end_of_reasoning) : reasoning ? "" : raw;
        char *thought = reasoning ? qr_strndup(raw, end ? (size_t)(end - raw) : strlen(raw)) : NULL;
        if (!chat_log_add(&p->log, "assistant", content, strlen(content), thought))
            st = qr_fail(err, QR_NO_MEMORY, "no memory for the answer");
        qr_free(thought);
        if (!p->model.quiet)
            print_usage_line(&answer);
    } else {
        chat_log_drop_newest(&p->log); /* the message is not part of the conversation */
    }
    buffer_free(&answer.text);
    request_text_free(&request);
    qr_prompt_free(&prompt);
    return st;
}

/* ---- commands ---- */

static void print_help(void)
{
    puts("/help             this list\n"
         "/system TEXT      set the system message; without TEXT: show it\n"
         "/think LEVEL      off, low, high or max; without LEVEL: show it\n"
         "/save FILE        write the conversation as JSON\n"
         "/load FILE        go on with a saved conversation\n"
         "/new              forget the conversation\n"
         "/quit             leave (also end of input)\n"
         "An interrupt stops the answer in progress.");
}

static qr_status set_think(struct chat_program *p, const char *level, qr_error *err)
{
    static const char *const levels[] = {"off", "low", "high", "max"};
    if (!*level) {
        printf("think: %s\n", p->think ? p->think : "the model's default");
        return QR_OK;
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (strcmp(level, levels[i]) == 0) {
            p->think = levels[i];
            return QR_OK;
        }
    return qr_fail(err, QR_BAD_ARGUMENT, "/think %s: wanted off, low, high or max", level);
}

/* Does what a line that begins with a slash says; *leave for /quit. */
static qr_status obey(struct chat_program *p, char *line, bool *leave, qr_error *err)
{
    const size_t length = strcspn(line, " \t");
    const char *argument = line + length + strspn(line + length, " \t");
    line[length] = 0;
    if (strcmp(line, "/help") == 0)
        print_help();
    else if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        *leave = true;
    else if (strcmp(line, "/new") == 0)
        chat_log_clear(&p->log);
    else if (strcmp(line, "/think") == 0)
        return set_think(p, argument, err);
    else if (strcmp(line, "/system") == 0 && !*argument)
        printf("system: %s\n", p->log.system ? p->log.system : "none");
    else if (strcmp(line, "/system") == 0)
        return chat_log_system(&p->log, argument, err);
    else if (strcmp(line, "/save") == 0)
        return *argument ? chat_log_save(&p->log, argument, err)
                         : qr_fail(err, QR_BAD_ARGUMENT, "/save: the file's name is missing");
    else if (strcmp(line, "/load") == 0)
        return *argument ? chat_log_load(&p->log, argument, err)
                         : qr_fail(err, QR_BAD_ARGUMENT, "/load: the file's name is missing");
    else
        return qr_fail(err, QR_BAD_ARGUMENT, "%s is no command; /help lists them", line);
    return QR_OK;
}

static void greet(const struct chat_program *p)
{
    qr_model_info info;
    qr_model_get_info(p->loaded.model, &info);
    printf("%s (%s). /help for help.\n", info.name, info.family);
}

static void converse(struct chat_program *p)
{
    bool leave = false;
    char *line;
    lines_open(&p->lines);
    if (p->lines.terminal && !p->model.quiet)
        greet(p);
    while (!leave && (line = lines_next(&p->lines, "> "))) {
        qr_error err = {0};
        qr_status st = QR_OK;
        interrupt_taken();
        if (line[0] == '/')
            st = obey(p, line, &leave, &err);
        else if (*line)
            st = turn(p, line, &err);
        if (st != QR_OK) {
            p->failed++;
            fflush(stdout);
            fprintf(stderr, "quire chat: %s\n", err.message);
        }
        free(line);
    }
    if (p->lines.terminal && !leave)
        putchar('\n');
    lines_close(&p->lines);
}

static qr_status start(struct chat_program *p, const char *system, qr_error *err)
{
    size_t size;
    qr_status st = p->tools ? file_read(p->tools, 1 << 26, &p->tools_text, &size, err) : QR_OK;
    if (st == QR_OK && system)
        st = chat_log_system(&p->log, system, err);
    if (st == QR_OK)
        st = loaded_open(&p->model, &p->loaded, err);
    if (st == QR_OK) {
        interrupt_catch();
        converse(p);
    }
    return st;
}

int command_chat(int argc, char **argv)
{
    struct chat_program p = {.model = MODEL_OPTIONS_DEFAULT, .sampling = SAMPLING_OPTIONS_DEFAULT};
    const char *system = NULL;
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(p.model),
        ENGINE_OPTIONS(p.model),
        SAMPLING_OPTIONS(p.sampling),
        {.name = "system", .kind = OPTION_STRING, .target = &system, .value = "TEXT", .help = "the system message"},
        {.name = "think", .kind = OPTION_CHOICE, .target = &p.think, .value = "off|low|high|max",
         .help = "think before the answer, and how hard"},
        {.name = "tools", .kind = OPTION_PATH, .target = &p.tools, .value = "FILE", .help = "JSON list of tools"},
        {0}};
    struct command_line line = {.command = "chat", .synopsis = "--model DIR",
                                .about = "A conversation. /help inside lists its commands. Off a terminal every line of the input is "
                                         "a message or a command, and the status is 1 when one of them failed.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!p.model.model) {
        status = options_wrong(&line, "--model DIR is missing");
    } else {
        qr_status st = start(&p, system, &err);
        status = st == QR_OK ? !p.lines.terminal && p.failed > 0 : report_failure("chat", &err);
        loaded_close(&p.loaded);
    }
    qr_free(p.tools_text);
    chat_log_free(&p.log);
    options_free(options);
    return status;
}
