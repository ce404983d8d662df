// NCCL between threads of one process in the place of GPUs: windows are memory, a barrier is a barrier of threads.
// It tests the arithmetic and the pairing of the generated kernels; it proves nothing of memory order.
#pragma once
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"

typedef int ncclResult_t;
enum { ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInvalidArgument = 4, ncclInvalidUsage = 5 };
enum ncclDataType_t {
  ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclBfloat16, ncclFloat32,
  ncclFloat = ncclFloat32, ncclFloat64
};
enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin };
enum { NCCL_WIN_COLL_SYMMETRIC = 1 };
#define NCCL_VERSION_CODE 22809
struct World {
  int ranks, arrived = 0, turn = 0;
  std::mutex mutex;
  std::condition_variable all;
  std::map<std::pair<int, unsigned>, uint64_t> signals;  // by rank and number
  std::vector<std::vector<char*>> windows;  // by order of registration, then by rank
  void meet() {
    std::unique_lock<std::mutex> lock(mutex);
    const int now = turn;
    if (++arrived == ranks) { arrived = 0; turn++; all.notify_all(); }
    else all.wait(lock, [&] { return turn != now; });
  }
};
struct Comm { World* world; int rank; size_t windows = 0; };
typedef Comm* ncclComm_t;
struct WindowOf { World* world; size_t number; int rank; };
typedef WindowOf* ncclWindow_t;
struct ncclDevComm { World* world; int rank, nRanks, lsaRank, lsaSize, ginContextCount; };
struct ncclDevCommRequirements { int lsaBarrierCount, barrierCount, ginSignalCount; };
inline ncclResult_t ncclMemAlloc(void** p, size_t n) { *p = calloc(n ? n : 1, 1); return 0; }
inline ncclResult_t ncclMemFree(void* p) { free(p); return 0; }
inline ncclResult_t ncclCommCuDevice(ncclComm_t c, int* device) { *device = c->rank; return 0; }
inline ncclResult_t ncclCommCount(ncclComm_t c, int* ranks) { *ranks = c->world->ranks; return 0; }
inline const char* ncclGetLastError(ncclComm_t) { return ""; }
inline const char* ncclGetErrorString(ncclResult_t) { return "error"; }
inline ncclResult_t ncclDevCommCreate(ncclComm_t c, const ncclDevCommRequirements*, ncclDevComm* made) {
  *made = {c->world, c->rank, c->world->ranks, c->rank, c->world->ranks, 1};
  return 0;
}
inline ncclResult_t ncclDevCommDestroy(ncclComm_t, const ncclDevComm*) { return 0; }
inline ncclResult_t ncclCommWindowRegister(ncclComm_t c, void* base, size_t, ncclWindow_t* window, int) {
  {
    std::lock_guard<std::mutex> lock(c->world->mutex);
    auto& all = c->world->windows;
    if (all.size() <= c->windows) all.resize(c->windows + 1, std::vector<char*>(c->world->ranks));
    all[c->windows][c->rank] = (char*)base;
  }
  *window = new WindowOf{c->world, c->windows++, c->rank};
  c->world->meet();
  return 0;
}
inline ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t w) { delete w; return 0; }
// The host's collectives: a program that falls back must be seen, so they do nothing but say so.
inline ncclResult_t on_host(const char* name) { fprintf(stderr, "host %s\n", name); return ncclInvalidUsage; }
inline ncclResult_t ncclGroupStart() { return on_host("group"); }
inline ncclResult_t ncclGroupEnd() { return on_host("group"); }
#define HOST(name) template <typename... T> ncclResult_t name(T...) { return on_host(#name); }
HOST(ncclSend) HOST(ncclRecv) HOST(ncclAlltoAll) HOST(ncclAllGather) HOST(ncclReduceScatter) HOST(ncclAllReduce)
HOST(ncclBroadcast) HOST(ncclReduce) HOST(ncclGather) HOST(ncclScatter)
