#include <cstdio>
template <typename T> struct Pair { T first, second; };
__global__ void scale(float *values, int count, float factor) {
  int at = threadIdx.x + blockDim.x * blockIdx.x
  if (at >= count) return;
  values[at] *= factr;
  const char *text = 3.5f;
  values[at].x = 1;
  Pair<float, float> both;
  unknown_function<2>(values);
}
static int on_host(int n) { return n + 1; }
__global__ void shift(int *values) { values[threadIdx.x] = on_host(values[threadIdx.x]); }
int main() {
  scale<<<1, 32>>>(nullptr, 0, 2.f);
  shift<<<1, 32>>>(nullptr);
  return 0;
}
