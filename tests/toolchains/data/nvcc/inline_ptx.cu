__global__ void wrong_type(float *x) {
  float y = x[0];
  asm("add.u32 %0, %1, 1;" : "=f"(y) : "f"(y));
  x[0] = y;
}
__global__ void no_such(int *x) {
  asm volatile("frobnicate.u32 %0;" : "=r"(x[0]));
}
__global__ void only_with_a() {
  asm volatile("wgmma.fence.sync.aligned;");
}
