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
template <class T> constexpr ncclDataType_t type_of(); template <> constexpr ncclDataType_t type_of<float>() { return ncclFloat; }
template <class T> class DeviceBuffer { T* ptr_ = nullptr; size_t n_; public:
  explicit DeviceBuffer(size_t n) : n_(n) { CUDA_OK(cudaMalloc(&ptr_, n * sizeof(T))); }
  ~DeviceBuffer() { cudaFree(ptr_); }
  T* data() { return ptr_; } size_t size() const { return n_; } };
class Communicator { ncclComm_t comm_; cudaStream_t stream_; public:
  Communicator(ncclComm_t c, cudaStream_t s) : comm_(c), stream_(s) {}
  template <class T> void allreduce(T* p, size_t n) { NCCL_OK(ncclAllReduce(p, p, n, type_of<T>(), ncclSum, comm_, stream_)); } };
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv); int rank, ranks; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ncclUniqueId id; if (rank == 0) ncclGetUniqueId(&id); MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  CUDA_OK(cudaSetDevice(rank)); ncclComm_t comm; NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t s; CUDA_OK(cudaStreamCreate(&s)); const size_t n = 1 << 20;
  DeviceBuffer<float> grad(n), out(n); Communicator world(comm, s);
  init<<<64, 256, 0, s>>>(grad.data(), n);
  world.allreduce(grad.data(), grad.size());
  apply<<<64, 256, 0, s>>>(grad.data(), out.data(), n);
  CUDA_OK(cudaStreamSynchronize(s)); NCCL_OK(ncclCommDestroy(comm)); MPI_Finalize(); return 0;
}
