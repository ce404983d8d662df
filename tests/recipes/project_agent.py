"""A scripted agent for projects, as agents are: it misreads, repeats itself, writes a wrong tail. Runs sandboxed.

SCENARIO names the project; what it answers depends on its role, which the prompt says, and on what came of it so far.
"""

import json
import os
import re
import sys

prompt = sys.stdin.read()
scenario = os.environ["SCENARIO"]
WHOLE = ""

HISTOGRAM = """#include "histogram.h"
void histogram(const unsigned char *x, long n, long *bins) {
    for (int b = 0; b < 256; b++) bins[b] = 0;
    for (long i = 0; i < n; i++) bins[x[i]] += 1;
}
"""
HISTOGRAM_H = "#pragma once\nvoid histogram(const unsigned char *x, long n, long *bins);\n"
WEAK_TEST = """#include "../histogram.h"
int main() { long bins[256]; histogram(nullptr, 0, bins); return bins[0] != 0; }
"""
TEST = """#include "../histogram.h"
#include <algorithm>
#include <cstdio>
#include <vector>
int main() {
    for (long n : {0L, 1L, 255L, 256L, 1001L}) {
        std::vector<unsigned char> x(n);
        for (long i = 0; i < n; i++) x[i] = (unsigned char)(i * 7 + n);
        std::vector<long> bins(256, -1);
        histogram(x.data(), n, bins.data());
        for (int b = 0; b < 256; b++) {
            long expected = std::count(x.begin(), x.end(), (unsigned char)b);
            if (bins[b] != expected) return std::printf("n=%ld bin %d: %ld, expected %ld\\n", n, b, bins[b], expected), 1;
        }
    }
}
"""
MISREAD_TEST = TEST.replace("long expected = std::count", "long expected = 0 < std::count")
UNROLLED = """#include "histogram.h"
#include <algorithm>
void histogram(const unsigned char *x, long n, long *bins) {
    std::fill(bins, bins + 256, 0L);
    long i = 0, whole = n - n % 4;
    for (; i < whole; i = i + 4) {
        bins[x[i]] += 1;
        bins[x[i + 1]] += 1;
        bins[x[i + 2]] += 1;
        bins[x[i + 3]] += 1;
    }
    for (; i < n; i++) bins[x[i]] += 1;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.18)
project(made LANGUAGES CXX)
enable_testing()
add_library(made histogram.cpp)
add_executable(check tests/check.cpp)
target_link_libraries(check made)
add_test(NAME check COMMAND check)
set_tests_properties(check PROPERTIES SKIP_RETURN_CODE 77)
"""
REDUCE = """#include <mpi.h>
#include "reduce.h"
double sum_over_ranks(const double *x, long n) {
    double own = 0, all = 0;
    for (long i = 0; i < n; i++) own += x[i];
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}
"""
REDUCE_H = "#pragma once\ndouble sum_over_ranks(const double *x, long n);\n"
REDUCE_TEST = """#include <mpi.h>
#include <cstdio>
#include <vector>
#include "../reduce.h"
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (long n : {0L, 1L, 7L, 1000L}) {
        std::vector<double> x(n, rank + 1.0);
        double expected = n * size * (size + 1) / 2.0, found = sum_over_ranks(x.data(), n);
        if (found != expected) wrong = std::printf("n=%ld: %g, expected %g\\n", n, found, expected);
    }
    MPI_Finalize();
    return wrong != 0;
}
"""
REDUCE_CMAKE = """cmake_minimum_required(VERSION 3.18)
project(made LANGUAGES CXX)
find_package(MPI REQUIRED COMPONENTS CXX)
enable_testing()
add_library(made reduce.cpp)
target_link_libraries(made MPI::MPI_CXX)
add_executable(check tests/check.cpp)
target_link_libraries(check made)
add_test(NAME check COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3 $<TARGET_FILE:check>)
"""
MATMUL = """#include "matmul.h"
__global__ void kernel(const float *a, const float *b, float *c, int m, int n, int k) {
    int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0;
    for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + col];
    c[row * n + col] = sum;
}
void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    dim3 block(16, 16), grid((n + 15) / 16, (m + 15) / 16);
    kernel<<<grid, block>>>(a, b, c, m, n, k);
}
"""
MATMUL_H = "#pragma once\nvoid matmul(const float *a, const float *b, float *c, int m, int n, int k);\n"
MATMUL_TEST = """#include "../matmul.h"
#include <cstdio>
#include <cuda_runtime.h>
int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) return 77;
    for (int m : {1, 17, 33}) {
        int n = m + 3, k = 2 * m + 1;
        float *a, *b, *c;
        cudaMallocManaged(&a, m * k * 4), cudaMallocManaged(&b, k * n * 4), cudaMallocManaged(&c, m * n * 4);
        for (int i = 0; i < m * k; i++) a[i] = (i % 5) - 2;
        for (int i = 0; i < k * n; i++) b[i] = (i % 7) - 3;
        matmul(a, b, c, m, n, k);
        cudaDeviceSynchronize();
        for (int r = 0; r < m; r++)
            for (int q = 0; q < n; q++) {
                double expected = 0;
                for (int i = 0; i < k; i++) expected += double(a[r * k + i]) * b[i * n + q];
                if (c[r * n + q] != expected) return std::printf("%d %d: %g, expected %g\\n", r, q, c[r * n + q], expected), 1;
            }
    }
}
"""
MATMUL_CMAKE = """cmake_minimum_required(VERSION 3.18)
project(made LANGUAGES CXX CUDA)
set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "")
enable_testing()
add_library(made matmul.cu)
add_executable(check tests/check.cu)
target_link_libraries(check made)
add_test(NAME check COMMAND check)
set_tests_properties(check PROPERTIES SKIP_RETURN_CODE 77)
"""
SOURCES = {
    "histogram": {"histogram.cpp": HISTOGRAM, "histogram.h": HISTOGRAM_H},
    "reduce": {"reduce.cpp": REDUCE, "reduce.h": REDUCE_H},
    "matmul": {"matmul.cu": MATMUL, "matmul.h": MATMUL_H},
}
TESTS = {
    "histogram": {"tests/check.cpp": TEST},
    "reduce": {"tests/check.cpp": REDUCE_TEST},
    "matmul": {"tests/check.cu": MATMUL_TEST},
}
BUILDS = {"histogram": CMAKE, "reduce": REDUCE_CMAKE, "matmul": MATMUL_CMAKE}


def say(value: object) -> None:
    """Answer, with words around it as agents do."""
    print("Here it is.\n\n```json\n" + json.dumps(value) + "\n```")
    sys.exit()


def change(*parts: "tuple[str, str, str]") -> None:
    say({"changes": [{"path": path, "old": old, "new": new} for path, old, new in parts], "idea": scenario})


def whole(files: "dict[str, str]") -> None:
    change(*((path, WHOLE, text) for path, text in files.items()))


name = scenario.partition("-")[0]
failed = re.search(r"mend this and nothing else:\n\n(.*?)\n\n(?:Your last|Hint|\S+:\n\n```)", prompt, re.DOTALL)
first = failed is None
said = "" if failed is None else failed[1]
again = "Your last answer could not be used" in prompt

if '"title":"Hint"' in prompt:
    say({"kind": "correctness", "text": f"read the first message again, {len(prompt)}"})
if "You write the specification" in prompt:
    if not again:
        print("I shall think about it.")  # no JSON at all
        sys.exit()
    say({"purpose": name, "interface": ["as in the header"], "properties": ["equal to a plain loop"]})
if "You write the sources" in prompt:
    if first and scenario.endswith("-misread") and not again:
        whole({"tests/check.cpp": "int main() {}"})  # not its own
    if first and scenario.endswith("-tail"):
        whole({path: text.replace("i < n;", "i + 1 < n;") for path, text in SOURCES[name].items()})
    if not first and scenario.endswith("-disputed"):
        say({"objection": "the specification counts how often a value is there, not whether it is"})
    if scenario.endswith("-unrolled"):
        whole({"histogram.cpp": UNROLLED, "histogram.h": HISTOGRAM_H})
    if first and scenario.endswith("-syntax"):
        whole({path: text.replace("+= 1;", "+= 1") for path, text in SOURCES[name].items()})
    if first and scenario.endswith("-undefined"):
        whole({"histogram.cpp": HISTOGRAM.replace("void histogram", "void histogramm"), "histogram.h": HISTOGRAM_H})
    if scenario.endswith("-stubborn"):
        whole({"histogram.cpp": f"{HISTOGRAM.replace('+= 1', '+= 2')}// {len(prompt)}\n", "histogram.h": HISTOGRAM_H})
    whole(SOURCES[name])
if "You write test programs" in prompt:
    if first and scenario.endswith("-weak"):
        whole({"tests/check.cpp": WEAK_TEST})
    if first and scenario.endswith("-disputed"):
        whole({"tests/check.cpp": MISREAD_TEST})
    if not first and scenario.endswith("-unrolled"):
        lines = [line for line in said.splitlines() if line.startswith("histogram.cpp:")]
        say({"harmless": dict.fromkeys(lines, "the loop for the rest counts these values too")})
    whole(TESTS[name])
if "You write CMakeLists.txt" in prompt:
    text = BUILDS[name]
    if first and scenario.endswith("-configure"):
        text = text.replace("project(made", "projekt(made")
    if first and scenario.endswith("-link"):
        text = text.replace("target_link_libraries(check made)\n", "")
    if first and scenario.endswith("-untested"):
        text = text.replace("enable_testing()\n", "")
    if "undefined reference" in said and scenario.endswith("-undefined"):
        text += "# the library is linked already\n"
    whole({"CMakeLists.txt": text})
print("What is wanted of me?")
