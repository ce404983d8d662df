// ncclx, device side over GIN: GPUs put into each other's windows through their NICs, across hosts. Compiled against 2.28.9,
// 2.29.7 and 2.32.3; never run, as no RDMA NIC was at hand. Reductions stay with the host's NCCL, counted.
// Lines between the markers may change; the functions that ncclx.cuh calls must keep their names and parameters:
// require, reaches_all, reduces, launch_alltoall, launch_allgather, launch_reducescatter, launch_allreduce.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>

#if NCCL_VERSION_CODE < 22807
#error "NCCL 2.28.7 is the first with GIN"
#endif
#define NCCLX_SEND_IN_WINDOW 1  // a NIC reads registered memory only
#define NCCLX_ROOTED 0          // broadcast, reduce, gather, scatter and groups of sends stay with the host's NCCL
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
  wanted.ginSignalCount = NCCLX_CTAS;
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
