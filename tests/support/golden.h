/* golden.h: arrays of golden files, read whole and converted. A missing file, array or wrong size fails the running
 * test with a sentence. */
#ifndef QR_TESTS_GOLDEN_H
#define QR_TESTS_GOLDEN_H

#include <stdbool.h>

#include "checkpoint/tensor_table.h"

struct golden;

/* Opens "tests/golden/..." (or any safetensors file given by an absolute path). An array that the file's metadata entry
 * `weights` places in weights-SET.safetensors beside it (golden/ops4) is found under its own name too. */
struct golden *golden_open(const char *relative);
void golden_close(struct golden *g); /* NULL is fine */

bool golden_has(const struct golden *g, const char *name);
/* The tensor: dtype, rank, shape, raw data. */
const struct tensor_view *golden_view(const struct golden *g, const char *name);
int64_t golden_count(const struct golden *g, const char *name); /* elements */

/* The values as f32 (any float dtype exactly but F64, which is rounded; integers converted) or int64 (integer dtypes
 * only). The arrays live until golden_close; `count`, unless NULL, gets the number of elements. */
const float *golden_f32(struct golden *g, const char *name, int64_t *count);
const int64_t *golden_i64(struct golden *g, const char *name, int64_t *count);
const int32_t *golden_i32(struct golden *g, const char *name, int64_t *count);
/* bf16 bits of a BF16 array, or of a float array all of whose values are bf16. */
const uint16_t *golden_bf16(struct golden *g, const char *name, int64_t *count);
/* The bytes of a one-byte dtype (codes, scales, U8, I8, BOOL). */
const uint8_t *golden_bytes(const struct golden *g, const char *name, int64_t *count);

/* A metadata entry, or NULL; `params` of golden/ops4 is JSON: these read one member of it (failing when absent). */
const char *golden_metadata(const struct golden *g, const char *key);
double golden_param(const struct golden *g, const char *name);
bool golden_has_param(const struct golden *g, const char *name);

/* Fails unless at most `allowed` of n values differ by more than absolute + relative * |want|; says where and by how
 * much the worst is. */
void assert_close(const char *what, const float *found, const float *want, int64_t n, double absolute, double relative,
                  int64_t allowed);

#endif
