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

// GIN: a put is a copy, and a signal a number at its receiver.
struct ncclTeam { int nRanks, rank; };
struct ncclTeamTagWorld {};
inline ncclTeam ncclTeamWorld(const ncclDevComm& dc) { return {dc.nRanks, dc.rank}; }
struct ncclGin_SignalInc { unsigned id; };
enum class ncclGinFenceLevel { Relaxed };
struct ncclGin {
  World* world;
  int rank;
  ncclGin(const ncclDevComm& dc, int) : world(dc.world), rank(dc.rank) {}
  uint64_t& signal(int of, unsigned id) { return world->signals[{of, id}]; }
  uint64_t readSignal(unsigned id) {
    std::lock_guard<std::mutex> lock(world->mutex);
    return signal(rank, id);
  }
  void put(ncclTeam, int peer, ncclWindow_t to, size_t to_offset, ncclWindow_t from, size_t from_offset, size_t bytes, ncclGin_SignalInc raised) {
    memcpy((char*)ncclGetLsaPointer(to, to_offset, peer), ncclGetLocalPointer(from, from_offset), bytes);
    std::lock_guard<std::mutex> lock(world->mutex);
    signal(peer, raised.id)++;
    world->all.notify_all();
  }
  void waitSignal(ncclCoopCta, unsigned id, uint64_t least) {
    std::unique_lock<std::mutex> lock(world->mutex);
    world->all.wait(lock, [&] { return signal(rank, id) >= least; });
  }
  void flush(ncclCoopCta) {}
};
template <typename Coop>
struct ncclBarrierSession {
  World* world;
  ncclBarrierSession(Coop, ncclTeamTagWorld, const ncclGin& gin, int) : world(gin.world) {}
  void sync(Coop, cuda::memory_order, ncclGinFenceLevel) { world->meet(); }
};
