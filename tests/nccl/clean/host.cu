// clean: host collectives alone; a comment with ncclGetLsaPointer and "Verification: PASS" is no code
#include <cstdio>
#include <cuda_runtime.h>
#include <nccl.h>

int main() {
  ncclComm_t comm;
  float *data, sum = 0;
  if (ncclCommInitAll(&comm, 1, nullptr) != ncclSuccess) return 1;
  if (cudaMalloc(&data, 4096) != cudaSuccess) return 1;
  for (int i = 0; i < 10; i++)
    if (ncclAllReduce(data, data, 1024, ncclFloat, ncclSum, comm, nullptr) != ncclSuccess) return 1;
  cudaMemcpy(&sum, data, sizeof(sum), cudaMemcpyDeviceToHost);
  printf("Verification: %s\n", sum == 0 ? "PASS" : "FAIL");
  cudaFree(data);
  return ncclCommDestroy(comm);
}
