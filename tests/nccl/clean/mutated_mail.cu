// clean: one block a peer puts the block for it, and waits at the signal that its peer names.
#include <mpi.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdio>
#include <cstdlib>

static void must(bool good, int line) {
  if (!good) {
    fprintf(stderr, "line %d failed\n", line);
    exit(1);
  }
}
#define CUDA(call) must((call) == cudaSuccess, __LINE__)
#define NCCL(call) must((call) == ncclSuccess, __LINE__)

__global__ void fill(int* cards, int seat, int total, int turn) {
  for (int c = blockDim.x * blockIdx.x + threadIdx.x; c < total; c += blockDim.x * gridDim.x) cards[c] = 1000 * seat + turn;
}
__global__ void compare(const int* cards, int count, int total, int turn, int* wrong) {
  for (int c = blockDim.x * blockIdx.x + threadIdx.x; c < total; c += blockDim.x * gridDim.x)
    if (cards[c] != 1000 * (c / count) + turn) atomicAdd(wrong, 1);
}

__global__ void mail(ncclWindow_t from, ncclWindow_t to, int count, ncclDevComm players) {
  const ncclCoopCta all;
  const ncclGin post{players, 0};
  const ncclTeam club = ncclTeamWorld(players);
  const int peer = blockIdx.x;
  const size_t letter = sizeof(int) * count;
  const uint64_t came = post.readSignal(peer);
  ncclGinBarrierSession<ncclCoopCta> meeting{all, post, ncclTeamTagWorld(), blockIdx.x};
  meeting.sync(all, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  post.put(club, peer, to, letter * club.rank, from, letter * peer, letter,
           ncclGin_SignalInc{(ncclGinSignal_t)club.rank}, ncclGin_None{}, all);
  post.waitSignal(all, peer, came + 1);
  post.flush(all);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int seat, seats;
  MPI_Comm_rank(MPI_COMM_WORLD, &seat);
  MPI_Comm_size(MPI_COMM_WORLD, &seats);
  CUDA(cudaSetDevice(seat));
  ncclUniqueId id;
  if (seat == 0) NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t club;
  NCCL(ncclCommInitRank(&club, seats, id, seat));
  const int count = 1 << 18, total = count * seats;
  const size_t room = (size_t)total * sizeof(int);
  void *hand, *table;
  NCCL(ncclMemAlloc(&hand, room));
  NCCL(ncclMemAlloc(&table, room));
  ncclWindow_t hands, tables;
  NCCL(ncclCommWindowRegister(club, hand, room, &hands, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(club, table, room, &tables, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements ask = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ask.worldGinBarrierCount = seats;
  ask.ginSignalCount = seats;
  ask.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  ncclDevComm players;
  NCCL(ncclDevCommCreate(club, &ask, &players));
  cudaStream_t main_stream, side;
  CUDA(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  int *wrong, lost = 0;
  CUDA(cudaMalloc(&wrong, sizeof(int)));
  CUDA(cudaMemset(wrong, 0, sizeof(int)));
  int turn = 0;
  while (turn < 30) {
    fill<<<48, 128, 0, main_stream>>>(static_cast<int*>(hand), seat, total, turn);
    mail<<<seats, 384, 0, main_stream>>>(hands, tables, count, players);
    compare<<<48, 128, 0, main_stream>>>(static_cast<int*>(table), count, total, turn, wrong);
    turn++;
  }
  CUDA(cudaStreamSynchronize(main_stream));
  CUDA(cudaMemcpy(&lost, wrong, sizeof(int), cudaMemcpyDeviceToHost));
  NCCL(ncclDevCommDestroy(club, &players));
  NCCL(ncclCommWindowDeregister(club, hands));
  NCCL(ncclCommWindowDeregister(club, tables));
  NCCL(ncclMemFree(hand));
  NCCL(ncclMemFree(table));
  CUDA(cudaFree(wrong));
  NCCL(ncclCommDestroy(club));
  printf("%s\n", lost == 0 ? "PASS" : "FAIL");
  MPI_Finalize();
  return lost != 0;
}
