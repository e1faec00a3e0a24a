/* models.h: configs and plans that several tests start from. Each fails the test when the file is refused. */
#ifndef QR_TESTS_MODELS_H
#define QR_TESTS_MODELS_H

#include "plan/plan.h"

/* The config of a file of the source tree. */
struct qr_config config_of(const char *relative);
/* Its plan under a profile; plan_of: under the reference profile. */
struct model_plan plan_in(enum qr_profile profile, const char *relative);
struct model_plan plan_of(const char *relative);

/* Configs of the released models, written out from the specification's tables. */
#define V41_FLASH "tests/data/config/v41-flash.json"
#define V4_FLASH "tests/data/config/v4-flash.json"
#define V4_PRO "tests/data/config/v4-pro.json"
#define V4_FLASH_DSPARK "tests/data/config/v4-flash-dspark.json"
#define V4_FLASH_BASE "tests/data/config/v4-flash-base.json"

#endif
