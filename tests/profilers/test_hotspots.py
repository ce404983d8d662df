"""Hot spots from a trace: nesting, kernels by their operators, what a data sheet allows; a GPU's trace made by hand."""

import json
from typing import Any

import pytest

from gpu_mcp_server.models.profile import HotspotReport
from gpu_mcp_server.profilers import hotspots
from gpu_mcp_server.profilers.hotspots import (
    RecordedProgram,
    bound_speedup,
    least_us,
    parse_recording,
    rank_hotspots,
    rank_modules,
    read_second_run,
)
from gpu_mcp_server.services.hosts.device_specs import spec_of
from gpu_mcp_server.workers import hotspot_trace
from gpu_mcp_server.workers.hotspot_trace import MARK, summarize, union_us
from gpu_mcp_server.workers.run_profiler import OUT_OF_TIME

H100 = "NVIDIA H100 80GB HBM3"
ABOUT = {
    "torch": "2.13.0", "device": H100, "wall_s": 1e-3, "steps": 0, "compiled": 0,
    "forks": 0,
}  # fmt: skip


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": 1, "args": args}


def product(start: float, number: int) -> list[dict[str, Any]]:
    """A product of 4096 x 4096 matrices of bfloat16 within its module, and its kernel."""
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    return [
        event("user_annotation", MARK + "Net.layers.3.fc", start, 30.0),
        event("cpu_op", "aten::linear", start + 1, 28.0, **{"External id": number + 100}),
        event("cpu_op", "aten::mm", start + 2, 20.0, **{"External id": number, **shapes}),
        event("kernel", "sm90_xmma_gemm_bf16", start + 40, 200.0, **{"External id": number}),
    ]


def recorded(events: list[dict[str, Any]], **about: Any) -> RecordedProgram:
    found = parse_recording(json.dumps({**ABOUT, **summarize(events), **about}).encode())
    assert isinstance(found, RecordedProgram)
    return found


def test_a_kernels_time_goes_to_the_operator_that_launched_it_and_a_graphs_stands_by_itself():
    graph = event("kernel", "graph_kernel", 500, 100.0, **{"External id": 99})
    found = recorded([*product(0, 1), *product(240, 2), graph, event("gpu_memcpy", "Memcpy HtoD", 650, 10.0)])
    spots, left_out = rank_hotspots(found, spec_of(H100))

    assert [(s.name, s.kind, s.calls, s.total_us) for s in spots] == [
        ("aten::mm", "operator", 2, 400.0),
        ("graph_kernel", "kernel", 1, 100.0),
        ("Memcpy HtoD", "kernel", 1, 10.0),
    ]
    assert left_out == [], "the host's time of aten::linear is no time of the GPU"
    assert spots[0].share == pytest.approx(0.4) and spots[0].at_most_speedup == pytest.approx(1 / 0.6)
    assert spots[0].kernels == ["sm90_xmma_gemm_bf16"] and spots[0].modules == ["Net.layers.3.fc"]
    least = 2 * 4096**3 / 989.5e12 * 1e6
    assert spots[0].shapes[0].roofline_percent == pytest.approx(100 * least / 200.0)
    assert [spot.busy_share for spot in spots] == pytest.approx([400 / 510, 100 / 510, 10 / 510])
    (module,) = rank_modules(found)
    assert (module.path, module.calls, module.share) == ("Net.layers.*.fc", 2, pytest.approx(0.06))
    assert module.busy_share == pytest.approx(400 / 510), "what its forward launched, though the host was done by then"
    assert found.device_busy_us == pytest.approx(510.0)


def launched(names: dict[str, float], every: float) -> list[dict[str, Any]]:
    """Kernels of these microseconds, each so long after the one before, with the operators that launch them."""
    events: list[dict[str, Any]] = []
    for number, (name, us) in enumerate(names.items()):
        told = {"External id": number}
        events.append(event("cpu_op", f"aten::{name}", every * number, 5.0, **told))
        events.append(event("kernel", name, every * number + 10, us, **told))
    return events


def test_shares_and_bounds_are_by_the_second_run_which_launches_as_fast_as_the_program_itself():
    """6 % busy under the profiler, 19 % in a run without operators, as an image model on an H100 was."""
    kernels = {"conv": 40.0, "norm": 20.0}
    found = recorded(launched(kernels, 500.0), wall_s=1e-3)
    bare = [e for e in launched({"conv": 41.0, "norm": 20.0}, 160.0) if e["cat"] == "kernel"]
    second, missing = read_second_run(
        found, {"code": 0, "second": 0}, recorded(bare, wall_s=0.32e-3).model_dump_json().encode()
    )
    assert missing is None and second is not None
    assert (second.kernels, second.wall_s) == (2, 0.32e-3)
    assert second.device_busy == pytest.approx(61 / 320) and second.alike == pytest.approx(40 / 60 + 20 / 61)
    spots, _ = rank_hotspots(found, None, second)
    assert [s.share for s in spots] == pytest.approx([40 / 60 * 61 / 320, 20 / 60 * 61 / 320])
    assert [s.busy_share for s in spots] == pytest.approx([40 / 60, 20 / 60]), "kernels take as long either way"
    assert spots[0].at_most_speedup == pytest.approx(1 / (1 - spots[0].share))
    report = HotspotReport(
        status="ok", host="local", device=H100, wall_s=1e-3, device_busy=found.device_busy, second=second,
        hotspots=spots,
    )  # fmt: skip
    lines = report.summary().splitlines()
    assert lines[0].startswith("aten::conv takes 13% of 320 µs on NVIDIA H100")
    assert lines[0].endswith("the whole becomes at most 1.15 times as fast by it")
    assert lines[1].startswith("the GPU is busy 19% of the time") and lines[1].endswith("6% under the full profiler")
    assert lines[2].startswith("a faster kernel gains little")


def test_without_a_second_run_of_the_same_kernels_bounds_are_said_to_be_unknown():
    found = recorded(launched({"conv": 40.0, "norm": 20.0}, 500.0), wall_s=1e-3)

    def why(about: dict[str, Any], events: list[dict[str, Any]], **more: Any) -> str:
        second, missing = read_second_run(found, about, recorded(events, **more).model_dump_json().encode())
        assert second is None and missing is not None
        return missing

    same, both = launched({"conv": 40.0, "norm": 20.0}, 100.0), {"code": 0, "second": 0}
    assert "agrees by 33% only" in why(both, launched({"gemm": 40.0, "norm": 20.0}, 100.0))
    assert why(both, []) == "the second run recorded no work of the GPU"
    assert why({"code": 0, "second": 3}, same) == "the second run ended with 3"
    assert why({"code": 0, "second": OUT_OF_TIME}, same) == "timeout_s ended the second run"
    assert why({"code": 0}, same) == "timeout_s leaves no time for a second run"
    assert why({"code": 1}, same) == "the program failed"
    assert read_second_run(found, both, b"forged")[1] == "the second run recorded no work of the GPU"
    busy = recorded([event("kernel", "gemm", 0, 950.0)], wall_s=1e-3)
    assert read_second_run(busy, {"code": 0}, b"") == (None, None), "launches keep it waiting for a tenth at most"
    on_processor = recorded([event("cpu_op", "aten::mm", 0, 9.0)], device=None)
    assert read_second_run(on_processor, {"code": 0}, b"") == (None, None)


def test_bounds_are_by_the_busier_run():
    """Either slows launches: the program itself keeps its GPU at least as busy as the busier one."""
    found = recorded(launched({"conv": 40.0, "norm": 20.0}, 100.0), wall_s=200e-6)
    later = recorded(launched({"conv": 40.0, "norm": 20.0}, 100.0), wall_s=400e-6)
    second, _ = read_second_run(found, {"code": 0, "second": 0}, later.model_dump_json().encode())
    assert second is not None and second.device_busy < found.device_busy
    assert rank_hotspots(found, None, second)[0][0].share == pytest.approx(40 / 200)


@pytest.mark.parametrize("rows", [1, 200])
def test_a_second_run_of_which_kernels_were_left_out_says_nothing_of_the_gpus_time(monkeypatch, rows):
    """However many kernels are listed by name."""
    monkeypatch.setattr(hotspot_trace, "MOST_ROWS", rows)
    monkeypatch.setattr(hotspots, "MOST_EVENTS", 2)
    cut = found = recorded(launched({"conv": 58.0, "norm": 2.0}, 500.0), wall_s=1e-3)
    second, missing = read_second_run(found, {"code": 0, "second": 0}, cut.model_dump_json().encode())
    assert second is None and missing is not None and missing.endswith("lower record_s")


def test_operators_of_a_gpu_that_is_mostly_idle_are_listed_until_they_are_most_of_its_busy_time():
    """Beside a host that takes a second: no share of the whole is a hundredth, and modules hold what they launch."""
    events = [event("user_annotation", MARK + "Net", 0, 900.0), event("user_annotation", MARK + "Net.norm", 1, 800.0)]
    for number, us in enumerate([200.0, 150.0, 100.0, 20.0, 20.0, 10.0]):
        events.append(event("cpu_op", f"aten::op{number}", 10.0 * number + 2, 5.0, **{"External id": number}))
        events.append(event("kernel", f"kernel{number}", 1000 + 300 * number, us, **{"External id": number}))
    found = recorded(events, wall_s=1.0)
    spots, left_out = rank_hotspots(found, None)
    assert [s.name for s in spots] == ["aten::op0", "aten::op1", "aten::op2"] and len(left_out) == 3
    assert sum(s.busy_share or 0 for s in spots) == pytest.approx(0.9)
    report = HotspotReport(
        status="ok", host="local", device=H100, wall_s=1.0, device_busy=0.0005, hotspots=spots,
        operators=len(spots) + len(left_out), operators_us=sum(s.total_us for s in (*spots, *left_out)),
        modules=rank_modules(found), second_missing="the second run ended with 1",
    )  # fmt: skip
    lines = report.summary().splitlines()
    assert lines[0].endswith("under the profiler: what it can bring to the whole is unknown")
    assert lines[1].endswith("its share without it is unknown: the second run ended with 1")
    assert lines[3] == " share  of the GPU's busy time  whole at most (too low)"
    assert lines[4] == "  0.0%   40.0%  1.00 times  aten::op0: 1 calls, 200 µs each"
    assert "(those listed have 90% of the kernels' time; 3 more operators have the rest)" in lines
    assert lines[-2:] == ["  0.1%  100.0%  Net: 1 calls", "  0.1%  100.0%  Net.norm: 1 calls"]
    shortened = report.model_copy(update={"hotspots": spots[:2]})  # as a result is that would be too long
    assert "(those listed have 70% of the kernels' time; 4 more operators have the rest)" in shortened.summary()


def test_a_compiled_program_s_kernels_are_named_by_their_operators_and_its_compiler_is_no_hot_spot():
    def triton(start: float, number: int, inside: str) -> list[dict[str, Any]]:
        return [
            event("cpu_op", inside, start, 40.0),
            event("cpu_op", "triton_poi_fused_add_relu_0", start + 5, 10.0, **{"External id": number}),
            event("kernel", "triton_poi_fused_add_relu_0", start + 20, 90.0, **{"External id": number}),
        ]

    compiling = [event("cpu_op", "entire_frame_compile (dynamo_timed)", 0, 300.0)]
    events = [*compiling, *triton(10, 1, "benchmark_all_configs (dynamo_timed)")]
    found = recorded([*events, *triton(400, 2, "Torch-Compiled Region: 0/0")], compiled=1)
    (spot,) = rank_hotspots(found, None)[0]
    assert (spot.name, spot.calls, spot.total_us) == ("triton_poi_fused_add_relu_0", 1, 90.0)
    assert found.compiling_us == 300.0, "with the calls inside of it, by which the compiler tries kernels"


def test_on_a_processor_an_operators_own_time_counts_and_threads_are_not_added_up_in_the_rest():
    nested = [
        event("cpu_op", "aten::linear", 0, 100.0),
        event("cpu_op", "aten::addmm", 10, 80.0),
        {**event("cpu_op", "aten::mul", 50, 100.0), "tid": 2},
    ]
    found = recorded(nested, device=None)
    spots, _ = rank_hotspots(found, None)
    assert {s.name: s.total_us for s in spots} == {"aten::mul": 100.0, "aten::addmm": 80.0, "aten::linear": 20.0}
    assert found.covered_us == pytest.approx(150.0)
    assert union_us([(0, 10), (5, 20), (30, 31)]) == pytest.approx(21.0)


def test_bounds_are_low_where_something_is_not_known():
    spec = spec_of(H100)
    assert spec is not None
    reads = least_us("aten::relu", ["float[1000000]", "Scalar"], spec)
    assert reads == pytest.approx(4e6 / (spec.dram_gb_s * 1e3))
    assert least_us("aten::relu", ["Scalar", "unknown type[4]"], spec) is None
    assert least_us("aten::mm", ["float[2, 3]", "float[4, 5]"], spec) == pytest.approx(104 / (spec.dram_gb_s * 1e3))
    assert bound_speedup(1.0) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    "change",
    [
        {"wall_s": 0}, {"wall_s": float("nan")}, {"operators": [{}]}, {"device": "x" * 500}, {"covered_us": -1},
        {"operators": [{"name": "x"}] * 400}, {"torch": None},
        {"steps": 10**400}, {"wall_s": 1e308}, {"device": "x" * 3_000_000},
    ],
)  # fmt: skip
def test_what_a_program_forged_is_no_recording(change: dict[str, Any]):
    assert parse_recording(json.dumps({**ABOUT, **summarize([]), **change}).encode()) is None
    assert parse_recording(b"\xff") is None


def test_names_are_short_and_on_one_line_and_odd_sizes_are_no_tensors():
    forged = event("cpu_op", "a\nnote: trust me\x1b[31m", 0, 10.0)
    (row,) = recorded([forged], device=None).operators
    assert row.name == "a note: trust me\\x1b[31m" or ("\n" not in row.name and "\x1b" not in row.name)
    spec = spec_of(H100)
    assert spec is not None
    for odd in ("float[,]", "float[1 2]", f"float[{'9' * 5000}]", "float[]"):
        assert least_us("aten::relu", [odd], spec) is None


def test_kernels_at_the_end_of_a_long_recording_are_not_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hotspot_trace, "MOST_EVENTS", 5)
    many = [event("cpu_op", "aten::add", at, 0.5) for at in range(100, 200)]
    found = recorded([*product(0, 1)[:3], *many, product(0, 1)[3]])
    assert found.on_gpu and found.events_left_out
    assert rank_hotspots(found, None)[0][0].name == "aten::mm", "its operator was among the first"
