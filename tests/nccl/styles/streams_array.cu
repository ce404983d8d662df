#include <nccl.h>
#include <cuda_runtime.h>
#include <mpi.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CUDA_OK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) exit(1); } while (0)
#define NCCL_OK(x) do { ncclResult_t r_ = (x); if (r_ != ncclSuccess) exit(1); } while (0)
__global__ void init(float* x, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) x[i] = i; }
__global__ void apply(const float* x, float* y, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2; }
int main() {
  const int G = 4; int devs[G] = {0, 1, 2, 3}; ncclComm_t comms[G]; NCCL_OK(ncclCommInitAll(comms, G, devs)); const size_t n = 1 << 20;
  std::vector<float*> send(G), recv(G); cudaStream_t streams[G];
  for (int d = 0; d < G; ++d) { CUDA_OK(cudaSetDevice(d)); CUDA_OK(cudaStreamCreate(&streams[d])); CUDA_OK(cudaMalloc(&send[d], n * 4)); CUDA_OK(cudaMalloc(&recv[d], n * 4 * G)); }
  for (int d = 0; d < G; ++d) { CUDA_OK(cudaSetDevice(d)); init<<<64, 256, 0, streams[d]>>>(send[d], n); }
  NCCL_OK(ncclGroupStart());
  for (int d = 0; d < G; ++d) NCCL_OK(ncclAllGather(send[d], recv[d], n, ncclFloat, comms[d], streams[d]));
  NCCL_OK(ncclGroupEnd());
  for (int d = 0; d < G; ++d) { CUDA_OK(cudaSetDevice(d)); apply<<<64, 256, 0, streams[d]>>>(recv[d], send[d], n); CUDA_OK(cudaStreamSynchronize(streams[d])); }
  for (int d = 0; d < G; ++d) ncclCommDestroy(comms[d]);
}
