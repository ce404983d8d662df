// The processor in the place of CUDA, with a device of its own for each thread.
#pragma once
#define cudaSetDevice cudaSetTheDevice
#define cudaGetDevice cudaGetTheDevice
#include "../cuda_runtime.h"
#undef cudaSetDevice
#undef cudaGetDevice

enum { cudaErrorMemoryAllocation = 2, cudaErrorUnknown = 999 };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
inline int& device_of_thread() {
  static thread_local int device = 0;
  return device;
}
inline cudaError_t cudaSetDevice(int device) { device_of_thread() = device; return 0; }
inline cudaError_t cudaGetDevice(int* device) { *device = device_of_thread(); return 0; }
inline cudaError_t cudaDeviceSynchronize() { return 0; }
inline cudaError_t cudaGetLastError() { return 0; }
inline cudaError_t cudaPeekAtLastError() { return 0; }
enum { cudaEventDisableTiming = 2 };
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, int) { return cudaEventCreate(e); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, int) { return 0; }
inline void __syncthreads() {}
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* p, unsigned v) { const unsigned before = *p; *p += v; return before; }
