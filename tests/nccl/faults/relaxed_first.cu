// fault: orders
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#define CTAS 16
#define OK(call) do { if ((call) != 0) { fprintf(stderr, "line %d failed\n", __LINE__); return 1; } } while (0)

// EVOLVE-BLOCK-START
__global__ void exchange(ncclDevComm devComm, ncclWindow_t from, ncclWindow_t to, size_t count) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), devComm, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_relaxed);
  const int rank = devComm.lsaRank, n = devComm.lsaSize;
  const size_t tid = blockIdx.x * (size_t)blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;
  const float* own = (const float*)ncclGetLocalPointer(from, 0);
  for (int k = 0; k < n; k++) {
    const int peer = (rank + k) % n;
    float* there = (float*)ncclGetLsaPointer(to, 0, peer) + rank * count;
    for (size_t i = tid; i < count; i += all) there[i] = own[peer * count + i];
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}
// EVOLVE-BLOCK-END

__global__ void check(const float* got, size_t count, unsigned long long* bad) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) if (got[i] != (float)i) atomicAdd(bad, 1ull);
}

int run(int rank, int n, ncclUniqueId id, size_t count) {
  ncclComm_t comm;
  cudaStream_t stream;
  float *from, *to;
  unsigned long long *bad, wrong = 0;
  const size_t bytes = count * n * sizeof(float);
  OK(ncclCommInitRank(&comm, n, id, rank));
  OK(cudaStreamCreate(&stream));
  OK(ncclMemAlloc((void**)&from, bytes));
  OK(ncclMemAlloc((void**)&to, bytes));
  OK(cudaMalloc(&bad, sizeof(*bad)));
  ncclWindow_t fromWindow, toWindow;
  OK(ncclCommWindowRegister(comm, from, bytes, &fromWindow, NCCL_WIN_COLL_SYMMETRIC));
  OK(ncclCommWindowRegister(comm, to, bytes, &toWindow, NCCL_WIN_COLL_SYMMETRIC));
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements wanted;
  memset(&wanted, 0, sizeof(wanted));
#endif
  wanted.lsaBarrierCount = CTAS;
  ncclDevComm devComm;
  OK(ncclDevCommCreate(comm, &wanted, &devComm));
  if (devComm.lsaSize != n) return 1;
  for (int it = 0; it < 20; it++) {
    OK(cudaMemsetAsync(to, 0xFF, bytes, stream));
    exchange<<<CTAS, 512, 0, stream>>>(devComm, fromWindow, toWindow, count);
    check<<<1, 256, 0, stream>>>(to, count, bad);
  }
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemcpy(&wrong, bad, sizeof(wrong), cudaMemcpyDeviceToHost));
  OK(ncclDevCommDestroy(comm, &devComm));
  OK(ncclCommWindowDeregister(comm, fromWindow));
  OK(ncclCommWindowDeregister(comm, toWindow));
  OK(ncclMemFree(from));
  OK(ncclMemFree(to));
  OK(cudaFree(bad));
  OK(ncclCommDestroy(comm));
  if (wrong) {
    printf("Verification: FAIL (%llu)\n", wrong);
    return 1;
  }
  printf("Verification: PASS\n");
  return 0;
}

int main(int argc, char** argv) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  return run(0, 1, id, 1024);
}
