"""Reports as strangers have them: older, longer, in other units and locales; what is not understood is said."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import (
    bottleneck,
    ncu,
    ncu_details,
    nsys,
    report_detection,
    rocprof,
    torch_averages,
)
from gpu_mcp_server.profilers.csv_tables import number
from tests.profilers.test_ncu import page
from tests.profilers.test_timelines import database

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
LONG = '"Section Name","Metric Name","Metric Unit","Metric Value"'


def long_table(*rows: tuple[str, str, str], kernel: str = "mix(float *, int)") -> str:
    about = f'"0","7","app","host","{kernel}","1","7","(128, 1, 1)","(512, 1, 1)","0","8.0"'
    lines = [f'{about},"a section","{name}","{unit}","{value}"' for name, unit, value in rows]
    return "\n".join([f"{HEAD},{LONG}", *lines]) + "\n"


def only(text: str | bytes, path: str = "report"):
    name, kernels = report_detection.read({path: text.encode() if isinstance(text, str) else text})
    (kernel,) = kernels
    return name, kernel


def test_the_default_table_of_ncu_has_time_registers_and_units():
    text = long_table(
        ("DRAM Throughput", "%", "47.80"),
        ("Duration", "usecond", "14887.28"),
        ("Registers Per Thread", "register/thread", "112"),
        ("Memory Throughput", "Gbyte/second", "700.5"),
        ("Memory Throughput", "%", "47.80"),
        ("A Label Of Tomorrow", "", "3"),
    )
    name, kernel = only(text)
    assert (name, kernel.name, kernel.grid, kernel.block) == ("ncu", "mix", "512", "128")
    assert kernel.time_us == pytest.approx(14887.28)
    assert kernel.metrics["launch__registers_per_thread"] == 112 and kernel.metrics["A Label Of Tomorrow"] == 3
    assert kernel.metrics["dram__bytes.sum.per_second"] == pytest.approx(7.005e11)
    verdict = bottleneck.kernel_verdict(kernel)
    assert verdict.units_percent == {"DRAM": 47.8} and "112 registers" in verdict.verdict
    assert "Metric Value" not in kernel.metrics


def test_metrics_by_name_in_the_long_form_are_read_without_ids_and_sizes():
    text = (
        "==PROF== Connected\n"
        '"Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"gather","gpu__time_duration.sum","nsecond","500,000"\n'
        '"gather","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","78.4"\n'
        '"gather","smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio","","4"\n'
    )
    _, kernel = only(text)
    assert kernel.time_us == 500
    verdict = bottleneck.kernel_verdict(kernel)
    assert verdict.bound == "DRAM" and verdict.advice[0].startswith("coalesce: 4 of 32 bytes")


def test_a_summary_has_its_average_and_its_invocations():
    text = (
        '"Kernel Name","Block Size","Grid Size","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"\n'
        '"k","(32, 1, 1)","(8, 1, 1)","4","s","gpu__time_duration.sum","us","1","3","2"\n'
    )
    _, kernel = only(text)
    assert (kernel.calls, kernel.time_us, kernel.total_us) == (4, 2, 8)


def test_what_ncu_prints_without_csv_says_the_same_as_its_table():
    text = (
        "[7] app@host\n"
        "  tile(const float *, int) (64, 64, 1)x(32, 8, 1), Context 1, Stream 7, Device 0, CC 9.0\n"
        "    Section: GPU Speed Of Light Throughput\n"
        "    ----------------------- ----------- ------------\n"
        "    Metric Name             Metric Unit Metric Value\n"
        "    ----------------------- ----------- ------------\n"
        "    Duration                         ms         1.50\n"
        "    L1/TEX Cache Throughput           %        91.00\n"
        "    DRAM Throughput                   %         2.00\n"
        "    Waves Per SM                               15.52\n"
        "    ----------------------- ----------- ------------\n"
        "\n"
        "    OPT   Est. Local Speedup: 80%\n"
        "          The access of this kernel causes a 16.0 - way bank conflict across all shared\n"
        "          loads. Look at the source.\n"
        "\n"
        "    Section: Warp State Statistics\n"
        "    OPT   Est. Speedup: 20%\n"
        "          On average, each warp of this workload spends 9 cycles being stalled waiting at a CTA barrier. This\n"
        "          stall type represents about 41.0% of the total average.\n"
    )
    name, kernel = only(text)
    assert (name, kernel.name, kernel.grid, kernel.block, kernel.time_us) == ("ncu", "tile", "64x64", "32x8", 1500)
    assert kernel.metrics["launch__waves_per_multiprocessor"] == 15.52
    assert kernel.stalls == {"barrier": 41.0, ncu_details.OTHER_STALLS: 59.0}
    verdict = bottleneck.kernel_verdict(kernel)
    assert verdict.bound == "L1" and verdict.advice[0].startswith("remove bank conflicts")


OLDER = """\
//   add(int, float*, float*), 2020-Oct-28 10:36:31, Context 1, Stream 7
//     Section: GPU Speed Of Light
//     ------------------------------------------------- --------------- ------------------
//     DRAM Frequency                                      cycle/nsecond               1.11
//     SM Frequency                                        cycle/usecond             700.12
//     Memory [%]                                                      %              47.36
//     SOL DRAM                                                        %              42.37
//     Duration                                                  usecond              13.89
"""


def test_older_text_pasted_into_a_comment_is_read_with_its_units():
    _, kernel = only(OLDER)
    assert (kernel.name, kernel.time_us) == ("add", pytest.approx(13.89))
    assert kernel.metrics["sm__cycles_elapsed.avg.per_second"] == pytest.approx(7.0012e8)
    assert kernel.metrics["dram__cycles_elapsed.avg.per_second"] == pytest.approx(1.11e9)
    verdict = bottleneck.kernel_verdict(kernel)
    assert verdict.units_percent == {"DRAM": 42.4} and "SM at 700 MHz" in verdict.verdict


def test_a_part_of_the_text_is_read_as_far_as_it_goes():
    lines = [line.removeprefix("//") for line in OLDER.splitlines()]
    _, kernel = only("\n".join(lines[1:]))
    assert (kernel.name, kernel.time_us) == (ncu_details.NO_NAME, pytest.approx(13.89))
    bare = ["vectorAdd(const float *, int) (19532, 1, 1)x(256, 1, 1)", *lines[1:], "    SM [%]   %   19.55  <-- low"]
    _, kernel = only("\n".join(bare))
    assert (kernel.name, kernel.grid, kernel.block) == ("vectorAdd", "19532", "256")
    assert bottleneck.kernel_verdict(kernel).units_percent == {"DRAM": 42.4, "SM (which pipe was not counted)": 19.6}


def test_time_is_taken_from_whatever_has_it():
    cycles = 'ID,x\n"ID","Kernel Name","sm__cycles_elapsed.max","sm__cycles_elapsed.avg.per_second"\n"","","cycle","Ghz"\n"0","k","3,000","1.5"\n'
    (kernel,) = ncu.parse_raw(cycles).values()
    assert kernel.time_us == pytest.approx(2.0)
    _, kernel = only(long_table(("gpu__time_active.avg", "us", "7")))
    assert kernel.time_us == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [("9,00", 9), ("15,72", 15.72), ("1,234", 1234), ("1,234,567.5", 1234567.5), ("1,23,4", None), ("0,1234", None)],
)
def test_a_decimal_comma_is_no_thousand(text: str, value: float | None):
    assert number(text) == value


def test_counters_without_a_number_are_named_with_what_an_administrator_does():
    text = long_table(
        ("gpu__time_duration.sum", "us", "211.9"),
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "", "n/a"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "nan"),
    )
    _, kernel = only(text)
    assert kernel.time_us == pytest.approx(211.9)
    (said,) = ncu.unread_counters([kernel])
    assert said.startswith("2 counters are n/a or NaN (dram__throughput") and "what remains: time" in said
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said and "newer" in said
    document = {"kernels": [{"Kernel Name": "k", "metrics": {"gpu__time_duration.sum": 5.0, "lts__x": float("nan")}}]}
    (kernel,) = ncu.parse_report(json.dumps(document))
    assert kernel.texts["lts__x"] == "nan" and ncu.unread_counters([kernel])
    assert ncu.unread_counters(list(ncu.parse_raw(page("raw.csv")).values())) == []


RANGES = [
    {"key": "ProfilerStep*", "count": 5, "self_device_time_total": 130.0, "self_cpu_time_total": 0.0},
    {"key": "Eager_forward", "count": 5, "self_device_time_total": 110.0, "self_cpu_time_total": 0.0},
    {"key": "aten::mm", "count": 5, "self_device_time_total": 80.0, "self_cpu_time_total": 9.0},
    {"key": "void mm_kernel<float>(float*)", "count": 5, "self_device_time_total": 80.0, "self_cpu_time_total": 0.0},
    {"key": "attn_fwd", "count": 5, "self_device_time_total": 20.0, "self_cpu_time_total": 0.0},
]


def test_ranges_that_enclose_kernels_are_not_counted_beside_them():
    mm, attn = torch_averages.parse_averages(json.dumps(RANGES))
    assert (mm.name, mm.total_us, mm.texts) == ("mm_kernel<float>", 80, {})
    assert attn.name == "attn_fwd" and attn.texts["kind"] == torch_averages.RANGE_OR_KERNEL
    known = [{**row, "is_user_annotation": row["key"] == "attn_fwd"} for row in RANGES]
    assert [k.name for k in torch_averages.parse_averages(json.dumps(known))] == ["mm_kernel<float>"]


def test_older_keys_and_the_printed_table_are_read():
    older = [
        {("self_cuda_time_total" if k == "self_device_time_total" else k): v for k, v in row.items()} for row in RANGES
    ]
    assert [k.total_us for k in torch_averages.parse_averages(json.dumps(older))] == [80, 20]
    oldest = [{"key": "void mm_kernel<float>(float*)", "count": 2, "cuda_time_total": 8.0}]
    assert [k.time_us for k in torch_averages.parse_averages(json.dumps(oldest))] == [4]
    line = "-----  ------------  ------------  ------------  ------------  ------------\n"
    table = (
        line
        + "Name    Self CPU %      Self CPU   Self CUDA   Self CUDA %    # of Calls\n"
        + line
        + "  void big_kernel(int)   0.00%   0.000us   4.000ms   80.00%   20\n"
        + "            aten::relu   1.00%   9.000us   4.000ms   80.00%   20\n"
    )
    name, kernel = only(table)
    assert (name, kernel.name, kernel.calls, kernel.time_us) == ("torch", "big_kernel", 20, 200)
    only_operators = [row for row in RANGES if row["key"] == "aten::mm"]
    (mm,) = torch_averages.parse_averages(json.dumps(only_operators))
    assert mm.total_us == 80 and "operator" in mm.texts["kind"]


def test_nsys_tables_are_read_in_any_unit_and_as_columns():
    text = 'Time (%),Total Time (us),Instances,Avg (us),Name\n71.2,"4,000",4,1000,void scale(float *)\n'
    (scale,) = nsys.parse_stats(text)
    assert (scale.name, scale.time_us, scale.total_us) == ("scale", 1000, 4000)
    both = "Time (%),Total Time (ns),Instances,Category,Operation\n50,3000,3,CUDA_KERNEL,add(int)\n"
    (add,) = nsys.parse_stats(both)
    assert (add.name, add.time_us) == ("add", 1)
    columns = (
        " Time (%)  Total Time (ms)  Instances  Name              \n"
        " --------  ---------------  ---------  ------------------\n"
        "     60.0            1.200          2  void scale(float *)\n"
    )
    (scale,) = nsys.parse_stats(columns)
    assert (scale.name, scale.calls, scale.time_us) == ("scale", 2, 600)


GPU_TRACE = (
    "Processing [x.sqlite]...\n"
    "Start (ms),Duration (us),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (KB),DymSMem (MB),Bytes (MB),Device,Ctx,Strm,Name\n"
    '1.0,30,1,2,1,1,64,1,1,24,1,0.002,,GPU (0),1,7,"void moe<float>(float*)"\n'
    "1.1,20,2,,,,,,,,,,4,GPU (0),1,7,[CUDA memcpy HtoD]\n"
)


def test_the_trace_of_a_gpu_gives_kernels_and_copies_with_their_sizes():
    moe, copy = nsys.parse_stats(GPU_TRACE)
    assert (moe.name, moe.time_us, moe.grid, moe.block) == ("moe<float>", 30, "2", "64")
    assert (moe.metrics["registers per thread"], moe.metrics["shared memory"]) == (24, 3000)
    assert (copy.name, copy.time_us, copy.metrics["bytes"]) == ("[CUDA memcpy HtoD]", 20, 4e6)


def test_columns_of_rocms_releases_mean_the_same():
    first = (
        '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size",'
        '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
        '"KERNEL_DISPATCH","blur",100,2100,16,2048,64,2,1,256,8,1\n'
    )
    converted = first.replace("Private_Segment_Size", "Scratch_Size").replace("Group_Segment_Size", "Lds_Block_Size")
    for text in (first, converted):
        (kernel,) = rocprof.parse_csv({"t.csv": text})
        assert (kernel.metrics["Scratch_Size"], kernel.metrics["LDS_Block_Size"]) == (16, 2048)
        assert (kernel.grid, kernel.block, kernel.time_us) == ("4x4", "64x2", 2), "the grid is in workgroups"
    old = (
        'Index,KernelName,gpu-id,grd,wgr,lds,scr,BeginNs,EndNs\n0,"blur(float*) [clone .kd]",1,4096,256,0,0,100,4100\n'
    )
    (kernel,) = rocprof.parse_csv({"results.csv": old})
    assert (kernel.name, kernel.grid, kernel.time_us) == ("blur", "16", 4)


def test_domains_and_copies_in_statistics_are_no_kernels():
    head = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
    rows = '"KERNEL_DISPATCH",3,9000,3000,90\n"MEMORY_COPY_HOST_TO_DEVICE",1,10,10,1\n"blur(float*)",3,9000,3000,90\n'
    assert [k.name for k in rocprof.parse_csv({"s.csv": head + rows})] == ["blur"]


def test_a_rocpd_of_other_columns_or_without_views_has_times():
    views = """
        CREATE TABLE k_1 (name, start, end, grid_size_x, grid_size_y, grid_size_z, workgroup_size_x, workgroup_size_y,
            workgroup_size_z, private_segment_size);
        INSERT INTO k_1 VALUES ('blur.kd', 100, 7100, 512, 1, 1, 256, 1, 1, 32);
        CREATE VIEW kernels AS SELECT * FROM k_1;
        CREATE VIEW counters_collection AS SELECT 'blur.kd' AS kernel_name, 'SQ_WAVES' AS counter_name, 8 AS value;
    """
    (kernel,) = rocprof.parse_rocpd(database(views))
    assert (kernel.name, kernel.time_us, kernel.grid) == ("blur", 7, "2")
    assert (kernel.metrics["SQ_WAVES"], kernel.metrics["Scratch_Size"]) == (8, 32)
    tables = """
        CREATE TABLE rocpd_kernel_dispatch_a1 (kernel_id, start, end);
        CREATE TABLE rocpd_info_kernel_symbol_a1 (id, kernel_name, display_name);
        INSERT INTO rocpd_kernel_dispatch_a1 VALUES (5, 0, 3000);
        INSERT INTO rocpd_info_kernel_symbol_a1 VALUES (5, 'blur.kd', 'blur');
    """
    (kernel,) = rocprof.parse_rocpd(database(tables))
    assert (kernel.name, kernel.time_us) == ("blur", 3)


def test_the_json_of_rocprofv3_has_kernels_copies_and_their_sizes():
    dispatch = {
        "start_timestamp": 100,
        "end_timestamp": 2100,
        "dispatch_info": {
            "kernel_id": 3,
            "agent_id": {"handle": 7},
            "private_segment_size": 16,
            "workgroup_size": {"x": 64, "y": 1, "z": 1},
            "grid_size": {"x": 640, "y": 2, "z": 1},
        },
    }
    process = {
        "kernel_symbols": [{"kernel_id": 3, "formatted_kernel_name": "blur(float*) [clone .kd]"}],
        "buffer_records": {
            "kernel_dispatch": [dispatch, {**dispatch, "start_timestamp": 3000, "end_timestamp": 4000}],
            "memory_copy": [{"start_timestamp": 2200, "end_timestamp": 2900}],
        },
    }
    text = json.dumps({"rocprofiler-sdk-tool": [process]})
    name, kernel = only(text)
    assert (name, kernel.name, kernel.calls, kernel.total_us) == ("rocprofv3", "blur", 2, 3)
    assert (kernel.grid, kernel.block, kernel.metrics["Scratch_Size"]) == ("10x2", "64", 16)
    assert [e.kind for e in report_detection.read_events({"r.json": text.encode()})["r.json"]] == [
        "kernel",
        "copy",
        "kernel",
    ]
    unknown = json.dumps({"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [dispatch]}}]})
    assert only(unknown)[1].name == "kernel 3"


def test_packed_files_and_those_of_windows_shells_are_read():
    trace = (Path(__file__).parent / "data/torch/trace.json").read_bytes()
    assert report_detection.read({"t.gz": gzip.compress(trace)}) == report_detection.read({"t": trace})
    text = long_table(("Duration", "us", "4"))
    for data in (text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode()):
        assert only(data)[1].time_us == 4


def test_a_file_that_is_not_understood_is_named():
    files = {
        "a.csv": GPU_TRACE.encode(),
        "agents.csv": b"Node_Id,Colour\n1,red\n",
        "x.db": database("CREATE TABLE odd (a);"),
    }
    assert report_detection.describe_unread(files) == [
        "agents.csv was not understood: it begins with 'Node_Id,Colour'",
        "x.db was not understood: a database with odd",
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([long_table(("Duration", "us", "4")), GPU_TRACE, json.dumps(RANGES)]),
    st.integers(0, 1 << 16),
    st.text(max_size=40),
)
def test_no_junk_makes_the_readers_raise(text: str, at: int, junk: str):
    at %= len(text)
    files = {"a": (text[:at] + junk + text[at:]).encode("utf-8", "replace")}
    for kernel in report_detection.read(files)[1]:
        bottleneck.kernel_verdict(kernel)
    report_detection.read_events(files)
    report_detection.describe_unread(files)
