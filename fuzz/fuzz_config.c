/* A config.json of any bytes: refused with a sentence, or a config that every later floor may trust. */
#include "fuzz.h"

#include "checkpoint/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_config config;
    qr_error err = {0};
    qr_status st = config_parse((const char *)data, size, "input", &config, &err);
    must((st == QR_OK) == (err.message[0] == 0));
    if (st != QR_OK)
        return 0;
    must(config.vocab_size > 0 && config.hidden_size > 0);
    must(config.num_hidden_layers > 0 && config.num_hidden_layers + config.num_draft_layers <= QR_MAX_LAYERS);
    must(config.n_experts_per_tok <= config.n_routed_experts);
    must(config.n_engram >= 0 && config.n_engram <= QR_MAX_ENGRAM);
    return 0;
}
