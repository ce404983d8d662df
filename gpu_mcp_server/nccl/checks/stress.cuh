// Laid beside a program under check; its calls of allocation, freeing and collectives are renamed to these by the checker.
//
// Environment: GMCP_DUMPS (folder: contents of communicated buffers when they are freed), GMCP_STRESS=1 (receive buffers
// poisoned before each collective out of place, ranks skewed at the start of each iteration).
// Guards of GUARD bytes follow every allocation; what was overwritten is said at the end:
//   gmcp: rank=R buffers=N dumped=M guards_broken=G poisoned=P skewed=S
// A process that is ended by SIGTERM says where it stood:
//   gmcp: rank=R ended after=SITE turn=T device=D passed_line=L
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <cuda_runtime.h>
#include <map>
#include <mutex>
#include <nccl.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace gmcp {
static const int DEVICES = 16;
static __device__ volatile int* progress = nullptr;  // of this device, in host memory: the line of the last barrier that was passed
inline volatile int* progresses[DEVICES];
inline const char* volatile site = "";
inline volatile int turn = 0;
static const size_t GUARD = 256, DUMPED = 8u << 20;  // of each end of a buffer that is larger
static const unsigned char GUARD_BYTE = 0xA5;
static const long long SKEW_NS = 300000;

struct Buffer { size_t bytes; int device, number; bool communicated; };
struct State {
  std::mutex lock;
  std::map<char*, Buffer> buffers;
  std::map<int, int> ranks, numbers;  // by device
  int made = 0, dumped = 0, broken = 0, poisoned = 0, skewed = 0;
  State();
  ~State() { say(); }
  void say() {
    if (!made) return;
    int rank = -1;
    for (auto& known : ranks) rank = rank < 0 ? known.second : rank;
    fprintf(stderr, "gmcp: rank=%d buffers=%d dumped=%d guards_broken=%d poisoned=%d skewed=%d\n", rank, made, dumped, broken, poisoned, skewed);
  }
};
// Only write() and _exit() are safe here.
inline void number(char*& at, int value) {
  char digits[12];
  int n = 0;
  if (value < 0) { *at++ = '-'; value = -value; }
  do { digits[n++] = '0' + value % 10; value /= 10; } while (value && n < 11);
  while (n) *at++ = digits[--n];
}
inline void words(char*& at, const char* text) { while (*text) *at++ = *text++; }
inline int first_rank = -1;
inline void ended(int) {
  for (int d = 0; d < DEVICES; d++) {
    if (!progresses[d] && d) continue;
    char line[400], *at = line;
    words(at, "gmcp: rank="); number(at, first_rank < 0 ? d : first_rank);
    words(at, " ended after="); words(at, site);
    words(at, " turn="); number(at, turn);
    words(at, " device="); number(at, d);
    words(at, " passed_line="); number(at, progresses[d] ? *progresses[d] : -1);
    words(at, "\n");
    if (write(2, line, at - line) < 0) break;
  }
  _exit(143);
}
inline State::State() { signal(SIGTERM, ended); }
inline void at(const char* where) { site = where; turn = turn + 1; }
inline State& state() { static State s; return s; }
inline bool stressed() { static const char* set = getenv("GMCP_STRESS"); return set && set[0] == '1'; }
inline int rank_of(int device) { auto& ranks = state().ranks; auto found = ranks.find(device); return found == ranks.end() ? device : found->second; }

inline void made(void* pointer, size_t bytes) {
  State& s = state();
  std::lock_guard<std::mutex> held(s.lock);
  int device = 0;
  cudaGetDevice(&device);
  if (device < DEVICES && !progresses[device]) {
    int* shared = nullptr;
    if (cudaHostAlloc((void**)&shared, sizeof(int), cudaHostAllocMapped) == cudaSuccess) {
      *shared = 0;
      volatile int* there = nullptr;
      cudaHostGetDevicePointer((void**)&there, shared, 0);
      cudaMemcpyToSymbol(progress, &there, sizeof(there));
      progresses[device] = shared;
    }
  }
  s.buffers[(char*)pointer] = {bytes, device, s.numbers[device]++, false};
  s.made++;
  cudaMemset((char*)pointer + bytes, GUARD_BYTE, GUARD);
}
template <typename T> cudaError_t cuda_malloc(T** pointer, size_t bytes) {
  cudaError_t e = cudaMalloc((void**)pointer, bytes + GUARD);
  if (e == cudaSuccess) made((void*)*pointer, bytes);
  return e;
}
inline ncclResult_t nccl_malloc(void** pointer, size_t bytes) {
  ncclResult_t r = ncclMemAlloc(pointer, bytes + GUARD);
  if (r == ncclSuccess) made(*pointer, bytes);
  return r;
}
template <typename Call, typename T> auto allocated(Call call, T** pointer, size_t bytes) {
  auto r = call(pointer, bytes + GUARD);
  if (r == 0) made((void*)*pointer, bytes);
  return r;
}
inline Buffer* around(const void* pointer) {
  State& s = state();
  auto after = s.buffers.upper_bound((char*)pointer);
  if (after == s.buffers.begin()) return nullptr;
  --after;
  return (char*)pointer < after->first + after->second.bytes ? &after->second : nullptr;
}
// Ahead of a free: guards are looked at, and what was communicated is written down.
inline void leaving(void* pointer) {
  State& s = state();
  std::lock_guard<std::mutex> held(s.lock);
  auto found = s.buffers.find((char*)pointer);
  if (found == s.buffers.end()) return;
  Buffer b = found->second;
  s.buffers.erase(found);
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(b.device);
  unsigned char guard[GUARD];
  if (cudaMemcpy(guard, (char*)pointer + b.bytes, GUARD, cudaMemcpyDeviceToHost) == cudaSuccess)
    for (unsigned char g : guard) if (g != GUARD_BYTE) { s.broken++; break; }
  const char* folder = getenv("GMCP_DUMPS");
  if (folder && b.communicated) {
    const std::string path = std::string(folder) + "/rank" + std::to_string(rank_of(b.device)) + "-buffer" + std::to_string(b.number) + ".bin";
    const size_t head = b.bytes < DUMPED ? b.bytes : DUMPED, tail = b.bytes - head < DUMPED ? b.bytes - head : DUMPED;
    std::vector<char> kept(head + tail);
    cudaMemcpy(kept.data(), pointer, head, cudaMemcpyDeviceToHost);
    if (tail) cudaMemcpy(kept.data() + head, (char*)pointer + b.bytes - tail, tail, cudaMemcpyDeviceToHost);
    if (FILE* out = fopen(path.c_str(), "wb")) { fwrite(kept.data(), 1, kept.size(), out); fclose(out); s.dumped++; }
  }
  cudaSetDevice(before);
}
inline cudaError_t cuda_free(void* pointer) { leaving(pointer); return cudaFree(pointer); }
inline ncclResult_t nccl_free(void* pointer) { leaving(pointer); return ncclMemFree(pointer); }

inline ncclResult_t init_rank(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  int device = 0;
  cudaGetDevice(&device);
  state().ranks[device] = rank;
  first_rank = rank;
  return ncclCommInitRank(comm, n, id, rank);
}
// Many programs leave their ranks by _exit, where no destructor runs: so the last word is said here too.
inline ncclResult_t comm_destroy(ncclComm_t comm) { state().say(); return ncclCommDestroy(comm); }
inline size_t size_of(ncclDataType_t t) {
  switch (t) { case ncclInt8: case ncclUint8: return 1; case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4; default: return 8; }
}
// Ahead of a collective: both buffers are noted as communicated; one that is only received into is poisoned.
inline void ahead(const void* send, void* recv, size_t send_count, size_t recv_count, ncclDataType_t type, cudaStream_t stream) {
  State& s = state();
  std::lock_guard<std::mutex> held(s.lock);
  Buffer *from = around(send), *to = around(recv);
  if (from) from->communicated = true;
  if (to) to->communicated = true;
  const char *sb = (const char*)send, *rb = (const char*)recv;
  const size_t sn = send_count * size_of(type), rn = recv_count * size_of(type);
  if (stressed() && to && (sb + sn <= rb || rb + rn <= sb)) {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(to->device);
    cudaMemsetAsync(recv, 0xFF, rn, stream);
    cudaSetDevice(before);
    s.poisoned++;
  }
}
inline size_t ranks_of(ncclComm_t comm) { int n = 1; ncclCommCount(comm, &n); return (size_t)n; }
// Negative control: the communication is left out, and whoever verifies must notice.
inline bool silent() { static const char* set = getenv("GMCP_SILENT"); return set && set[0] == '1'; }
template <typename Call>
ncclResult_t all_to_all(Call call, const void* s, void* r, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, r, count * ranks_of(comm), count * ranks_of(comm), type, stream);
  return silent() ? ncclSuccess : call(s, r, count, type, comm, stream);
}
template <typename Call>
ncclResult_t all_gather(Call call, const void* s, void* r, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, r, count, count * ranks_of(comm), type, stream);
  return silent() ? ncclSuccess : call(s, r, count, type, comm, stream);
}
template <typename Call>
ncclResult_t reduce_scatter(Call call, const void* s, void* r, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, r, count * ranks_of(comm), count, type, stream);
  return silent() ? ncclSuccess : call(s, r, count, type, op, comm, stream);
}
template <typename Call>
ncclResult_t all_reduce(Call call, const void* s, void* r, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, r, count, count, type, stream);
  return silent() ? ncclSuccess : call(s, r, count, type, op, comm, stream);
}

// Send and receive of a loop: the receiver's part is poisoned.
template <typename Call>
ncclResult_t send(Call call, const void* s, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, nullptr, count, 0, type, stream);
  return silent() ? ncclSuccess : call(s, count, type, peer, comm, stream);
}
template <typename Call>
ncclResult_t recv(Call call, void* r, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  ahead(nullptr, r, 0, count, type, stream);
  return silent() ? ncclSuccess : call(r, count, type, peer, comm, stream);
}
template <typename Call>
ncclResult_t sweep(Call call, const void* s, void* r, size_t count, ncclDataType_t type, int peers, ncclComm_t comm, cudaStream_t stream) {
  ahead(s, r, count * peers, count * peers, type, stream);
  return silent() ? ncclSuccess : call(s, r, count, type, peers, comm, stream);
}

__global__ static void gmcp_spin(long long ns) {
  unsigned long long t0, t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); } while ((long long)(t - t0) < ns);
}
// At the start of an iteration, ahead of what fills the buffers: every second rank comes later, in turns. The spin lies
// on the legacy stream of each device in use, for which all blocking streams wait.
inline void skew(int turn) {
  if (!stressed()) return;
  State& s = state();
  int before = 0;
  cudaGetDevice(&before);
  for (auto& used : s.numbers) {
    if (((turn + rank_of(used.first)) & 1) == 0) continue;
    cudaSetDevice(used.first);
    gmcp_spin<<<1, 1>>>(SKEW_NS);
    s.skewed++;
  }
  cudaSetDevice(before);
}
// Inside a kernel, after each barrier.
__device__ inline void passed(int line) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && progress) { *progress = line; __threadfence_system(); }
}
// Inside a kernel, after its first barrier: ranks take turns of about two milliseconds at being late.
__device__ inline void late(int rank) {
#ifdef GMCP_LATE
  unsigned long long t0, t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
  if ((((t0 >> 21) + rank) & 1) == 0) return;
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); } while (t - t0 < 300000ull);
#endif
}
}  // namespace gmcp
