// The generated block's interface, with the faults that FAULT plants into its collectives.
#pragma once
#include "nccl.h"

namespace ncclx {
inline ncclResult_t dev_init(ncclComm_t) { return 0; }
inline ncclResult_t dev_fini(ncclComm_t) { return 0; }
inline ncclResult_t win_register(ncclComm_t, void*, size_t) { return 0; }
inline ncclResult_t register_all(ncclComm_t) { return 0; }
inline std::set<void*>& own() {
  static std::set<void*> all;
  return all;
}
template <typename T> ncclResult_t mem_alloc(T** p, size_t n) {
  const ncclResult_t made = ncclMemAlloc((void**)p, n);
  own().insert(*p);
  return made;
}
inline ncclResult_t buf_free(void* p) { return own().erase(p) ? ncclMemFree(p) : cudaFree(p) ? ncclInvalidUsage : ncclSuccess; }
template <typename Call> ncclResult_t faulty(Call call, void* r, size_t received) {
  const char* fault = getenv("FAULT") ? getenv("FAULT") : "";
  static int calls = 0;
  calls++;
  if (!strcmp(fault, "stale") && calls % 7 == 0) return 0;  // now and then nothing is communicated
  float* last = (float*)r + received - 1;
  const float before = *last, beyond = last[1];
  call();
  if (!strcmp(fault, "short")) *last = before;
  if (!strcmp(fault, "beyond")) last[1] = 1.0f;
  else last[1] = beyond;
  if (!strcmp(fault, "imprecise") && fabsf(*last) < 1.0f) *last += 1e-3f;
  return 0;
}
inline ncclResult_t AlltoAll(const void* s, void* r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclAlltoAll(s, r, n, t, c, st); }, r, n * c->n);
}
inline ncclResult_t AllGather(const void* s, void* r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclAllGather(s, r, n, t, c, st); }, r, n * c->n);
}
inline ncclResult_t ReduceScatter(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclReduceScatter(s, r, n, t, o, c, st); }, r, n);
}
inline ncclResult_t AllReduce(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclAllReduce(s, r, n, t, o, c, st); }, r, n);
}
inline ncclResult_t Broadcast(const void* s, void* r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclBroadcast(s, r, n, t, root, c, st); }, r, n);
}
inline ncclResult_t Reduce(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t o, int root, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclReduce(s, r, n, t, o, root, c, st); }, r, c->rank == root ? n : 0);
}
inline ncclResult_t Gather(const void* s, void* r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclGather(s, r, n, t, root, c, st); }, r, c->rank == root ? n * c->n : 0);
}
inline ncclResult_t Scatter(const void* s, void* r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) {
  return faulty([&] { ncclScatter(s, r, n, t, root, c, st); }, r, n);
}
}  // namespace ncclx
