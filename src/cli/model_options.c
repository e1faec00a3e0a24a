#include "cli/model_options.h"

#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {
    [QR_LOG_ERROR] = "error", [QR_LOG_WARN] = "warn", [QR_LOG_INFO] = "info", [QR_LOG_DEBUG] = "debug"};

static void write_line(void *user, enum qr_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "quire: %s: %s\n", level_names[level], line);
}

struct qr_log model_options_log(const struct model_options *m)
{
    struct qr_log log = {.write = write_line, .level = QR_LOG_ERROR};
    for (int level = QR_LOG_ERROR; !m->quiet && level <= QR_LOG_DEBUG; level++)
        if (strcmp(m->log_level, level_names[level]) == 0)
            log.level = (enum qr_log_level)level;
    return log;
}

int report_failure(const char *command, const qr_error *err)
{
    fflush(stdout);
    fprintf(stderr, "quire %s: %s\n", command, *err->message ? err->message : qr_status_name(err->status));
    return err->status == QR_REFUSED ? 3 : 1;
}
