// Rows on a ring of ranks, one process a rank: both ghost rows come from the neighbours, who are one rank where there are two.
// A scale is broadcast, faults are summed at rank 0, and last rows are collected there.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e_)); exit(3); } } while (0)
#define NCCL_CHECK(x) do { ncclResult_t r_ = (x); if (r_ != ncclSuccess) { fprintf(stderr, "NCCL: %s\n", ncclGetErrorString(r_)); exit(4); } } while (0)

static const int ROWS = 61, COLUMNS = 1003;

__device__ inline float value(int rank, int row, int column, int step) { return rank * 64 + row + column % 17 + step * 3; }
__global__ void compute(float* field, const float* scale, int rank, int step) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < ROWS * COLUMNS; i += gridDim.x * blockDim.x)
    field[COLUMNS + i] = scale[i % COLUMNS] * value(rank, i / COLUMNS, i % COLUMNS, step);
}
__global__ void compare(const float* field, int above, int below, int step, float* faults) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < COLUMNS; i += gridDim.x * blockDim.x) {
    if (field[i] != 2 * value(above, ROWS - 1, i, step)) faults[i] += 1;
    if (field[(ROWS + 1) * COLUMNS + i] != 2 * value(below, 0, i, step)) faults[i] += 1;
  }
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
  float *field, *next, *scale, *faults, *total, *rows;
  CUDA_CHECK(cudaMalloc(&field, (ROWS + 2) * COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&next, (ROWS + 2) * COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&scale, COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&faults, COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&total, COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMalloc(&rows, (size_t)ranks * COLUMNS * sizeof(float)));
  CUDA_CHECK(cudaMemset(faults, 0, COLUMNS * sizeof(float)));
  float host[COLUMNS], result[COLUMNS];
  for (int i = 0; i < COLUMNS; i++) host[i] = rank == 0 ? 2.0f : -1.0f;
  CUDA_CHECK(cudaMemcpy(scale, host, sizeof host, cudaMemcpyHostToDevice));
  NCCL_CHECK(ncclBcast(scale, COLUMNS, ncclFloat, 0, comm, stream));
  const int above = (rank + ranks - 1) % ranks, below = (rank + 1) % ranks;
  for (int step = 0; step < 10; step++) {
    compute<<<64, 256, 0, stream>>>(field, scale, rank, step);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(field + COLUMNS, COLUMNS, ncclFloat, above, comm, stream));
    NCCL_CHECK(ncclRecv(field + (ROWS + 1) * COLUMNS, COLUMNS, ncclFloat, below, comm, stream));
    NCCL_CHECK(ncclSend(field + ROWS * COLUMNS, COLUMNS, ncclFloat, below, comm, stream));
    NCCL_CHECK(ncclRecv(field, COLUMNS, ncclFloat, above, comm, stream));
    NCCL_CHECK(ncclGroupEnd());
    compare<<<4, 256, 0, stream>>>(field, above, below, step, faults);
    float* other = field;
    field = next;
    next = other;
  }
  NCCL_CHECK(ncclReduce(faults, total, COLUMNS, ncclFloat, ncclSum, 0, comm, stream));
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(next + ROWS * COLUMNS, COLUMNS, ncclFloat, 0, comm, stream));
  if (rank == 0)
    for (int p = 0; p < ranks; p++) NCCL_CHECK(ncclRecv(rows + p * COLUMNS, COLUMNS, ncclFloat, p, comm, stream));
  NCCL_CHECK(ncclGroupEnd());
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaMemcpy(host, total, sizeof host, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaMemcpy(result, rows + (size_t)(ranks - 1) * COLUMNS, sizeof result, cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; rank == 0 && i < COLUMNS; i++)
    wrong += host[i] != 0 || result[i] != 2.0f * ((ranks - 1) * 64 + ROWS - 1 + i % 17 + 9 * 3);
  if (rank == 0) printf("Verification: %s\n", wrong ? "FAIL" : "PASS");
  CUDA_CHECK(cudaFree(field));
  CUDA_CHECK(cudaFree(next));
  CUDA_CHECK(cudaFree(scale));
  CUDA_CHECK(cudaFree(faults));
  CUDA_CHECK(cudaFree(total));
  CUDA_CHECK(cudaFree(rows));
  NCCL_CHECK(ncclCommDestroy(comm));
  MPI_Finalize();
  return wrong != 0;
}
