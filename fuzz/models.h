/* models.h: what fuzz targets read of models/tiny-v41, once for all their executions. They run in the project's folder; where
 * the model is not there, the target says so and aborts. */
#ifndef QR_FUZZ_MODELS_H
#define QR_FUZZ_MODELS_H

#include "quire.h"
#include "text/tokenizer.h"

/* Never closed. */
struct tokenizer *fuzz_tokenizer(enum split_engine engine);
/* With one thread; never closed. */
qr_model *fuzz_model(void);

#endif
