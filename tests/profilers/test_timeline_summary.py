"""Facts of traces beyond kernels: gaps, overlap, launch latency, NCCL, ranks, two traces side by side."""

import json

from gpu_mcp_server.profilers import compare, nsys, report_detection, rocprof_events, timeline, torch_trace
from gpu_mcp_server.profilers.gpu_events import GpuEvent, readings_of
from tests.profilers.test_timelines import database

EXPORT = """
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
        correlationId INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
        blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
        correlationId INTEGER, bytes INTEGER, copyKind INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER);
    INSERT INTO StringIds VALUES (1, 'add(float *)'), (2, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)');
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
        (10000, 20000, 0, 7, 1, 1, 4, 2, 1, 128, 1, 1, 24), (60000, 70000, 0, 7, 2, 1, 4, 2, 1, 128, 1, 1, 24),
        (65000, 85000, 0, 9, 3, 2, 1, 1, 1, 256, 1, 1, 96);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (100000, 110000, 0, 8, 4, 4000000, 1);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (5000, 6000, 1), (20000, 21000, 2), (62000, 63000, 3);
"""


def test_an_export_gives_grids_copies_and_when_the_host_called():
    events = nsys.parse_events(database(EXPORT))
    assert [e.name[:12] for e in events] == ["add", "add", "ncclDevKerne", "[CUDA memcpy"]
    assert (events[0].grid, events[0].block, events[0].launched) == ("4x2", "128", 5000)
    assert events[3].name == "[CUDA memcpy HtoD]" and events[3].metrics == {"bytes": 4e6}


def test_gaps_copies_latency_and_nccl_of_an_export_by_hand():
    lines = timeline.describe_timeline(nsys.parse_events(database(EXPORT)))
    assert lines[0] == "TIMELINE: 100 us from first to last, idle 55 %, 2 gaps; longest 40 us, between add and add"
    assert lines[1].startswith("COPIES: 10 us, 4 MB, 0 % of it beside kernels [guide streams: ")
    assert lines[2] == "LAUNCHES: 4 us from call to kernel (median), 33 % waited in a queue longer than 20 us"
    assert lines[3].startswith("NCCL: 57 % of busy time, 25 % of it beside other kernels")
    assert lines[4].startswith("many short gaps: launches do not keep up")


def test_one_event_or_none_makes_no_line():
    assert timeline.describe_timeline([]) == [] == timeline.describe_timeline([GpuEvent("k", 0, 5)])


def test_the_rank_that_waits_least_in_nccl_is_the_late_one():
    def rank(ns: float) -> list[GpuEvent]:
        return [GpuEvent("ncclDevKernel_AllGather", n * 1e6, n * 1e6 + ns) for n in range(3)]

    lines = timeline.describe_ranks({"rank0": rank(900.0), "rank1": rank(100.0), "rank2": rank(880.0)})
    assert lines[0].startswith("RANKS in NCCL: rank0 2.7 us in 3 calls") and lines[1].startswith("rank1 arrives last")
    assert timeline.describe_ranks({"rank0": rank(900.0), "rank1": rank(890.0)})[1:] == []
    other = timeline.describe_ranks({"rank0": rank(900.0), "rank1": rank(100.0)[:2]})
    assert other[1] == "ranks made different numbers of NCCL calls: times are not compared"
    assert timeline.describe_ranks({"rank0": rank(900.0)}) == []


def test_a_chrome_trace_says_when_its_kernels_were_launched():
    document = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2, "args": {"correlation": 9}},
        {"ph": "X", "cat": "Kernel", "name": "add", "ts": 5, "dur": 10, "args": {"correlation": 9, "stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 20, "dur": 4, "args": {"bytes": 64}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 30},
    ]
    add, copy = torch_trace.parse_events(json.dumps(document))
    assert (add.launched, add.start, add.end, copy.kind, copy.metrics) == (1000, 5000, 15000, "copy", {"bytes": 64})
    files = {"trace.json": json.dumps({"traceEvents": document}).encode()}
    assert len(report_detection.read_events(files)["trace.json"]) == 2


def test_a_trace_of_rocprofv3_has_events():
    text = '"Kernel_Name","Start_Timestamp","End_Timestamp","Agent_Id","Queue_Id"\n"blur",100,400,2,1\n"blur",900,1000,2,1\n'
    assert [(e.start, e.end, e.device) for e in rocprof_events.parse_csv_events(text)] == [
        (100, 400, "2"),
        (900, 1000, "2"),
    ]


def test_side_by_side_says_which_launches_appeared_vanished_and_slowed():
    before = readings_of([GpuEvent("a", 0, 1000), GpuEvent("b", 0, 4000), GpuEvent("c", 0, 2000)])
    now = readings_of([GpuEvent("a", 0, 3000), GpuEvent("c", 0, 1000), GpuEvent("d", 0, 500)])
    lines = compare.compare_profiles(before, now).splitlines()
    assert lines[:5] == [
        "all kernels: 7 -> 4.5 us",
        "appeared: d 0.5 us in 1 calls",
        "vanished: b 4 us in 1 calls",
        "slower in all: a 1 -> 3 us in 1 -> 1 calls",
        "faster in all: c 2 -> 1 us in 1 -> 1 calls",
    ]
