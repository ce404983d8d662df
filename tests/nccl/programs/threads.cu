// Host-driven all-gather and reduce-scatter: one thread a GPU, buffers in a structure, the NCCL calls in a method.
#include <cuda_runtime.h>
#include <nccl.h>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define CUDA_CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(e_)); exit(1); } } while (0)
#define NCCL_CHECK(call) do { ncclResult_t r_ = (call); if (r_ != ncclSuccess) { fprintf(stderr, "%s\n", ncclGetErrorString(r_)); exit(1); } } while (0)

struct Shard {
  double* part = nullptr;
  double* whole = nullptr;
  ncclComm_t comm;
  cudaStream_t stream;
  void exchange(size_t count) {
    NCCL_CHECK(ncclAllGather(part, whole, count, ncclDouble, comm, stream));
    NCCL_CHECK(ncclReduceScatter(whole, part, count, ncclDouble, ncclMax, comm, stream));
  }
};

__global__ void fill(double* p, size_t n, int rank) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = rank * 1000.0 + i % 97;
}

static void worker(int rank, int ranks, ncclUniqueId id, size_t count, int* bad) {
  CUDA_CHECK(cudaSetDevice(rank));
  Shard shard;
  NCCL_CHECK(ncclCommInitRank(&shard.comm, ranks, id, rank));
  CUDA_CHECK(cudaStreamCreate(&shard.stream));
  CUDA_CHECK(cudaMalloc(&shard.part, count * sizeof(double)));
  CUDA_CHECK(cudaMalloc(&shard.whole, count * ranks * sizeof(double)));
  fill<<<32, 256, 0, shard.stream>>>(shard.part, count, rank);
  shard.exchange(count);
  std::vector<double> host(count);
  CUDA_CHECK(cudaMemcpyAsync(host.data(), shard.part, count * sizeof(double), cudaMemcpyDeviceToHost, shard.stream));
  CUDA_CHECK(cudaStreamSynchronize(shard.stream));
  for (size_t i = 0; i < count; i++) *bad += host[i] != rank * 1000.0 + i % 97;
  CUDA_CHECK(cudaFree(shard.part));
  CUDA_CHECK(cudaFree(shard.whole));
  NCCL_CHECK(ncclCommFinalize(shard.comm));
  NCCL_CHECK(ncclCommDestroy(shard.comm));
}

int main(int argc, char** argv) {
  int ranks = argc > 1 ? atoi(argv[1]) : 2;
  ncclUniqueId id;
  NCCL_CHECK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  std::vector<int> bad(ranks);
  for (int r = 0; r < ranks; r++) threads.emplace_back(worker, r, ranks, id, size_t(1) << 20, &bad[r]);
  for (auto& t : threads) t.join();
  int wrong = 0;
  for (int b : bad) wrong += b;
  printf("Verification: %s\n", wrong ? "FAIL" : "PASS");
  return wrong != 0;
}
