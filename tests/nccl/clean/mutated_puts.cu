// clean: all-to-all by puts through NICs: each CTA puts its share of each block and waits at its own signal.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_TRY(x) do { if ((x) != cudaSuccess) exit(3); } while (0)
#define NCCL_TRY(x) do { if ((x) != ncclSuccess) exit(4); } while (0)

constexpr int BLOCKS = 32, THREADS = 256;

__global__ void write_blocks(double* out, int self, int parties, size_t length, int turn) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < length * parties; i += (size_t)gridDim.x * blockDim.x)
    out[i] = self * 64.0 + (double)(i / length) + turn;
}
__global__ void read_blocks(const double* in, int self, int parties, size_t length, int turn, unsigned* faults) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < length * parties; i += (size_t)gridDim.x * blockDim.x)
    if (in[i] != (double)(i / length) * 64.0 + self + turn) atomicAdd(faults, 1u);
}

__global__ void send_blocks(ncclDevComm world, ncclWindow_t source, ncclWindow_t target, size_t length) {
  ncclCoopCta cta;
  ncclGin net{world, 0};
  const ncclGinSignal_t done = blockIdx.x;
  const uint64_t start = net.readSignal(done);
  ncclGinBarrierSession<ncclCoopCta> gate{cta, net, ncclTeamTagWorld(), blockIdx.x};
  gate.sync(cta, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const ncclTeam team = ncclTeamWorld(world);
  const size_t span = length * sizeof(double), share = span / gridDim.x, skip = share * blockIdx.x;
  for (int to = threadIdx.x; to < team.nRanks; to += blockDim.x)
    net.put(team, to, target, span * team.rank + skip, source, span * to + skip, share, ncclGin_SignalInc{done});
  net.waitSignal(cta, done, start + team.nRanks);
  net.flush(cta);
}

int main(int argc, char** argv) {
  int self = 0, parties = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &self);
  MPI_Comm_size(MPI_COMM_WORLD, &parties);
  CUDA_TRY(cudaSetDevice(self));
  ncclUniqueId id;
  if (self == 0) NCCL_TRY(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  NCCL_TRY(ncclCommInitRank(&comm, parties, id, self));
  cudaStream_t work, spare;
  CUDA_TRY(cudaStreamCreate(&work));
  CUDA_TRY(cudaStreamCreate(&spare));
  const size_t length = 1 << 16, size = sizeof(double) * length * parties;
  void *outgoing, *incoming;
  unsigned* faults;
  NCCL_TRY(ncclMemAlloc(&outgoing, size));
  NCCL_TRY(ncclMemAlloc(&incoming, size));
  CUDA_TRY(cudaMalloc(&faults, sizeof(unsigned)));
  CUDA_TRY(cudaMemset(faults, 0, sizeof(unsigned)));
  ncclWindow_t out_window, in_window;
  NCCL_TRY(ncclCommWindowRegister(comm, outgoing, size, &out_window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL_TRY(ncclCommWindowRegister(comm, incoming, size, &in_window, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.worldGinBarrierCount = BLOCKS;
  needs.ginSignalCount = BLOCKS;
  needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  ncclDevComm world;
  NCCL_TRY(ncclDevCommCreate(comm, &needs, &world));
  for (int turn = 0; turn < 20; ++turn) {
    write_blocks<<<BLOCKS, THREADS, 0, work>>>((double*)outgoing, self, parties, length, turn);
    send_blocks<<<BLOCKS, THREADS, 0, work>>>(world, out_window, in_window, length);
    read_blocks<<<BLOCKS, THREADS, 0, work>>>((const double*)incoming, self, parties, length, turn, faults);
  }
  CUDA_TRY(cudaStreamSynchronize(work));
  unsigned found = 0;
  CUDA_TRY(cudaMemcpy(&found, faults, sizeof found, cudaMemcpyDeviceToHost));
  NCCL_TRY(ncclDevCommDestroy(comm, &world));
  NCCL_TRY(ncclCommWindowDeregister(comm, out_window));
  NCCL_TRY(ncclCommWindowDeregister(comm, in_window));
  NCCL_TRY(ncclMemFree(outgoing));
  NCCL_TRY(ncclMemFree(incoming));
  CUDA_TRY(cudaFree(faults));
  NCCL_TRY(ncclCommDestroy(comm));
  printf("Verification: %s\n", found == 0 ? "PASS" : "FAIL");
  MPI_Finalize();
  return found != 0;
}
