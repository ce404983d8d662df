// The allocator behind ModelNew's memory pool: segments from the owner's arena, from the device where that is used up.
// The owner believes nothing of it: it only makes results lie where the owner can look without a copy.
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#include <map>
#include <mutex>

static std::mutex turn;
static char *base;
static size_t size, used;
static std::multimap<size_t, char *> spare;
static std::map<char *, size_t> others;  // from the device, with their sizes
static int64_t live;             // segments of the arena that are in use

// 512 bytes is the granularity of torch's caching allocator, and cudaMalloc aligns to at least 256.
static size_t rounded(ptrdiff_t bytes) { return ((size_t)bytes + 511) & ~(size_t)511; }

extern "C" void pool_region(uint64_t at, uint64_t bytes) {
    std::lock_guard<std::mutex> hold(turn);
    base = (char *)at;
    size = bytes;
    used = 0;
    live = 0;
    spare.clear();
}

extern "C" void *pool_alloc(ptrdiff_t bytes, int device, cudaStream_t) {
    std::lock_guard<std::mutex> hold(turn);
    size_t whole = rounded(bytes);
    // Only an exact size is reused: a larger segment would strand its rest, as nothing is ever merged.
    auto found = spare.lower_bound(whole);
    if (found != spare.end() && found->first == whole) {
        char *at = found->second;
        spare.erase(found);
        live++;
        return at;
    }
    // Subtraction instead of `used + whole <= size`: a huge request must not wrap around.
    if (whole <= size - used) {
        char *at = base + used;
        used += whole;
        live++;
        return at;
    }
    void *at = nullptr;
    // A null pointer makes torch free its cached segments, try again, and only then report out of memory.
    if (cudaSetDevice(device) != cudaSuccess || cudaMalloc(&at, whole) != cudaSuccess) return nullptr;
    others[(char *)at] = whole;
    return at;
}

extern "C" void pool_free(void *at, ptrdiff_t bytes, int, cudaStream_t) {
    std::lock_guard<std::mutex> hold(turn);
    char *start = (char *)at;
    // The map tells whose memory it is; an address alone does not, once the arena has been exchanged.
    if (others.erase(start)) {
        cudaFree(at);
    } else if (base && start >= base && start < base + used) {
        spare.emplace(rounded(bytes), start);
        live--;
    }
}

extern "C" int64_t pool_live() {
    std::lock_guard<std::mutex> hold(turn);
    return live;
}

// Whether an address lies in what was taken from the device because the arena was used up.
extern "C" int pool_overflowed(uint64_t at) {
    std::lock_guard<std::mutex> hold(turn);
    auto next = others.upper_bound((char *)at);
    if (next == others.begin()) return 0;
    --next;
    return (char *)at < next->first + next->second;
}
