#include "support/models.h"

#include "support/support.h"

struct qr_config config_of(const char *relative)
{
    struct qr_config c;
    qr_error err = {0};
    if (config_read(source_path(relative), &c, &err) != QR_OK)
        fail_msg("%s", err.message);
    return c;
}

struct model_plan plan_in(enum qr_profile profile, const char *relative)
{
    struct qr_config c = config_of(relative);
    struct model_plan p;
    qr_error err = {0};
    if (plan_make(&c, profile, &p, &err) != QR_OK)
        fail_msg("%s", err.message);
    return p;
}

struct model_plan plan_of(const char *relative) { return plan_in(QR_PROFILE_REFERENCE, relative); }
