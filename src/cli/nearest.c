#define _GNU_SOURCE
#include "cli/nearest.h"

#include <stdio.h>
#include <string.h>

#define LONGEST 63

static int least(int a, int b) { return a < b ? a : b; }

int edit_distance(const char *a, const char *b)
{
    int na = (int)strnlen(a, LONGEST), nb = (int)strnlen(b, LONGEST);
    int rows[3][LONGEST + 1]; /* of the table [prefix of a][prefix of b]: two before, one before, this one */
    int *before2 = rows[0], *before = rows[1], *row = rows[2];
    for (int j = 0; j <= nb; j++)
        row[j] = j;
    for (int i = 1; i <= na; i++) {
        int *oldest = before2;
        before2 = before;
        before = row;
        row = oldest;
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            row[j] = least(least(before[j], row[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before2[j - 2] + 1);
        }
    }
    return row[nb];
}

bool near_enough(const char *written, int distance) { return 3 * distance <= (int)strnlen(written, LONGEST); }

struct nearest_hint nearest_hint(const char *written, const char *name)
{
    struct nearest_hint hint = {.text = ""};
    if (near_enough(written, edit_distance(written, name)))
        snprintf(hint.text, sizeof hint.text, "; the nearest is %.70s", name);
    return hint;
}
