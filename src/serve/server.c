#define _GNU_SOURCE
#include "serve/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "serve/aside.h"
#include "serve/framing.h"
#include "serve/job.h"
#include "serve/members.h"
#include "serve/routes.h"
#include "serve/sleeper.h"
#include "serve/tls.h"

enum {
    THREADS = 4,
    /* Twice the headers that are taken: so far this server says itself, as it says everything, that they are too large; beyond
     * it libmicrohttpd does, in its own words. */
    CONNECTION_MEMORY = 2 * MOST_HEADERS,
    SECONDS_OF_HEADERS = 10,
    SECONDS_OF_BODY = 60,
    CALL_BLOCKS = 16 << 20 /* bytes of calls as they were spelt */
};

enum tongue server_tongue(const struct route *route) { return route ? route->tongue : TONGUE_OPENAI; }

void server_count_answer(struct server *s, const struct route *route, int status) { count_answer(s->counters, route, status); }

void server_make_id(struct server *s, const char *prefix, char *out, size_t size)
{
    const uint64_t n = atomic_fetch_add(&s->next_id, 1);
    snprintf(out, size, "%s%016llx", prefix, (unsigned long long)(n * 0x9E3779B97F4A7C15u)); /* a bijection: none twice */
}

void server_make_call_id(struct server *s, char *out, size_t size)
{
    uint32_t random[3];
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random)
        snprintf(out, size, "call_%08x%08x%08x", random[0], random[1], random[2]);
    else
        server_make_id(s, "call_", out, size);
}

bool server_stuck(const struct server *s, double seconds) { return atomic_load(&s->stuck) > seconds; }

/* Of the keeper: has the engine moved? Answers that rest for their readers are no work. */
static void watch_engine(void *user, double now)
{
    struct server *s = user;
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(s->engine, &m);
    const bool works = m.requests_running - m.requests_paused + m.requests_waiting > 0 && !atomic_load(&s->asleep);
    if (!works || s->steps_since == 0 || m.steps != s->steps)
        s->steps_since = works ? now : 0;
    s->steps = m.steps;
    atomic_store(&s->stuck, works ? now - s->steps_since : 0);
}

/* ---- requests ---- */

/* A client's own id when it is a sane one: up to 63 letters, digits and -_.: */
static void choose_id(struct exchange *x)
{
    static const char sane[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:";
    const char *given = exchange_header(x, "x-request-id");
    if (given && *given && strlen(given) < sizeof x->request_id && strspn(given, sane) == strlen(given))
        snprintf(x->request_id, sizeof x->request_id, "%s", given);
    else
        server_make_id(x->server, "req_", x->request_id, sizeof x->request_id);
}

/* "Bearer KEY", or the header x-api-key. */
static const char *key_of(const struct exchange *x)
{
    const char *given = exchange_header(x, "authorization");
    if (given && strncasecmp(given, "Bearer ", 7) == 0)
        return given + 7 + strspn(given + 7, " ");
    return exchange_header(x, "x-api-key");
}

static bool may_enter(const struct exchange *x, struct refusal *refusal)
{
    const struct server *s = x->server;
    const enum route_door door = x->route->door;
    if (door == DOOR_OPEN || door == DOOR_WELL || (door == DOOR_MODELS && s->settings.open_models))
        return true;
    if (door == DOOR_ADMIN && s->admin_keys.count == 0)
        return refuse(refusal, 403, NULL, NULL, "the server was started without --admin-key-file, nobody may do this");
    if (keys_allow(door == DOOR_ADMIN ? &s->admin_keys : &s->keys, key_of(x)))
        return true;
    return refuse(refusal, 401, "invalid_api_key", NULL, "no API key, or not one of this server's: wanted in the header "
                                                         "Authorization: Bearer KEY or x-api-key: KEY");
}

static bool find_route(struct exchange *x, const char *method, const char *path, struct refusal *refusal)
{
    const char *other = NULL;
    bool known;
    x->route = route_find(method, path, &x->rest, &known, &other);
    if (x->route)
        return true;
    if (known) {
        x->allow = strcmp(other, "GET") == 0 ? "GET, HEAD" : other;
        return refuse(refusal, 405, NULL, NULL, "%.20s %.200s: wanted %s", method, path, other);
    }
    return refuse(refusal, 404, NULL, NULL, "there is no %.200s here", path);
}

static enum MHD_Result answer_options(struct exchange *x) { return exchange_text(x, 204, NULL, "", 0); }

/* A refusal by the headers. Where a body follows it is told at once, which ends the connection; else when the request is
 * over, which does not. */
static enum MHD_Result refuse_early(struct exchange *x, const struct refusal *refusal)
{
    if (exchange_header(x, "content-length") || exchange_header(x, "transfer-encoding"))
        return exchange_refuse(x, refusal);
    x->refused = *refusal;
    return MHD_YES;
}

/* The headers are here. */
static enum MHD_Result meet(struct exchange *x, const char *method, const char *path, const char *version)
{
    struct refusal refusal = {0};
    choose_id(x);
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)SECONDS_OF_BODY);
    if (!framing_check(x, version, &refusal))
        return exchange_refuse(x, &refusal);
    if (strcmp(method, "OPTIONS") == 0)
        return answer_options(x);
    if (!find_route(x, method, path, &refusal))
        return refuse_early(x, &refusal);
    if (!may_enter(x, &refusal))
        return refuse_early(x, &refusal);
    return MHD_YES;
}

/* False: this client does not stop sending. */
static bool take_body(struct exchange *x, const char *data, size_t size)
{
    if (x->body.length + size > MOST_BODY)
        x->too_large = true;
    if (!x->too_large) {
        buffer_append(&x->body, data, size);
        return true;
    }
    x->dropped += size;
    buffer_free(&x->body);
    return x->dropped < MOST_BODY;
}

static enum MHD_Result answer(struct exchange *x)
{
    struct refusal refusal = {0};
    x->asked = true;
    x->whole_at = clock_seconds();
    if (x->refused.status)
        return exchange_refuse(x, &x->refused);
    if (x->too_large)
        refuse(&refusal, 413, NULL, NULL, "the request's body has more than %d bytes", MOST_BODY);
    else if (atomic_load(&x->server->draining) && strcmp(x->route->method, "POST") == 0)
        refuse_ending(&refusal);
    else if (!server_is_loaded(x->server) && x->route->door != DOOR_WELL) {
        refuse(&refusal, 503, "loading", NULL, "the model is being loaded");
        refusal.retry_after = 5;
    }
    if (refusal.status)
        return exchange_refuse(x, &refusal);
    return server_is_loaded(x->server) && aside_takes(x) ? aside_handle(x->server->aside, x) : x->route->handle(x);
}

/* The first line of a request is here; what is returned is the request's state from now on. */
static void *on_line(void *user, const char *uri, struct MHD_Connection *connection)
{
    struct exchange *x = qr_calloc(1, sizeof *x);
    const char *nul = strstr(uri, "%00");
    if (x)
        *x = (struct exchange){.server = user, .connection = connection, .uri_length = strlen(uri),
                               .uri_cut = nul && (size_t)(nul - uri) < strcspn(uri, "?")};
    return x;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *size, void **state)
{
    struct exchange *x = *state;
    (void)user;
    (void)connection;
    if (!x)
        return MHD_NO; /* there was no memory for it */
    if (!x->met) {
        x->met = true;
        return meet(x, method, path, version);
    }
    if (*size) {
        const bool goes_on = take_body(x, data, *size);
        *size = 0;
        return goes_on ? MHD_YES : MHD_NO;
    }
    if (x->asked)
        return x->away ? aside_resume(x) : x->route->resume(x);
    return answer(x);
}

static void on_end(void *user, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *state;
    (void)user;
    (void)connection;
    (void)why;
    if (!x)
        return;
    job_close(x->job);
    change_close(x->change);
    aside_leave(x);
    buffer_free(&x->body);
    qr_free(x);
    *state = NULL;
}

/* ---- life ---- */

static qr_status read_secrets(struct server *s, qr_error *err)
{
    const struct serve_settings *o = &s->settings;
    if (o->api_key_file)
        TRY(keys_read(o->api_key_file, &s->keys, err));
    if (o->admin_key_file)
        TRY(keys_read(o->admin_key_file, &s->admin_keys, err));
    return tls_read(o->tls_certificate, o->tls_key, &s->certificate, &s->certificate_key, err);
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static qr_status read_address(const struct serve_settings *o, union address *out, qr_error *err)
{
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, o->host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)o->port);
    } else if (inet_pton(AF_INET6, o->host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)o->port);
    } else {
        return qr_fail(err, QR_BAD_ARGUMENT, "host: %s is no address, wanted one like 127.0.0.1, 0.0.0.0 or ::1", o->host);
    }
    return QR_OK;
}

/* What libmicrohttpd says while it starts, on the thread that starts it; what it says of connections later is no one's. */
static void on_complaint(void *user, const char *format, va_list args)
{
    struct server *s = user;
    if (!pthread_equal(s->starter, pthread_self()))
        return;
    vsnprintf(s->complaint, sizeof s->complaint, format, args);
    s->complaint[strcspn(s->complaint, "\n")] = '\0';
}

/* Each file holds what it should by now: then they do not belong together, or what is between the lines is none. */
static qr_status refuse_to_listen(const struct server *s, int why, qr_error *err)
{
    const struct serve_settings *o = &s->settings;
    if (o->tls_certificate && why != EADDRINUSE && why != EACCES && why != EADDRNOTAVAIL)
        return qr_fail(err, QR_BAD_FILE, "%s and %s: the certificate and the private key do not belong together, or one of them is damaged (%s)",
                       o->tls_certificate, o->tls_key, s->complaint);
    return qr_fail(err, QR_IO, "cannot listen on %s port %d: %s", o->host, o->port, why ? strerror(why) : s->complaint);
}

static qr_status listen_on(struct server *s, qr_error *err)
{
    union address address;
    TRY(read_address(&s->settings, &address, err));
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (address.any.sa_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, s->certificate},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, s->certificate_key},
                                   {MHD_OPTION_END, 0, NULL}};
    if (s->certificate)
        flags |= MHD_USE_TLS;
    s->starter = pthread_self();
    errno = 0;
    s->daemon = MHD_start_daemon(flags, (uint16_t)s->settings.port, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_complaint, s,
                                 MHD_OPTION_SOCK_ADDR, &address.any, MHD_OPTION_URI_LOG_CALLBACK, on_line, s, MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->settings.most_connections,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)SECONDS_OF_HEADERS, MHD_OPTION_ARRAY, s->certificate ? tls : tls + 2, MHD_OPTION_END);
    return s->daemon ? QR_OK : refuse_to_listen(s, errno, err);
}

int server_port(const struct server *s)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : s->settings.port;
}

qr_status server_suits(const struct serve_settings *settings, const qr_model *model, qr_error *err)
{
    static const char hello[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}";
    qr_chat *chat = NULL;
    const qr_status st = qr_chat_open(model, hello, sizeof hello - 1, &settings->chat, &chat, NULL, err);
    qr_chat_close(chat);
    return st == QR_BAD_ARGUMENT ? st : QR_OK; /* a model that no chat can be had with completes texts */
}

qr_status server_open(const struct serve_settings *settings, struct server *out, qr_error *err)
{
    *out = (struct server){.settings = *settings, .created = (long long)time(NULL)};
    snprintf(out->fingerprint, sizeof out->fingerprint, "quire-%s", qr_version());
    atomic_init(&out->next_id, random_seed());
    out->counters = counters_open();
    qr_status st = out->counters ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for the server");
    if (st == QR_OK)
        st = read_secrets(out, err);
    if (st == QR_OK)
        st = listen_on(out, err);
    if (st != QR_OK)
        server_close(out);
    return st;
}

qr_status server_start(struct server *s, qr_model *model, qr_engine *engine, qr_error *err)
{
    s->model = model;
    s->engine = engine;
    qr_model_get_info(model, &s->info);
    qr_engine_get_plan(engine, &s->plan);
    s->name = s->settings.served_name ? s->settings.served_name : s->info.name;
    TRY(qr_call_blocks_open(CALL_BLOCKS, &s->settings.chat.call_blocks, err));
    TRY(sleeper_open(s, &s->sleeper, err));
    TRY(aside_open(&s->aside, err));
    TRY(keeper_open(watch_engine, s, &s->keeper, err));
    atomic_store(&s->loaded, true);
    return QR_OK;
}

bool server_is_loaded(const struct server *s) { return atomic_load(&s->loaded); }

/* Whether anybody waits for an answer. even_asleep: also for one that cannot be given before it is awake. */
static bool is_owing(struct server *s, bool even_asleep)
{
    if (!even_asleep && atomic_load(&s->asleep))
        return false;
    return keeper_jobs(s->keeper) || aside_exchanges(s->aside) || (even_asleep && sleeper_changes(s->sleeper));
}

static void wait_for_answers(struct server *s, double seconds, bool even_asleep)
{
    const double end = clock_seconds() + seconds;
    while (is_owing(s, even_asleep) && clock_seconds() < end && !atomic_load(&s->hurried))
        usleep(20000);
}

void server_hurry(struct server *s) { atomic_store(&s->hurried, true); }

void server_drain(struct server *s, double seconds)
{
    if (atomic_exchange(&s->draining, true))
        return;
    const MHD_socket listening = MHD_quiesce_daemon(s->daemon);
    if (listening != MHD_INVALID_SOCKET)
        close(listening);
    if (server_is_loaded(s))
        wait_for_answers(s, seconds, false);
}

void server_close(struct server *s)
{
    static const double LAST_WORDS = 5.0; /* for the error events of streams */
    atomic_store(&s->draining, true);
    atomic_store(&s->hurried, false);
    if (s->sleeper)
        sleeper_end(s->sleeper);
    if (s->aside)
        aside_end(s->aside);
    if (server_is_loaded(s)) {
        keeper_abort_all(s->keeper, SHUTS_DOWN);
        wait_for_answers(s, LAST_WORDS, true);
    }
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    if (s->keeper)
        keeper_close(s->keeper);
    sleeper_close(s->sleeper);
    aside_close(s->aside);
    qr_call_blocks_close(s->settings.chat.call_blocks);
    counters_close(s->counters);
    keys_free(&s->keys);
    keys_free(&s->admin_keys);
    qr_free(s->certificate);
    qr_free(s->certificate_key);
    *s = (struct server){.model = NULL};
}
