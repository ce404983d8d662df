// clean: barrier and peer access in device functions, arrive and wait apart, a grid that is bounded
#include <algorithm>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

constexpr int CTAS = 64;
#define OK(call) do { if ((call) != 0) return 1; } while (0)

template <typename T>
__device__ T* there(ncclWindow_t window, int peer, size_t first) {
  return (T*)ncclGetLsaPointer(window, 0, peer) + first;
}

template <typename Session>
__device__ void meet(Session& bar) {
  bar.arrive(ncclCoopCta(), cuda::memory_order_release);
  bar.wait(ncclCoopCta(), cuda::memory_order_acquire);
}

__device__ void copied(float* to, const float* from, size_t count) {
  if ((((size_t)to | (size_t)from) & 15) == 0) {
    for (size_t i = threadIdx.x; i < count / 4; i += blockDim.x) ((float4*)to)[i] = ((const float4*)from)[i];
    return;
  }
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

template <typename T, bool SUM>
__global__ void gathered(ncclDevComm devComm, ncclWindow_t from, ncclWindow_t to, size_t count) {
  ncclLsaBarrierSession<ncclCoopCta> bar{ncclCoopCta(), devComm, ncclTeamTagLsa(), blockIdx.x};
  T* peers[8];
  for (int p = 0; p < devComm.lsaSize; p++) peers[p] = there<T>(to, p, devComm.lsaRank * count);
  meet(bar);
  if (count == 0) {
    meet(bar);
    return;
  }
  const T* own = (const T*)ncclGetLocalPointer(from, 0);
  for (int p = 0; p < devComm.lsaSize; p++) {
    if (SUM) atomicAdd(peers[p] + threadIdx.x, own[threadIdx.x]);
    else copied(peers[p], own, count);
  }
  __syncthreads();
  meet(bar);
}

int launched(ncclDevComm devComm, ncclWindow_t from, ncclWindow_t to, size_t count, cudaStream_t stream) {
  const int blocks = std::min<int>((count + 1023) / 1024, CTAS);
  gathered<float, false><<<std::min(blocks, CTAS), 512, 0, stream>>>(devComm, from, to, count);
  return cudaGetLastError();
}

int main() {
  ncclComm_t comms[8];
  ncclDevComm devComms[8];
  ncclWindow_t from[8], to[8];
  float *send[8], *recv[8];
  int n = 2;
  OK(ncclCommInitAll(comms, n, nullptr));
  for (int i = 0; i < n; i++) {
    OK(cudaSetDevice(i));
    OK(ncclMemAlloc((void**)&send[i], 4096));
    OK(ncclMemAlloc((void**)&recv[i], 4096 * n));
  }
  ncclDevCommRequirements wanted = {};
  wanted.lsaBarrierCount = CTAS;
  OK(ncclGroupStart());
  for (int i = 0; i < n; i++) {
    OK(ncclCommWindowRegister(comms[i], send[i], 4096, &from[i], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclCommWindowRegister(comms[i], recv[i], 4096 * n, &to[i], NCCL_WIN_COLL_SYMMETRIC));
  }
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  for (int i = 0; i < n; i++) OK(ncclDevCommCreate(comms[i], &wanted, &devComms[i]));
  OK(ncclGroupEnd());
  for (int i = 0; i < n; i++) OK(devComms[i].lsaSize != n);
  for (int i = 0; i < n; i++) OK(launched(devComms[i], from[i], to[i], 1024, nullptr));
  for (int i = 0; i < n; i++) {
    OK(cudaSetDevice(i));
    OK(cudaDeviceSynchronize());
    OK(ncclDevCommDestroy(comms[i], &devComms[i]));
    OK(ncclCommWindowDeregister(comms[i], from[i]));
    OK(ncclCommWindowDeregister(comms[i], to[i]));
    OK(ncclMemFree(send[i]));
    OK(ncclMemFree(recv[i]));
  }
  for (int i = 0; i < n; i++) OK(ncclCommDestroy(comms[i]));
  return 0;
}
