// NVML without a GPU, for tests: what CUDA_FAKE_NVML says, `sm clock, throttle reasons, processes` by commas, looks
// separated by semicolons; the last look is repeated.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Look { unsigned clock; unsigned long long reasons; unsigned processes; };
static std::vector<Look> looks;
static size_t at;

extern "C" {
int nvmlInit_v2() {
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
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { *handle = &looks; return strncmp(uuid, "GPU-abab", 8) ? 6 : 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.0"); return 0; }
int nvmlDeviceGetClockInfo(void *, int kind, unsigned *mhz) { *mhz = kind == 2 ? 3201 : looks[at].clock; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *reasons) { *reasons = looks[at].reasons; return 0; }
int nvmlDeviceGetTemperature(void *, int, unsigned *celsius) { *celsius = 55; return 0; }
int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) { *milliwatts = 400000; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *count, void *) {
    *count = looks[at].processes;
    if (at + 1 < looks.size()) at++;
    return 0;
}
}
