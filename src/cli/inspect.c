/* inspect.c: `quire inspect`. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/model_options.h"

int command_inspect(int argc, char **argv)
{
    struct model_options m = MODEL_OPTIONS_DEFAULT;
    bool json = false;
    const struct option options[] = {
        MODEL_OPTIONS(m),
        ENGINE_OPTIONS(m),
        {.name = "json", .kind = OPTION_FLAG, .target = &json, .help = "one JSON object"},
        {0},
    };
    struct command_line line = {.command = "inspect",
                                .synopsis = "--model DIR [OPTION...]",
                                .about = "Says what a checkpoint holds and what it would take: layers, tensors by format, what is "
                                         "missing or unexpected, and every byte of memory. Reads no weight.",
                                .options = options};
    int status;
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!m.model)
        return options_wrong(&line, "--model DIR is missing");

    qr_model_options model = model_options_model(&m);
    qr_engine_options engine = model_options_engine(&m);
    qr_text text;
    qr_error err = {0};
    if (qr_inspect(m.model, &model, &engine, json, &text, &err) != QR_OK)
        return report_failure("inspect", &err);
    fwrite(text.data, 1, text.length, stdout);
    qr_text_free(&text);
    return 0;
}
