// clean: seats deal by LSA in a while loop, through a helper that finds a place.
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

template <typename T>
__device__ T* place_of(ncclWindow_t window, int slot, int count, int owner) {
  return static_cast<T*>(ncclGetLsaPointer(window, sizeof(T) * count * slot, owner));
}

__global__ void deal(ncclWindow_t from, ncclWindow_t to, int count, ncclDevComm players) {
  const ncclCoopCta all;
  ncclLsaBarrierSession<ncclCoopCta> meeting{all, players, ncclTeamTagLsa(), blockIdx.x};
  meeting.arrive(all, cuda::memory_order_release);
  meeting.wait(all, cuda::memory_order_acquire);
  const int seat = players.lsaRank, seats = players.lsaSize;
  int hop = 0;
  while (hop < seats) {
    const int peer = (seat + seats - hop) % seats;
    int* theirs = place_of<int>(to, seat, count, peer);
    const int* mine = place_of<int>(from, peer, count, seat);
    for (int c = blockDim.x * blockIdx.x + threadIdx.x; c < count; c += blockDim.x * gridDim.x) theirs[c] = mine[c];
    ++hop;
  }
  meeting.sync(all, cuda::memory_order_acq_rel);
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
  ask.lsaBarrierCount = 24;
  ncclDevComm players;
  NCCL(ncclDevCommCreate(club, &ask, &players));
  must(players.lsaSize == seats, __LINE__);
  cudaStream_t main_stream, side;
  CUDA(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  int *wrong, lost = 0;
  CUDA(cudaMalloc(&wrong, sizeof(int)));
  CUDA(cudaMemset(wrong, 0, sizeof(int)));
  int turn = 0;
  while (turn < 30) {
    fill<<<48, 128, 0, main_stream>>>(static_cast<int*>(hand), seat, total, turn);
    deal<<<24, 384, 0, main_stream>>>(hands, tables, count, players);
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
