"""ncu's text and tables as people publish them: decimal commas, marked values, summaries, names of stalls."""

import pytest

from gpu_mcp_server.models.profile import KernelReading
from gpu_mcp_server.profilers import bottleneck, ncu, ncu_details, report_detection
from gpu_mcp_server.profilers.roofline import Peaks, bandwidths
from tests.profilers.test_formats import long_table, only


def ncu_text(
    *lines: str, head: str = "mix(float *) (8, 1, 1)x(64, 1, 1), Context 1, Stream 7, Device 0, CC 8.9"
) -> str:
    return (
        "\n".join([f"  {head}", "    Section: Command line profiler metrics", *(f"    {line}" for line in lines)])
        + "\n"
    )


def test_a_host_with_decimal_commas_is_read_as_a_whole_table():
    """117.344 ns are a hundred microseconds there; beside no comma they would be a tenth of one."""
    rows = (("gpu__time_duration.sum", "ns", "117.344"), ("dram__bytes.sum", "byte", "27.595.520"))
    percent = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "65,77")
    _, kernel = only(long_table(*rows, percent))
    assert (kernel.time_us, kernel.metrics["dram__bytes.sum"], kernel.metrics[percent[0]]) == (117.344, 27595520, 65.77)
    lines = [f"{name:<60} {unit:<10} {value:>14}" for name, unit, value in (*rows, percent)]
    _, kernel = only(ncu_text(*lines))
    assert (kernel.time_us, kernel.metrics["dram__bytes.sum"], kernel.metrics[percent[0]]) == (117.344, 27595520, 65.77)
    raw = '"ID","Kernel Name","gpu__time_duration.sum","sm__x.pct"\n"","","ns","%"\n"0","k","117.344","{}"\n'
    assert ncu.parse_raw(raw.format("65,77"))["0"].time_us == 117.344
    assert ncu.parse_raw(raw.format("65.77"))["0"].time_us == pytest.approx(0.117344)


def test_values_that_ncu_marks_stay_without_a_number():
    kernel = ncu_details.parse_text(
        ncu_text("Duration         nsecond      (!) nan", "sm_wrong_name.sum            (!) n/a")
    )[0]
    assert kernel.time_us is None and set(kernel.texts.values()) == {"nan", "n/a"}
    (said,) = ncu.unread_counters([kernel])
    assert "what remains: launch." in said and "NVreg_RestrictProfilingToAdminUsers=0" in said
    named = ncu_text("dram__bytes.sum     byte     4096", "sm_wrong_name.sum            (!) n/a")
    (said,) = ncu.unread_counters(ncu_details.parse_text(named))
    assert "has none of these names" in said and "dministrator" not in said
    failed = "==ERROR== LaunchFailed\n" + ncu_text(
        "Duration   nsecond   (!) nan", head="k(int) (0, 0, 0)x(0, 0, 0), Context 1, Stream 7, Device 0, CC 8.9"
    )
    (kernel,) = ncu_details.parse_text(failed)
    assert kernel.grid is None and ncu.lost_counters(failed)[0].startswith("the program failed under ncu")


def test_a_summary_as_text_has_its_average_and_its_invocations():
    text = ncu_text(
        "Metric Name             Metric Unit  Minimum  Maximum  Average",
        "Duration                         us     1.73     2.11     1.86",
        "Registers Per Thread     register/thread   16.00   16.00   16.00",
        head="mix(float *) (8, 1, 1)x(64, 1, 1), Device 0, CC 8.9, Invocations 14",
    )
    (kernel,) = ncu_details.parse_text(text)
    assert (kernel.name, kernel.calls, kernel.time_us, kernel.total_us) == ("mix", 14, 1.86, pytest.approx(26.04))
    assert kernel.metrics["launch__registers_per_thread"] == 16


def test_a_name_above_its_sizes_is_the_kernels():
    text = ncu_text(
        "Duration   us   5.00", head="mix(float *, int) \n  (8, 1, 1)x(64, 1, 1), Context 1, Stream 7, Device 0"
    )
    (kernel,) = ncu_details.parse_text(text)
    assert (kernel.name, kernel.grid, kernel.block, kernel.time_us) == ("mix", "8", "64", 5)


@pytest.mark.parametrize(
    "name",
    [
        "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio",
        "smsp__warp_issue_stalled_{}_per_warp_active.pct",
        "smsp__average_warp_latency_issue_stalled_{}.ratio",
    ],
)
def test_stalls_are_known_under_each_of_their_names(name: str):
    _, kernel = only(long_table((name.format("barrier"), "", "6"), (name.format("selected"), "", "1")))
    assert kernel.stalls == {"barrier": 6}


def test_the_labels_of_2019_and_tables_behind_one_another_are_read():
    head = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    rows = (
        ("SOL FB", "%", "52.96"), ("SOL TEX", "%", "41.12"), ("L1 Hit Rate", "%", "75.6"), ("Duration", "nsecond", "72128"),
        ("Grid Size", "", "2016"), ("Block Size", "", "256"),
    )  # fmt: skip
    table = head + "".join(f'"{{}}","spmv","S","{label}","{unit}","{value}"\n' for label, unit, value in rows)
    _, (first, second) = report_detection.read({"r.txt": (table.format(*"000000") + table.format(*"111111")).encode()})
    assert (first.name, first.grid, first.block, second.time_us) == ("spmv", "2016", "256", 72.128)
    assert first.metrics["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] == 52.96
    assert bottleneck.kernel_verdict(first).units_percent == {"DRAM": 53.0, "L1": 41.1}


def test_names_of_another_gpu_mean_the_same():
    """CC 12.0 counts DRAM by direction under names of its own, and people collect percents of active cycles."""
    active = ".avg.pct_of_peak_sustained_active"
    metrics = {
        "dram__bytes_op_read.sum.pct_of_peak_sustained_elapsed": 40.0,
        "dram__bytes_op_write.sum.pct_of_peak_sustained_elapsed": 25.0,
        f"sm__inst_executed_pipe_fma{active}": 80.0,
        "sm__cycles_active.avg": 500.0,
        "sm__cycles_elapsed.max": 1000.0,
        "dram__bytes_op_read.sum": 3e6,
        "dram__bytes_op_write.sum": 1e6,
    }
    reading = KernelReading(name="k", time_us=10.0, metrics=metrics)
    assert bottleneck.kernel_verdict(reading).units_percent == {"DRAM": 65.0, "FMA pipe": 40.0}
    assert bandwidths(reading, Peaks("sheet", 1792.0))["dram"] == (4e11, 1.792e12)
    asked = ",".join(ncu.options("standard", None, 0, 1, arch="sm_120"))
    assert "dram__bytes_op_read.sum" in asked and "dram__bytes_read.sum" not in asked and "hgmma" not in asked
    assert "hgmma" in ",".join(ncu.options("standard", None, 0, 1, arch="sm_90"))
