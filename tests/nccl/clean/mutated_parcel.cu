// clean: each warp takes peers in turn and puts their parcel; a signal for each sender, a counter for what has left.
#include <mpi.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define TRY(expr, good) do { if ((expr) != (good)) { fprintf(stderr, "%s:%d\n", __FILE__, __LINE__); exit(2); } } while (0)
constexpr int WARPS = 8;

struct Depot {
  ncclDevComm net;
  ncclWindow_t leaving, arriving;
  size_t items;  // of one parcel
};

__global__ void pack(double* to, int node, int nodes, size_t items, int day) {
  const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < items * nodes) to[i] = node * 10.0 + i / items + day;
}
__global__ void inspect(const double* from, int node, int nodes, size_t items, int day, unsigned* lost) {
  const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < items * nodes && from[i] != (double)(i / items) * 10.0 + node + day) atomicAdd(lost, 1u);
}

__global__ void ship(Depot depot, int nodes) {
  ncclGin gin{depot.net, 0};
  const ncclTeam all = ncclTeamWorld(depot.net);
  const int me = all.rank, warp = threadIdx.x / 32;
  const size_t parcel = depot.items * sizeof(double);
  __shared__ uint64_t seen[64], gone;
  for (int from = threadIdx.x; from < nodes; from += blockDim.x) seen[from] = gin.readSignal(from);
  if (threadIdx.x == 0) gone = gin.readCounter(0);
  __syncthreads();
  ncclGinBarrierSession<ncclCoopCta> gate(ncclCoopCta(), gin, ncclTeamTagWorld(), 0);
  gate.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  for (int to = warp; to < nodes; to += WARPS)
    gin.put(all, to, depot.arriving, me * parcel, depot.leaving, to * parcel, parcel, ncclGin_SignalInc{(ncclGinSignal_t)me},
            ncclGin_CounterInc{0}, ncclCoopWarp());
  for (int from = 0; from < nodes; from++) gin.waitSignal(ncclCoopCta(), from, seen[from] + 1);
  gin.waitCounter(ncclCoopCta(), 0, gone + nodes);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int node, nodes;
  MPI_Comm_rank(MPI_COMM_WORLD, &node);
  MPI_Comm_size(MPI_COMM_WORLD, &nodes);
  TRY(cudaSetDevice(node), cudaSuccess);
  ncclUniqueId ticket;
  if (node == 0) TRY(ncclGetUniqueId(&ticket), ncclSuccess);
  MPI_Bcast(&ticket, sizeof ticket, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t club;
  TRY(ncclCommInitRank(&club, nodes, ticket, node), ncclSuccess);
  Depot depot;
  depot.items = 6000;
  const size_t volume = depot.items * nodes * sizeof(double);
  void *out_tray, *in_tray;
  TRY(ncclMemAlloc(&out_tray, volume), ncclSuccess);
  TRY(ncclMemAlloc(&in_tray, volume), ncclSuccess);
  TRY(ncclCommWindowRegister(club, out_tray, volume, &depot.leaving, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  TRY(ncclCommWindowRegister(club, in_tray, volume, &depot.arriving, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  needs.ginSignalCount = nodes;
  needs.ginCounterCount = 1;
  needs.worldGinBarrierCount = 1;
  TRY(ncclDevCommCreate(club, &needs, &depot.net), ncclSuccess);
  cudaStream_t belt, yard;
  TRY(cudaStreamCreate(&belt), cudaSuccess);
  TRY(cudaStreamCreate(&yard), cudaSuccess);
  unsigned *lost, total = 0;
  TRY(cudaMalloc(&lost, sizeof(unsigned)), cudaSuccess);
  TRY(cudaMemset(lost, 0, sizeof(unsigned)), cudaSuccess);
  const int grid = (depot.items * nodes + 255) / 256;
  for (int day = 0; day < 12; day++) {
    pack<<<grid, 256, 0, belt>>>((double*)out_tray, node, nodes, depot.items, day);
    ship<<<1, 32 * WARPS, 0, belt>>>(depot, nodes);
    inspect<<<grid, 256, 0, belt>>>((const double*)in_tray, node, nodes, depot.items, day, lost);
  }
  TRY(cudaStreamSynchronize(belt), cudaSuccess);
  TRY(cudaMemcpy(&total, lost, sizeof total, cudaMemcpyDeviceToHost), cudaSuccess);
  printf(total ? "FAILED\n" : "PASSED\n");
  TRY(ncclDevCommDestroy(club, &depot.net), ncclSuccess);
  TRY(ncclCommWindowDeregister(club, depot.leaving), ncclSuccess);
  TRY(ncclCommWindowDeregister(club, depot.arriving), ncclSuccess);
  TRY(ncclMemFree(out_tray), ncclSuccess);
  TRY(ncclMemFree(in_tray), ncclSuccess);
  TRY(ncclCommDestroy(club), ncclSuccess);
  MPI_Finalize();
  return total != 0;
}
