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
static void settle(ncclComm_t c) { ncclResult_t r; do { NCCL_OK(ncclCommGetAsyncError(c, &r)); } while (r == ncclInProgress); if (r != ncclSuccess) exit(1); }
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; ncclConfig_t config = NCCL_CONFIG_INITIALIZER; config.blocking = 0; ncclCommInitRankConfig(&comm, ranks, id, rank, &config); settle(comm);
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  float *a, *b; CUDA_OK(cudaMallocAsync((void**)&a, n * 4, s)); CUDA_OK(cudaMallocAsync((void**)&b, n * 4, s));
  init<<<64, 256, 0, s>>>(a, n);
  ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s); settle(comm);
  apply<<<64, 256, 0, s>>>(b, a, n);
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
