"""Conclusions from a profile: the real limiter, within its budget; two profiles side by side; the picture."""

import struct
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from gpu_mcp_server.models.profile import KernelReading, Rule, SourceLine
from gpu_mcp_server.plots import roofline_chart
from gpu_mcp_server.profilers import bottleneck, compare, hardware_units, ncu, proton, rocprof_compute
from gpu_mcp_server.profilers.roofline import Peaks, roofline
from tests.profilers.test_ncu import kernels, line_of, page

SHEET = Peaks("a sheet", 4800, {"float32": 67.0})


def triton():
    return list(ncu.parse_raw(page("triton_raw.csv")).values())


def bounds(readings: list[KernelReading]) -> dict[str, str | None]:
    return {r.name: bottleneck.kernel_verdict(r).bound for r in readings}


def test_the_limit_is_the_busiest_unit_not_the_headline():
    assert bounds([*kernels(), *triton()]) == {
        "product": "L1/shared data pipe",
        "tiled<32>": "L1/shared data pipe",
        "saxpy": "DRAM",
        "transpose": "SM->L2",
        "softmax_kernel": "DRAM",
        "product_kernel": "L2->SM",
    }


def test_a_verdict_of_a_capture_says_all_in_1600_characters():
    text = bottleneck.text_of([bottleneck.kernel_verdict(kernels()[1])])
    heads = ["tiled<32>", "BOUND", "TRY 1", "TRY 2", "ROOFLINE", "MEMORY", "STALLS", "HOT LINES", "OCCUPANCY"]
    assert [line.partition(":")[0] for line in text.splitlines()] == heads
    assert f"HOT LINES: kernels.cu:{line_of('HOT')} " in text and "`for (int i = 0; i < T; ++i)" in text
    assert len(text) <= bottleneck.LIMIT
    every = bottleneck.text_of(bottleneck.verdicts([*kernels(), *triton()]), ["the counters of NVLink"])
    assert len(every) <= bottleneck.LIMIT and every.count("\nalso ") == 5 and "NOT MEASURED: the counters" in every


def by_hand() -> KernelReading:
    """Return a reading in round numbers, as if of an SM of 1 GHz with 100 FFMA a clock and DRAM of 1000 bytes a clock."""
    ffma = "thread_inst_executed_op_ffma_pred_on.sum"
    metrics = {
        "sm__cycles_elapsed.avg.per_second": 1e9,
        f"smsp__sass_{ffma}.per_cycle_elapsed": 10.0,
        f"sm__sass_{ffma}.peak_sustained": 100.0,
        "dram__bytes.sum.per_second": 8e11,
        "dram__bytes.sum.peak_sustained": 1000.0,
        "dram__cycles_elapsed.avg.per_second": 1e9,
        "l1tex__t_sector_hit_rate.pct": 12.4,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 16.0,
        f"dram__cycles_active{hardware_units.PERCENT}": 80.0,
        f"lts__t_sectors{hardware_units.PERCENT}": 40.0,
        "launch__waves_per_multiprocessor": 2.5,
        "launch__occupancy_limit_registers": 4.0,
        "launch__occupancy_limit_warps": 8.0,
        "launch__registers_per_thread": 64.0,
        "launch__shared_mem_per_block": 4096.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 45.0,
        "sm__maximum_warps_per_active_cycle_pct": 50.0,
    }
    return KernelReading(
        name="blur", time_us=12.5, calls=2, grid="8x8", block="128", metrics=metrics,
        stalls={"long_scoreboard": 3.0, "barrier": 1.0},
        lines=[SourceLine(file="/src/k.cu", line=7, samples=90, text="x = a[i * n];", stalls={"long_scoreboard": 80.0})],
    )  # fmt: skip


def test_a_verdict_by_hand():
    found = bottleneck.kernel_verdict(by_hand())
    assert found.verdict == snapshot("""\
blur: 12.5 µs x 2; SM at 1000 MHz, not locked; grid 8x8 x block 128, 2.5 waves
BOUND: DRAM (DRAM 80 %, L2 40 %)
TRY 1: coalesce: 16 of 32 bytes of each loaded sector are used; let neighbouring threads access neighbouring addresses, or stage through shared memory [guide coalescing: Why is a strided or column-wise loop slow, and what is the cure?]
TRY 2: move fewer bytes: fuse with neighbours, keep values in registers or shared memory, a smaller type (up to 2x, then L2 is next) [guide softmax-norms: How many bytes must a row-wise kernel move?]
TRY 3: the last of 3 waves is not full: fit the grid to whole waves, or a persistent kernel (17 % of the time) [guide gemm-tiling: What is wave quantization?]
ROOFLINE: 0.02 of 0.2 TFLOP/s fp32 (10 %); dram 0.025 FLOP/B, 80 % of its roof (ridge 0.2)
MEMORY: dram 0.80 of 1.00 TB/s (80 %); hits L1 12 %; 16 of 32 B used of each loaded sector
STALLS: long_scoreboard 75 %, barrier 25 %
HOT LINES: k.cu:7 100 % (long_scoreboard) `x = a[i * n];`
OCCUPANCY: 45 % of 50 % possible, limit registers (4 blocks an SM), 64 registers, 4 KiB shared\
""")


def test_the_roofline_is_that_of_the_pipe_that_did_most_at_the_clock_of_the_run():
    (product,) = [k for k in triton() if k.name == "product_kernel"]
    roof = roofline(product)
    assert roof is not None and roof.pipe == "hgmma_src_fp16"
    operations = 2 * 4096**3
    assert roof.tflop_s == pytest.approx(operations / (product.time_us or 0) / 1e6, rel=0.02)
    clock = product.metrics["sm__cycles_elapsed.avg.per_second"]
    a_clock = product.metrics["sm__ops_path_tensor_op_hgmma_src_fp16_sparsity_off.sum.peak_sustained"]
    assert roof.peak_tflop_s == pytest.approx(a_clock * clock / 1e12) and roof.tflop_s < roof.peak_tflop_s
    assert [lv.level for lv in roof.levels] == ["dram", "l2"]
    for lv in roof.levels:
        most = min(roof.peak_tflop_s, lv.intensity_flop_b * lv.peak_bandwidth_gb_s / 1e3)
        assert lv.of_roof_percent == pytest.approx(100 * roof.tflop_s / most)
        assert lv.intensity_flop_b == pytest.approx(roof.tflop_s * 1e3 / lv.bandwidth_gb_s)


def test_the_sheet_of_the_captured_device_has_what_its_counters_say():
    sheet = tomllib.loads((Path(__file__).parents[2] / "knowledge_base" / "specs" / "h200.toml").read_text())
    metrics = kernels()[2].metrics
    peak = metrics["dram__bytes.sum.peak_sustained"] * metrics["dram__cycles_elapsed.avg.per_second"] / 1e9
    assert peak <= sheet["dram_gb_s"] <= 1.002 * peak


def test_operations_that_the_author_declared_are_held_against_the_sheet():
    text = (Path(__file__).parent / "data/proton/flops.hatchet").read_text()
    (kernel,) = proton.parse(text)
    roof = roofline(kernel, SHEET)
    assert roof is not None and roof.peak_source == "sheet of a sheet"
    bytes_s = 8 * 8192 * 4000 / (kernel.time_us or 0) * 1e6
    assert [lv.of_roof_percent for lv in roof.levels] == [pytest.approx(100 * bytes_s / 4.8e12)]
    assert roofline(kernel) is None, "without a sheet there is no peak to hold it against"


def test_an_amd_table_has_a_limit_by_its_own_percentages():
    table = "Metric,Avg,Unit,Peak,Pct of Peak\nL2-Fabric Read BW,1105.9,Gb/s,1638.4,67.5\nVALU FLOPs,8,Gflop,22630,3.5\nActive CUs,104,Cus,104,100\n"
    (kernel,) = rocprof_compute.parse_compute({"t.csv": table})
    found = bottleneck.kernel_verdict(kernel)
    assert (found.bound, found.bound_percent) == ("L2-Fabric Read BW", 67.5)
    assert "move fewer bytes" in found.advice[0]


def test_nothing_busy_is_latency_and_the_advice_is_about_the_first_stall():
    reading = KernelReading(
        name="k", metrics={f"lts__t_sectors{hardware_units.PERCENT}": 22.0}, stalls={"barrier": 6.0, "wait": 4.0}
    )
    found = bottleneck.kernel_verdict(reading)
    assert found.bound == "latency" and "__syncthreads" in found.advice[0] and "60 % of stalled time" in found.advice[0]


def test_advice_is_at_most_three_and_says_what_it_may_bring():
    rules = [
        Rule(name=f"R{n}", kind="OPT", text=f"Do {n}. More.", scope="global", speedup_percent=10.0 + n)
        for n in range(5)
    ]
    rules += [
        Rule(name="Local", kind="OPT", text="no", scope="local", speedup_percent=90),
        Rule(name="MemoryL2Compression", kind="OPT", text="no", scope="global", speedup_percent=80),
    ]
    metrics = {
        f"dram__cycles_active{hardware_units.PERCENT}": 90.0,
        f"lts__t_sectors{hardware_units.PERCENT}": 45.0,
        "launch__waves_per_multiprocessor": 1.1,
    }
    advice = bottleneck.kernel_verdict(KernelReading(name="k", metrics=metrics, rules=rules)).advice
    assert advice == snapshot(
        [
            "move fewer bytes: fuse with neighbours, keep values in registers or shared memory, a smaller type; bytes used of each sector were not counted (level full): coalesce first if few are (up to 2x, then L2 is next) [guide softmax-norms: How many bytes must a row-wise kernel move?]",
            "the last of 2 waves is not full: fit the grid to whole waves, or a persistent kernel (45 % of the time) [guide gemm-tiling: What is wave quantization?]",
            "Do 4 (ncu: 14 %) [guide reading-ncu: What limits my kernel: where do I look first?]",
        ]
    )


def test_what_was_not_measured_is_said_also_when_nothing_was():
    text = bottleneck.text_of([], ["hardware counters are closed"])
    assert text == "NOT MEASURED: hardware counters are closed"
    many = [KernelReading(name=f"kernel_{n}", total_us=100.0 - n, time_us=100.0 - n) for n in range(60)]
    text = bottleneck.text_of(bottleneck.verdicts(many), ["counters"])
    assert (
        text.endswith("NOT MEASURED: counters")
        and "more kernels: query_profile" in text
        and len(text) <= bottleneck.LIMIT
    )


def test_two_profiles_stand_side_by_side():
    before = by_hand()
    changed = {
        f"dram__cycles_active{hardware_units.PERCENT}": 50.0,
        f"lts__t_sectors{hardware_units.PERCENT}": 70.0,
        "launch__registers_per_thread": 32.0,
    }
    update = {"time_us": 10.0, "metrics": {**before.metrics, **changed}, "stalls": {"long_scoreboard": 1.0}}
    assert compare.compare_profiles([before], [before.model_copy(update=update)]) == snapshot("""\
blur: 12.5 µs -> 10.0 µs, 1.25x faster
BOUND: DRAM 80 % -> L2 70 %
registers: 64 -> 32
UNITS: DRAM 80 -> 50 %, L2 40 -> 70 %
STALLS: long_scoreboard 75 -> 100 %, barrier 25 -> 0 %\
""")


def test_profiles_of_two_kernels_of_a_capture_stand_side_by_side():
    product, tiled, *_ = kernels()
    text = compare.compare_profiles([product], [tiled])
    times = (product.time_us or 0), (tiled.time_us or 1)
    assert text.startswith(
        f"product -> tiled<32>: {times[0] / 1e3:.3g} ms -> {times[1] / 1e3:.3g} ms, {times[0] / times[1]:.3g}x faster"
    )
    assert "STALLS: lg_throttle" in text and "mio_throttle 0 -> " in text and "shared KiB: 1 -> 9" in text
    assert compare.compare_profiles([product], []) == "one of the two profiles has no kernel"


def test_the_picture_is_a_png_of_its_size():
    data = roofline_chart.png([bottleneck.kernel_verdict(k) for k in [*kernels(), *triton()]])
    assert data is not None and data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (roofline_chart.WIDTH, roofline_chart.HEIGHT)
    assert roofline_chart.png([bottleneck.kernel_verdict(KernelReading(name="k"))]) is None


METRICS = sorted({name for k in [*kernels(), *triton()] for name in k.metrics})
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1e-300, 1e300, -1.0, 100.0])
)
READINGS = st.builds(
    KernelReading,
    name=st.text(max_size=200),
    calls=st.integers(1, 1 << 40),
    time_us=st.one_of(st.none(), NUMBERS),
    total_us=st.one_of(st.none(), NUMBERS),
    metrics=st.dictionaries(st.sampled_from(METRICS), NUMBERS, max_size=12),
    units_percent=st.dictionaries(st.text(max_size=20), NUMBERS, max_size=3),
    stalls=st.dictionaries(st.text(max_size=20), NUMBERS, max_size=5),
    lines=st.lists(
        st.builds(
            SourceLine,
            file=st.text(max_size=90),
            line=st.integers(0, 1 << 40),
            samples=NUMBERS,
            text=st.text(max_size=200),
        ),
        max_size=4,
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(READINGS, max_size=3), st.lists(st.text(max_size=400), max_size=4))
def test_whatever_was_measured_the_verdict_keeps_its_budget(readings: list[KernelReading], missing: list[str]):
    for sheet in (None, SHEET):
        assert len(bottleneck.text_of(bottleneck.verdicts(readings, sheet), missing)) <= bottleneck.LIMIT
        assert len(compare.compare_profiles(readings, readings[::-1], sheet)) <= bottleneck.LIMIT
