#include <hip/hip_runtime.h>
template <int N> struct Tile { static_assert(N % 64 == 0, "a tile is whole waves"); float v[N]; };
__global__ void first(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x
  x[i] = missing(i);
  float y = "text";
}
int on_host(int a) { return a; }
__global__ void second(float* x) { x[0] = on_host(3); }
__global__ void third(float* x) { Tile<100> t; x[0] = t.v[0]; }
