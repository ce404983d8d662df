__global__ void __launch_bounds__(1024, 2) crowded(const float *in, float *out, int rounds) {
  float held[80];
#pragma unroll
  for (int i = 0; i < 80; i++) held[i] = in[threadIdx.x * 80 + i];
  for (int r = 0; r < rounds; r++) {
#pragma unroll
    for (int i = 0; i < 80; i++) held[i] = held[i] * held[(i * 11 + 3) % 80] - held[(i + 29) % 80];
  }
#pragma unroll
  for (int i = 0; i < 80; i++) out[threadIdx.x * 80 + i] = held[i];
}
__global__ void indexed(const int *in, int *out, int which) {
  int kept[48];
  for (int i = 0; i < 48; i++) kept[i] = in[i];
  out[0] = kept[which];
}
