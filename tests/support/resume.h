/* resume.h: prompts that start from the prefix cache at every boundary, against the same prompt cold and untrimmed. */
#ifndef QR_TESTS_RESUME_H
#define QR_TESTS_RESUME_H

#include <stdint.h>

struct resume_world {
    const char *config;          /* of the source tree: random weights; */
    const char *dir;             /* or a folder of it with weights */
    int32_t block;
    const char *kv, *index;      /* containers; NULL: the family's */
    const char *encoder_replay;  /* NULL: exact */
    int32_t rows;                /* of a step */
};

/* For each boundary and each length of what follows: cold = hit = hit without images = hit, preempted = two forks. */
void resume_all(const struct resume_world *w, const int32_t *boundaries, int boundary_count, const int32_t *suffixes,
                int suffix_count);

#endif
