"""nvprof's tables: sums without calls of the host, metrics under ncu's names, stalls; binary files name their way."""

from gpu_mcp_server.profilers import bottleneck, nvprof, report_detection

SUMMARY = """==297== NVPROF is profiling process 297, command: ./nbody
==297== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   75.00%  3.0000ms         2  1.5000ms  1.4000ms  1.6000ms  void step<int=4>(float*, int)
                   25.00%  1.0000ms         1  1.0000ms  1.0000ms  1.0000ms  [CUDA memcpy HtoD]
      API calls:   99.58%  159.25ms         1  159.25ms  159.25ms  159.25ms  cudaMallocManaged
                    0.16%  254.62us        94  2.7080us     610ns  69.471us  cuDeviceGetAttribute
"""
METRICS = """==81== NVPROF is profiling process 81, command: ./a
==81== Metric result:
Invocations                  Metric Name              Metric Description         Min         Max         Avg
Device "Tesla V100 (0)"
    Kernel: step(float*, int)
          2           achieved_occupancy              Achieved Occupancy    0.834779    0.839047    0.836913
          2               gld_efficiency   Global Memory Load Efficiency      12.50%      12.50%      12.50%
          2      stall_memory_dependency  Issue Stall Reasons (Data Req)      61.00%      63.00%      62.00%
          2         dram_read_throughput   Device Memory Read Throughput  64.607GB/s  65.245GB/s  64.923GB/s
"""


def test_sums_have_kernels_and_copies_and_no_calls_of_the_host():
    name, (step, copy) = report_detection.read({"n.txt": SUMMARY.encode()})
    assert (name, step.name, step.calls, step.time_us) == ("nvprof", "step<int=4>", 2, 1500)
    assert (copy.name, copy.total_us) == ("[CUDA memcpy HtoD]", 1000)


def test_metrics_and_stalls_lead_to_the_same_advice():
    (kernel,) = nvprof.parse_nvprof(METRICS)
    assert round(kernel.metrics["sm__warps_active.avg.pct_of_peak_sustained_active"]) == 84
    assert kernel.stalls == {"long_scoreboard": 62} and kernel.metrics["dram_read_throughput"] == 64.923e9
    assert bottleneck.kernel_verdict(kernel).advice[0].startswith("coalesce: 4 of 32 bytes of each loaded sector")


def test_a_file_that_only_its_own_program_reads_says_how_it_becomes_one():
    files = {"a/x.nsys-rep": b"\x01\x02", "y.ncu-rep": b"NVR"}
    said = report_detection.describe_unread(files)
    assert said[0].endswith("nsys export --type sqlite a/x.nsys-rep") and "ncu --import y.ncu-rep --page raw" in said[1]
