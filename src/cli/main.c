#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/nearest.h"
#include "quire.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

/* A command gets its line here when it lands. Order: as a newcomer meets them. */
static const struct command commands[] = {
    {"run", command_run, "answer one prompt"},
    {"chat", command_chat, "a conversation"},
    {"serve", command_serve, "an HTTP server with OpenAI's and Anthropic's APIs"},
    {"generate", command_generate, "answer every request of a JSON-lines file"},
    {"eval", command_eval, "negative log likelihood of texts and continuations"},
    {"trace", tool_trace, "a teacher-forced forward, its arrays in a file"},
    {"verify", tool_verify, "check a checkpoint's files, and this build against its reference"},
    {"acceptance", tool_acceptance, "run the acceptance suite of the runtime on a model"},
    {"inspect", command_inspect, "what a checkpoint holds and what it would take"},
    {"bench", tool_bench, "figures of this machine and build beside their bounds"},
    {"op", tool_op, "run one operator on the arrays of a file"},
    {"text", tool_text, "tokenize, detokenize and other JSON-line tools"},
    {"synth", tool_synth, "make an official-format checkpoint with random weights"},
    {"quantize", tool_quantize, "the INT8 deployment checkpoint of an official folder"},
    {NULL, NULL, NULL},
};

static void print_usage(FILE *to)
{
    fprintf(to, "Usage: quire COMMAND [OPTION...]\n"
                "       quire COMMAND --help\n"
                "       quire --version\n"
                "\nRuns DeepSeek-V4-Flash and DeepSeek-V4.1-Flash from the checkpoint as it is published.\n"
                "\nCommands:\n");
    for (const struct command *c = commands; c->name; c++)
        fprintf(to, "  %-10s %s\n", c->name, c->summary);
}

static const struct command *find_command(const char *name)
{
    for (const struct command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int unknown(const char *name)
{
    static const char *const options[] = {"--help", "--version"};
    const char *nearest = options[edit_distance(name, options[1]) < edit_distance(name, options[0])];
    for (const struct command *c = commands; c->name; c++)
        if (name[0] != '-' && (nearest[0] == '-' || edit_distance(name, c->name) < edit_distance(name, nearest)))
            nearest = c->name;
    fprintf(stderr, "quire: unknown %s %s%s\nTry 'quire --help'.\n", name[0] == '-' ? "option" : "command", name,
            nearest_hint(name, nearest).text);
    return 2;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0 && argc > 2) {
        fprintf(stderr, "quire: argument \"%s\" is one too many\nTry 'quire --help'.\n", argv[2]);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("quire %s\n", qr_version());
        return 0;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_usage(stdout);
        return 0;
    }
    const char *name = argv[help ? 2 : 1];
    const struct command *c = find_command(name);
    if (!c)
        return unknown(name);
    if (help)
        return c->run(2, (char *[]){argv[2], "--help", NULL});
    return c->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is a failed write, said in a sentence */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that grows beyond its limit */
    int status = dispatch(argc, argv);
    /* A full disk or a closed pipe must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        fprintf(stderr, "quire: standard output: %s\n", strerror(errno));
        return 1;
    }
    return status;
}
