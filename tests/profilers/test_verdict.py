"""What follows from a profile: the real limiter, within its budget; two profiles side by side; the picture."""

import struct
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from gpu_mcp_server.models.profile import KernelReading, Rule, SourceLine
from gpu_mcp_server.profilers import chart, compare, ncu, proton, rocprof, units, verdict
from gpu_mcp_server.profilers.roofline import Peaks, roofline
from tests.profilers.test_ncu import kernels, page

SHEET = Peaks("a sheet", 4800, {"float32": 67.0})


def triton():
    return list(ncu.parse_raw(page("triton_raw.csv")).values())


def bounds(readings: list[KernelReading]) -> dict[str, str | None]:
    return {r.name: verdict.kernel_verdict(r).bound for r in readings}


def test_the_limit_is_the_busiest_unit_not_the_headline():
    assert bounds([*kernels(), *triton()]) == snapshot(
        {
            "sgemm_naive": "L1/shared data pipe",
            "sgemm_tiled<32>": "L1/shared data pipe",
            "saxpy": "DRAM",
            "transpose_bad": "SM->L2",
            "softmax_kernel": "DRAM",
            "matmul_kernel": "L2->SM",
        }
    )


def test_a_verdict_says_all_in_1600_characters():
    text = verdict.text_of([verdict.kernel_verdict(kernels()[1])])
    assert text == snapshot("""\
sgemm_tiled<32>: 1840.7 us; SM at 1979 MHz, not locked; grid 64x64 x block 32x32, 15.5 waves
BOUND: L1/shared data pipe (L1/shared data pipe 92 %, LSU writeback 87 %, LSU input 77 %, LSU instructions 77 %)
ROOFLINE: 9.33 of 66.9 TFLOP/s fp32 (14 %); dram 370 FLOP/B, 14 % of its roof (ridge 13.9), l2 9.72 FLOP/B, 14 % of its roof (ridge 6.52)
MEMORY: dram 0.03 of 4.81 TB/s (1 %); l2 0.96 of 10.26 TB/s (9 %); hits L1 0 %, L2 96 %; 32 of 32 B used of each loaded sector
STALLS: mio_throttle 62 %, long_scoreboard 14 %, barrier 11 %
HOT LINES: kernels.cu:19 74 % (mio_throttle) `for(int k=0;k<T;++k) s+=a[threadIdx.y][k]*b[k][threadIdx.x];`; kernels.cu:16 18 % (long_scoreboard) `a[threadIdx.y][threadIdx.x]=A[r*N+t*T+threadIdx.x];`
OCCUPANCY: 98 % of 100 % possible, limit registers and warps (2 blocks an SM), 32 registers, 9 KiB shared
TRY 1: fewer load/store instructions per FLOP: register tiles (4x4 outputs a thread), 128-bit loads, padded rows (up to 2.5x, then issue slots is next)
TRY 2: The memory access pattern for shared stores might not be optimal and causes on average a 1.1 - way bank conflict across all 16777216 shared store r... (ncu: 11 %)\
""")


def test_the_roofline_is_that_of_the_pipe_that_did_most_at_the_clock_of_the_run():
    roof = roofline(triton()[1])
    assert roof is not None
    assert (roof.pipe, round(roof.tflop_s), round(roof.peak_tflop_s)) == ("hgmma_src_fp16", 576, 862)
    assert {lv.level: round(lv.intensity_flop_b) for lv in roof.levels} == {"dram": 610, "l2": 77}
    assert [round(lv.of_roof_percent) for lv in roof.levels] == [67, 73]


def test_operations_that_the_author_declared_are_held_against_the_sheet():
    text = (Path(__file__).parent / "data/proton/flops.hatchet").read_text()
    (kernel,) = proton.parse(text)
    roof = roofline(kernel, SHEET)
    assert roof is not None and roof.peak_source == "sheet of a sheet"
    assert [round(lv.of_roof_percent) for lv in roof.levels] == [84]
    assert roofline(kernel) is None, "without a sheet there is no peak to hold it against"


def test_an_amd_table_has_a_limit_by_its_own_percentages():
    table = "Metric,Avg,Unit,Peak,Pct of Peak\nL2-Fabric Read BW,1105.9,Gb/s,1638.4,67.5\nVALU FLOPs,8,Gflop,22630,3.5\nActive CUs,104,Cus,104,100\n"
    (kernel,) = rocprof.parse_compute({"t.csv": table})
    found = verdict.kernel_verdict(kernel)
    assert (found.bound, found.bound_percent) == ("L2-Fabric Read BW", 67.5)
    assert "move fewer bytes" in found.advice[0]


def test_nothing_busy_is_latency_and_the_advice_is_about_the_first_stall():
    reading = KernelReading(
        name="k", metrics={f"lts__t_sectors{units.PERCENT}": 22.0}, stalls={"barrier": 6.0, "wait": 4.0}
    )
    found = verdict.kernel_verdict(reading)
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
        f"dram__cycles_active{units.PERCENT}": 90.0,
        f"lts__t_sectors{units.PERCENT}": 45.0,
        "launch__waves_per_multiprocessor": 1.1,
    }
    advice = verdict.kernel_verdict(KernelReading(name="k", metrics=metrics, rules=rules)).advice
    assert advice == snapshot(
        [
            "move fewer bytes: fuse with neighbours, keep values in registers or shared memory, a smaller type (up to 2x, then L2 is next)",
            "the last of 2 waves is not full: fit the grid to whole waves, or a persistent kernel (82 %)",
            "Do 4 (ncu: 14 %)",
        ]
    )


def test_what_was_not_measured_is_said_also_when_nothing_was():
    text = verdict.text_of([], ["hardware counters are closed"])
    assert text == "NOT MEASURED: hardware counters are closed"
    many = [KernelReading(name=f"kernel_{n}", total_us=100.0 - n, time_us=100.0 - n) for n in range(60)]
    text = verdict.text_of(verdict.verdicts(many), ["counters"])
    assert (
        text.endswith("NOT MEASURED: counters") and "more kernels: query_profile" in text and len(text) <= verdict.LIMIT
    )


def test_two_profiles_stand_side_by_side():
    naive, tiled, *_ = kernels()
    text = compare.compared([naive], [tiled.model_copy(update={"name": "sgemm_naive"})])
    assert text == snapshot("""\
sgemm_naive: 2730 -> 1841 us, 1.48x faster
BOUND: L1/shared data pipe 75 % -> L1/shared data pipe 92 %
time us: 2730 -> 1841
DRAM written MB: 12.36 -> 12.87
L1 hits %: 94.96 -> 0.01
instructions M: 1231 -> 717.9
shared KiB: 1 -> 9
UNITS: L1/shared data pipe 75 -> 92 %, LSU input 75 -> 77 %, LSU instructions 75 -> 77 %, LSU writeback 75 -> 87 %
STALLS: lg_throttle 54 -> 0 %, dispatch_stall 20 -> 0 %, long_scoreboard 15 -> 14 %, mio_throttle 0 -> 62 %, barrier 0 -> 11 %\
""")
    assert compare.compared([naive], [tiled]).startswith(
        "sgemm_naive -> sgemm_tiled<32>: 2730 -> 1841 us, 1.48x faster"
    )
    assert compare.compared([naive], []) == "one of the two profiles has no kernel"


def test_the_picture_is_a_png_of_its_size():
    data = chart.png([verdict.kernel_verdict(k) for k in [*kernels(), *triton()]])
    assert data is not None and data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (chart.WIDTH, chart.HEIGHT)
    assert chart.png([verdict.kernel_verdict(KernelReading(name="k"))]) is None


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
        assert len(verdict.text_of(verdict.verdicts(readings, sheet), missing)) <= verdict.LIMIT
        assert len(compare.compared(readings, readings[::-1], sheet)) <= verdict.LIMIT
