// The device API between threads, a kernel being one thread.
#pragma once
#include <cuda/atomic>

#include "nccl.h"

struct ncclCoopCta {};
struct ncclTeamTagLsa {};
template <typename Coop>
struct ncclLsaBarrierSession {
  World* world;
  ncclLsaBarrierSession(Coop, const ncclDevComm& dc, ncclTeamTagLsa, int) : world(dc.world) {}
  void sync(Coop, cuda::memory_order) { world->meet(); }
};
inline void* ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer) { return w->world->windows[w->number][peer] + offset; }
inline void* ncclGetLocalPointer(ncclWindow_t w, size_t offset) { return ncclGetLsaPointer(w, offset, w->rank); }
inline void __trap() { fprintf(stderr, "trap\n"); _Exit(7); }
