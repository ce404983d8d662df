// Host-driven all-reduce under MPI, one rank a GPU; sizes in a loop that allocates each time.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CUDA_CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(e_)); exit(1); } } while (0)
#define NCCL_CHECK(call) do { ncclResult_t r_ = (call); if (r_ != ncclSuccess) { fprintf(stderr, "%s\n", ncclGetErrorString(r_)); exit(1); } } while (0)

int main(int argc, char** argv) {
  int rank, ranks, wrong = 0;
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
  for (size_t count = 1001; count < (1u << 24); count *= 16) {
    float *send, *recv;
    CUDA_CHECK(cudaMalloc(&send, count * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&recv, count * sizeof(float)));
    std::vector<float> host(count);
    for (size_t i = 0; i < count; i++) host[i] = (float)((rank + 1) * (i % 1021));
    CUDA_CHECK(cudaMemcpy(send, host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int it = 0; it < 20; it++) NCCL_CHECK(ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    double seconds = MPI_Wtime() - start;
    CUDA_CHECK(cudaMemcpy(host.data(), recv, count * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) wrong += host[i] != (float)(ranks * (ranks + 1) / 2 * (i % 1021));
    if (rank == 0) printf("%zu floats: %.1f us\n", count, seconds / 20 * 1e6);
    CUDA_CHECK(cudaFree(send));
    CUDA_CHECK(cudaFree(recv));
  }
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("Verification: %s\n", wrong ? "FAIL" : "PASS");
  NCCL_CHECK(ncclCommDestroy(comm));
  MPI_Finalize();
  return wrong != 0;
}
