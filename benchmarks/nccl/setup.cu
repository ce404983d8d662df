// What a communicator, windows and a device communicator cost to set up, by ranks: time and device memory of each step.
//
// usage: setup RANKS. One process a rank, forked before any CUDA call. Each line of stdout is
//   setup ranks=N rank=R step=NAME ms=T mib=M
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(x) do { if ((x) != 0) { fprintf(stderr, "[rank %d] line %d failed: %s\n", g_rank, __LINE__, ncclGetLastError(NULL)); _exit(3); } } while (0)

static int g_rank = -1;
static const size_t BYTES = 64u << 20;
struct Shared { ncclUniqueId id; volatile int ready; volatile int arrived; };

struct Steps {
  int rank, ranks;
  Shared* shared;
  std::chrono::steady_clock::time_point since;
  size_t free_before;
  void meet() {  // a barrier of the processes, outside CUDA and NCCL: each step begins on all ranks at once
    const int turn = __sync_add_and_fetch(&shared->arrived, 1), full = (turn + ranks - 1) / ranks * ranks;
    while (shared->arrived < full) usleep(20);
  }
  void begin() {
    size_t total;
    meet();
    OK(cudaMemGetInfo(&free_before, &total));
    meet();  // all have looked: what another rank takes on this device, as peers' memory, counts too
    since = std::chrono::steady_clock::now();
  }
  void end(const char* name) {
    OK(cudaDeviceSynchronize());
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
    size_t left, total;
    meet();
    OK(cudaMemGetInfo(&left, &total));
    printf("setup ranks=%d rank=%d step=%s ms=%.3f mib=%.1f\n", ranks, rank, name, ms, ((double)free_before - (double)left) / (1 << 20));
    fflush(stdout);
  }
};

static void run(int rank, int ranks, Shared* shared) {
  g_rank = rank;
  OK(cudaSetDevice(rank));
  OK(cudaFree(0));
  if (rank == 0) { OK(ncclGetUniqueId(&shared->id)); __sync_synchronize(); shared->ready = 1; }
  while (!shared->ready) usleep(50);
  Steps steps{rank, ranks, shared, {}, 0};
  ncclComm_t comm;
  steps.begin();
  OK(ncclCommInitRank(&comm, ranks, shared->id, rank));
  steps.end("communicator");
  void *send, *recv;
  steps.begin();
  OK(ncclMemAlloc(&send, BYTES));
  OK(ncclMemAlloc(&recv, BYTES));
  steps.end("memory-128MiB");
  ncclWindow_t windows[2];
  steps.begin();
  OK(ncclCommWindowRegister(comm, send, BYTES, &windows[0], NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowRegister(comm, recv, BYTES, &windows[1], NCCL_WIN_COLL_SYMMETRIC));
  steps.end("two-windows");
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements wanted;
  memset(&wanted, 0, sizeof wanted);
#endif
  wanted.lsaBarrierCount = 128;
  ncclDevComm device;
  steps.begin();
  OK(ncclDevCommCreate(comm, &wanted, &device));
  steps.end("device-communicator");
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  const size_t count = BYTES / sizeof(float);
  steps.begin();
  OK(ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream));
  steps.end("first-all-reduce");
  steps.begin();
  OK(ncclAlltoAll(send, recv, count / ranks, ncclFloat, comm, stream));
  steps.end("first-all-to-all");
  OK(ncclDevCommDestroy(comm, &device));
  for (ncclWindow_t window : windows) OK(ncclCommWindowDeregister(comm, window));
  OK(ncclMemFree(send));
  OK(ncclMemFree(recv));
  OK(ncclCommDestroy(comm));
}

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 2;
  Shared* shared = (Shared*)mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int rank = 0; rank < ranks; rank++)
    if (fork() == 0) { run(rank, ranks, shared); _exit(0); }
  int failed = 0;
  for (int rank = 0; rank < ranks; rank++) {
    int status = 0;
    wait(&status);
    failed += status != 0;
  }
  return failed != 0;
}
