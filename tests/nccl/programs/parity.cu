// A token goes around a ring of ranks in no group: even ranks send first and odd ones receive first, one process a rank.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e_)); exit(3); } } while (0)
#define NCCL_CHECK(x) do { ncclResult_t r_ = (x); if (r_ != ncclSuccess) { fprintf(stderr, "NCCL: %s\n", ncclGetErrorString(r_)); exit(4); } } while (0)

static const size_t COUNT = 100003;

__global__ void start(int* token, int rank) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < COUNT; i += (size_t)gridDim.x * blockDim.x) token[i] = rank * 7 + (int)(i % 1009);
}
__global__ void step(const int* came, int* token) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < COUNT; i += (size_t)gridDim.x * blockDim.x) token[i] = came[i] + 1;
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CUDA_CHECK(cudaSetDevice(rank));
  ncclUniqueId id;
  if (rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  NCCL_CHECK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  int *token, *came;
  CUDA_CHECK(cudaMalloc(&token, COUNT * sizeof(int)));
  CUDA_CHECK(cudaMalloc(&came, COUNT * sizeof(int)));
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  start<<<64, 256, 0, stream>>>(token, rank);
  for (int round = 0; round < 3 * ranks; round++) {
    if (rank % 2 == 0) {
      NCCL_CHECK(ncclSend(token, COUNT, ncclInt, next, comm, stream));
      NCCL_CHECK(ncclRecv(came, COUNT, ncclInt, last, comm, stream));
    } else {
      NCCL_CHECK(ncclRecv(came, COUNT, ncclInt, last, comm, stream));
      NCCL_CHECK(ncclSend(token, COUNT, ncclInt, next, comm, stream));
    }
    step<<<64, 256, 0, stream>>>(came, token);
  }
  int* host = (int*)malloc(COUNT * sizeof(int));
  CUDA_CHECK(cudaMemcpyAsync(host, token, COUNT * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  int wrong = 0;
  for (size_t i = 0; i < COUNT; i++) wrong += host[i] != rank * 7 + (int)(i % 1009) + 3 * ranks;  // three times around
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("Verification: %s\n", wrong ? "FAIL" : "PASS");
  free(host);
  CUDA_CHECK(cudaFree(token));
  CUDA_CHECK(cudaFree(came));
  NCCL_CHECK(ncclCommDestroy(comm));
  MPI_Finalize();
  return wrong != 0;
}
