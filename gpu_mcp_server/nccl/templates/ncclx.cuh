// ncclx: buffers in windows, device communicators, and NCCL's collectives started by device code.
// Frozen: this file is compared byte by byte with what generated it. What may change is in ncclx_kernels.cuh.
//
// A call goes to the device where its buffers lie in windows, all ranks share load/store access, and type and
// operation are generated; otherwise to the host's NCCL, counted, and each reason is printed once. All ranks must come to
// the same decision: they must allocate the same buffers in the same order with the same sizes, and call with the same offsets.
#pragma once
#include <cuda_runtime.h>
#include <nccl.h>
#if NCCL_VERSION_CODE < 22800
#error "NCCL 2.28 is the first with a device API; compile against its headers or newer ones"
#endif
#include <nccl_device.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ncclx_kernels.cuh"

namespace ncclx {

struct Buffer {  // from mem_alloc, in the order of allocation
  char* base;
  size_t bytes;
  int device;
};
struct Window {
  char* base;
  size_t bytes;
  ncclWindow_t handle;
  ncclWindow_t* later = nullptr;  // where NCCL writes the handle, when a group of the program's own ends
};
struct Context {
  ncclComm_t comm;
  int device = 0;
  bool has_device_comm = false;
  std::string why_not;
  ncclDevComm device_comm;
  void* table_memory = nullptr;  // where peers say what they send, see exchange_kernel
  ncclWindow_t table = nullptr;
  unsigned turn = 0;
  struct Way {  // to a peer, or from it, by calls in no group
    unsigned turn = 0;
    cudaStream_t stream = nullptr;
  };
  std::vector<Way> sends, receives;
  std::list<Window> windows;  // a list: NCCL writes a handle at ncclGroupEnd, so its address must stay
};
struct State {
  std::mutex mutex;
  std::list<Buffer> buffers;
  std::list<Context> contexts;
  std::list<std::pair<ncclComm_t, Window>> others;  // the program's own windows
  std::set<std::string> reasons;
  long device_calls = 0, host_calls = 0, told = -1;
  void tell() {
    if (told == device_calls + host_calls) return;
    told = device_calls + host_calls;
    fprintf(stderr, "ncclx: device_collectives=%ld host_fallbacks=%ld\n", device_calls, host_calls);
  }
  ~State() { tell(); }
};
inline State& state() {
  static State s;
  return s;
}
struct OnDevice {  // NCCL's host calls need no cudaSetDevice; a launch does
  int before = 0;
  explicit OnDevice(int device) {
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(device);
  }
  ~OnDevice() { (void)cudaSetDevice(before); }
};

inline Context* context_of(ncclComm_t comm) {
  std::lock_guard<std::mutex> lock(state().mutex);
  for (Context& c : state().contexts)
    if (c.comm == comm) return &c;
  return nullptr;
}

inline cudaError_t as_cuda(ncclResult_t r) {  // for statements that expect CUDA's error type
  return r == ncclSuccess ? cudaSuccess : r == ncclSystemError ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

// ---- buffers

template <typename T>
inline ncclResult_t mem_alloc(T** p, size_t bytes) {
  void* made = nullptr;
  ncclResult_t r = ncclMemAlloc(&made, bytes);
  if (r != ncclSuccess) return r;
  *p = static_cast<T*>(made);
  Buffer b{static_cast<char*>(made), bytes, 0};
  (void)cudaGetDevice(&b.device);
  std::lock_guard<std::mutex> lock(state().mutex);
  state().buffers.push_back(b);
  return ncclSuccess;
}

inline ncclResult_t windows_drop(void* p) {
  ncclResult_t result = ncclSuccess;
  std::list<std::pair<Context*, Window>> dropped;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (Context& c : state().contexts)
      for (auto w = c.windows.begin(); w != c.windows.end();)
        if (w->base == p) {
          dropped.emplace_back(&c, *w);
          w = c.windows.erase(w);
        } else {
          ++w;
        }
  }
  for (auto& d : dropped) {
    OnDevice on(d.first->device);
    (void)cudaDeviceSynchronize();
    ncclResult_t r = ncclCommWindowDeregister(d.first->comm, d.second.handle);
    if (result == ncclSuccess) result = r;
  }
  return result;
}

inline ncclResult_t buf_free(void* p) {  // what mem_alloc did not make is CUDA's, as before
  if (p == nullptr) return ncclSuccess;
  ncclResult_t r = windows_drop(p);
  bool own = false;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (auto b = state().buffers.begin(); b != state().buffers.end(); ++b)
      if (b->base == p) {
        own = true;
        state().buffers.erase(b);
        break;
      }
  }
  if (r != ncclSuccess) return r;
  if (own) return ncclMemFree(p);
  return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// ---- communicators: collective calls, inside ncclGroupStart/End when one thread holds several

inline ncclResult_t dev_init(ncclComm_t comm) {
  if (context_of(comm) != nullptr) return ncclSuccess;
  Context* c;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().contexts.emplace_back();
    c = &state().contexts.back();
    c->comm = comm;
  }
  ncclResult_t r = ncclCommCuDevice(comm, &c->device);
  if (r != ncclSuccess) return r;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER  // from 2.29.2 on it is checked
  ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements wanted;
  memset(&wanted, 0, sizeof wanted);
#endif
  require(wanted);
  r = ncclDevCommCreate(comm, &wanted, &c->device_comm);
  (void)cudaGetLastError();
  c->has_device_comm = r == ncclSuccess;
  if (r != ncclSuccess) {
    const char* said = ncclGetLastError(comm);
    c->why_not = std::string("no device communicator: ") + (said != nullptr ? said : ncclGetErrorString(r));
  }
  return r == ncclInvalidUsage ? ncclSuccess : r;  // not supported here: the host's NCCL does the work, counted
}

inline ncclResult_t win_register(ncclComm_t comm, void* p, size_t bytes) {
  Context* c = context_of(comm);
  if (c == nullptr) return ncclInvalidUsage;
  Window* w;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    c->windows.push_back(Window{static_cast<char*>(p), bytes, nullptr});
    w = &c->windows.back();
  }
  return ncclCommWindowRegister(comm, p, bytes, &w->handle, NCCL_WIN_COLL_SYMMETRIC);
}

// The program's own windows: registered as it says, but symmetric, and known to the calls below.
inline ncclResult_t window_register(ncclComm_t comm, void* p, size_t bytes, ncclWindow_t* window, int) {
  *window = nullptr;
  ncclResult_t r = ncclCommWindowRegister(comm, p, bytes, window, NCCL_WIN_COLL_SYMMETRIC);
  if (r != ncclSuccess) return r;
  std::lock_guard<std::mutex> lock(state().mutex);
  state().others.emplace_back(comm, Window{static_cast<char*>(p), bytes, *window, *window == nullptr ? window : nullptr});
  return ncclSuccess;
}

inline ncclResult_t window_group_end() {  // the end of a group in which windows are registered
  ncclResult_t r = ncclGroupEnd();
  std::lock_guard<std::mutex> lock(state().mutex);
  for (auto& other : state().others)
    if (other.second.later != nullptr) {
      other.second.handle = *other.second.later;
      if (other.second.handle != nullptr) other.second.later = nullptr;
    }
  return r;
}

inline ncclResult_t window_deregister(ncclComm_t comm, ncclWindow_t window) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().others.remove_if([&](const std::pair<ncclComm_t, Window>& o) { return o.first == comm && o.second.handle == window; });
  }
  return ncclCommWindowDeregister(comm, window);
}

#if NCCLX_PAIRS
inline size_t pairs_at(const Context* c) {  // in a table, behind the offers of exchanges
  return table_bytes(c->device_comm.nRanks) - sizeof(Pair) * c->device_comm.nRanks;
}
#endif

inline ncclResult_t register_all(ncclComm_t comm) {  // what this device's mem_alloc made since the last time
  Context* c = context_of(comm);
  if (c == nullptr) return ncclInvalidUsage;
#if NCCLX_EXCHANGES
  if (c->has_device_comm && c->table_memory == nullptr) {
    OnDevice on(c->device);
    const size_t bytes = table_bytes(c->device_comm.nRanks);
    ncclResult_t r = ncclMemAlloc(&c->table_memory, bytes);
    if (r == ncclSuccess && cudaMemset(c->table_memory, 0, bytes) != cudaSuccess) r = ncclUnhandledCudaError;
    if (r == ncclSuccess) r = ncclCommWindowRegister(comm, c->table_memory, bytes, &c->table, NCCL_WIN_COLL_SYMMETRIC);
    if (r != ncclSuccess) return r;
  }
#endif
  std::list<Buffer> pending;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (const Buffer& b : state().buffers) {
      bool known = b.device != c->device;
      for (const Window& w : c->windows) known = known || w.base == b.base;
      if (!known) pending.push_back(b);
    }
  }
  for (const Buffer& b : pending) {
    ncclResult_t r = win_register(comm, b.base, b.bytes);
    if (r != ncclSuccess) return r;
  }
  return ncclSuccess;
}

inline ncclResult_t dev_fini(ncclComm_t comm) {  // before the communicator goes; a second time does nothing
  Context* c = context_of(comm);
  if (c == nullptr) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  {
    OnDevice on(c->device);
    (void)cudaDeviceSynchronize();
    if (c->has_device_comm) result = ncclDevCommDestroy(comm, &c->device_comm);
    if (c->table != nullptr) (void)ncclCommWindowDeregister(comm, c->table);
    if (c->table_memory != nullptr) (void)ncclMemFree(c->table_memory);
    while (!c->windows.empty()) {
      ncclResult_t r = ncclCommWindowDeregister(comm, c->windows.back().handle);
      if (result == ncclSuccess) result = r;
      c->windows.pop_back();
    }
  }
  std::lock_guard<std::mutex> lock(state().mutex);
  for (auto i = state().contexts.begin(); i != state().contexts.end(); ++i)
    if (&*i == c) {
      state().contexts.erase(i);
      break;
    }
  if (state().contexts.empty()) state().tell();  // here too: many ranks end by _exit, which runs no destructor
  return result;
}

// ---- calls

struct Place {  // a pointer as window and offset
  ncclWindow_t window = nullptr;
  size_t offset = 0;
};

inline std::vector<Window> windows_of(Context* c) {  // in one order on all ranks
  std::lock_guard<std::mutex> lock(state().mutex);
  std::vector<Window> found(c->windows.begin(), c->windows.end());
  for (const auto& other : state().others)
    if (other.first == c->comm) found.push_back(other.second);
  return found;
}

inline bool find(Context* c, const void* p, size_t bytes, Place* out) {  // looked up at call time: programs swap pointers
  for (const Window& w : windows_of(c))
    if (w.handle != nullptr && p >= w.base && static_cast<const char*>(p) + bytes <= w.base + w.bytes) {
      out->window = w.handle;
      out->offset = static_cast<size_t>(static_cast<const char*>(p) - w.base);
      return true;
    }
  return false;
}

inline size_t type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;
  }
}

inline bool refused(const char* call, const char* reason) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().host_calls++;
  if (state().reasons.insert(std::string(call) + reason).second)
    fprintf(stderr, "ncclx: fallback %s: %s\n", call, reason);
  return true;
}

inline bool falls_back(const char* call, Context* c, size_t unit) {
  if (c == nullptr) return refused(call, "this communicator was not given to dev_init");
  if (!c->has_device_comm) return refused(call, c->why_not.c_str());
  if (!reaches_all(c->device_comm)) return refused(call, "not all ranks can reach each other by load and store");
  if (unit == 0) return refused(call, "this data type is not generated");
  return false;
}

inline ncclResult_t launched() {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().device_calls++;
  return cudaPeekAtLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

inline bool overlap(const void* a, const void* b, size_t bytes) {
  const char *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  return x < y + bytes && y < x + bytes;
}

// Sweep: a loop of ncclSend and ncclRecv over `peers` ranks. It is an all-to-all only if that is all of them.
inline ncclResult_t Sweep(const void* send, void* recv, size_t count, ncclDataType_t type, int peers, ncclComm_t comm,
                          cudaStream_t stream) {
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place to, from;
  bool host = falls_back("AlltoAll", c, type_bytes(type));
  if (!host && peers != c->device_comm.nRanks) host = refused("AlltoAll", "the loop does not run over all ranks");
  if (!host && send == nullptr && bytes > 0) host = refused("AlltoAll", "there is no send buffer");
  if (!host && overlap(send, recv, bytes * peers)) host = refused("AlltoAll", "in place");
  if (!host && !find(c, recv, bytes * peers, &to)) host = refused("AlltoAll", "the receive buffer is in no window");
  if (!host && NCCLX_SEND_IN_WINDOW && !find(c, send, bytes * peers, &from))
    host = refused("AlltoAll", "the send buffer is in no window");
  if (!host) {
    OnDevice on(c->device);
    launch_alltoall(c->device_comm, static_cast<const char*>(send), from.window, from.offset, to.window, to.offset, bytes,
                    stream);
    return launched();
  }
  ncclResult_t r = ncclGroupStart();
  for (int p = 0; p < peers && r == ncclSuccess; p++) {
    r = ncclSend(static_cast<const char*>(send) + p * bytes, count, type, p, comm, stream);
    if (r == ncclSuccess) r = ncclRecv(static_cast<char*>(recv) + p * bytes, count, type, p, comm, stream);
  }
  ncclResult_t end = ncclGroupEnd();
  return r != ncclSuccess ? r : end;
}

inline ncclResult_t AlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream) {
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place to, from;
  bool host = falls_back("AlltoAll", c, type_bytes(type));
  size_t whole = host ? 0 : bytes * c->device_comm.nRanks;
  if (!host && send == nullptr && bytes > 0) host = refused("AlltoAll", "there is no send buffer");
  if (!host && overlap(send, recv, whole)) host = refused("AlltoAll", "in place");
  if (!host && !find(c, recv, whole, &to)) host = refused("AlltoAll", "the receive buffer is in no window");
  if (!host && NCCLX_SEND_IN_WINDOW && !find(c, send, whole, &from))
    host = refused("AlltoAll", "the send buffer is in no window");
  if (host) return ncclAlltoAll(send, recv, count, type, comm, stream);
  OnDevice on(c->device);
  launch_alltoall(c->device_comm, static_cast<const char*>(send), from.window, from.offset, to.window, to.offset, bytes,
                  stream);
  return launched();
}

inline ncclResult_t AllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                              cudaStream_t stream) {
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place to, from;
  bool host = falls_back("AllGather", c, type_bytes(type));
  if (!host && send == nullptr && bytes > 0) host = refused("AllGather", "there is no send buffer");
  if (!host && !find(c, recv, bytes * c->device_comm.nRanks, &to))
    host = refused("AllGather", "the receive buffer is in no window");
  if (!host && NCCLX_SEND_IN_WINDOW && !find(c, send, bytes, &from))
    host = refused("AllGather", "the send buffer is in no window");
  if (host) return ncclAllGather(send, recv, count, type, comm, stream);
  OnDevice on(c->device);
  launch_allgather(c->device_comm, static_cast<const char*>(send), from.window, from.offset, to.window, to.offset, bytes,
                   stream);
  return launched();
}

inline ncclResult_t ReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
  Context* c = context_of(comm);
  Place from;
  bool host = falls_back("ReduceScatter", c, type_bytes(type));
  if (!host && recv == nullptr && count > 0) host = refused("ReduceScatter", "there is no receive buffer");
  if (!host && !reduces(type, op)) host = refused("ReduceScatter", "this type and operation are not generated");
  if (!host && !find(c, send, count * type_bytes(type) * c->device_comm.nRanks, &from))
    host = refused("ReduceScatter", "the send buffer is in no window");
  if (host) return ncclReduceScatter(send, recv, count, type, op, comm, stream);
  OnDevice on(c->device);
  launch_reducescatter(c->device_comm, from.window, from.offset, recv, count, type, op, stream);
  return launched();
}

inline ncclResult_t AllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, cudaStream_t stream) {
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place from, to;
  bool host = falls_back("AllReduce", c, type_bytes(type));
  if (!host && !reduces(type, op)) host = refused("AllReduce", "this type and operation are not generated");
  if (!host && send != recv && overlap(send, recv, bytes)) host = refused("AllReduce", "the buffers overlap in part");
  if (!host && !find(c, send, bytes, &from)) host = refused("AllReduce", "the send buffer is in no window");
  if (!host && !find(c, recv, bytes, &to)) host = refused("AllReduce", "the receive buffer is in no window");
  if (host) return ncclAllReduce(send, recv, count, type, op, comm, stream);
  OnDevice on(c->device);
  launch_allreduce(c->device_comm, from.window, from.offset, to.window, to.offset, count, type, op, stream);
  return launched();
}

#if NCCLX_EXCHANGES && !NCCLX_ROOTED
// A collective with a root as an exchange: its parts are known on all ranks. False where the host's NCCL has to do it.
bool by_exchange(const char* call, const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                 cudaStream_t stream, ncclResult_t* result);
#endif

inline ncclResult_t Broadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream) {
#if NCCLX_ROOTED
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place to;
  bool host = falls_back("Broadcast", c, type_bytes(type));
  if (!host && !find(c, recv, bytes, &to)) host = refused("Broadcast", "the receive buffer is in no window");
  if (!host) {
    OnDevice on(c->device);
    launch_broadcast(c->device_comm, static_cast<const char*>(send), to.window, to.offset, bytes, root, stream);
    return launched();
  }
#elif NCCLX_EXCHANGES
  ncclResult_t result = ncclSuccess;
  if (by_exchange("Broadcast", send, recv, count, type, root, comm, stream, &result)) return result;
#endif
  return ncclBroadcast(send, recv, count, type, root, comm, stream);
}

inline ncclResult_t Bcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return Broadcast(buffer, buffer, count, type, root, comm, stream);
}

inline ncclResult_t Reduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                           ncclComm_t comm, cudaStream_t stream) {
#if NCCLX_ROOTED
  Context* c = context_of(comm);
  Place from;
  bool host = falls_back("Reduce", c, type_bytes(type));
  if (!host && !reduces(type, op)) host = refused("Reduce", "this type and operation are not generated");
  if (!host && !find(c, send, count * type_bytes(type), &from)) host = refused("Reduce", "the send buffer is in no window");
  if (!host) {
    OnDevice on(c->device);
    launch_reduce(c->device_comm, from.window, from.offset, recv, count, type, op, root, stream);
    return launched();
  }
#endif
  return ncclReduce(send, recv, count, type, op, root, comm, stream);
}

inline ncclResult_t Gather(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
#if NCCLX_ROOTED
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place from;
  bool host = falls_back("Gather", c, type_bytes(type));
  if (!host && !find(c, send, bytes, &from)) host = refused("Gather", "the send buffer is in no window");
  if (!host) {
    OnDevice on(c->device);
    launch_gather(c->device_comm, from.window, from.offset, static_cast<char*>(recv), bytes, root, stream);
    return launched();
  }
#elif NCCLX_EXCHANGES
  ncclResult_t result = ncclSuccess;
  if (by_exchange("Gather", send, recv, count, type, root, comm, stream, &result)) return result;
#endif
  return ncclGather(send, recv, count, type, root, comm, stream);
}

inline ncclResult_t Scatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
#if NCCLX_ROOTED
  Context* c = context_of(comm);
  size_t bytes = count * type_bytes(type);
  Place to;
  bool host = falls_back("Scatter", c, type_bytes(type));
  if (!host && !find(c, recv, bytes, &to)) host = refused("Scatter", "the receive buffer is in no window");
  if (!host) {
    OnDevice on(c->device);
    launch_scatter(c->device_comm, static_cast<const char*>(send), to.window, to.offset, bytes, root, stream);
    return launched();
  }
#elif NCCLX_EXCHANGES
  ncclResult_t result = ncclSuccess;
  if (by_exchange("Scatter", send, recv, count, type, root, comm, stream, &result)) return result;
#endif
  return ncclScatter(send, recv, count, type, root, comm, stream);
}

// ---- groups of sends and receives: noted, and exchanged at the outermost GroupEnd

struct Part {
  ncclComm_t comm;
  cudaStream_t stream;
  const void* from;  // null: a receive
  void* to;
  size_t count;
  ncclDataType_t type;
  int peer;
};
struct Group {
  int depth = 0;
  std::vector<Part> parts;
};
inline Group& group() {
  static thread_local Group g;
  return g;
}

inline ncclResult_t GroupStart() {
  group().depth++;
  return ncclSuccess;
}

#if NCCLX_EXCHANGES
inline ncclResult_t impossible(const char* why) {  // the peers may have launched: falling back alone would hang
  fprintf(stderr, "ncclx: an exchange cannot run: %s\n", why);
  return ncclInvalidUsage;
}

#endif

#if NCCLX_PAIRS
// Two calls on two streams keep their order, as NCCL keeps that of a communicator's.
inline cudaError_t follow(Context::Way& way, cudaStream_t stream) {
  cudaError_t e = cudaSuccess;
  if (way.turn > 0 && way.stream != stream) {
    cudaEvent_t before;
    e = cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventRecord(before, way.stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(stream, before, 0);
    if (e == cudaSuccess) e = cudaEventDestroy(before);
  }
  way.turn++;
  way.stream = stream;
  return e;
}

// A send or a receive in no group: the decision between host and device rests on what both ranks have in common.
inline bool pair_falls_back(const char* call, Context* c, ncclDataType_t type) {
  if (falls_back(call, c, type_bytes(type))) return true;
  if (c->table == nullptr) return refused(call, "register_all was not called");
  if (windows_of(c).size() > NCCLX_WINDOWS) return refused(call, "there are more than 32 windows");
  c->sends.resize(c->device_comm.nRanks);
  c->receives.resize(c->device_comm.nRanks);
  return false;
}

inline ncclResult_t send_alone(Context* c, const void* from, size_t bytes, int peer, cudaStream_t stream) {
  if (peer < 0 || peer >= c->device_comm.nRanks || peer == c->device_comm.rank) return impossible("there is no such peer");
  Place place;
  if (!find(c, from, bytes, &place)) return impossible("a send buffer is in no window");
  const std::vector<Window> windows = windows_of(c);
  int window = 0;
  while (windows[window].handle != place.window) window++;
  OnDevice on(c->device);
  if (follow(c->sends[peer], stream) != cudaSuccess) return ncclUnhandledCudaError;
  launch_send(c->device_comm, c->table, pairs_at(c), Pair{place.offset, bytes, window, c->sends[peer].turn, 0, 0}, peer, stream);
  return launched();
}

inline ncclResult_t receive_alone(Context* c, void* to, size_t bytes, int peer, cudaStream_t stream) {
  if (peer < 0 || peer >= c->device_comm.nRanks || peer == c->device_comm.rank) return impossible("there is no such peer");
  const std::vector<Window> windows = windows_of(c);
  OnDevice on(c->device);
  if (follow(c->receives[peer], stream) != cudaSuccess) return ncclUnhandledCudaError;
  Receive r;
  memset(&r, 0, sizeof r);
  r.pairs = pairs_at(c);
  r.to = static_cast<char*>(to);
  r.bytes = bytes;
  r.turn = c->receives[peer].turn;
  r.peer = peer;
  for (size_t n = 0; n < windows.size(); n++) r.windows[n] = windows[n].handle;
  launch_receive(c->device_comm, c->table, r, stream);
  return launched();
}
#else
inline bool pair_falls_back(const char* call, Context*, ncclDataType_t) {
  return refused(call, "sends in no group are not generated for this interface");
}
inline ncclResult_t send_alone(Context*, const void*, size_t, int, cudaStream_t) { return ncclInvalidUsage; }
inline ncclResult_t receive_alone(Context*, void*, size_t, int, cudaStream_t) { return ncclInvalidUsage; }
#endif

inline ncclResult_t Send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (count > 0 && from == nullptr) return ncclInvalidArgument;
  if (count == 0) return ncclSuccess;
  if (group().depth == 0) {
    Context* c = context_of(comm);
    if (pair_falls_back("Send", c, type)) return ncclSend(from, count, type, peer, comm, stream);
    return send_alone(c, from, count * type_bytes(type), peer, stream);
  }
  group().parts.push_back(Part{comm, stream, from, nullptr, count, type, peer});
  return ncclSuccess;
}

inline ncclResult_t Recv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  if (count > 0 && to == nullptr) return ncclInvalidArgument;
  if (count == 0) return ncclSuccess;
  if (group().depth == 0) {
    Context* c = context_of(comm);
    if (pair_falls_back("Recv", c, type)) return ncclRecv(to, count, type, peer, comm, stream);
    return receive_alone(c, to, count * type_bytes(type), peer, stream);
  }
  group().parts.push_back(Part{comm, stream, nullptr, to, count, type, peer});
  return ncclSuccess;
}

inline ncclResult_t exchange_by_host(const std::vector<Part>& parts) {
  ncclResult_t r = ncclGroupStart();
  for (const Part& p : parts) {
    if (r != ncclSuccess) break;
    r = p.from != nullptr ? ncclSend(p.from, p.count, p.type, p.peer, p.comm, p.stream)
                          : ncclRecv(p.to, p.count, p.type, p.peer, p.comm, p.stream);
  }
  ncclResult_t end = ncclGroupEnd();
  return r != ncclSuccess ? r : end;
}

#if NCCLX_EXCHANGES
inline ncclResult_t exchange_by_device(Context* c, const std::vector<Part>& parts, cudaStream_t stream = nullptr) {
  const std::vector<Window> windows = windows_of(c);
  Exchange x;
  memset(&x, 0, sizeof x);
  x.turn = ++c->turn;
  bool first = true;
  for (const Part& p : parts) {
    if (p.comm != c->comm) continue;
    if (!first && p.stream != stream) return impossible("its parts are on several streams");
    stream = p.stream;
    first = false;
    const size_t bytes = p.count * type_bytes(p.type);
    if (bytes == 0) return impossible("this data type is not generated");
    if (p.peer < 0 || p.peer >= c->device_comm.nRanks) return impossible("there is no such peer");
    if (p.from == nullptr ? x.receives == NCCLX_PARTS : x.sends == NCCLX_PARTS) return impossible("it has more than 64 parts");
    int same = 0;
    if (p.from == nullptr) {
      for (int i = 0; i < x.receives; i++) same += x.received[i].peer == p.peer;
      Received& received = x.received[x.receives++];
      received.to = static_cast<char*>(p.to);
      received.bytes = bytes;
      received.peer = p.peer;
#if NCCLX_RECEIVE_IN_WINDOW
      Place place;
      if (!find(c, p.to, bytes, &place)) return impossible("a receive buffer is in no window");
      received.offset = place.offset;
      while (windows[received.window].handle != place.window) received.window++;
#endif
    } else {
      Place place;
      if (!find(c, p.from, bytes, &place)) return impossible("a send buffer is in no window");
      for (int i = 0; i < x.sends; i++) same += x.sent[i].peer == p.peer;
      int window = 0;
      while (windows[window].handle != place.window) window++;
      x.sent[x.sends++] = Sent{place.offset, bytes, x.turn, window, p.peer};
    }
    if (same >= NCCLX_PAIRED) return impossible("it has more than 8 parts between two ranks");
  }
  for (size_t n = 0; n < windows.size(); n++) x.windows[n] = windows[n].handle;
  OnDevice on(c->device);
  launch_exchange(c->device_comm, x, c->table, stream);
  return launched();
}
#endif

#if NCCLX_EXCHANGES && !NCCLX_ROOTED
inline bool by_exchange(const char* call, const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream, ncclResult_t* result) {
  Context* c = context_of(comm);
  if (falls_back(call, c, type_bytes(type))) return false;
  if (c->table == nullptr) return !refused(call, "register_all was not called");
  if (windows_of(c).size() > NCCLX_WINDOWS) return !refused(call, "there are more than 32 windows");
  if (c->device_comm.nRanks > NCCLX_PARTS) return !refused(call, "there are more than 64 ranks");
  const int rank = c->device_comm.rank, ranks = c->device_comm.nRanks;
  const bool gathers = call[0] == 'G', scatters = call[0] == 'S';
  const size_t bytes = count * type_bytes(type);
  const char* from = static_cast<const char*>(send);
  char* to = static_cast<char*>(recv);
  std::vector<Part> parts;
  const bool there = rank == root && (gathers ? from == to + root * bytes : scatters ? from + root * bytes == to : from == to);
  if (gathers && !there) parts.push_back(Part{comm, stream, from, nullptr, count, type, root});
  if (!gathers && !there) parts.push_back(Part{comm, stream, nullptr, to, count, type, root});
  for (int p = 0; p < (rank == root ? ranks : 0); p++) {
    if (p == root && there) continue;  // in place, the own part is there
    if (gathers) parts.push_back(Part{comm, stream, nullptr, to + p * bytes, count, type, p});
    else parts.push_back(Part{comm, stream, from + (scatters ? p * bytes : 0), nullptr, count, type, p});
  }
  *result = count == 0 ? ncclSuccess : exchange_by_device(c, parts, stream);
  return true;
}
#endif

// All ranks must come to one decision: it rests on what they have in common, and on no rank's own parts.
inline ncclResult_t GroupEnd() {
  if (group().depth == 0) return ncclInvalidUsage;
  if (--group().depth > 0) return ncclSuccess;
  std::vector<Part> parts;
  parts.swap(group().parts);
#if NCCLX_EXCHANGES
  std::list<Context*> contexts;
  bool host = false;
  for (const Part& p : parts) {
    Context* c = context_of(p.comm);
    bool known = false;
    for (Context* other : contexts) known = known || other == c;
    if (known) continue;
    contexts.push_back(c);
    host = host || falls_back("a group", c, 1);
    if (!host && c->table == nullptr) host = refused("a group", "register_all was not called");
    if (!host && windows_of(c).size() > NCCLX_WINDOWS) host = refused("a group", "there are more than 32 windows");
  }
  if (!host) {
    for (Context* c : contexts) {
      ncclResult_t r = exchange_by_device(c, parts);
      if (r != ncclSuccess) return r;
    }
    return ncclSuccess;
  }
#else
  refused("a group", "exchanges are not generated for this interface");
#endif
  return exchange_by_host(parts);
}

// A call of RCCL, and of other NCCLs than NVIDIA's: counts and offsets of elements by peer, each rank's own.
inline ncclResult_t AlltoAllv(const void* send, const size_t* send_counts, const size_t* send_offsets, void* recv,
                              const size_t* recv_counts, const size_t* recv_offsets, ncclDataType_t type, ncclComm_t comm,
                              cudaStream_t stream) {
  int ranks = 0;
  ncclResult_t r = ncclCommCount(comm, &ranks);
  if (r != ncclSuccess) return r;
  const size_t unit = type_bytes(type);
  if (unit == 0 || send == nullptr || recv == nullptr) return ncclInvalidArgument;
  GroupStart();
  for (int p = 0; p < ranks && r == ncclSuccess; p++) {
    r = Send(static_cast<const char*>(send) + send_offsets[p] * unit, send_counts[p], type, p, comm, stream);
    if (r == ncclSuccess) r = Recv(static_cast<char*>(recv) + recv_offsets[p] * unit, recv_counts[p], type, p, comm, stream);
  }
  const ncclResult_t end = GroupEnd();
  return r != ncclSuccess ? r : end;
}

}  // namespace ncclx
