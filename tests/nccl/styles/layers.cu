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
struct Layer { float* w; float* g; size_t n; };
__global__ void backward(float* g, const float* w, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) g[i] = w[i]; }
__global__ void sgd(float* w, const float* g, size_t n) { for (size_t i = threadIdx.x; i < n; i += blockDim.x) w[i] -= g[i]; }
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  std::vector<Layer> layers(8);
  for (auto& l : layers) { l.n = n; CUDA_OK(cudaMalloc(&l.w, l.n * 4)); CUDA_OK(cudaMalloc(&l.g, l.n * 4)); init<<<64, 256, 0, s>>>(l.w, l.n); }
  for (int step = 0; step < 10; ++step) {
    for (auto& l : layers) backward<<<64, 256, 0, s>>>(l.g, l.w, l.n);
    NCCL_OK(ncclGroupStart());
    for (const auto& l : layers) NCCL_OK(ncclAllReduce(l.g, l.g, l.n, ncclFloat, ncclAvg, comm, s));
    NCCL_OK(ncclGroupEnd());
    for (auto& l : layers) sgd<<<64, 256, 0, s>>>(l.w, l.g, l.n);
  }
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
