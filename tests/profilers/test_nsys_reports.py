"""nsys beyond its kernels: launches of graphs, several processes in one file, sums of copies, calls and launches."""

from gpu_mcp_server.profilers import nsys, nsys_sums, report_detection, timeline
from gpu_mcp_server.services.profiles.profiler import timeline_of
from tests.profilers.test_timeline_summary import EXPORT
from tests.profilers.test_timelines import database

GRAPHS = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
        correlationId INTEGER, graphId INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (20000, 60000, 0, 7, 9, 3);
"""


def test_a_graph_without_its_kernels_is_no_idle_time():
    """By default nsys writes one row for a launch of a graph, and none for the kernels in it."""
    events = nsys.parse_events(database(EXPORT + GRAPHS))
    assert "[CUDA graph 3]" in [e.name for e in events]
    assert timeline.describe_timeline(events)[0].startswith("TIMELINE: 100 us from first to last, idle 15 %")
    assert timeline.describe_timeline(events)[1].startswith("GRAPHS: 1 launches without their kernels")
    assert [k.total_us for k in nsys.parse_sqlite(database(EXPORT + GRAPHS)) if k.name == "[CUDA graph 3]"] == [40]


def two_ranks(nccl_us: tuple[int, int]) -> str:
    script = """
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (1, 'ncclDevKernel_AllReduce(int)'), (2, 'add(float *)');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, demangledName INTEGER, globalPid INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER, globalTid INTEGER);
    """
    for pid, us in zip((7, 9), nccl_us, strict=True):
        end, process = 100_000, pid << 24
        script += f"""
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({end - us * 1000}, {end}, 0, 7, 1, 1, {process}),
                (1000, 5000, 0, 7, 2, 2, {process});
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({pid * 100}, 950, 2, {process + 5});
        """
    return script


def test_ranks_of_one_file_are_its_processes():
    data = database(two_ranks((50, 10)))
    events = nsys.parse_events(data)
    assert {(e.process, e.launched) for e in events if e.name == "add"} == {(7, 700), (9, 900)}
    said = "\n".join(timeline_of({"all.sqlite": data}))
    assert "RANKS in NCCL: process 7 50 us in 1 calls, process 9 10 us in 1 calls" in said
    assert "process 9 arrives last" in said
    assert "TIMELINE: 99 us" in said and "TIMELINE of device" not in said


SUMS = """
[3/8] Executing 'osrt_sum' stats report

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name
 --------  ---------------  ---------  --------  ----
    100.0      900,000,000         17  52941176  poll

[5/8] Executing 'cuda_api_sum' stats report

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)     Name
 --------  ---------------  ---------  --------  ----------------------
     60.0        6,000,000          2   3000000  cudaDeviceSynchronize
     40.0        4,000,000      1,000      4000  cudaLaunchKernel

[6/8] Executing 'cuda_gpu_kern_sum' stats report

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Name
 --------  ---------------  ---------  --------  ------------
    100.0        2,000,000      1,000      2000  add(float *)

[7/8] Executing 'cuda_gpu_mem_time_sum' stats report

 Time (%)  Total Time (ns)  Count  Avg (ns)      Operation
 --------  ---------------  -----  --------  ------------------
    100.0            5,000      2      2500  [CUDA memcpy HtoD]
"""


def test_sums_say_copies_calls_and_what_a_launch_costs():
    name, kernels = report_detection.read({"stats.txt": SUMS.encode()})
    assert (name, [(k.name, k.calls, k.time_us) for k in kernels]) == ("nsys", [("add", 1000, 2.0)])
    copies, host, launches = timeline_of({"stats.txt": SUMS.encode()})
    assert copies.startswith("COPIES: [CUDA memcpy HtoD] 5.00 µs in 2")
    assert host.startswith(
        "HOST: 10.0 ms in CUDA calls: cudaDeviceSynchronize 60 % in 2, cudaLaunchKernel 40 % in 1000"
    )
    assert "60 % are calls that wait" in host
    assert launches.startswith("LAUNCHES: 1000 calls of 4.00 µs, 1000 kernels of 2.00 µs: the host takes longer")


def test_reports_behind_one_another_as_csv_are_kept_apart():
    text = (
        "Processing [a.sqlite] with [cuda_gpu_kern_sum.py]...\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,2000000,1000,2000.0,add(float *)\n"
        "Processing [a.sqlite] with [cuda_api_sum.py]...\n"
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,4000000,1000,4000.0,cudaLaunchKernel\n"
    )
    assert [k.name for k in nsys.parse_stats(text)] == ["add"]


def test_time_of_call_queue_and_kernel_are_told_apart():
    text = (
        "Count,QCount,TAvg (ns),AAvg (ns),QAvg (ns),KAvg (ns),API Name,Kernel Name\n"
        "4000,3990,293000.0,1700.0,290000.0,840.0,cudaLaunchKernel,tiny_add(float *)\n"
    )
    _, (kernel,) = report_detection.read({"x_cuda_kern_exec_sum.csv": text.encode()})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("tiny_add", 4000, 0.84)
    (said,) = nsys_sums.describe_sums({"x": text})
    assert said.startswith("LAUNCHES: 4000 on average: call 1.70 µs, queue 290 µs, kernel 840 ns; calls last longer")


def test_reports_as_json_say_the_same_as_csv():
    text = (
        '[{"Time (%)":100.0,"Total Time (ns)":2000000,"Instances":1000,"Avg (ns)":2000.0,"Name":"add(float *, int)"}]'
    )
    _, (kernel,) = report_detection.read({"kern.json": text.encode()})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("add", 1000, 2.0)
    trace = (
        '[{"Start (ns)":100,"Duration (ns)":50,"CorrId":1,"Device":"GPU (0)","Strm":7,"Name":"add(float *)"},'
        '{"Start (ns)":200,"Duration (ns)":40,"CorrId":2,"Bytes (MB)":4.0,"Device":"GPU (0)","Strm":7,'
        '"Name":"[CUDA memcpy HtoD]"}]'
    )
    (events,) = report_detection.read_events({"trace.json": trace.encode()}).values()
    assert [(e.kind, e.start, e.end) for e in events] == [("kernel", 100, 150), ("copy", 200, 240)]
