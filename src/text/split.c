#include "text/split.h"

#include <string.h>

static bool are_known(const struct split_pattern *patterns)
{
    for (int i = 0; i < REGEX_SPLIT_PASSES; i++)
        if (patterns[i].length != strlen(scan_patterns[i]) ||
            memcmp(patterns[i].text, scan_patterns[i], patterns[i].length) != 0)
            return false;
    return true;
}

qr_status split_open(const struct split_pattern patterns[REGEX_SPLIT_PASSES], enum split_engine engine,
                     const char *name, const struct qr_log *log, struct splitter *out, qr_error *err)
{
    bool known = are_known(patterns);
    *out = (struct splitter){0};
    if (known && engine == SPLIT_AUTO)
        return char_classes_open(&out->classes, err);
    if (!known)
        qr_logf(log, QR_LOG_WARN, "%s: its split patterns are not the known ones; a regex engine splits by them", name);
    qr_status st = regex_split_open(patterns, &out->regex, err);
    return st == QR_OK ? QR_OK : qr_fail_in(err, st, "%s", name);
}

void split_close(struct splitter *splitter)
{
    char_classes_free(splitter->classes);
    regex_split_free(splitter->regex);
    *splitter = (struct splitter){0};
}

qr_status split_start(const struct splitter *splitter, const uint8_t *text, size_t n, struct split_cursor *out,
                      qr_error *err)
{
    *out = (struct split_cursor){.splitter = splitter, .text = text, .n = n};
    return splitter->classes ? QR_OK : regex_cursor_open(splitter->regex, text, n, &out->regex, err);
}

qr_status split_next(struct split_cursor *c, size_t *from, size_t *to, qr_error *err)
{
    *from = *to = c->at;
    if (c->at == c->n)
        return QR_OK;
    if (c->splitter->classes) {
        *to = scan_piece(c->splitter->classes, c->text, c->n, c->at);
    } else {
        qr_status st = regex_cursor_next(c->regex, to, err);
        if (st != QR_OK)
            return st;
    }
    c->at = *to;
    return QR_OK;
}

void split_finish(struct split_cursor *cursor)
{
    regex_cursor_free(cursor->regex);
    *cursor = (struct split_cursor){0};
}
