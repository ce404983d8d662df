__global__ void reverse(float *x) {
  __shared__ float all[20000];
  for (int i = threadIdx.x; i < 20000; i += blockDim.x) all[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 20000; i += blockDim.x) x[i] = all[19999 - i];
}
