"""Hot spots from a trace: nesting, kernels by their operators, what a data sheet allows; a GPU's trace made by hand."""

import json
from typing import Any

import pytest

from gpu_mcp_server.models.profile import HotspotReport
from gpu_mcp_server.profilers.hotspots import (
    RecordedProgram,
    bound_speedup,
    least_us,
    parse_recording,
    rank_hotspots,
    rank_modules,
)
from gpu_mcp_server.services.hosts.device_specs import spec_of
from gpu_mcp_server.workers import hotspot_trace
from gpu_mcp_server.workers.hotspot_trace import MARK, summarize, union_us

H100 = "NVIDIA H100 80GB HBM3"
ABOUT = {
    "torch": "2.13.0", "device": H100, "threads": 2, "wall_s": 1e-3, "steps": 0, "outer_calls": 1, "compiled": 0,
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
    found = parse_recording(json.dumps({**ABOUT, **summarize(events, 1e-3), **about}).encode())
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
        modules=rank_modules(found),
    )  # fmt: skip
    lines = report.summary().splitlines()
    assert lines[2].startswith("the profiler slows launches")
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
    assert parse_recording(json.dumps({**ABOUT, **summarize([], 1.0), **change}).encode()) is None
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
