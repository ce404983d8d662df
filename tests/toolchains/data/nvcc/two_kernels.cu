__global__ void row_sums(const float *__restrict__ m, float *__restrict__ sums, int rows, int columns) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int c = 0; c < columns; ++c) sum += m[row * columns + c];
  sums[row] = sum;
}
template <int Side> __global__ void turned(const double *in, double *out, int n) {
  __shared__ double tile[Side][Side];
  int x = blockIdx.x * Side + threadIdx.x, y = blockIdx.y * Side + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = in[y * n + x];
  __syncthreads();
  out[(blockIdx.x * Side + threadIdx.y) * n + blockIdx.y * Side + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
int main() {
  row_sums<<<1, 32>>>(nullptr, nullptr, 0, 0);
  turned<16><<<1, dim3(16, 16)>>>(nullptr, nullptr, 0);
}
