/* verify_table.h: how two backends' results compared, one row an array of an operator. */
#ifndef QR_TOOLS_VERIFY_TABLE_H
#define QR_TOOLS_VERIFY_TABLE_H

#include "base/arena.h"
#include "base/json.h"
#include "tools/compare.h"
#include "tools/findings.h"

/* `op`: the operator, with what tells its forms apart; `array`: what it wrote. Times are of the whole operator and stand in
 * the row of its first array. */
struct verify_row {
    const char *op, *array, *tolerance; /* of the table */
    int64_t calls, points, bad;
    double largest, relative;   /* |found - want|; over the largest |want| of the call's array */
    double seconds;             /* of all calls, on the device */
    int64_t bytes;              /* that they cannot do without moving */
    bool timed, failed;
};

/* Zero-initialise, then arena_init. */
struct verify_table {
    struct arena arena;
    struct verify_row **rows; /* each stays where it is */
    size_t count, capacity;
};
void verify_table_free(struct verify_table *t);

/* The row of that operator and array, made when there is none; rows of one operator stand together. NULL without memory. */
struct verify_row *verify_table_row(struct verify_table *t, const char *op, const char *array, const char *tolerance);

/* Compares n points and books them; a failure gets a sentence. `spare` points may be bad in any case. */
void verify_row_points(struct verify_row *row, const struct tolerance *t, const double *found, const double *want, int64_t n,
                       int64_t spare, struct findings *findings);

void verify_table_print(const struct verify_table *t);
void verify_table_json(const struct verify_table *t, struct json_writer *w);

#endif
