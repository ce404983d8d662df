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
#include <utility>
__global__ void add(float* x, const float* y, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) x[i] += y[i]; }
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  float *cur, *next, *sum; CUDA_OK(cudaMalloc(&cur, n * 4)); CUDA_OK(cudaMalloc(&next, n * 4)); CUDA_OK(cudaMalloc(&sum, n * 4));
  const int right = (rank + 1) % ranks, left = (rank - 1 + ranks) % ranks;
  auto step = [&](const float* out, float* in) {
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(out, n, ncclFloat, right, comm, s));
    NCCL_OK(ncclRecv(in, n, ncclFloat, left, comm, s));
    NCCL_OK(ncclGroupEnd());
  };
  init<<<64, 256, 0, s>>>(cur, n);
  CUDA_OK(cudaMemsetAsync(sum, 0, n * 4, s));
  for (int k = 0; k < ranks - 1; ++k) {
    step(cur, next);
    add<<<64, 256, 0, s>>>(sum, next, n);
    std::swap(cur, next);
  }
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
