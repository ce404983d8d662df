// clean: one kernel puts, another waits; blocks share a part, the signal's shadow says what has come before.
#include <mpi.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdio>
#include <cstdlib>

#define DO(x) if (auto code = (x)) { fprintf(stderr, "%d at line %d\n", (int)code, __LINE__); exit(9); }
static const int LANES = 4;

__global__ void make(int* p, size_t n, int base) {
  for (size_t i = threadIdx.x + blockIdx.x * (size_t)blockDim.x; i < n; i += gridDim.x * (size_t)blockDim.x) p[i] = base + (int)(i % 1000);
}
__global__ void add_up(const int* p, size_t n, unsigned long long* sum) {
  for (size_t i = threadIdx.x + blockIdx.x * (size_t)blockDim.x; i < n; i += gridDim.x * (size_t)blockDim.x) atomicAdd(sum, (unsigned long long)p[i]);
}

__global__ void send_off(ncclDevComm comm, ncclWindow_t src, ncclWindow_t dst, size_t chunk) {
  ncclGin wire(comm, blockIdx.x % comm.ginContextCount);
  ncclGinBarrierSession<ncclCoopCta> start(ncclCoopCta(), wire, ncclTeamTagWorld(), blockIdx.x);
  start.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const ncclTeam team = ncclTeamWorld(comm);
  const size_t slice = chunk / LANES, lane = blockIdx.x * slice;
  if (threadIdx.x < team.nRanks) {
    const int peer = (team.rank + threadIdx.x) % team.nRanks;
    wire.put(team, peer, dst, team.rank * chunk + lane, src, peer * chunk + lane, slice, ncclGin_SignalInc{blockIdx.x});
  }
  wire.flush(ncclCoopCta());
}
__global__ void take_in(ncclDevComm comm) {
  ncclGin wire(comm, blockIdx.x % comm.ginContextCount);
  if (threadIdx.x == 0) wire.increaseSignalShadow(blockIdx.x, comm.nRanks);
  __syncthreads();
  wire.waitSignalMeetShadow(ncclCoopCta(), blockIdx.x);
}

int main(int argc, char** argv) {
  int self, world;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &self);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  DO(cudaSetDevice(self))
  ncclUniqueId id;
  if (self == 0) { DO(ncclGetUniqueId(&id)) }
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t ring;
  DO(ncclCommInitRank(&ring, world, id, self))
  const size_t chunk = 32768 * sizeof(int), whole = chunk * world, n = whole / sizeof(int);
  int *mine, *theirs;
  DO(ncclMemAlloc((void**)&mine, whole))
  DO(ncclMemAlloc((void**)&theirs, whole))
  ncclWindow_t win_mine, win_theirs;
  DO(ncclCommWindowRegister(ring, mine, whole, &win_mine, NCCL_WIN_COLL_SYMMETRIC))
  DO(ncclCommWindowRegister(ring, theirs, whole, &win_theirs, NCCL_WIN_COLL_SYMMETRIC))
  ncclDevComm dev;
  ncclDevCommRequirements asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.worldGinBarrierCount = LANES;
  asked.ginSignalCount = LANES;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  DO(ncclDevCommCreate(ring, &asked, &dev))
  cudaStream_t main_stream, side_stream;
  DO(cudaStreamCreate(&main_stream))
  DO(cudaStreamCreate(&side_stream))
  unsigned long long *sum, found = 0;
  DO(cudaMalloc(&sum, sizeof(*sum)))
  DO(cudaMemset(sum, 0, sizeof(*sum)))
  for (int step = 0; step < 25; ++step) {
    make<<<32, 256, 0, main_stream>>>(mine, n, self + step);
    send_off<<<LANES, 128, 0, main_stream>>>(dev, win_mine, win_theirs, chunk);
    take_in<<<LANES, 32, 0, main_stream>>>(dev);
    add_up<<<32, 256, 0, main_stream>>>(theirs, n, sum);
  }
  DO(cudaStreamSynchronize(main_stream))
  DO(cudaMemcpy(&found, sum, sizeof(found), cudaMemcpyDeviceToHost))
  unsigned long long wanted = 0;
  for (int step = 0; step < 25; ++step)
    for (int peer = 0; peer < world; ++peer)
      for (size_t i = 0; i < n / world; ++i) wanted += peer + step + (self * (n / world) + i) % 1000;
  DO(ncclDevCommDestroy(ring, &dev))
  DO(ncclCommWindowDeregister(ring, win_mine))
  DO(ncclCommWindowDeregister(ring, win_theirs))
  DO(ncclMemFree(mine))
  DO(ncclMemFree(theirs))
  DO(ncclCommDestroy(ring))
  puts(found == wanted ? "PASS" : "FAIL");
  MPI_Finalize();
  return found != wanted;
}
