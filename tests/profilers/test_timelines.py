"""Proton, torch.profiler (captured by data/capture.py), nsys, rocprofv3, rocprof-compute (shapes rebuilt: no such tool or GPU here)."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.profilers import nsys, proton, rocprof, rocprof_compute, sqlite_reader, torch_averages, torch_trace
from gpu_mcp_server.profilers.sqlite_reader import query

DATA = Path(__file__).parent / "data"


def text(name: str) -> str:
    return (DATA / name).read_text()


def leaf(name: str, kernel: str) -> dict[str, float]:
    """Read one kernel's metrics of a Proton tree in another way than the package does."""
    (found,) = re.findall(rf'"name": "{kernel}",[^}}]*}},\s*"metrics": ({{[^}}]*}})', text(name))
    return json.loads(found)


def test_proton_gives_each_kernel_once_with_mean_time_and_scope():
    kernels = {k.name: k for k in proton.parse(text("proton/scopes.hatchet"))}
    product = leaf("proton/scopes.hatchet", "product_kernel")
    assert kernels["product_kernel"].calls == 10 == product["count"]
    assert kernels["product_kernel"].time_us == product["time (ns)"] / 1e4
    scopes = {name: k.texts["scope"] for name, k in kernels.items()}
    assert (scopes["product_kernel"], scopes["softmax_kernel"]) == ("product", "soft")
    assert scopes["at::native::cunn_SoftMaxForwardReg"] == "torch", "mangled names are written out"
    totals = [k.total_us or 0 for k in kernels.values()]
    assert totals == sorted(totals, reverse=True)


def test_protons_samples_become_stalls_without_the_selected():
    kernels = {k.name: k for k in proton.parse(text("proton/samples.hatchet"))}
    product, said = kernels["product_kernel"], leaf("proton/samples.hatchet", "product_kernel")
    assert max(product.stalls, key=lambda k: product.stalls[k]) == "barrier"
    assert product.stalls["barrier"] == said["stalled_barrier"] > 0 and said["stalled_selected"] > 0
    assert not {"selected", "not_Selected"} & product.stalls.keys()


def test_protons_flops_and_device_are_kept():
    (kernel,) = proton.parse(text("proton/flops.hatchet"))
    launches, elements = 3, 8192 * 4000
    assert (kernel.metrics["flops"], kernel.metrics["bytes"]) == (5 * elements * launches, 8 * elements * launches)
    assert kernel.metrics["device num_sms"] == 132


def test_the_command_proton_leaves_the_same_kind_of_tree():
    kernels = {k.name: k.calls for k in proton.parse(text("proton/cli.hatchet"))}
    assert (kernels["product_kernel"], kernels["softmax_kernel"]) == (2, 2)


def test_torch_rows_of_operators_do_not_count_their_kernels_twice():
    kernels = torch_averages.parse_averages(text("torch/averages.json"))
    calls = {k.name: k.calls for k in kernels}
    assert calls["product_kernel"] == calls["softmax_kernel"] == 20
    assert not any(name.startswith("aten::") for name in calls) and '"aten::' in text("torch/averages.json")


def test_traces_of_torch_and_of_proton_are_read_alike():
    kernels = torch_trace.parse_trace(text("torch/trace.json"))
    assert (kernels[0].device or "").startswith("NVIDIA") and all(k.time_us for k in kernels)
    assert any("registers per thread" in k.metrics for k in kernels)
    assert [k.calls for k in torch_trace.parse_trace(text("proton/trace.chrome_trace"))] == [3, 3]


NSYS = """Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nvidia/nsight-systems/reports/cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
71.2,"4,000",4,1000.0,990.0,900,1100,10.5,"void scale<int, float>(float *, int)"
28.8,1618,2,809.0,809.0,800,818,9.0,add(float *)
"""


def test_nsys_stats_are_found_below_what_it_says_about_files():
    scale, add = nsys.parse_stats(NSYS)
    assert (scale.name, scale.calls, scale.time_us) == ("scale<int, float>", 4, 1.0)
    assert (add.name, add.metrics["Max (ns)"]) == ("add", 818)


def database(script: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    return connection.serialize()


def test_nsys_export_is_read_and_one_without_kernels_gives_none():
    script = """
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER,
            registersPerThread INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER);
        INSERT INTO StringIds VALUES (1, 'add(float *)');
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 1100, 1, 24, 512, 1024), (2000, 5000, 1, 24, 512, 1024);
    """
    (kernel,) = nsys.parse_sqlite(database(script))
    assert (kernel.name, kernel.calls, kernel.time_us, kernel.metrics["shared memory"]) == ("add", 2, 2.0, 1536)
    assert nsys.parse_sqlite(database("CREATE TABLE StringIds (id, value);")) == []


TRACE = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",1,1,9,1,4,"void blur<float>(float*, int)",1,5000000000000001,5000000000021001,0,0,256,1,1,4096,512,1\n'
    '"KERNEL_DISPATCH",1,1,9,2,4,"void blur<float>(float*, int)",2,5000000000100000,5000000000119000,0,0,256,1,1,4096,512,1\n'
)
OLD_COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"\n'
    '1,1,1,1,7,7,2097152,4,"void blur<float>(float*, int)",256,4096,0,36,24,"SQ_WAVES",32768\n'
    '2,2,1,1,7,7,2097152,4,"void blur<float>(float*, int)",256,4096,0,36,24,"SQ_WAVES",32770\n'
)
NEW_COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name",'
    '"Counter_Value","Start_Timestamp","End_Timestamp"\n'
    '1,1,"Agent 1",1,7,7,2097152,4,"blur(float*, int) [clone .kd]",256,4096,0,36,8,24,"SQ_WAVES",32768,100,4100\n'
    '1,1,"Agent 1",1,7,7,2097152,4,"blur(float*, int) [clone .kd]",256,4096,0,36,8,24,"TCC_HIT",900,100,4100\n'
)


def test_rocprofv3s_first_generation_is_joined_by_kernel():
    (kernel,) = rocprof.parse_csv({"t_kernel_trace.csv": TRACE, "t_counter_collection.csv": OLD_COUNTERS})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("blur<float>", 2, 20.0)
    assert (kernel.grid, kernel.block) == ("16x512", "256"), "in workgroups"
    assert (kernel.metrics["VGPR_Count"], kernel.metrics["SQ_WAVES"]) == (36, 32769)


def test_rocprofv3s_second_generation_has_times_beside_counters():
    (kernel,) = rocprof.parse_csv({"c.csv": NEW_COUNTERS})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("blur", 1, 4.0)
    assert (kernel.metrics["Accum_VGPR_Count"], kernel.metrics["TCC_HIT"]) == (8, 900)


def test_timestamps_that_a_spreadsheet_rounded_give_no_time():
    mangled = TRACE.replace("5000000000000001", "5E+15").replace("5000000000100000", "5E+15")
    (kernel,) = rocprof.parse_csv({"t.csv": mangled, "c.csv": OLD_COUNTERS})
    assert kernel.time_us is None and kernel.metrics["SQ_WAVES"] == 32769


def test_statistics_alone_give_kernels_and_no_api_calls():
    stats = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n"blur(float*)",3,9000,3000.0,90,1,2,0\n"hipMalloc",1,50,50,10,1,1,0\n'
    (kernel,) = rocprof.parse_csv({"s.csv": stats})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("blur", 3, 3.0)


ROCPD = """
    CREATE TABLE d_1 (name, duration, grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, lds_size, scratch_size,
        sgpr_count, arch_vgpr_count, accum_vgpr_count);
    CREATE TABLE p_1 (name, pmc_name, pmc_value);
    INSERT INTO d_1 VALUES ('blur.kd', 7000, 4096, 512, 1, 256, 1, 1, 4096, 0, 24, 36, 8),
        ('blur.kd', 9000, 4096, 512, 1, 256, 1, 1, 4096, 0, 24, 36, 8);
    INSERT INTO p_1 VALUES ('blur.kd', 'SQ_WAVES', 10), ('blur.kd', 'SQ_WAVES', 20);
    CREATE VIEW kernels AS SELECT * FROM d_1;
    CREATE VIEW kernel_pmc_events AS SELECT * FROM p_1;
"""


def test_rocpd_is_read_through_its_views():
    (kernel,) = rocprof.parse_rocpd(database(ROCPD))
    assert (kernel.name, kernel.calls, kernel.time_us, kernel.metrics["SQ_WAVES"]) == ("blur", 2, 8.0, 15)


def test_a_database_that_hides_an_endless_query_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_reader, "STEPS", sqlite_reader.STEPS // 100)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS name, x AS duration FROM n"
    data = database(f"CREATE VIEW kernels AS {endless};")
    assert query(data, "SELECT max(duration) AS m FROM kernels") == []
    assert query(b"SQLite format 3\\0" + b"x" * 500, "SELECT 1") == []


SPEED_OF_LIGHT = "Metric,Avg,Unit,Peak,Pct of Peak\nVALU FLOPs,812.5,Gflop,22630.4,3.59\nL2-Fabric Read BW,1105.9,Gb/s,1638.4,67.5\nActive CUs,104,Cus,104,100\nMFMA FLOPs (F16),,Gflop,181043.2,\nVALU IOPs,inf,Giop,22630.4,inf\n"
TOP = 'Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Pct\n"blur(float*, \nint) [clone .kd]",3.0,60000.0,20000.0,19000.0,100.0\n'


def test_rocprof_computes_tables_give_units_in_percent_of_peak():
    (kernel,) = rocprof_compute.parse_compute({"2.1_Speed-of-Light.csv": SPEED_OF_LIGHT, "0.1_Top_Kernels.csv": TOP})
    assert (kernel.name, kernel.calls, kernel.time_us) == ("blur", 3, 20.0)
    assert kernel.units_percent["L2-Fabric Read BW"] == 67.5
    assert "VALU IOPs" not in kernel.units_percent and "MFMA FLOPs (F16)" not in kernel.units_percent
    assert kernel.metrics["VALU FLOPs [Gflop]"] == 812.5


ALL = [
    NSYS,
    TRACE,
    OLD_COUNTERS,
    NEW_COUNTERS,
    SPEED_OF_LIGHT,
    TOP,
    *(p.read_text() for d in ("proton", "torch") for p in (DATA / d).iterdir()),
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 1 << 20), st.text(max_size=40), st.booleans())
def test_no_junk_makes_any_of_them_raise(page: str, at: int, junk: str, go_on: bool):
    at %= len(page)
    broken = page[:at] + junk + (page[at:] if go_on else "")
    for parse in (proton.parse, torch_averages.parse_averages, torch_trace.parse_trace, nsys.parse_stats):
        parse(broken)
    rocprof.parse_csv({"a": broken, "b": TRACE})
    rocprof_compute.parse_compute({"a": broken})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 16), st.binary(max_size=64))
def test_no_broken_database_makes_them_raise(at: int, junk: bytes):
    data = bytearray(database(ROCPD))
    at %= len(data)
    data[at : at + len(junk)] = junk
    rocprof.parse_rocpd(bytes(data))
    nsys.parse_sqlite(bytes(data))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.floats(), st.text(max_size=6)),
        lambda c: st.one_of(
            st.lists(c, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["children", "frame", "name", "metrics", "time (ns)", "count", "traceEvents", "args", "dur", "CUDA"]
                ),
                c,
                max_size=4,
            ),
        ),
        max_leaves=15,
    )
)
def test_no_document_makes_them_raise(document: object):
    page = json.dumps(document)
    for parse in (proton.parse, torch_averages.parse_averages, torch_trace.parse_trace):
        parse(page)
