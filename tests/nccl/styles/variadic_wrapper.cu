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
#include <functional>
template <class F, class... A> void checked(F f, A&&... a) { if (f(std::forward<A>(a)...) != ncclSuccess) exit(1); }
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  float *a, *b; CUDA_OK(cudaMalloc(&a, n * 4)); CUDA_OK(cudaMalloc(&b, n * 4));
  init<<<64, 256, 0, s>>>(a, n);
  checked(ncclReduce, a, b, n, ncclFloat, ncclSum, 0, comm, s);
  checked([&] { return ncclBroadcast(b, b, n, ncclFloat, 0, comm, s); });
  apply<<<64, 256, 0, s>>>(b, a, n);
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
