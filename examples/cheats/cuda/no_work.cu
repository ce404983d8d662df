// Says that all is well and launches nothing.
#include <cstdint>
#include <cuda_runtime.h>

extern "C" int launch(const float *, float *, int64_t, int64_t, cudaStream_t) {
    return 0;
}
