/* log.h: the library's messages go to the caller's function or nowhere. */
#ifndef QR_BASE_LOG_H
#define QR_BASE_LOG_H

enum qr_log_level { QR_LOG_ERROR, QR_LOG_WARN, QR_LOG_INFO, QR_LOG_DEBUG };

/* `write` may be called from any thread of the library. A NULL struct or a NULL `write` drops everything. A line
 * is one line whatever it quotes (sentence.h). */
struct qr_log {
    void (*write)(void *user, enum qr_log_level level, const char *line);
    void *user;
    enum qr_log_level level;
};

void qr_logf(const struct qr_log *log, enum qr_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
