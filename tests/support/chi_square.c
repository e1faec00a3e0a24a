#include "support/chi_square.h"

#include <math.h>

#include "support/support.h"

static void add_bin(struct fit *f, double expected, double counted)
{
    f->chi_square += (counted - expected) * (counted - expected) / expected;
    f->bins++;
}

void fit_add(struct fit *f, double expected, double counted)
{
    if (expected >= 5) {
        add_bin(f, expected, counted);
        return;
    }
    if (expected == 0)
        assert_true(counted == 0);
    f->rare_expected += expected;
    f->rare_counted += counted;
}

/* The value that chi-square with k degrees of freedom passes once in 10,000 times (Wilson and Hilferty). */
static double limit_of(int k)
{
    const double z = 3.719016485455709;
    return k * pow(1 - 2.0 / (9 * k) + z * sqrt(2.0 / (9 * k)), 3);
}

bool fit_holds(const struct fit *f)
{
    struct fit all = *f;
    if (all.rare_expected >= 5)
        add_bin(&all, all.rare_expected, all.rare_counted);
    return all.bins <= 1 ? all.chi_square < 15.2 : all.chi_square < limit_of(all.bins - 1);
}
