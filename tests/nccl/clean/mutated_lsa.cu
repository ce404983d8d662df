// clean: the exchange that mutations start from, by LSA, with a kernel before and one after
#include <cstdio>
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <nccl_device.h>

#define OK(call) do { if ((call) != 0) { fprintf(stderr, "line %d failed\n", __LINE__); return 1; } } while (0)

__global__ void produce(float* p, int rank, size_t total, int round) {
  for (size_t k = blockIdx.x * (size_t)blockDim.x + threadIdx.x; k < total; k += (size_t)gridDim.x * blockDim.x) p[k] = rank + round;
}
__global__ void consume(const float* p, size_t total, int round, unsigned long long* bad, size_t each) {
  for (size_t k = blockIdx.x * (size_t)blockDim.x + threadIdx.x; k < total; k += (size_t)gridDim.x * blockDim.x)
    if (p[k] != (float)(k / each) + round) atomicAdd(bad, 1ull);
}

__global__ void swap_blocks(ncclDevComm dc, ncclWindow_t out, ncclWindow_t in, size_t each) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const int me = dc.lsaRank, n = dc.lsaSize;
  const float* mine = (const float*)ncclGetLocalPointer(out, 0);
  const size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
  for (int k = 0; k < n; k++) {
    int peer = (me + k) % n;
    float* theirs = (float*)ncclGetLsaPointer(in, (size_t)me * each * sizeof(float), peer);
    for (size_t i = first; i < each; i += step) theirs[i] = mine[(size_t)peer * each + i];
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

int main(int argc, char** argv) {
  int rank, ranks;
  OK(MPI_Init(&argc, &argv));
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  OK(cudaSetDevice(rank));
  ncclUniqueId id;
  if (rank == 0) ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, ranks, id, rank));
  cudaStream_t stream, other;
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamCreate(&other));
  const size_t each = 1 << 16, bytes = each * ranks * sizeof(float);
  float *sent, *got;
  unsigned long long *bad, wrong = 0;
  OK(ncclMemAlloc((void**)&sent, bytes));
  OK(ncclMemAlloc((void**)&got, bytes));
  OK(cudaMalloc(&bad, sizeof(*bad)));
  OK(cudaMemset(bad, 0, sizeof(*bad)));
  ncclWindow_t out, in;
  OK(ncclCommWindowRegister(comm, sent, bytes, &out, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowRegister(comm, got, bytes, &in, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  wanted.lsaBarrierCount = 16;
  ncclDevComm dc;
  OK(ncclDevCommCreate(comm, &wanted, &dc));
  if (dc.lsaSize != ranks) return 1;
  for (int round = 0; round < 10; round++) {
    produce<<<64, 256, 0, stream>>>(sent, rank, each * ranks, round);
    swap_blocks<<<16, 512, 0, stream>>>(dc, out, in, each);
    consume<<<64, 256, 0, stream>>>(got, each * ranks, round, bad, each);
  }
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemcpy(&wrong, bad, sizeof(wrong), cudaMemcpyDeviceToHost));
  OK(ncclDevCommDestroy(comm, &dc));
  OK(ncclCommWindowDeregister(comm, out));
  OK(ncclCommWindowDeregister(comm, in));
  OK(ncclMemFree(sent));
  OK(ncclMemFree(got));
  OK(ncclCommDestroy(comm));
  printf("%s\n", wrong == 0 ? "PASS" : "FAIL");
  return MPI_Finalize();
}
