// A CUDA driver without a GPU, for tests: device memory is a memory file, kernels run one thread after the other on the
// CPU. It is built from the judge's own kernels.cu, so that what the owner launches and with which arguments is real.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <signal.h>
#include <string>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#define __device__ static
#define __global__
#define __forceinline__ inline
#define __noinline__
struct Three { unsigned x; };
static Three threadIdx{0}, blockIdx{0}, blockDim{1}, gridDim{1};
struct uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static void sincospif(float x, float *s, float *c) { *s = sinf(x * 3.14159265f), *c = cosf(x * 3.14159265f); }
static int __any_sync(unsigned, int p) { return p; }
static double __shfl_xor_sync(unsigned, double v, int) { return v; }  // for a maximum
static int __shfl_xor_sync(unsigned, int, int) { return 0; }          // for a sum: there is one lane
static long long __double_as_longlong(double v) { long long bits; memcpy(&bits, &v, 8); return bits; }
static double __longlong_as_double(long long bits) { double v; memcpy(&v, &bits, 8); return v; }
template <class T> static T atomicAdd(T *at, T v) { T was = *at; *at += v; return was; }
template <class T> static void atomicMin(T *at, T v) { if (v < *at) *at = v; }
template <class T> static void atomicMax(T *at, T v) { if (v > *at) *at = v; }
struct __half { uint16_t bits; };
struct __nv_bfloat16 { uint16_t bits; };
static float __half2float(__half) { return 0; }
static __half __float2half(float) { return {0}; }
static float __bfloat162float(__nv_bfloat16 v) { uint32_t b = (uint32_t)v.bits << 16; float f; memcpy(&f, &b, 4); return f; }
static __nv_bfloat16 __float2bfloat16(float f) { uint32_t b; memcpy(&b, &f, 4); return {(uint16_t)((b + 0x7FFF + (b >> 16 & 1)) >> 16)}; }
using std::isfinite;
using std::isinf;
using std::isnan;
#include "kernels_without_includes.h"

template <class... A, size_t... I> static void run(void (*f)(A...), void **p, std::index_sequence<I...>) {
    f(*(typename std::remove_const<A>::type *)p[I]...);
}
template <class... A> static void run(void (*f)(A...), void **p) { run(f, p, std::index_sequence_for<A...>()); }
static void touch(uint32_t *at) { *at = 1; }
static void spin(uint64_t nanoseconds) {
    timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000ull + now.tv_nsec - begin.tv_nsec < nanoseconds);
}
typedef void (*Call)(void **);
#define KERNEL(name) {#name, [](void **p) { run(name, p); }}
static const std::map<std::string, Call> kernels = {
    KERNEL(fill), KERNEL(set_words), KERNEL(count_touched), KERNEL(set_guard), KERNEL(check_guard),
    KERNEL(count_differing), KERNEL(count_unbounded), KERNEL(compare), KERNEL(wrong_places), KERNEL(fence), KERNEL(gather), KERNEL(collect), KERNEL(set_places), KERNEL(scatter), KERNEL(touch), KERNEL(spin)};

struct Location { int type, id; };
struct Properties { int type, handles; Location location; void *win32; unsigned char flags[8]; };
struct Access { Location location; int flags; };
typedef unsigned long long Pointer;
static std::map<Pointer, std::pair<int, size_t>> mapped;
static std::map<Pointer, size_t> allocated;
enum { OK = 0, INVALID = 1, FULL = 2, EMPTY = 901 };
typedef void (*Host)(void *);

extern "C" {
int cuInit(unsigned) { return OK; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuGetErrorName(int code, const char **text) {
    *text = code == FULL ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID : OK; }
int cuDeviceGetName(char *name, int size, int) { snprintf(name, size, "Fake GPU"); return OK; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int) { memset(uuid, 0xAB, 16); return OK; }
int cuDeviceGetAttribute(int *value, int which, int) { *value = which == 38 ? 4 << 20 : 9; return OK; }
int cuDevicePrimaryCtxRetain(void **context, int) {
    const char *path = getenv("CUDA_FAKE_CONTEXTS");  // names a file that gets a byte for each context
    FILE *file = path ? fopen(path, "a") : nullptr;
    if (file) { fputc('c', file); fclose(file); }
    const char *fault = getenv("CUDA_FAKE_FAULT");  // of the driver in the candidate's process: abort, full
    char words[4096] = "";
    FILE *line = fault ? fopen("/proc/self/cmdline", "r") : nullptr;
    size_t count = line ? fread(words, 1, sizeof words - 1, line) : 0;
    bool mine = count > 10 && !strcmp(words + count - 10, "candidate");
    if (line) fclose(line);
    if (mine && !strcmp(fault, "abort")) abort();
    if (mine) return FULL;
    return *context = (void *)1, OK;
}
static thread_local void *current;
int cuCtxSetCurrent(void *context) { current = context; return context ? OK : INVALID; }
// Work that takes its time, of a candidate of these tests: it begins when what was launched before is over, or at once.
// What is copied on the stream that is given is between what was launched before and what comes then.
static uint64_t over, behind;
static std::vector<std::pair<Host, void *>> later;
static uint64_t clock_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
int fake_work(uint64_t nanoseconds, int beside) {
    uint64_t now = clock_ns(), after = beside ? behind : over, begin = after < now ? now : after;
    over = std::max(over, begin + nanoseconds);
    return OK;
}
// Work on a stream that nobody joins: done by the time that everything is waited for.
int fake_later(Host function, void *data) { later.push_back({function, data}); return OK; }
// Gates: what is launched behind a stream's wait is held, and a process that no freeze reaches runs it, as a GPU does
// while the host is stopped. It is made where a word is written behind that, and ends with it.
static std::vector<std::function<void()>> held;
static volatile uint32_t *done;  // how many of the processes have ended, beside what a candidate may write
static uint32_t begun;
static void await(volatile uint32_t *word, uint32_t value) {
    while ((int32_t)(*word - value) < 0) usleep(20);
}
static int hold(std::function<void()> work) { return held.push_back(work), OK; }
// CUDA_FAKE_TURNS names a file: then the owner's kernels, what is held and who watches take turns on it, as contexts do
// on a GPU. What a process does itself takes none, as it may be stopped meanwhile.
static int open_turns() { return getenv("CUDA_FAKE_TURNS") ? open(getenv("CUDA_FAKE_TURNS"), O_RDWR) : -1; }
struct Turn {
    int file = open_turns();
    Turn() { if (file >= 0) flock(file, LOCK_EX); }
    ~Turn() { if (file >= 0) close(file); }
};
// What all processes know of who watches, in that file: how many copies were made, up to which one it has looked, and
// whether it has its turn, as it may see what a copy wrote before that counts.
struct Watch { uint32_t copies, looked, working; pid_t watcher; };
static volatile Watch *open_watch() {
    int file = open_turns();
    if (file < 0 || ftruncate(file, 4096)) return nullptr;
    void *at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return close(file), at == MAP_FAILED ? nullptr : (volatile Watch *)at;
}
static volatile Watch *watch() {
    static volatile Watch *all = open_watch();
    return all;
}
static void leave_watch(int) {
    if (__sync_bool_compare_and_swap(&watch()->watcher, getpid(), 0)) watch()->working = 0;
    _exit(0);
}
// Who watches has seen a copy when that is done, and has its turn if there is something to do: no sleep ensures that.
static void show_copy() {
    if (!watch()) return;
    uint32_t mine = __atomic_add_fetch(&watch()->copies, 1, __ATOMIC_SEQ_CST);
    while (watch()->watcher && !watch()->working && (int32_t)(watch()->looked - mine) < 0) usleep(20);
}
static void hand_over() {
    if (!begun++) done = (uint32_t *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) {
        setsid();
        if (fork()) _exit(0);
        alarm(20);  // its word never comes where the test is over
        for (auto &work : held) work();
        ++*done;
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    held.clear();
}
// A stream that nobody joins waits for a word to change, and works then, again and again; the next one takes its place.
int fake_watch(volatile uint32_t *word, Host function, void *data) {
    static uint32_t *latest = (uint32_t *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint32_t mine = ++*latest, seen = *word;
    if (!watch()) return INVALID;
    pid_t child = fork();
    if (!child) {
        setsid();
        pid_t watcher = fork();
        if (watcher) watch()->watcher = watcher, _exit(0);  // from now on copies wait for it
        signal(SIGALRM, leave_watch);
        alarm(20);
        while (*(volatile uint32_t *)latest == mine) {
            uint32_t copies = watch()->copies;
            if (seen != *word) {
                Turn turn;
                watch()->working = 1, seen = *word, watch()->looked = copies, function(data), watch()->working = 0;
            } else
                watch()->looked = copies, usleep(10);
        }
        leave_watch(0);
    }
    return waitpid(child, nullptr, 0), OK;
}
// CUDA_FAKE_LACKS names a call that a driver has not, as in some virtual machines.
static bool lacks(const char *call) { return getenv("CUDA_FAKE_LACKS") && !strcmp(getenv("CUDA_FAKE_LACKS"), call); }
int cuMemHostRegister_v2(void *, size_t, unsigned flags) {
    return flags == 2 && !lacks("cuMemHostRegister_v2") ? OK : INVALID;
}
int cuMemHostGetDevicePointer_v2(Pointer *at, void *host, unsigned) { return *at = (Pointer)host, OK; }
int cuStreamWaitValue32_v2(void *stream, Pointer at, uint32_t value, unsigned flags) {
    auto word = (volatile uint32_t *)at;
    if (stream || flags || lacks("cuStreamWaitValue32_v2")) return INVALID;
    return hold([=] { await(word, value); });
}
int cuStreamWriteValue32_v2(void *stream, Pointer at, uint32_t value, unsigned flags) {
    if (stream || flags) return INVALID;
    if (held.empty()) return *(volatile uint32_t *)at = value, OK;  // nothing holds the stream back
    held.push_back([=] { *(volatile uint32_t *)at = value; });
    hand_over();
    return OK;
}
int cuCtxSynchronize() {
    if (begun) await(done, begun);
    for (auto &[function, data] : later) function(data);
    later.clear();
    for (uint64_t now; (now = clock_ns()) < over;) {
        timespec rest{0, (long)std::min<uint64_t>(over - now, 999999999) - 200000};  // who sleeps is woken some time later
        if (rest.tv_nsec > 0) nanosleep(&rest, nullptr);
    }
    return OK;
}
// CUDA_FAKE_HELD names a file in which a process says what it holds: its number and bytes; it does while it lives.
// CUDA_FAKE_COUNT names all exported memory, which takes its place as long as some process has it open, as on a GPU.
// CUDA_FAKE_BYTES is how much there is of it: else a GiB.
static size_t all_of_it() { return getenv("CUDA_FAKE_BYTES") ? strtoull(getenv("CUDA_FAKE_BYTES"), 0, 10) : 1 << 30; }
static size_t exported() {
    std::string name = std::string("memfd:") + getenv("CUDA_FAKE_COUNT") + " ";
    std::map<long, long> found;
    DIR *processes = opendir("/proc");
    while (dirent *one = readdir(processes)) {
        std::string at = std::string("/proc/") + one->d_name + "/fd/";
        DIR *open = atoi(one->d_name) ? opendir(at.c_str()) : nullptr;
        while (dirent *each = open ? readdir(open) : nullptr) {
            char shown[64] = "";
            struct stat file;
            std::string path = at + each->d_name;
            if (readlink(path.c_str(), shown, 63) > 0 && strstr(shown, name.c_str()) && !stat(path.c_str(), &file))
                found[file.st_ino] = file.st_size;
        }
        if (open) closedir(open);
    }
    closedir(processes);
    size_t sum = 0;
    for (auto &[number, size] : found) sum += size;
    return sum;
}
static size_t left() {
    size_t taken = getenv("CUDA_FAKE_COUNT") ? exported() : 0, held = 0, total = all_of_it();
    const char *path = getenv("CUDA_FAKE_HELD");
    FILE *file = path ? fopen(path, "r") : nullptr;
    int pid;
    if (file && fscanf(file, "%d %zu", &pid, &held) == 2 && !kill(pid, 0)) taken += held;
    if (file) fclose(file);
    return taken < total ? total - taken : 0;
}
static bool fits(size_t size) { return (!getenv("CUDA_FAKE_COUNT") && !getenv("CUDA_FAKE_HELD")) || size <= left(); }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = left(), *total = all_of_it(); return OK; }
int cuMemGetAllocationGranularity(size_t *grain, const Properties *p, int) {
    *grain = 2 << 20;
    return p->type == 1 && p->handles == 1 && p->location.type == 1 && p->location.id == 0 ? OK : INVALID;
}
int cuMemCreate(Pointer *handle, size_t size, const Properties *p, Pointer flags) {
    if (!fits(size)) return FULL;
    const char *name = getenv("CUDA_FAKE_COUNT");
    int file = memfd_create(name ? name : "device", 0);
    if (p->handles != 1 || flags || size % (2 << 20) || ftruncate(file, size)) return INVALID;
    *handle = 1000 + file;
    return OK;
}
int cuMemRelease(Pointer handle) { return close((int)handle - 1000) ? INVALID : OK; }
int cuMemAddressReserve(Pointer *at, size_t size, size_t, Pointer, Pointer) {
    *at = (Pointer)mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return OK;
}
int cuMemAddressFree(Pointer at, size_t size) { return munmap((void *)at, size) ? INVALID : OK; }
int cuMemMap(Pointer at, size_t size, size_t, Pointer handle, Pointer) { mapped[at] = {(int)handle - 1000, size}; return OK; }
int cuMemUnmap(Pointer at, size_t size) { return mapped.erase(at) && size ? OK : INVALID; }
int cuMemSetAccess(Pointer at, size_t size, const Access *access, size_t count) {
    if (!mapped.count(at) || count != 1 || mapped[at].second != size || access->location.type != 1) return INVALID;
    int rights = access->flags == 3 ? PROT_READ | PROT_WRITE : access->flags == 1 ? PROT_READ : -1;
    if (rights < 0) return INVALID;
    return mmap((void *)at, size, rights, MAP_SHARED | MAP_FIXED, mapped[at].first, 0) == MAP_FAILED ? INVALID : OK;
}
int cuMemExportToShareableHandle(int *out, Pointer handle, int type, Pointer) {
    *out = dup((int)handle - 1000);
    return type == 1 ? OK : INVALID;
}
int cuMemImportFromShareableHandle(Pointer *handle, void *descriptor, int type) {
    *handle = 1000 + dup((int)(intptr_t)descriptor);
    return type == 1 ? OK : INVALID;
}
int cuMemAlloc_v2(Pointer *at, size_t size) {
    if (!fits(size)) return FULL;
    *at = (Pointer)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    allocated[*at] = size;
    return OK;
}
int cuMemFree_v2(Pointer at) {
    if (!allocated.count(at)) return INVALID;
    munmap((void *)at, allocated[at]);
    allocated.erase(at);
    return OK;
}
int cuMemcpyHtoD_v2(Pointer to, const void *from, size_t size) { memcpy((void *)to, from, size); return OK; }
int cuMemcpyDtoH_v2(void *to, Pointer from, size_t size) { if (!current) return INVALID; memcpy(to, (void *)from, size); return OK; }
int cuMemcpyDtoD_v2(Pointer to, Pointer from, size_t size) {
    memcpy((void *)to, (void *)from, size);
    return show_copy(), OK;
}
int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t size, void *stream) {
    behind = over;
    return stream ? INVALID : cuMemcpyDtoD_v2(to, from, size);
}
int cuMemsetD8_v2(Pointer at, unsigned char value, size_t size) { memset((void *)at, value, size); return OK; }
// What a candidate of these tests launches: a function of the host, done at once, or held behind a gate.
int cuMemsetD32Async(Pointer, unsigned, size_t, void *stream) { return stream ? INVALID : OK; }  // there is no cache
int cuLaunchHostFunc(void *stream, Host function, void *data) {
    if (!stream && !held.empty()) return hold([=] { Turn turn; function(data); });
    function(data);
    return OK;
}
int cuEventCreate(void **event, unsigned flags) { *event = new double(0); return flags ? INVALID : OK; }
int cuEventRecord(void *event, void *stream) { return *(double *)event = (double)clock_ns(), stream ? INVALID : OK; }
int cuEventElapsedTime(float *ms, void *first, void *last) {
    *ms = (float)((*(double *)last - *(double *)first) / 1e6);
    return OK;
}
int cuEventDestroy_v2(void *event) { delete (double *)event; return OK; }
int cuStreamQuery(void *stream) { return stream || held.empty() ? OK : 600; }  // CUDA_ERROR_NOT_READY
int cuModuleLoadData(void **module, const char *text) { *module = (void *)1; return strstr(text, ".target sm_75") ? OK : INVALID; }
int cuModuleGetFunction(void **function, void *, const char *name) {
    auto found = kernels.find(name);
    if (found == kernels.end()) return INVALID;
    *function = (void *)found->second;
    return OK;
}
int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void *, void **arguments, void **) {
    if (!current) return INVALID;
    if (threads != 256) return INVALID;
    if (!held.empty()) return hold([] { Turn turn; });  // of the judge's own the one that switches in
    if (function == (void *)kernels.at("touch") || function == (void *)kernels.at("spin")) return ((Call)function)(arguments), OK;
    Turn turn;
    ((Call)function)(arguments);
    return OK;
}
}
