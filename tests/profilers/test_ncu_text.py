"""ncu's text and tables as people publish them: decimal commas, marked values, summaries, names of stalls."""

import pytest

from gpu_mcp_server.profilers import ncu, ncu_details
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
