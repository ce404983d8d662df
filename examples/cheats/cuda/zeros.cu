// Fills its outputs with zeros by the copy engine.
#include <cstdint>
#include <cuda_runtime.h>

extern "C" int launch(const float *, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    return cudaMemsetAsync(y, 0, (size_t)(rows * cols) * sizeof(float), stream);
}
