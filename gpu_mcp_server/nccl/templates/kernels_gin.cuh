// ncclx, device side over GIN: GPUs put into each other's windows through their NICs, across hosts. Compiled against 2.28.9,
// 2.29.7 and 2.32.3; never run, as no RDMA NIC was at hand. Reductions stay with the host's NCCL, counted.
// Lines between the markers may change; the functions that ncclx.cuh calls must keep their names and parameters:
// require, reaches_all, reduces, launch_alltoall, launch_allgather, launch_reducescatter, launch_allreduce, launch_exchange.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>

#if NCCL_VERSION_CODE < 22807
#error "NCCL 2.28.7 is the first with GIN"
#endif
#define NCCLX_SEND_IN_WINDOW 1  // a NIC reads registered memory only
#define NCCLX_ROOTED 0          // broadcast, gather and scatter are exchanges; reduce stays with the host's NCCL
#define NCCLX_EXCHANGES 1       // groups of sends and receives are generated
#define NCCLX_PAIRS 0           // sends and receives in no group stay with the host's NCCL
#define NCCLX_RECEIVE_IN_WINDOW 1
#define NCCLX_PARTS 64    // sends, and receives, of one rank in one group: they are kernel parameters
#define NCCLX_PAIRED 8    // parts from one rank to one other in one group
#define NCCLX_WINDOWS 32  // windows of a communicator in which parts of an exchange can lie

namespace ncclx {
struct Sent {  // a part that a rank sends; and, as an offer, where its receiver wants it
  size_t offset, bytes;
  unsigned turn;
  int window, peer;
};
struct Received {
  char* to;
  size_t bytes;
  int peer;
  size_t offset;
  int window;
};
struct Exchange {
  unsigned turn;  // tells this exchange's offers from those of the one before
  int sends, receives;
  ncclWindow_t windows[NCCLX_WINDOWS];
  Sent sent[NCCLX_PARTS];
  Received received[NCCLX_PARTS];
};
// A rank's table: what its peers offer, and behind it what it offers itself, from where a NIC fetches it.
inline size_t table_bytes(int ranks) { return sizeof(Sent) * (NCCLX_PAIRED * static_cast<size_t>(ranks) + NCCLX_PARTS); }
}  // namespace ncclx
// EVOLVE-BLOCK-START
#ifndef NCCLX_CTAS
#define NCCLX_CTAS 1  // NICs move the data: one CTA posts the puts
#endif
#ifndef NCCLX_THREADS
#define NCCLX_THREADS 256
#endif

namespace ncclx {

#if NCCL_VERSION_CODE >= 23005  // 2.30.5 tells strong from weak signals; before there is the strong one only
typedef ncclGin_WeakSignalInc Arrived;
#else
typedef ncclGin_SignalInc Arrived;
#endif

inline void require(ncclDevCommRequirements& wanted) {
  wanted.ginSignalCount = NCCLX_CTAS + 2;  // of exchanges: an offer, and a part
#if NCCL_VERSION_CODE >= 23003
  wanted.worldGinBarrierCount = NCCLX_CTAS;
#else
  wanted.barrierCount = NCCLX_CTAS;
#endif
#if NCCL_VERSION_CODE >= 22907
  wanted.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#endif
}

inline bool reaches_all(const ncclDevComm& dc) { return dc.ginContextCount > 0; }

inline bool reduces(ncclDataType_t, ncclRedOp_t) { return false; }

// Puts `bytes` from so + p * step to part `rank` of every peer p's receive window, and waits for all peers' parts.
__global__ static void put_kernel(ncclDevComm dc, ncclWindow_t sw, size_t so, size_t step, ncclWindow_t rw, size_t ro,
                                  size_t bytes) {
  ncclGin gin(dc, 0);
  const unsigned signal = blockIdx.x;
  const uint64_t before = gin.readSignal(signal);  // ahead of the barrier: nobody has put yet
#if NCCL_VERSION_CODE >= 23003
  ncclGinBarrierSession<ncclCoopCta> bar(ncclCoopCta(), gin, ncclTeamTagWorld(), blockIdx.x);
#else
  ncclBarrierSession<ncclCoopCta> bar(ncclCoopCta(), ncclTeamTagWorld(), gin, blockIdx.x);
#endif
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const ncclTeam world = ncclTeamWorld(dc);
  for (int p = threadIdx.x; p < world.nRanks; p += blockDim.x)
    gin.put(world, p, rw, ro + world.rank * bytes, sw, so + p * step, bytes, Arrived{signal});
  gin.waitSignal(ncclCoopCta(), signal, before + world.nRanks);  // one from each rank, the own one too
  gin.flush(ncclCoopCta());                                      // local: the send buffer may change
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

// Each rank offers the senders of what it receives where that is to go, and puts what it sends where its receivers want
// it: NCCL pairs the parts of two ranks in order. One CTA.
__global__ static void exchange_kernel(ncclDevComm dc, Exchange x, ncclWindow_t table) {
  ncclGin gin(dc, 0);
  const unsigned offered = NCCLX_CTAS, arrived = NCCLX_CTAS + 1;
  const uint64_t offers = gin.readSignal(offered), parts = gin.readSignal(arrived);  // ahead of the barrier
#if NCCL_VERSION_CODE >= 23003
  ncclGinBarrierSession<ncclCoopCta> bar(ncclCoopCta(), gin, ncclTeamTagWorld(), blockIdx.x);
#else
  ncclBarrierSession<ncclCoopCta> bar(ncclCoopCta(), ncclTeamTagWorld(), gin, blockIdx.x);
#endif
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const ncclTeam world = ncclTeamWorld(dc);
  const size_t own = NCCLX_PAIRED * sizeof(Sent) * world.nRanks;  // where the own offers begin
  for (int i = threadIdx.x; i < x.receives; i += blockDim.x) {
    const int peer = x.received[i].peer;
    int k = 0;
    for (int j = 0; j < i; j++) k += x.received[j].peer == peer;
    Sent* offer = static_cast<Sent*>(ncclGetLocalPointer(table, own + i * sizeof(Sent)));
    *offer = Sent{x.received[i].offset, x.received[i].bytes, x.turn, x.received[i].window, peer};
    gin.put(world, peer, table, (world.rank * NCCLX_PAIRED + k) * sizeof(Sent), table, own + i * sizeof(Sent), sizeof(Sent),
            Arrived{offered});
  }
  gin.waitSignal(ncclCoopCta(), offered, offers + x.sends);
  for (int i = threadIdx.x; i < x.sends; i += blockDim.x) {
    const int peer = x.sent[i].peer;
    int k = 0;
    for (int j = 0; j < i; j++) k += x.sent[j].peer == peer;
    const Sent offer = *static_cast<const Sent*>(ncclGetLocalPointer(table, (peer * NCCLX_PAIRED + k) * sizeof(Sent)));
    if (offer.turn != x.turn || offer.bytes != x.sent[i].bytes) __trap();  // no such part is wanted, or another size
    gin.put(world, peer, x.windows[offer.window], offer.offset, x.windows[x.sent[i].window], x.sent[i].offset, offer.bytes,
            Arrived{arrived});
  }
  gin.waitSignal(ncclCoopCta(), arrived, parts + x.receives);
  gin.flush(ncclCoopCta());  // local: offers and what was sent may change
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

inline void launch_exchange(const ncclDevComm& dc, const Exchange& x, ncclWindow_t table, cudaStream_t stream) {
  exchange_kernel<<<1, NCCLX_THREADS, 0, stream>>>(dc, x, table);
}

inline void launch_alltoall(const ncclDevComm& dc, const char*, ncclWindow_t sw, size_t so, ncclWindow_t rw, size_t ro,
                            size_t bytes, cudaStream_t stream) {
  if (bytes > 0) put_kernel<<<NCCLX_CTAS, NCCLX_THREADS, 0, stream>>>(dc, sw, so, bytes, rw, ro, bytes);
}

inline void launch_allgather(const ncclDevComm& dc, const char*, ncclWindow_t sw, size_t so, ncclWindow_t rw, size_t ro,
                             size_t bytes, cudaStream_t stream) {
  if (bytes > 0) put_kernel<<<NCCLX_CTAS, NCCLX_THREADS, 0, stream>>>(dc, sw, so, 0, rw, ro, bytes);
}

inline void launch_reducescatter(const ncclDevComm&, ncclWindow_t, size_t, void*, size_t, ncclDataType_t, ncclRedOp_t,
                                 cudaStream_t) {}

inline void launch_allreduce(const ncclDevComm&, ncclWindow_t, size_t, ncclWindow_t, size_t, size_t, ncclDataType_t,
                             ncclRedOp_t, cudaStream_t) {}

}  // namespace ncclx
// EVOLVE-BLOCK-END
