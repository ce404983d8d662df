#include <cstdint>
__global__ void careless(int *out, int n) {
  int never = 4;
  int index;
  out[index] = n;
  if (n > 3);
  unsigned char small = -300;
  for (;;) {}
  out[0] = 1;
}
int nothing() { }
[[deprecated("say fresh() instead")]] __device__ int stale(int x) { return x; }
__global__ void uses(int *out) { out[0] = stale(out[1]); }
std::uint64_t;
