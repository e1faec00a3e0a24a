#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/commands.h"
#include "cli/loaded.h"
#include "serve/server.h"

struct serve_options {
    struct model_options model;
    struct serve_settings serve;
    struct option_list aliases;
    const char *thinking;
};

/* Signals that end the server are waited for here; every other thread leaves them alone. */
static int catch_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    return signalfd(-1, signals, SFD_CLOEXEC);
}

static int next_signal(int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) != (ssize_t)sizeof info)
        ;
    return (int)info.ssi_signo;
}

/* Drains on a thread of its own, so that a second signal can cut it short. */
struct drain {
    struct server *server;
    int done[2]; /* a pipe: closed when it is over */
};

static void *drain(void *user)
{
    struct drain *d = user;
    server_drain(d->server, d->server->settings.drain_seconds);
    close(d->done[1]);
    return NULL;
}

static void wait_for_end(struct server *s, int signals, bool quiet)
{
    struct drain d = {.server = s};
    pthread_t thread;
    (void)next_signal(signals);
    if (!quiet)
        fprintf(stderr, "quire serve: no new requests; answers in progress have %g seconds, another signal ends them\n",
                s->settings.drain_seconds);
    if (pipe(d.done) != 0)
        return;
    if (pthread_create(&thread, NULL, drain, &d) != 0) {
        close(d.done[0]);
        close(d.done[1]);
        return;
    }
    struct pollfd either[2] = {{.fd = signals, .events = POLLIN}, {.fd = d.done[0], .events = POLLIN}};
    while (poll(either, 2, -1) < 0)
        ;
    if (either[0].revents)
        server_hurry(s);
    pthread_join(thread, NULL);
    close(d.done[0]);
}

/* A connection is an open file: as many as the system lets this process have. */
static void raise_file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* ---- while the model is loaded ---- */

struct loading_server {
    const struct serve_settings *settings;
    int signals;
    bool ended; /* by one of them, which is left to be read */
};

static qr_status look(void *user, const qr_model *model, qr_error *err)
{
    const struct loading_server *l = user;
    const qr_status st = server_suits(l->settings, model, err);
    return st == QR_BAD_ARGUMENT ? qr_fail_in(err, st, "--default-effort") : st;
}

static bool goes_on(void *user)
{
    struct loading_server *l = user;
    struct pollfd signal = {.fd = l->signals, .events = POLLIN};
    l->ended = poll(&signal, 1, 0) > 0;
    return !l->ended;
}

static qr_status load_and_answer(struct serve_options *o, struct server *server, int signals, struct loaded *l, qr_error *err)
{
    struct loading_server loading = {.settings = &o->serve, .signals = signals};
    const struct load_watch watch = {.look = look, .goes_on = goes_on, .user = &loading};
    qr_status st = loaded_open_watched(&o->model, &watch, l, err);
    if (st == QR_CANCELLED && loading.ended) {
        if (!o->model.quiet)
            fputs("quire serve: ended while the model was loaded\n", stderr);
        return QR_OK;
    }
    if (st == QR_OK)
        st = server_start(server, l->model, l->engine, err);
    if (st != QR_OK)
        return st;
    const char *scheme = o->serve.tls_certificate ? "https" : "http";
    printf(strchr(o->serve.host, ':') ? "%s://[%s]:%d\n" : "%s://%s:%d\n", scheme, o->serve.host, server_port(server));
    fflush(stdout);
    wait_for_end(server, signals, o->model.quiet);
    return QR_OK;
}

static qr_status serve(struct serve_options *o, qr_error *err)
{
    struct loaded l = {0};
    struct server server;
    sigset_t signals;
    const int waiting = catch_signals(&signals);
    if (waiting < 0)
        return qr_fail(err, QR_IO, "cannot wait for signals");
    raise_file_limit();
    if (o->model.max_num_seqs == 0)
        o->model.max_num_seqs = 16;
    o->serve.aliases = o->aliases.items;
    o->serve.alias_count = o->aliases.count;
    o->serve.chat.thinking = o->thinking;
    const struct qr_log log = model_options_log(&o->model);
    o->serve.log = &log;
    qr_status st = server_open(&o->serve, &server, err);
    if (st == QR_OK) {
        st = load_and_answer(o, &server, waiting, &l, err);
        server_close(&server);
    }
    loaded_close(&l);
    close(waiting);
    return st;
}

int command_serve(int argc, char **argv)
{
    struct serve_options o = {.model = MODEL_OPTIONS_DEFAULT, .serve = SERVE_SETTINGS_DEFAULT};
    qr_error err = {0};
    int status;
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        ENGINE_OPTIONS(o.model),
        {.name = "host", .kind = OPTION_STRING, .target = &o.serve.host, .value = "ADDRESS",
         .help = "address to listen on; default 127.0.0.1"},
        {.name = "port", .kind = OPTION_INT, .target = &o.serve.port, .value = "N", .help = "default 8080; 0: any free one",
         .least = 0, .most = 65535},
        {.name = "api-key-file", .kind = OPTION_PATH, .target = &o.serve.api_key_file, .value = "FILE",
         .help = "who may ask: keys, one a line; default: everybody"},
        {.name = "admin-key-file", .kind = OPTION_PATH, .target = &o.serve.admin_key_file, .value = "FILE",
         .help = "who may let it sleep and wake; default: nobody"},
        {.name = "cors", .kind = OPTION_STRING, .target = &o.serve.cors, .value = "ORIGIN",
         .help = "the origin that browsers may ask from, or *; default: none"},
        {.name = "tls-certificate", .kind = OPTION_PATH, .target = &o.serve.tls_certificate, .value = "FILE",
         .help = "PEM; with --tls-key: HTTPS"},
        {.name = "tls-key", .kind = OPTION_PATH, .target = &o.serve.tls_key, .value = "FILE", .help = "PEM"},
        {.name = "served-model-name", .kind = OPTION_STRING, .target = &o.serve.served_name, .value = "NAME",
         .help = "the model's name in answers; default: its folder's"},
        {.name = "alias", .kind = OPTION_LIST, .target = &o.aliases, .value = "NAME",
         .help = "another name that requests may use; may be repeated"},
        {.name = "open-models", .kind = OPTION_FLAG, .target = &o.serve.open_models, .help = "the list of models needs no key"},
        {.name = "max-queue", .kind = OPTION_INT, .target = &o.serve.most_waiting, .value = "N",
         .help = "requests that may wait; default 256", .least = 1, .most = 1 << 20},
        {.name = "max-queue-seconds", .kind = OPTION_DOUBLE, .target = &o.serve.most_seconds_waiting, .value = "S",
         .help = "refuse requests that have waited longer; default: never", .least = 0, .most = 1e9},
        {.name = "max-connections", .kind = OPTION_INT, .target = &o.serve.most_connections, .value = "N", .help = "default 2048",
         .least = 1, .most = 1 << 20},
        {.name = "default-max-tokens", .kind = OPTION_INT, .target = &o.serve.default_max_tokens, .value = "N",
         .help = "of answers whose request does not say; default 65536 with thinking, else 8192", .least = 1, .most = 2147483647},
        {.name = "default-thinking", .kind = OPTION_CHOICE, .target = &o.thinking, .value = "on|off",
         .help = "where a request does not say; default on"},
        {.name = "default-effort", .kind = OPTION_STRING, .target = &o.serve.chat.effort, .value = "LEVEL",
         .help = "minimal, low, medium, high, xhigh, max, ultra, or a number from 1 to 100 where the model has numbers: where a request does not say; default high"},
        {.name = "reasoning-field", .kind = OPTION_CHOICE, .target = &o.serve.reasoning_field, .value = "reasoning_content|reasoning|both",
         .help = "the name of a message's reasoning; default reasoning_content"},
        {.name = "vendor-sampling", .kind = OPTION_FLAG, .target = &o.serve.vendor_sampling,
         .help = "pass over what requests say of sampling while the model thinks"},
        {.name = "ignore-server-tools", .kind = OPTION_FLAG, .target = &o.serve.ignore_server_tools,
         .help = "pass over tools of Anthropic's service in requests instead of refusing them"},
        {.name = "vendor-extensions", .kind = OPTION_FLAG, .target = &o.serve.chat.vendor_extensions,
         .help = "read the vendor's own members of messages"},
        {.name = "lenient-tools", .kind = OPTION_FLAG, .target = &o.serve.chat.lenient_tools,
         .help = "let calls of tools through that are not declared"},
        {.name = "tool-recovery", .kind = OPTION_FLAG, .target = &o.serve.chat.tool_recovery, .help = "read misspelled calls as calls"},
        {.name = "nonstream-keepalive", .kind = OPTION_FLAG, .target = &o.serve.nonstream_keepalive,
         .help = "begin long answers that are no streams with newlines, for clients that give up in silence; their status is 200 always"},
        {.name = "metrics-alias-vllm", .kind = OPTION_FLAG, .target = &o.serve.metrics_alias_vllm,
         .help = "name some metrics as vLLM does, too"},
        {.name = "drain-seconds", .kind = OPTION_DOUBLE, .target = &o.serve.drain_seconds, .value = "S",
         .help = "for answers in progress at the end; default 30", .least = 0, .most = 1e6},
        {0}};
    struct command_line line = {.command = "serve", .synopsis = "--model DIR [--host ADDRESS] [--port N]",
                                .about = "Serves OpenAI's and Anthropic's HTTP APIs. The first line of standard output is its address.",
                                .options = options};
    if (!options_parse(&line, argc, argv, &status))
        return status;
    if (!o.model.model) {
        status = options_wrong(&line, "--model DIR is missing");
    } else {
        const qr_status st = serve(&o, &err);
        status = st == QR_OK ? 0 : report_failure("serve", &err);
    }
    options_free(options);
    return status;
}
