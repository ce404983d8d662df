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
#include <chrono>
#include <functional>
static double bench(const std::function<void()>& run, int iterations, cudaStream_t s) {
  CUDA_OK(cudaStreamSynchronize(s)); auto t0 = std::chrono::steady_clock::now();
  for (int i = 0; i < iterations; ++i) run();
  CUDA_OK(cudaStreamSynchronize(s)); return std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count() / iterations;
}
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  float *a, *b; CUDA_OK(cudaMalloc(&a, n * 4)); CUDA_OK(cudaMalloc(&b, n * 4));
  init<<<64, 256, 0, s>>>(a, n);
  for (size_t m = 1024; m <= n; m *= 2)
    printf("%zu %g\n", m, bench([&] { NCCL_OK(ncclAllReduce(a, b, m, ncclFloat, ncclSum, comm, s)); }, 20, s));
  apply<<<64, 256, 0, s>>>(b, a, n);
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
