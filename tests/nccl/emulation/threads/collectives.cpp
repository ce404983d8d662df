// Every generated collective with a root, and exchanges of several shapes, with what each rank must hold afterwards.
#include <thread>

#include "ncclx.cuh"

static int wrong = 0;
static std::mutex said;
static void expect(const char* what, int rank, bool right) {
  std::lock_guard<std::mutex> lock(said);
  if (!right) { wrong++; printf("wrong %s rank %d\n", what, rank); }
}
static float value(int rank, size_t i) { return (float)(rank * 1000 + (int)(i % 997)); }

struct Rank {
  Comm comm;
  int rank, ranks;
  float *a, *b;
  static const size_t ROOM = 1 << 14;
  void fill() { for (size_t i = 0; i < ROOM; i++) { a[i] = value(rank, i); b[i] = -1; } }
  template <typename Want> void check(const char* what, size_t count, Want want) {
    bool right = true;
    for (size_t i = 0; i < ROOM; i++) right = right && b[i] == (i < count ? want(i) : -1.0f);
    expect(what, rank, right);
    comm.world->meet();
  }
  void rooted(size_t n, int root) {
    fill();
    expect("broadcast's result", rank, ncclx::Broadcast(a + 1, b, n, ncclFloat, root, &comm, 0) == 0);
    check("broadcast", n, [&](size_t i) { return value(root, i + 1); });
    fill();
    if (rank == root) memcpy(b, a, n * 4);
    ncclx::Bcast(b, n, ncclFloat, root, &comm, 0);
    check("bcast", n, [&](size_t i) { return value(root, i); });
    fill();
#if NCCLX_ROOTED
    ncclx::Reduce(a + 4, b, n, ncclFloat, ncclSum, root, &comm, 0);
    check("reduce", rank == root ? n : 0, [&](size_t i) { float s = 0; for (int p = 0; p < ranks; p++) s += value(p, i + 4); return s; });
    fill();
#endif
    ncclx::Gather(a, b, n, ncclFloat, root, &comm, 0);
    check("gather", rank == root ? n * ranks : 0, [&](size_t i) { return value((int)(i / n), i % n); });
    fill();
    ncclx::Scatter(a, b, n, ncclFloat, root, &comm, 0);
    check("scatter", n, [&](size_t i) { return value(root, rank * n + i); });
  }
  void ring(size_t n) {  // both neighbours are one rank where there are two
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    fill();
    ncclx::GroupStart();
    ncclx::Recv(b, n, ncclFloat, last, &comm, 0);
    ncclx::Send(a, n, ncclFloat, next, &comm, 0);
    ncclx::Recv(b + n, n, ncclFloat, next, &comm, 0);
    ncclx::Send(a + 2 * n, n, ncclFloat, last, &comm, 0);
    expect("ring's result", rank, ncclx::GroupEnd() == 0);
    check("ring", 2 * n, [&](size_t i) { return i < n ? value(last, i) : value(next, 2 * n + i - n); });
  }
  size_t size(int from, int to) { return (from * 7 + to * 3) % 5 * 101; }  // some are 0
  void sizes_of_their_own(bool in_one_call) {
    fill();
    size_t at = 0, to = 0;
    std::vector<size_t> sent, received, from, into;
    for (int p = 0; p < ranks; p++) {
      sent.push_back(size(rank, p));
      received.push_back(size(p, rank));
      from.push_back(at);
      into.push_back(to);
      at += size(rank, p);
      to += size(p, rank);
    }
    if (in_one_call) {
      ncclx::AlltoAllv(a, sent.data(), from.data(), b, received.data(), into.data(), ncclFloat, &comm, 0);
    } else {
      ncclx::GroupStart();
      for (int p = 0; p < ranks; p++) {
        ncclx::Send(a + from[p], sent[p], ncclFloat, p, &comm, 0);
        ncclx::Recv(b + into[p], received[p], ncclFloat, p, &comm, 0);
      }
      ncclx::GroupEnd();
    }
    check("all-to-all-v", to, [&](size_t i) {
      int p = 0;
      while (i >= size(p, rank)) { i -= size(p, rank); p++; }
      size_t before = 0;
      for (int q = 0; q < rank; q++) before += size(p, q);
      return value(p, before + i);
    });
  }
  void nothing() {  // what NCCL refuses must not reach a kernel
    fill();
    ncclx::GroupStart();
    expect("null sent", rank, ncclx::Send(nullptr, 8, ncclFloat, rank, &comm, 0) == ncclInvalidArgument);
    expect("null received", rank, ncclx::Recv(nullptr, 8, ncclFloat, rank, &comm, 0) == ncclInvalidArgument);
    ncclx::Send(nullptr, 0, ncclFloat, rank, &comm, 0);
    expect("empty group", rank, ncclx::GroupEnd() == 0);
    check("nothing", 0, [&](size_t) { return 0.0f; });
  }
  void alone(size_t n) {  // in no group: even ranks send first, and the last of an odd number waits for the others
    if (ranks == 1) return;
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    fill();
    for (int half = 0; half < 2; half++) {
      if ((rank + half) % 2 == 0) expect("send's result", rank, ncclx::Send(a + 3, n, ncclFloat, next, &comm, 0) == 0);
      else expect("receive's result", rank, ncclx::Recv(b, n, ncclFloat, last, &comm, 0) == 0);
    }
    check("alone", n, [&](size_t i) { return value(last, i + 3); });
  }
  void collected() {  // all send, rank 0 receives
    fill();
    ncclx::GroupStart();
    ncclx::Send(a, 33, ncclFloat, 0, &comm, 0);
    if (rank == 0) for (int p = 0; p < ranks; p++) ncclx::Recv(b + p * 33, 33, ncclFloat, p, &comm, 0);
    ncclx::GroupEnd();
    check("collected", rank == 0 ? 33 * ranks : 0, [&](size_t i) { return value((int)(i / 33), i % 33); });
  }
  void run(const char* fault) {
    cudaSetDevice(rank);
    ncclx::mem_alloc(&a, ROOM * 4);
    ncclx::mem_alloc(&b, ROOM * 4);
    ncclx::dev_init(&comm);
    ncclx::register_all(&comm);
    if (fault != nullptr && !strcmp(fault, "null")) {
      expect("all-to-all of nothing", rank, ncclx::AlltoAll(nullptr, b, 8, ncclFloat, &comm, 0) != 0);
      expect("gathering nothing", rank, ncclx::AllGather(nullptr, b, 8, ncclFloat, &comm, 0) != 0);
      return;
    }
    if (fault != nullptr && !strcmp(fault, "alone")) {  // a part of another size
      if (rank == 0) ncclx::Send(a, 8, ncclFloat, 1, &comm, 0);
      if (rank == 1) ncclx::Recv(b, 9, ncclFloat, 0, &comm, 0);
      return;
    }
    if (fault != nullptr) {  // a part that the peer did not send
      ncclx::GroupStart();
      ncclx::Send(a, 8, ncclFloat, (rank + 1) % ranks, &comm, 0);
      ncclx::Recv(b, rank == 0 ? 9 : 8, ncclFloat, (rank + ranks - 1) % ranks, &comm, 0);
      ncclx::GroupEnd();
      return;
    }
    for (int root = 0; root < ranks; root++) rooted(1003, root);
    for (int again = 0; again < 3; again++) { ring(257); sizes_of_their_own(again == 1); nothing(); collected(); }
#if NCCLX_PAIRS
    for (int again = 0; again < 3; again++) alone(513);
#endif
    ncclx::dev_fini(&comm);
    ncclx::buf_free(a);
    ncclx::buf_free(b);
  }
};

int main(int argc, char** argv) {
  const int ranks = atoi(argv[1]);
  World world;
  world.ranks = ranks;
  std::vector<Rank> all(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; r++) {
    all[r].comm = {&world, r};
    all[r].rank = r;
    all[r].ranks = ranks;
    threads.emplace_back([&, r] { all[r].run(argc > 2 ? argv[2] : nullptr); });
  }
  for (auto& t : threads) t.join();
  printf("end wrong=%d\n", wrong);
  return wrong != 0;
}
