// Holds the collectives of ncclx.cuh against host NCCL. Its main is ours: nothing of the program that is checked runs.
//
// usage: differential RANKS MODES [SEED]      MODES: one of these, or several with commas, all in one communicator
//   check    odd counts, in place and offset, poisoned receive buffers, guards around them, skewed ranks
//   few      five of these cases, two turns each: under a checker each launch is slow
//   silent   the same with the device collectives left out: every case must be found bad
//   time     medians per size: host on plain memory, host on windows, device
// One process a rank, forked before any CUDA call. Every line of stdout is `part MODE`, `case ...`, `time ...` or `end ...`.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "ncclx.cuh"

#define CUDA_OK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { \
  fprintf(stderr, "[rank %d] CUDA line %d: %s: %s\n", g_rank, __LINE__, cudaGetErrorName(e_), cudaGetErrorString(e_)); _exit(3); } } while (0)
#define NCCL_OK(x) do { ncclResult_t r_ = (x); if (r_ != ncclSuccess) { \
  fprintf(stderr, "[rank %d] NCCL line %d: %s; %s\n", g_rank, __LINE__, ncclGetErrorString(r_), ncclGetLastError(NULL)); _exit(4); } } while (0)

static int g_rank = -1;
static const size_t GUARD = 4096;      // bytes before and after what a collective may write
static const unsigned char GUARD_BYTE = 0xA5, POISON_BYTE = 0xFF;
static const long long SKEW_NS = 300000;  // measured to separate ranks: facts of the fault trials, 2 H200s
enum Op { ALLTOALL, ALLGATHER, REDUCESCATTER, ALLREDUCE, BROADCAST, REDUCE, GATHER, SCATTER, SEND, PAIR, OPS };
static const char* NAMES[OPS] = {"AlltoAll", "AllGather", "ReduceScatter", "AllReduce", "Broadcast", "Reduce", "Gather", "Scatter", "Send", "Pair"};
static int root_of(int n) { return n - 1; }
// SEND: one group in which each rank sends `count` to the next and to the one before, who are one rank where there are two,
// and no two parts are of one size.
// PAIR: each sends `count` to the next rank in no group; even ranks send first, so that no two wait for each other.
struct Shared { ncclUniqueId id; volatile int ready; volatile int arrived; volatile unsigned long long bad[64], guard[64]; volatile double us[64]; };

__device__ inline unsigned mix(unsigned x) { x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; return x ^ (x >> 16); }
// Whole numbers of at most 1000: sums of 64 ranks are exact in float32, so that any order gives the same bits.
__device__ inline float value(unsigned seed, int rank, size_t i, int fractions) {
  const unsigned h = mix((unsigned)i * 2654435761u ^ mix(seed * 977u + rank * 131071u + (unsigned)(i >> 32)));
  return fractions ? (int)h * (1.0f / 2147483648.0f) : (float)((int)(h % 2001u) - 1000);
}
__global__ void fill(float* p, size_t n, int rank, unsigned seed, int fractions) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = value(seed, rank, i, fractions);
}
__global__ void compare(const float* got, const float* want, size_t n, float tolerance, unsigned long long* bad) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    const bool same = tolerance > 0 ? fabsf(got[i] - want[i]) <= tolerance : __float_as_uint(got[i]) == __float_as_uint(want[i]);
    if (!same) atomicAdd(bad, 1ull);
  }
}
__global__ void guarded(const unsigned char* p, size_t n, unsigned long long* bad) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    if (p[i] != GUARD_BYTE) atomicAdd(bad, 1ull);
}
__global__ void spin(long long ns) {
  unsigned long long t0, t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); } while ((long long)(t - t0) < ns);
}

template <typename Start, typename Send, typename Recv, typename End>
static ncclResult_t neighbours(Start start, Send send, Recv recv, End end, const void* s, void* r, size_t count, ncclComm_t comm, cudaStream_t stream) {
  int n, rank;
  NCCL_OK(ncclCommCount(comm, &n));
  NCCL_OK(ncclCommUserRank(comm, &rank));
  const int next = (rank + 1) % n, last = (rank + n - 1) % n;
  const size_t short_part = count / 2 + 1;
  NCCL_OK(start());
  NCCL_OK(recv((float*)r + short_part, count, ncclFloat, last, comm, stream));
  NCCL_OK(send((const float*)s, count, ncclFloat, next, comm, stream));
  NCCL_OK(recv((float*)r, short_part, ncclFloat, next, comm, stream));
  NCCL_OK(send((const float*)s + count / 3, short_part, ncclFloat, last, comm, stream));
  return end();
}
template <typename Send, typename Recv>
static ncclResult_t pair_up(Send send, Recv recv, const void* s, void* r, size_t count, ncclComm_t comm, cudaStream_t stream) {
  int n, rank;
  NCCL_OK(ncclCommCount(comm, &n));
  NCCL_OK(ncclCommUserRank(comm, &rank));
  for (int half = 0; half < 2; half++) {
    if ((rank + half) % 2 == 0) NCCL_OK(send(s, count, ncclFloat, (rank + 1) % n, comm, stream));
    else NCCL_OK(recv(r, count, ncclFloat, (rank + n - 1) % n, comm, stream));
  }
  return ncclSuccess;
}
static ncclResult_t host(Op op, const void* s, void* r, size_t count, ncclComm_t comm, cudaStream_t stream) {
  int n;
  NCCL_OK(ncclCommCount(comm, &n));
  switch (op) {
    case BROADCAST: return ncclBroadcast(s, r, count, ncclFloat, root_of(n), comm, stream);
    case REDUCE: return ncclReduce(s, r, count, ncclFloat, ncclSum, root_of(n), comm, stream);
    case GATHER: return ncclGather(s, r, count, ncclFloat, root_of(n), comm, stream);
    case SCATTER: return ncclScatter(s, r, count, ncclFloat, root_of(n), comm, stream);
    case SEND: return neighbours(ncclGroupStart, ncclSend, ncclRecv, ncclGroupEnd, s, r, count, comm, stream);
    case PAIR: return pair_up(ncclSend, ncclRecv, s, r, count, comm, stream);
    case ALLTOALL: return ncclAlltoAll(s, r, count, ncclFloat, comm, stream);
    case ALLGATHER: return ncclAllGather(s, r, count, ncclFloat, comm, stream);
    case REDUCESCATTER: return ncclReduceScatter(s, r, count, ncclFloat, ncclSum, comm, stream);
    default: return ncclAllReduce(s, r, count, ncclFloat, ncclSum, comm, stream);
  }
}
static ncclResult_t device(Op op, const void* s, void* r, size_t count, ncclComm_t comm, cudaStream_t stream) {
  int n;
  NCCL_OK(ncclCommCount(comm, &n));
  switch (op) {
#ifdef CHECK_BROADCAST
    case BROADCAST: return ncclx::Broadcast(s, r, count, ncclFloat, root_of(n), comm, stream);
#endif
#ifdef CHECK_REDUCE
    case REDUCE: return ncclx::Reduce(s, r, count, ncclFloat, ncclSum, root_of(n), comm, stream);
#endif
#ifdef CHECK_GATHER
    case GATHER: return ncclx::Gather(s, r, count, ncclFloat, root_of(n), comm, stream);
#endif
#ifdef CHECK_SCATTER
    case SCATTER: return ncclx::Scatter(s, r, count, ncclFloat, root_of(n), comm, stream);
#endif
#ifdef CHECK_SEND
    case SEND: return neighbours(ncclx::GroupStart, ncclx::Send, ncclx::Recv, ncclx::GroupEnd, s, r, count, comm, stream);
    case PAIR: return pair_up(ncclx::Send, ncclx::Recv, s, r, count, comm, stream);
#endif
#ifdef CHECK_ALLTOALL
    case ALLTOALL: return ncclx::AlltoAll(s, r, count, ncclFloat, comm, stream);
#endif
#ifdef CHECK_ALLGATHER
    case ALLGATHER: return ncclx::AllGather(s, r, count, ncclFloat, comm, stream);
#endif
#ifdef CHECK_REDUCESCATTER
    case REDUCESCATTER: return ncclx::ReduceScatter(s, r, count, ncclFloat, ncclSum, comm, stream);
#endif
#ifdef CHECK_ALLREDUCE
    case ALLREDUCE: return ncclx::AllReduce(s, r, count, ncclFloat, ncclSum, comm, stream);
#endif
    default: return ncclInvalidArgument;
  }
}
static bool wanted(Op op) {
#ifdef CHECK_BROADCAST
  if (op == BROADCAST) return true;
#endif
#ifdef CHECK_REDUCE
  if (op == REDUCE) return true;
#endif
#ifdef CHECK_GATHER
  if (op == GATHER) return true;
#endif
#ifdef CHECK_SCATTER
  if (op == SCATTER) return true;
#endif
#ifdef CHECK_SEND
  if (op == SEND || op == PAIR) return true;
#endif
#ifdef CHECK_ALLTOALL
  if (op == ALLTOALL) return true;
#endif
#ifdef CHECK_ALLGATHER
  if (op == ALLGATHER) return true;
#endif
#ifdef CHECK_REDUCESCATTER
  if (op == REDUCESCATTER) return true;
#endif
#ifdef CHECK_ALLREDUCE
  if (op == ALLREDUCE) return true;
#endif
  return false;
}
static bool sums(int op) { return op == ALLREDUCE || op == REDUCESCATTER || op == REDUCE; }
static bool in_place_too(int op) { return op == ALLREDUCE || op == REDUCESCATTER || op == ALLGATHER; }
static size_t sent(Op op, size_t count, int n) {
  if (op == SEND) return count + 1;
  return op == ALLTOALL || op == REDUCESCATTER || op == SCATTER ? count * n : count;
}
static size_t received(Op op, size_t count, int n, int rank) {
  if (op == REDUCE || op == GATHER) return rank != root_of(n) ? 0 : op == GATHER ? count * n : count;
  if (op == SEND) return count + count / 2 + 1;
  return op == ALLTOALL || op == ALLGATHER ? count * n : count;
}

struct Rank {
  int rank, n;
  Shared* shared;
  ncclComm_t comm;
  cudaStream_t stream;
  unsigned long long* bad;  // [0] wrong elements, [1] guard bytes overwritten
  // A barrier of the processes, outside CUDA and NCCL.
  void meet() {
    __sync_synchronize();
    const int turn = __sync_add_and_fetch(&shared->arrived, 1);
    const int full = (turn + n - 1) / n * n;
    while (shared->arrived < full) usleep(20);
  }
};

struct Case { Op op; size_t count; int in_place; size_t offset; int fractions; unsigned seed; };

// Expected results of all iterations come first: host NCCL between two device collectives would hide a missing barrier.
static void run_case(Rank& r, const Case& c, bool silent, int turns = 20) {
  const size_t s = sent(c.op, c.count, r.n), d = received(c.op, c.count, r.n, r.rank), larger = std::max(s, d);
  const int iterations = c.count * r.n * 4 > (8u << 20) ? std::min(turns, 6) : turns;  // the same on all ranks
  const size_t room = 2 * GUARD + (larger + c.offset) * sizeof(float);
  char *send_base, *recv_base;
  float *plain_send, *plain_recv, *wants;
  NCCL_OK(ncclx::mem_alloc(&send_base, room));
  NCCL_OK(ncclx::mem_alloc(&recv_base, room));
  NCCL_OK(ncclx::win_register(r.comm, send_base, room));
  NCCL_OK(ncclx::win_register(r.comm, recv_base, room));
  CUDA_OK(cudaMalloc(&plain_send, s * sizeof(float)));
  CUDA_OK(cudaMalloc(&plain_recv, d * sizeof(float)));
  CUDA_OK(cudaMalloc(&wants, d * sizeof(float) * iterations));
  for (int it = 0; it < iterations; it++) {
    fill<<<64, 256, 0, r.stream>>>(plain_send, s, r.rank, c.seed * 1000 + it, c.fractions);
    NCCL_OK(host(c.op, plain_send, plain_recv, c.count, r.comm, r.stream));
    CUDA_OK(cudaMemcpyAsync(wants + (size_t)it * d, plain_recv, d * sizeof(float), cudaMemcpyDeviceToDevice, r.stream));
  }
  float* recv = (float*)(recv_base + GUARD) + c.offset;
  float* send = (float*)(send_base + GUARD) + c.offset;
  if (c.in_place && c.op == ALLREDUCE) send = recv;
  if (c.in_place && c.op == ALLGATHER) send = recv + r.rank * c.count;
  if (c.in_place && c.op == REDUCESCATTER) { send = (float*)(recv_base + GUARD) + c.offset; recv = send + r.rank * c.count; }
  char* region = (char*)(c.in_place && c.op == REDUCESCATTER ? send : recv);
  const size_t region_bytes = (c.in_place ? larger : d) * sizeof(float);
  CUDA_OK(cudaMemsetAsync(r.bad, 0, 2 * sizeof(*r.bad), r.stream));
  CUDA_OK(cudaMemsetAsync(recv_base, GUARD_BYTE, room, r.stream));
  CUDA_OK(cudaStreamSynchronize(r.stream));
  r.meet();
  // |a - b| of two orders of adding up n numbers below 1: at most 2 (n-1) u n. Source: Higham, Accuracy and Stability, 4.2.
  const float tolerance = c.fractions && sums(c.op) ? 2.0f * (r.n - 1) * r.n * 5.97e-8f : 0.0f;
  for (int it = 0; it < iterations; it++) {
    if ((it + r.rank) & 1) spin<<<1, 1, 0, r.stream>>>(SKEW_NS);  // before fill and poison: afterwards it catches nothing
    if (!c.in_place) CUDA_OK(cudaMemsetAsync(recv, POISON_BYTE, d * sizeof(float), r.stream));
    else CUDA_OK(cudaMemsetAsync(region, POISON_BYTE, region_bytes, r.stream));
    fill<<<64, 256, 0, r.stream>>>(send, s, r.rank, c.seed * 1000 + it, c.fractions);
    if (!silent) NCCL_OK(device(c.op, send, recv, c.count, r.comm, r.stream));
    compare<<<64, 256, 0, r.stream>>>(recv, wants + (size_t)it * d, d, tolerance, r.bad);
  }
  const char* region_end = region + region_bytes;
  guarded<<<16, 256, 0, r.stream>>>((unsigned char*)recv_base, region - recv_base, r.bad + 1);
  guarded<<<16, 256, 0, r.stream>>>((unsigned char*)region_end, recv_base + room - region_end, r.bad + 1);
  unsigned long long found[2];
  CUDA_OK(cudaMemcpyAsync(found, r.bad, sizeof(found), cudaMemcpyDeviceToHost, r.stream));
  CUDA_OK(cudaStreamSynchronize(r.stream));
  r.shared->bad[r.rank] = found[0];
  r.shared->guard[r.rank] = found[1];
  r.meet();
  if (r.rank == 0) {
    unsigned long long bad = 0, guard = 0;
    for (int i = 0; i < r.n; i++) { bad += r.shared->bad[i]; guard += r.shared->guard[i]; }
    printf("case op=%s count=%zu in_place=%d offset=%zu fractions=%d seed=%u iterations=%d bad=%llu guard=%llu\n",
           NAMES[c.op], c.count, c.in_place, c.offset, c.fractions, c.seed, iterations, bad, guard);
    fflush(stdout);
  }
  CUDA_OK(cudaFree(plain_send)); CUDA_OK(cudaFree(plain_recv)); CUDA_OK(cudaFree(wants));
  NCCL_OK(ncclx::buf_free(send_base)); NCCL_OK(ncclx::buf_free(recv_base));
  r.meet();
}

static void check(Rank& r, unsigned seed, bool silent) {
  const size_t counts[] = {1, 3, 255, 1003, 4096, 65537, 1u << 19};
  for (int op = 0; op < OPS; op++) {
    if (!wanted((Op)op)) continue;
    for (size_t count : counts) run_case(r, {(Op)op, count, 0, 0, 0, seed}, silent);
    run_case(r, {(Op)op, 1003, 0, 1, 0, seed + 1}, silent);
    run_case(r, {(Op)op, 4096, 0, 3, 0, seed + 2}, silent);
    run_case(r, {(Op)op, 65536, 0, 1024, 0, seed + 3}, silent);
    if (sums(op)) run_case(r, {(Op)op, 65537, 0, 0, 1, seed + 4}, silent);
    if (in_place_too(op)) {
      run_case(r, {(Op)op, 1003, 1, 0, 0, seed + 5}, silent);
      run_case(r, {(Op)op, 65536, 1, 1, 0, seed + 6}, silent);
    }
  }
}

static void check_few(Rank& r, unsigned seed) {
  for (int op = 0; op < OPS; op++) {
    if (!wanted((Op)op)) continue;
    for (size_t count : {1, 1003, 65537}) run_case(r, {(Op)op, count, 0, 0, 0, seed}, false, 2);
    run_case(r, {(Op)op, 4096, 0, 3, 0, seed + 1}, false, 2);
    if (in_place_too(op)) run_case(r, {(Op)op, 65536, 1, 1, 0, seed + 2}, false, 2);
  }
}

struct Way { bool on_device; const void* send; void* recv; std::vector<float> us; double slowest; };

// All ways by turns, sample by sample, each round beginning with another: what the machine does meanwhile meets all of them.
static void timed(Rank& r, Op op, size_t count, Way* ways, int number) {
  const int calls = count * r.n * 4 > (16u << 20) ? 5 : 20, samples = 25;
  cudaEvent_t from, to;
  CUDA_OK(cudaEventCreate(&from)); CUDA_OK(cudaEventCreate(&to));
  for (int sample = -3; sample < samples; sample++) {  // three to warm up: the first call connects, 23 to 900 ms
    for (int turn = 0; turn < number; turn++) {
      Way& way = ways[(sample + 3 + turn) % number];
      CUDA_OK(cudaStreamSynchronize(r.stream));
      r.meet();
      CUDA_OK(cudaEventRecord(from, r.stream));
      for (int i = 0; i < calls; i++)
        NCCL_OK(way.on_device ? device(op, way.send, way.recv, count, r.comm, r.stream) : host(op, way.send, way.recv, count, r.comm, r.stream));
      CUDA_OK(cudaEventRecord(to, r.stream));
      CUDA_OK(cudaEventSynchronize(to));
      float ms;
      CUDA_OK(cudaEventElapsedTime(&ms, from, to));
      if (sample >= 0) way.us.push_back(ms * 1000 / calls);
    }
  }
  CUDA_OK(cudaEventDestroy(from)); CUDA_OK(cudaEventDestroy(to));
  for (int w = 0; w < number; w++) {
    std::sort(ways[w].us.begin(), ways[w].us.end());
    r.shared->us[r.rank] = ways[w].us[ways[w].us.size() / 2];
    r.meet();
    for (int i = 0; i < r.n; i++) ways[w].slowest = std::max(ways[w].slowest, (double)r.shared->us[i]);
    r.meet();
  }
}

// `bytes` is the larger of what one rank sends and receives.
static void times(Rank& r) {
  for (int op = 0; op < OPS; op++) {
    if (!wanted((Op)op)) continue;
    for (size_t bytes = 1024; bytes <= (64u << 20); bytes *= 4) {
      const size_t count = op == ALLREDUCE || op == BROADCAST || op == REDUCE || op == PAIR ? bytes / 4 : op == SEND ? bytes / 8 : bytes / 4 / r.n;
      char *plain_s, *plain_r, *win_s, *win_r;
      CUDA_OK(cudaMalloc(&plain_s, bytes)); CUDA_OK(cudaMalloc(&plain_r, bytes));
      CUDA_OK(cudaMemset(plain_s, 0, bytes));
      NCCL_OK(ncclx::mem_alloc(&win_s, bytes)); NCCL_OK(ncclx::mem_alloc(&win_r, bytes));
      NCCL_OK(ncclx::win_register(r.comm, win_s, bytes)); NCCL_OK(ncclx::win_register(r.comm, win_r, bytes));
      CUDA_OK(cudaMemset(win_s, 0, bytes));
      Way ways[] = {{false, plain_s, plain_r, {}, 0}, {false, win_s, win_r, {}, 0}, {true, win_s, win_r, {}, 0}};
      timed(r, (Op)op, count, ways, 3);
      if (r.rank == 0) { printf("time op=%s bytes=%zu original_us=%.3f windows_us=%.3f device_us=%.3f\n", NAMES[op], bytes, ways[0].slowest, ways[1].slowest, ways[2].slowest); fflush(stdout); }
      CUDA_OK(cudaFree(plain_s)); CUDA_OK(cudaFree(plain_r));
      NCCL_OK(ncclx::buf_free(win_s)); NCCL_OK(ncclx::buf_free(win_r));
    }
  }
}

static void part(Rank& r, const char* mode, unsigned seed) {
  if (r.rank == 0) { printf("part %s\n", mode); fflush(stdout); }
  r.meet();
  if (!strcmp(mode, "time")) times(r);
  else if (!strcmp(mode, "few")) check_few(r, seed);
  else check(r, seed, !strcmp(mode, "silent"));
}

static void run(int rank, int n, char* modes, unsigned seed, Shared* shared) {
  g_rank = rank;
  CUDA_OK(cudaSetDevice(rank));
  if (rank == 0) { NCCL_OK(ncclGetUniqueId(&shared->id)); __sync_synchronize(); shared->ready = 1; }
  while (!shared->ready) usleep(50);
  Rank r{rank, n, shared, nullptr, nullptr, nullptr};
  NCCL_OK(ncclCommInitRank(&r.comm, n, shared->id, rank));
  CUDA_OK(cudaStreamCreate(&r.stream));
  CUDA_OK(cudaMalloc(&r.bad, 2 * sizeof(*r.bad)));
  NCCL_OK(ncclx::dev_init(r.comm));
  NCCL_OK(ncclx::register_all(r.comm));  // the table of exchanges
  for (char* mode = strtok(modes, ","); mode; mode = strtok(NULL, ","), seed += 100) part(r, mode, seed);
  NCCL_OK(ncclx::dev_fini(r.comm));
  NCCL_OK(ncclCommDestroy(r.comm));
}

int main(int argc, char** argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 2;
  std::string modes = argc > 2 ? argv[2] : "check";
  const unsigned seed = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 1u;
  if (n < 1 || n > 64) { fprintf(stderr, "ranks: 1 to 64\n"); return 2; }
  Shared* shared = (Shared*)mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::vector<pid_t> ranks(n);
  for (int i = 0; i < n; i++) {
    ranks[i] = fork();
    if (ranks[i] == 0) { run(i, n, &modes[0], seed, shared); fflush(NULL); exit(0); }
  }
  int failed = 0;
  for (int left = n; left > 0; left--) {
    int status = 0;
    const pid_t who = wait(&status);
    const int rank = (int)(std::find(ranks.begin(), ranks.end(), who) - ranks.begin());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    fprintf(stderr, "[rank %d] ended with %s %d\n", rank, WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    if (!failed++) { usleep(500000); for (pid_t p : ranks) if (p != who) kill(p, SIGKILL); }
  }
  printf("end ranks=%d failed=%d\n", n, failed);
  return failed ? 1 : 0;
}
