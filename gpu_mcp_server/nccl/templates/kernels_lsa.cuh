// ncclx, device side over LSA: ranks of one NVLink domain load and store each other's windows.
// Lines between the markers may change; the functions that ncclx.cuh calls must keep their names and parameters:
// require, reaches_all, reduces, launch_alltoall, launch_allgather, launch_reducescatter, launch_allreduce, launch_broadcast,
// launch_reduce, launch_gather, launch_scatter, launch_exchange, launch_send, launch_receive.
#pragma once
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>

#define NCCLX_SEND_IN_WINDOW 0  // only what peers access has to lie in a window
#define NCCLX_ROOTED 1          // broadcast, reduce, gather and scatter have kernels of their own
#define NCCLX_EXCHANGES 1       // groups of sends and receives are generated
#define NCCLX_PAIRS 1           // sends and receives in no group are generated
#define NCCLX_RECEIVE_IN_WINDOW 0
#define NCCLX_EXCHANGE_CTAS 32  // one grid for all, as the ranks of an exchange move different amounts
#define NCCLX_PARTS 64          // sends, and receives, of one rank in one group: they are kernel parameters
#define NCCLX_PAIRED 8          // parts from one rank to one other in one group
#define NCCLX_WINDOWS 32        // windows of a communicator from which an exchange can send
#define NCCLX_PAIR_CTAS 32      // of a receive that stands in no group

namespace ncclx {
struct Sent {  // what a rank offers a peer, written into the peer's table
  size_t offset, bytes;
  unsigned turn;
  int window, peer;
};
struct Received {
  char* to;
  size_t bytes;
  int peer;
};
struct Exchange {
  unsigned turn;  // tells this exchange's offers from those of the one before
  int sends, receives;
  ncclWindow_t windows[NCCLX_WINDOWS];
  Sent sent[NCCLX_PARTS];
  Received received[NCCLX_PARTS];
};
struct Pair {  // in a rank's table, behind the offers of exchanges, one for each peer: sends and receives in no group
  size_t offset, bytes;  // what the peer sends, which it writes ahead of `offered`
  int window;
  unsigned offered, taken;  // the peer's last send to this rank, and this rank's last send that the peer has loaded
  unsigned copied;          // CTAs of this rank that have loaded their share
};
inline size_t table_bytes(int ranks) {
  return (sizeof(Sent) * NCCLX_PAIRED * NCCLX_EXCHANGE_CTAS + sizeof(Pair)) * ranks;
}
struct Receive {
  size_t pairs;  // where they begin in a table
  char* to;
  size_t bytes;
  unsigned turn;
  int peer;
  ncclWindow_t windows[NCCLX_WINDOWS];
};
}  // namespace ncclx
// EVOLVE-BLOCK-START
#ifndef NCCLX_CTAS
#define NCCLX_CTAS 128  // the largest grid, and the barrier count: CTA i of every rank waits at barrier i
#endif
#ifndef NCCLX_SMALL_CTAS
#define NCCLX_SMALL_CTAS 16
#endif
#ifndef NCCLX_SMALL_BYTES
#define NCCLX_SMALL_BYTES (512 << 10)  // below, more CTAs only wait longer at their barriers
#endif
#ifndef NCCLX_THREADS
#define NCCLX_THREADS 512
#endif
#define NCCLX_UNROLL 4  // loads in flight for each thread

namespace ncclx {

inline int grid(size_t bytes) { return bytes <= NCCLX_SMALL_BYTES ? NCCLX_SMALL_CTAS : NCCLX_CTAS; }

inline void require(ncclDevCommRequirements& wanted) { wanted.lsaBarrierCount = NCCLX_CTAS; }

inline bool reaches_all(const ncclDevComm& dc) { return dc.lsaSize == dc.nRanks; }

inline bool reduces(ncclDataType_t type, ncclRedOp_t op) {
  bool known = type == ncclFloat32 || type == ncclFloat64 || type == ncclFloat16 || type == ncclBfloat16 ||
               type == ncclInt32 || type == ncclInt64;
  return known && (op == ncclSum || op == ncclMax || op == ncclMin);
}

// Copies [0, n) of elements, each thread NCCLX_UNROLL at a time.
template <typename V>
__device__ inline void copy_elements(V* to, const V* from, size_t n, size_t tid, size_t threads) {
  size_t i = tid;
  for (; i + (NCCLX_UNROLL - 1) * threads < n; i += NCCLX_UNROLL * threads) {
    V v[NCCLX_UNROLL];
#pragma unroll
    for (int u = 0; u < NCCLX_UNROLL; u++) v[u] = from[i + u * threads];
#pragma unroll
    for (int u = 0; u < NCCLX_UNROLL; u++) to[i + u * threads] = v[u];
  }
  for (; i < n; i += threads) to[i] = from[i];
}

// Copies bytes by the widest accesses that both pointers' alignment allows; what is left over goes byte by byte.
__device__ inline void copy_bytes(char* to, const char* from, size_t bytes, size_t tid, size_t threads) {
  const uintptr_t either = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  size_t done = 0;
  if ((either & 15) == 0) {
    done = bytes / 16 * 16;
    copy_elements(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), bytes / 16, tid, threads);
  } else if ((either & 7) == 0) {
    done = bytes / 8 * 8;
    copy_elements(reinterpret_cast<uint2*>(to), reinterpret_cast<const uint2*>(from), bytes / 8, tid, threads);
  } else if ((either & 3) == 0) {
    done = bytes / 4 * 4;
    copy_elements(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from), bytes / 4, tid, threads);
  }
  copy_elements(to + done, from + done, bytes - done, tid, threads);
}

// Rank r stores part p of its send buffer as part r of p's receive buffer.
__global__ static void alltoall_kernel(ncclDevComm dc, const char* send, ncclWindow_t rw, size_t ro, size_t bytes) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all ranks are here: their receive buffers may be overwritten
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int k = 0; k < ranks; k++) {
    const int peer = (rank + k) % ranks;  // each rank starts with another peer
    char* to = static_cast<char*>(ncclGetLsaPointer(rw, ro, peer)) + rank * bytes;
    copy_bytes(to, send + peer * bytes, bytes, tid, threads);
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all ranks have stored what this one receives
}

// Rank r stores its send buffer as part r of everybody's receive buffer.
__global__ static void allgather_kernel(ncclDevComm dc, const char* send, ncclWindow_t rw, size_t ro, size_t bytes) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int k = 0; k < ranks; k++) {
    char* to = static_cast<char*>(ncclGetLsaPointer(rw, ro, (rank + k) % ranks)) + rank * bytes;
    if (to != send) copy_bytes(to, send, bytes, tid, threads);  // in place, the own part is there already
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<__half> {
  using type = float;
};
template <>
struct Accumulator<__nv_bfloat16> {
  using type = float;
};

template <typename A>
__device__ inline A combined(A a, A b, int op) {
  return op == ncclSum ? a + b : op == ncclMax ? (a > b ? a : b) : (a < b ? a : b);
}

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// Reduces elements i of all ranks' windows, in the ranks' order, so that every rank that does it gets the same bits.
template <typename T, int N>
__device__ inline Pack<T, N> reduced(ncclWindow_t sw, size_t so, size_t first, size_t i, int ranks, int op) {
  using A = typename Accumulator<T>::type;
  A sum[N];
  for (int p = 0; p < ranks; p++) {
    const T* from = static_cast<const T*>(ncclGetLsaPointer(sw, so, p)) + first;
    const Pack<T, N> x = reinterpret_cast<const Pack<T, N>*>(from)[i];
#pragma unroll
    for (int e = 0; e < N; e++) sum[e] = p == 0 ? static_cast<A>(x.v[e]) : combined<A>(sum[e], static_cast<A>(x.v[e]), op);
  }
  Pack<T, N> out;
#pragma unroll
  for (int e = 0; e < N; e++) out.v[e] = static_cast<T>(sum[e]);
  return out;
}

// Reduces n packs from element `first` on and stores them: to one buffer, or to every rank's window when `to` is null.
template <typename T, int N>
__device__ inline void reduce_packs(ncclWindow_t sw, size_t so, T* to, ncclWindow_t rw, size_t ro, size_t first, size_t n,
                                    int ranks, int op, size_t tid, size_t threads) {
  size_t i = tid;
  for (; i + (NCCLX_UNROLL - 1) * threads < n; i += NCCLX_UNROLL * threads) {
    Pack<T, N> v[NCCLX_UNROLL];
#pragma unroll
    for (int u = 0; u < NCCLX_UNROLL; u++) v[u] = reduced<T, N>(sw, so, first, i + u * threads, ranks, op);
    for (int p = 0; p < (to != nullptr ? 1 : ranks); p++) {
      T* d = to != nullptr ? to : static_cast<T*>(ncclGetLsaPointer(rw, ro, p)) + first;
#pragma unroll
      for (int u = 0; u < NCCLX_UNROLL; u++) reinterpret_cast<Pack<T, N>*>(d)[i + u * threads] = v[u];
    }
  }
  for (; i < n; i += threads) {
    const Pack<T, N> v = reduced<T, N>(sw, so, first, i, ranks, op);
    for (int p = 0; p < (to != nullptr ? 1 : ranks); p++) {
      T* d = to != nullptr ? to : static_cast<T*>(ncclGetLsaPointer(rw, ro, p)) + first;
      reinterpret_cast<Pack<T, N>*>(d)[i] = v;
    }
  }
}

// Rank r reduces part r of all send buffers into its own receive buffer.
template <typename T>
__global__ static void reducescatter_kernel(ncclDevComm dc, ncclWindow_t sw, size_t so, T* recv, size_t count, int op) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  constexpr int N = 16 / sizeof(T);
  const size_t first = dc.lsaRank * count;
  const bool wide = ((reinterpret_cast<uintptr_t>(recv) | so | first * sizeof(T)) & 15) == 0;
  const size_t packs = wide ? count / N : 0, rest = packs * N;
  reduce_packs<T, N>(sw, so, recv, nullptr, 0, first, packs, dc.lsaSize, op, tid, threads);
  reduce_packs<T, 1>(sw, so, recv + rest, nullptr, 0, first + rest, count - rest, dc.lsaSize, op, tid, threads);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all ranks have read: send buffers may change
}

// Two shots in one: rank r reduces share r and stores it to all ranks. Safe in place: nobody else reads that share.
template <typename T>
__global__ static void allreduce_kernel(ncclDevComm dc, ncclWindow_t sw, size_t so, ncclWindow_t rw, size_t ro, size_t count,
                                        int op) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  constexpr int N = 16 / sizeof(T);
  const bool wide = ((so | ro) & 15) == 0;
  const size_t share = wide ? count / N / ranks : 0;  // packs of each rank
  const size_t rest = share * ranks * N;
  reduce_packs<T, N>(sw, so, nullptr, rw, ro, rank * share * N, share, ranks, op, tid, threads);
  reduce_packs<T, 1>(sw, so, nullptr, rw, ro, rest, count - rest, ranks, op, tid * ranks + rank, threads * ranks);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// The root stores its send buffer (each peer's part of it, with a step) into everybody's receive buffer.
__global__ static void push_kernel(ncclDevComm dc, const char* send, size_t step, ncclWindow_t rw, size_t ro, size_t bytes,
                                   int root) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int k = 0; k < (rank == root ? ranks : 0); k++) {
    const int peer = (rank + k) % ranks;
    char* to = static_cast<char*>(ncclGetLsaPointer(rw, ro, peer));
    if (to != send + peer * step) copy_bytes(to, send + peer * step, bytes, tid, threads);  // in place, it is there
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// The root loads everybody's send buffer as its part of the own receive buffer.
__global__ static void gather_kernel(ncclDevComm dc, ncclWindow_t sw, size_t so, char* recv, size_t bytes, int root) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int k = 0; k < (rank == root ? ranks : 0); k++) {
    const int peer = (rank + k) % ranks;
    const char* from = static_cast<const char*>(ncclGetLsaPointer(sw, so, peer));
    if (from != recv + peer * bytes) copy_bytes(recv + peer * bytes, from, bytes, tid, threads);
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// The root reduces all send buffers into its receive buffer.
template <typename T>
__global__ static void reduce_kernel(ncclDevComm dc, ncclWindow_t sw, size_t so, T* recv, size_t count, int op, int root) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  constexpr int N = 16 / sizeof(T);
  const size_t own = dc.lsaRank == root ? count : 0;  // the others have nothing to do
  const bool wide = ((reinterpret_cast<uintptr_t>(recv) | so) & 15) == 0;
  const size_t packs = wide ? own / N : 0, rest = packs * N;
  reduce_packs<T, N>(sw, so, recv, nullptr, 0, 0, packs, dc.lsaSize, op, tid, threads);
  reduce_packs<T, 1>(sw, so, recv + rest, nullptr, 0, rest, own - rest, dc.lsaSize, op, tid, threads);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

// Each rank tells its peers where what it sends lies, and loads what it receives: NCCL pairs the parts of two ranks in order.
// A table has a row of NCCLX_PAIRED offers for each CTA and rank.
__global__ static void exchange_kernel(ncclDevComm dc, Exchange x, ncclWindow_t table) {
  ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // the tables may be overwritten
  const int rank = dc.lsaRank, ranks = dc.lsaSize;
  const size_t row = NCCLX_PAIRED * sizeof(Sent);
  for (int i = threadIdx.x; i < x.sends; i += blockDim.x) {
    const int peer = x.sent[i].peer;
    int k = 0;
    for (int j = 0; j < i; j++) k += x.sent[j].peer == peer;
    static_cast<Sent*>(ncclGetLsaPointer(table, (blockIdx.x * ranks + rank) * row, peer))[k] = x.sent[i];
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all offers are here, and what they point to is written
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int i = 0; i < x.receives; i++) {
    const int peer = x.received[i].peer;
    int k = 0;
    for (int j = 0; j < i; j++) k += x.received[j].peer == peer;
    const Sent sent = static_cast<const Sent*>(ncclGetLocalPointer(table, (blockIdx.x * ranks + peer) * row))[k];
    if (sent.turn != x.turn || sent.bytes != x.received[i].bytes) __trap();  // no such part was sent, or another size
    const char* from = static_cast<const char*>(ncclGetLsaPointer(x.windows[sent.window], sent.offset, peer));
    copy_bytes(x.received[i].to, from, sent.bytes, tid, threads);
  }
  bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all have loaded: what was sent may change
}

__device__ inline Pair* pair_at(ncclWindow_t table, size_t pairs, int own, int rank) {
  return static_cast<Pair*>(ncclGetLsaPointer(table, pairs + own * sizeof(Pair), rank));
}

// One rank tells another where what it sends lies, and waits until that has loaded it. No other rank takes part.
__global__ static void send_kernel(ncclDevComm dc, ncclWindow_t table, size_t pairs, Pair sent, int peer) {
  Pair* there = pair_at(table, pairs, dc.lsaRank, peer);
  there->offset = sent.offset;
  there->bytes = sent.bytes;
  there->window = sent.window;
  cuda::atomic_ref<unsigned, cuda::thread_scope_system> offered(there->offered);
  offered.store(sent.offered, cuda::memory_order_release);  // what it points to is written, by the stream's order
  cuda::atomic_ref<unsigned, cuda::thread_scope_system> taken(pair_at(table, pairs, peer, dc.lsaRank)->taken);
  while (taken.load(cuda::memory_order_acquire) != sent.offered) {
  }
}

// Loads what a peer offers. Each CTA waits for the offer; the last one tells the peer that its memory may change.
__global__ static void receive_kernel(ncclDevComm dc, ncclWindow_t table, Receive r) {
  Pair* here = pair_at(table, r.pairs, r.peer, dc.lsaRank);
  cuda::atomic_ref<unsigned, cuda::thread_scope_system> offered(here->offered);
  while (threadIdx.x == 0 && offered.load(cuda::memory_order_acquire) != r.turn) {
  }
  __syncthreads();
  if (here->bytes != r.bytes) __trap();  // another size was sent
  const char* from = static_cast<const char*>(ncclGetLsaPointer(r.windows[here->window], here->offset, r.peer));
  const size_t tid = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  copy_bytes(r.to, from, r.bytes, tid, static_cast<size_t>(gridDim.x) * blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&here->copied, 1u) + 1 < gridDim.x) return;
  here->copied = 0;
  cuda::atomic_ref<unsigned, cuda::thread_scope_system> taken(pair_at(table, r.pairs, dc.lsaRank, r.peer)->taken);
  taken.store(r.turn, cuda::memory_order_release);
}

inline void launch_alltoall(const ncclDevComm& dc, const char* send, ncclWindow_t, size_t, ncclWindow_t rw, size_t ro,
                            size_t bytes, cudaStream_t stream) {
  const int ctas = grid(bytes * dc.nRanks);  // at most NCCLX_CTAS
  alltoall_kernel<<<ctas, NCCLX_THREADS, 0, stream>>>(dc, send, rw, ro, bytes);
}

inline void launch_allgather(const ncclDevComm& dc, const char* send, ncclWindow_t, size_t, ncclWindow_t rw, size_t ro,
                             size_t bytes, cudaStream_t stream) {
  const int ctas = grid(bytes * dc.nRanks);
  allgather_kernel<<<ctas, NCCLX_THREADS, 0, stream>>>(dc, send, rw, ro, bytes);
}

inline void launch_reducescatter(const ncclDevComm& dc, ncclWindow_t sw, size_t so, void* recv, size_t count,
                                 ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream) {
#define NCCLX_START(T) \
  reducescatter_kernel<T><<<grid(count * sizeof(T) * dc.nRanks), NCCLX_THREADS, 0, stream>>>(dc, sw, so, static_cast<T*>(recv), count, op)
  switch (type) {
    case ncclFloat32: NCCLX_START(float); break;
    case ncclFloat64: NCCLX_START(double); break;
    case ncclFloat16: NCCLX_START(__half); break;
    case ncclBfloat16: NCCLX_START(__nv_bfloat16); break;
    case ncclInt32: NCCLX_START(int32_t); break;
    default: NCCLX_START(int64_t); break;
  }
#undef NCCLX_START
}

inline void launch_allreduce(const ncclDevComm& dc, ncclWindow_t sw, size_t so, ncclWindow_t rw, size_t ro, size_t count,
                             ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream) {
#define NCCLX_START(T) \
  allreduce_kernel<T><<<grid(count * sizeof(T)), NCCLX_THREADS, 0, stream>>>(dc, sw, so, rw, ro, count, op)
  switch (type) {
    case ncclFloat32: NCCLX_START(float); break;
    case ncclFloat64: NCCLX_START(double); break;
    case ncclFloat16: NCCLX_START(__half); break;
    case ncclBfloat16: NCCLX_START(__nv_bfloat16); break;
    case ncclInt32: NCCLX_START(int32_t); break;
    default: NCCLX_START(int64_t); break;
  }
#undef NCCLX_START
}

inline void launch_broadcast(const ncclDevComm& dc, const char* send, ncclWindow_t rw, size_t ro, size_t bytes, int root,
                             cudaStream_t stream) {
  push_kernel<<<grid(bytes), NCCLX_THREADS, 0, stream>>>(dc, send, 0, rw, ro, bytes, root);
}

inline void launch_scatter(const ncclDevComm& dc, const char* send, ncclWindow_t rw, size_t ro, size_t bytes, int root,
                           cudaStream_t stream) {
  push_kernel<<<grid(bytes * dc.nRanks), NCCLX_THREADS, 0, stream>>>(dc, send, bytes, rw, ro, bytes, root);
}

inline void launch_gather(const ncclDevComm& dc, ncclWindow_t sw, size_t so, char* recv, size_t bytes, int root,
                          cudaStream_t stream) {
  gather_kernel<<<grid(bytes * dc.nRanks), NCCLX_THREADS, 0, stream>>>(dc, sw, so, recv, bytes, root);
}

inline void launch_reduce(const ncclDevComm& dc, ncclWindow_t sw, size_t so, void* recv, size_t count, ncclDataType_t type,
                          ncclRedOp_t op, int root, cudaStream_t stream) {
#define NCCLX_START(T) \
  reduce_kernel<T><<<grid(count * sizeof(T)), NCCLX_THREADS, 0, stream>>>(dc, sw, so, static_cast<T*>(recv), count, op, root)
  switch (type) {
    case ncclFloat32: NCCLX_START(float); break;
    case ncclFloat64: NCCLX_START(double); break;
    case ncclFloat16: NCCLX_START(__half); break;
    case ncclBfloat16: NCCLX_START(__nv_bfloat16); break;
    case ncclInt32: NCCLX_START(int32_t); break;
    default: NCCLX_START(int64_t); break;
  }
#undef NCCLX_START
}

inline void launch_exchange(const ncclDevComm& dc, const Exchange& x, ncclWindow_t table, cudaStream_t stream) {
  exchange_kernel<<<NCCLX_EXCHANGE_CTAS, NCCLX_THREADS, 0, stream>>>(dc, x, table);
}

inline void launch_send(const ncclDevComm& dc, ncclWindow_t table, size_t pairs, const Pair& sent, int peer,
                        cudaStream_t stream) {
  send_kernel<<<1, 1, 0, stream>>>(dc, table, pairs, sent, peer);
}

inline void launch_receive(const ncclDevComm& dc, ncclWindow_t table, const Receive& r, cudaStream_t stream) {
  const int ctas = r.bytes <= NCCLX_SMALL_BYTES ? 4 : NCCLX_PAIR_CTAS;
  receive_kernel<<<ctas, NCCLX_THREADS, 0, stream>>>(dc, table, r);
}

}  // namespace ncclx
// EVOLVE-BLOCK-END
