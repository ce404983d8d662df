// clean: one-sided puts with signals between barriers
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#define CTAS 8

__global__ void put_all(ncclDevComm devComm, ncclWindow_t from, ncclWindow_t to, size_t bytes) {
  ncclGin gin(devComm, 0);
  const uint64_t before = gin.readSignal(blockIdx.x);
  ncclBarrierSession<ncclCoopCta> bar(ncclCoopCta(), ncclTeamTagWorld(), gin, blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
  const ncclTeam world = ncclTeamWorld(devComm);
  for (int p = threadIdx.x; p < world.nRanks; p += blockDim.x)
    gin.put(world, p, to, world.rank * bytes, from, p * bytes, bytes, ncclGin_SignalInc{blockIdx.x});
  gin.waitSignal(ncclCoopCta(), blockIdx.x, before + world.nRanks);
  gin.flush(ncclCoopCta());
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
}

int launched(ncclComm_t comm, ncclWindow_t from, ncclWindow_t to, size_t bytes, cudaStream_t stream) {
  ncclDevCommRequirements wanted = {};
  wanted.barrierCount = CTAS;
  wanted.ginSignalCount = CTAS;
  wanted.ginForceEnable = true;
  ncclDevComm devComm;
  if (ncclDevCommCreate(comm, &wanted, &devComm) != ncclSuccess) return 1;
  put_all<<<CTAS, 128, 0, stream>>>(devComm, from, to, bytes);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 1;
  return ncclDevCommDestroy(comm, &devComm);
}
