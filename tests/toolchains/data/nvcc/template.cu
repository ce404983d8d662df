template <typename T> struct Packed {
  static_assert(sizeof(T) <= 4, "a lane holds four bytes");
  T lane;
};
template <typename T> __device__ T unpacked(Packed<T> p) { return p.lane.missing; }
__global__ void k(double *out) {
  Packed<double> p;
  out[0] = unpacked(p);
}
