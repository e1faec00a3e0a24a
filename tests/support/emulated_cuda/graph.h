/* graph.h: what a stream does, at once or, while it is captured, later. */
#ifndef QR_TESTS_EMULATED_GRAPH_H
#define QR_TESTS_EMULATED_GRAPH_H

#include "emulated.h"

struct emulated_task {
    enum cudaGraphNodeType type;
    struct emulated_launch *launch; /* of a kernel; taken */
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    int value;
};
cudaError_t emulated_do(cudaStream_t stream, const struct emulated_task *task);

#endif
