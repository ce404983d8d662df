// A processor in the place of CUDA: kernels are called as functions of one thread, streams are in order at once.
// It tests the arithmetic of programs of ours; it proves nothing of how GPUs behave.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>

#define __global__
#define __device__
#define __host__
struct Three { unsigned x, y, z; };
static Three blockIdx{0, 0, 0}, threadIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};
typedef int cudaError_t;
typedef void* cudaStream_t;
typedef double* cudaEvent_t;
enum { cudaSuccess = 0, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaHostAllocMapped = 2 };
inline const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
inline const char* cudaGetErrorString(cudaError_t) { return "unknown"; }
inline cudaError_t cudaSetDevice(int) { return 0; }
inline cudaError_t cudaGetDevice(int* d) { *d = 0; return 0; }
template <typename T> cudaError_t cudaMalloc(T** p, size_t n) { *p = (T*)malloc(n ? n : 1); return *p ? 0 : 2; }
template <typename T> cudaError_t cudaHostAlloc(T** p, size_t n, int) { return cudaMalloc(p, n); }
template <typename T> cudaError_t cudaHostGetDevicePointer(T** d, void* h, int) { *d = (T*)h; return 0; }
template <typename T> cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t n) { memcpy((void*)&symbol, from, n); return 0; }
inline std::set<void*>& mapped() {  // what ncclMemAlloc made: cudaFree refuses it
  static std::set<void*> all;
  return all;
}
inline cudaError_t cudaFree(void* p) {
  if (mapped().count(p)) return 1;
  free(p);
  return 0;
}
inline cudaError_t cudaMemset(void* p, int v, size_t n) { memset(p, v, n); return 0; }
inline cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t = 0) { memset(p, v, n); return 0; }
inline cudaError_t cudaMemcpy(void* d, const void* s, size_t n, int) { memcpy(d, s, n); return 0; }
inline cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, int, cudaStream_t = 0) { memcpy(d, s, n); return 0; }
inline cudaError_t cudaStreamCreate(cudaStream_t* s) { *s = nullptr; return 0; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return 0; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return 0; }
inline double seconds() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { *e = new double(0); return 0; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) { *e = seconds(); return 0; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return 0; }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return 0; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) { *ms = (float)((*b - *a) * 1e3); return 0; }
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) { return *p += v; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline void __threadfence_system() {}
inline void globaltimer(unsigned long long& t) { t = (unsigned long long)(seconds() * 1e9); }
