#include <hip/hip_runtime.h>
__device__ float elsewhere(float x);
__global__ void k(float* x) { x[0] = elsewhere(x[1]); }
