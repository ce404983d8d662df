// NVML without a GPU, for tests. CUDA_FAKE_NVML has what the first GPU says, `sm clock, throttle reasons, processes` by
// commas, looks separated by semicolons; the last look is repeated. CUDA_FAKE_NVML_GPUS is how many there are.
// CUDA_FAKE_NVML_ERRORS has what is refused: `function=code` or `function@gpu=code`, separated by spaces; `*` is every
// function of a GPU. CUDA_FAKE_NVML_ODD=1 answers with numbers and bytes that cannot be true.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

struct Look { unsigned clock; unsigned long long reasons; unsigned processes; };
struct Memory { unsigned long long total, free, used; };
struct Rates { unsigned gpu, memory; };
static std::vector<Look> looks;
static size_t at;
static char handles[16];

static int index_of(void *handle) { return (int)((char *)handle - handles); }
static bool is_odd() { return getenv("CUDA_FAKE_NVML_ODD") != nullptr; }

static int refusal(const char *function, int gpu) {
    const char *said = getenv("CUDA_FAKE_NVML_ERRORS");
    std::istringstream words(said ? said : "");
    for (std::string word; words >> word;) {
        size_t equals = word.find('='), number = word.find('@');
        std::string name = word.substr(0, std::min(equals, number));
        bool here = number == std::string::npos || atoi(word.c_str() + number + 1) == gpu;
        if (here && (name == function || (name == "*" && gpu >= 0))) return atoi(word.c_str() + equals + 1);
    }
    return 0;
}
#define OF_GPU if (int code = refusal(__func__, index_of(handle))) return code;
#define OF_SYSTEM if (int code = refusal(__func__, -1)) return code;

extern "C" {
int nvmlInit_v2() {
    OF_SYSTEM
    const char *text = getenv("CUDA_FAKE_NVML");
    for (std::string left = text ? text : "1980,0,2"; !left.empty();) {
        Look look{};
        sscanf(left.c_str(), "%u,%llu,%u", &look.clock, &look.reasons, &look.processes);
        looks.push_back(look);
        size_t end = left.find(';');
        left = end == std::string::npos ? "" : left.substr(end + 1);
    }
    return 0;
}
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int code) {
    return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    OF_SYSTEM
    const char *said = getenv("CUDA_FAKE_NVML_GPUS");
    *count = said ? atoi(said) : 1;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = handles + index;
    return refusal(__func__, index);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = handles + (strlen(uuid) == 40 ? uuid[39] - '0' : 0);
    if (int code = refusal(__func__, index_of(*handle))) return code;
    return strncmp(uuid, "GPU-abab", 8) ? 6 : 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    OF_GPU
    snprintf(text, size, "GPU-abababab-0000-0000-0000-00000000000%d", index_of(handle));
    return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    OF_GPU
    snprintf(text, size, is_odd() ? "NVIDIA \xff\x1b[2J" : "NVIDIA H200");
    return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    OF_SYSTEM
    snprintf(text, size, is_odd() ? "580.0\xfe" : "580.0");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    OF_GPU
    *memory = is_odd() ? Memory{~0ull, ~0ull, ~0ull} : Memory{141ull << 30, 140ull << 30, 1ull << 30};
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { OF_GPU *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { OF_GPU *minor = index_of(handle); return 0; }
int nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) { OF_GPU *rates = {is_odd() ? ~0u : 7u, 0}; return 0; }
int nvmlDeviceGetMaxClockInfo(void *handle, int, unsigned *mhz) { OF_GPU *mhz = is_odd() ? ~0u : 1980; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) { OF_GPU *milliwatts = is_odd() ? ~0u : 700000; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) { OF_GPU *now = *later = is_odd(); return 0; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) {
    OF_GPU
    *mhz = is_odd() ? ~0u : kind == 2 ? 3201 : looks[at].clock;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    OF_GPU
    *reasons = looks[at].reasons;
    return 0;
}
int nvmlDeviceGetTemperature(void *handle, int, unsigned *celsius) { OF_GPU *celsius = is_odd() ? (unsigned)-12 : 55; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { OF_GPU *milliwatts = is_odd() ? ~0u : 400000; return 0; }
int nvmlDeviceGetP2PStatus(void *, void *, int, int *status) { *status = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *) {
    OF_GPU
    unsigned room = *count;
    *count = looks[at].processes;
    if (at + 1 < looks.size()) at++;
    return *count > room ? 7 : 0;  // NVML_ERROR_INSUFFICIENT_SIZE
}
}
