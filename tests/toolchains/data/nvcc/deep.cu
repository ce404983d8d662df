template <int Left> struct Sum {
  static __device__ int of(int x) { return x + Sum<Left - 1>::of(x); }
};
__global__ void k(int *out) {
  out[0] = Sum<1500>::of(out[1]);
}
