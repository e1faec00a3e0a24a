/* server.h: `quire serve`: HTTP in front of an engine (protocol.md 4). Built on quire.h alone. */
#ifndef QR_SERVE_SERVER_H
#define QR_SERVE_SERVER_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "serve/counters.h"
#include "serve/keeper.h"
#include "serve/keys.h"
#include "serve/refusal.h"

struct aside;
struct exchange;
struct sleeper;

/* What the operator decides. Strings are the caller's. */
struct serve_settings {
    const char *host;              /* an address, IPv4 or IPv6 */
    int port;                      /* 0: any free one */
    const char *api_key_file, *admin_key_file; /* NULL: everybody; nobody */
    const char *cors;              /* the origin allowed, or "*"; NULL: none */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: plain HTTP */
    const char *served_name;       /* NULL: the folder's last component */
    const char *const *aliases;    /* besides those of protocol.md 4.7 */
    size_t alias_count;
    int most_waiting, most_connections;
    double most_seconds_waiting;   /* 0: any */
    int default_max_tokens;        /* 0: 65,536 with thinking, else 8,192 */
    const char *reasoning_field;   /* "reasoning_content", "reasoning", "both" */
    bool open_models;              /* GET /v1/models needs no key */
    bool vendor_sampling, ignore_server_tools, metrics_alias_vllm;
    bool nonstream_keepalive;      /* answers that are no streams begin with newlines while they are made; always 200 then */
    double drain_seconds;
    qr_chat_options chat;
    const struct qr_log *log;      /* of what requests want and do not get; NULL: nowhere */
};
#define SERVE_SETTINGS_DEFAULT                                                                                         \
    {.host = "127.0.0.1", .port = 8080, .most_waiting = 256, .most_connections = 2048,                                 \
     .reasoning_field = "reasoning_content", .drain_seconds = 30, .chat = QR_CHAT_OPTIONS}

struct server {
    struct serve_settings settings;
    qr_model *model;
    qr_engine *engine;
    qr_model_info info;
    qr_plan_bytes plan;
    const char *name;              /* that is served */
    long long created;             /* when it began, seconds since 1970 */
    char fingerprint[32];
    struct keys keys, admin_keys;
    char *certificate, *certificate_key;
    struct MHD_Daemon *daemon;
    pthread_t starter;             /* the thread that starts it, */
    char complaint[160];           /* and what was said there that is wrong */
    struct keeper *keeper;
    struct sleeper *sleeper;
    struct aside *aside;
    struct counters *counters;
    _Atomic bool loaded;           /* what needs a model or an engine may be asked */
    _Atomic bool draining, hurried;
    _Atomic unsigned asleep;       /* tags of QR_SLEEP_... */
    _Atomic double stuck;          /* seconds that work has waited without a step */
    uint64_t steps;                /* of the keeper's thread: as it last saw them, */
    double steps_since;            /* and since when; 0: no work */
    _Atomic uint64_t next_id;
};

/* Whether a chat of this model can be had with settings->chat, before its weights are loaded. QR_BAD_ARGUMENT: it has no such
 * effort. */
qr_status server_suits(const struct serve_settings *settings, const qr_model *model, qr_error *err);
/* Reads what the settings name and listens, on threads of its own: whatever is wrong with them is told before minutes are spent
 * on weights. Until server_start requests are told that the model is loaded (503). `out` stays at its address. QR_IO: the address
 * cannot be listened on. */
qr_status server_open(const struct serve_settings *settings, struct server *out, qr_error *err);
/* From now on answers, for a model and an engine that outlive it. A failure leaves it for server_close. */
qr_status server_start(struct server *s, qr_model *model, qr_engine *engine, qr_error *err);
bool server_is_loaded(const struct server *s);
int server_port(const struct server *s); /* that it listens on */
/* No new connection, /ready says 503; returns when every answer has been given or `seconds` are over; while it sleeps at once,
 * since no answer goes on. */
void server_drain(struct server *s, double seconds);
/* From any thread: server_drain waits no longer. */
void server_hurry(struct server *s);
/* Ends what is still going on (streams get an error event) and stops. */
void server_close(struct server *s);

/* Whether requests may name the model so (protocol.md 4.7); trailing "/" and "[1m]" are cut. `anthropic`: "claude-..." too. */
bool server_knows(const struct server *s, const char *model, size_t length, bool anthropic);

/* Whether work has waited for so long without a step of the engine. */
bool server_stuck(const struct server *s, double seconds);

/* "chatcmpl-" and a number that nobody has had. */
void server_make_id(struct server *s, const char *prefix, char *out, size_t size);
/* Of a call: "call_" and what nobody guesses. */
void server_make_call_id(struct server *s, char *out, size_t size);

/* The commit that was built, or "unknown". */
extern const char quire_commit[];

enum tongue server_tongue(const struct route *route); /* NULL: OpenAI's */
void server_count_answer(struct server *s, const struct route *route, int status);

#endif
