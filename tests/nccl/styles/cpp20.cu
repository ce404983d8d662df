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
#include <span>
#include <memory>
#include <utility>
struct Free { void operator()(float* p) const { cudaFree(p); } };
using Owner = std::unique_ptr<float[], Free>;
Owner make(size_t n) { float* p = nullptr; CUDA_OK(cudaMalloc(&p, n * 4)); return Owner(p); }
template <class T> concept Number = std::is_arithmetic_v<T>;
template <Number T> void reduce(std::span<T> from, std::span<T> to, ncclComm_t c, cudaStream_t s) requires (sizeof(T) == 4) {
  if (auto r = ncclAllReduce(from.data(), to.data(), from.size(), ncclFloat, ncclSum, c, s); r != ncclSuccess) [[unlikely]] exit(1);
}
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  auto [send, recv] = std::pair{make(n), make(n)};
  init<<<64, 256, 0, s>>>(send.get(), n);
  reduce(std::span<float>{send.get(), n}, std::span<float>{recv.get(), n}, comm, s);
  apply<<<64, 256, 0, s>>>(recv.get(), send.get(), n);
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
