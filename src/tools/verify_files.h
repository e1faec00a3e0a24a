/* verify_files.h: everything that can be said of a model folder without running it: config, tokenizer, headers, names and shapes, and
 * every value that no weight may have. Needs no memory for the model: the files are looked at where they are mapped. */
#ifndef QR_TOOLS_VERIFY_FILES_H
#define QR_TOOLS_VERIFY_FILES_H

#include "base/pool.h"
#include "checkpoint/config.h"
#include "tools/findings.h"

/* What was looked at. */
struct files_report {
    int64_t shards, tensors, scales; /* scales: E8M0 tensors */
    uint64_t bytes, values_bytes;    /* of all tensors; of those whose values were read */
    uint64_t hashed_bytes;           /* with a list of checksums */
    int64_t hashed_files;
    qr_status config; /* QR_REFUSED: an admission rule */
};

/* Adds every defect of the folder `dir` to `found`: a config that is refused; a tokenizer that is missing, broken or of
 * another size than the config's; a generation_config.json that says nothing usable (none is needed); a shard that cannot be read or whose header is
 * wrong; a tensor that is missing, unexpected or of another form than the config's; E8M0 byte 255 and E4M3 NaN codes, F32
 * and BF16 values that are not finite, in every tensor, Engram tables included; rows of hash tables that name an expert
 * twice or one that does not exist. Of one tensor at most 64 bad values are named, the rest counted. Fails only where
 * nothing more can be looked at: no index, no memory. */
qr_status verify_files(const char *dir, struct worker_pool *pool, bool quiet, struct files_report *out,
                       struct findings *found, qr_error *err);

#endif
