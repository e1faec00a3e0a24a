/* chi_square.h: whether counts follow a law, at the level of one false alarm in 10,000. */
#ifndef QR_TESTS_CHI_SQUARE_H
#define QR_TESTS_CHI_SQUARE_H

#include <stdbool.h>

/* Zero-initialise. */
struct fit {
    double chi_square, rare_expected, rare_counted;
    int bins;
};
/* Bins with fewer than 5 expected are one bin; what the law forbids fails the test when it was counted. */
void fit_add(struct fit *f, double expected, double counted);
bool fit_holds(const struct fit *f);

#endif
