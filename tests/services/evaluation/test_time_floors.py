"""Peak figures, formulas, and what a call costs at least."""

import pytest
from gpu_mcp_judge.timing import time_floor

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.evaluation.time_floors import floors
from gpu_mcp_server.services.hosts.device_specs import spec_of, specs
from gpu_mcp_server.services.problems.problem_identity import content_hash
from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.problems.shape_expressions import value

H200 = "NVIDIA H200"


def matmul(**more):
    return Problems.make_problem(
        "matmul", "", "numpy", "f", shapes=[{"m": 4096, "n": 4096, "k": 4096}, {"m": 8, "n": 8, "k": 8}], rtol=1e-3, atol=1e-3,
        inputs=[TensorSpec(name="a", dtype="float32", shape=["m", "k"]), TensorSpec(name="b", dtype="float32", shape=["k", "n"])],
        outputs=[TensorSpec(name="c", dtype="float32", shape=["m", "n"])], reference="def f(a, b):\n    return a @ b\n", **more,
    )  # fmt: skip


def floor_at(problem, number, sets):
    return time_floor.floor_of({"floors": floors(problem, [H200])}, H200, number, sets)


def test_every_described_device_has_plausible_figures_with_sources():
    found = specs()

    assert {
        "NVIDIA H200",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA B200",
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA GeForce RTX 5090",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA B300",
        "NVIDIA GB300",
        "NVIDIA L4",
        "NVIDIA A10",
        "NVIDIA A100-SXM4-40GB",
        "AMD Instinct MI325X",
        "AMD Instinct MI355X",
        "AMD Instinct MI250X",
        "AMD Instinct MI300X",
        "Intel(R) Data Center GPU Max 1550",
    } <= {name for spec in found for name in spec.names}
    assert len({name for spec in found for name in spec.names}) == sum(len(spec.names) for spec in found)
    for spec in found:
        assert 300 <= spec.dram_gb_s <= 20000 and 4 <= spec.cache_mib <= 512, spec.name
        assert all(0.5 <= peak <= 20000 for peak in spec.tflop_s.values()), spec.name
        read = {figure for source in spec.sources for figure in source.figures}
        assert not read & set(spec.not_seen), spec.name
        assert read | set(spec.not_seen) == {"dram_gb_s", "cache_mib", *spec.tflop_s}, spec.name
        assert spec.tflop_s["float64"] <= spec.tflop_s["float32"] <= spec.tflop_s["float16_tensor"], spec.name
        assert all(
            source.url.startswith(("https://", "tests/")) and source.date[:2] == source.read[:2] == "20"
            for source in spec.sources
        )


def test_a_device_that_nobody_described_has_no_floor():
    assert spec_of("NVIDIA H2000") is None
    assert floors(matmul(), ["NVIDIA H2000"]) == {}
    assert time_floor.floor_of({"floors": {}}, H200, 0, 10) is None


def test_a_multiplication_of_matrices_is_bound_by_its_operations():
    found = floor_at(matmul(flops="2*m*n*k"), 0, 100)

    peaks = spec_of(H200).tflop_s
    assert (found.by, found.least_us) == ("compute", pytest.approx(2 * 4096**3 / (peaks["float8_tensor"] * 1e6)))
    assert found.roof_us == pytest.approx(2 * 4096**3 / (peaks["tf32_tensor"] * 1e6))
    assert "compute roof of tf32_tensor" in found.roof
    strict = floor_at(matmul(flops="2*m*n*k", precision="strict"), 0, 100)
    assert strict.roof_us == pytest.approx(2 * 4096**3 / 67e6)


def test_what_fits_the_cache_is_not_bound_by_memory():
    found = floor_at(matmul(), 1, 1000)

    assert (found.by, found.least_us, found.roof_us) == ("launch", time_floor.LAUNCH_US, None)


def test_only_outputs_count_for_the_floor_unless_the_problem_says_what_must_be_moved():
    spec = spec_of(H200)
    output_us = 4096**2 * 4 / (spec.dram_gb_s * 1e3)
    cache_us = spec.cache_mib * (1 << 20) / 1000 / (spec.dram_gb_s * 1e3)

    assert floor_at(matmul(), 0, 1000).least_us == pytest.approx(output_us - cache_us)
    assert floor_at(matmul(bytes="4*(m*n + m*k + k*n)"), 0, 1000).least_us == pytest.approx(3 * output_us - cache_us)
    assert floor_at(matmul(), 0, 1000).roof_us == pytest.approx(3 * output_us)


def test_a_time_below_the_floor_is_impossible_and_one_within_the_margin_is_not():
    found = floor_at(matmul(), 0, 1000)

    assert found.impossible(found.least_us * 0.95) == ""
    assert "faster than the device can" in found.impossible(found.least_us * 0.85)


@pytest.mark.parametrize(
    ("text", "expected"), [("2*m*n", 24), ("(m + 1) * n - 2 * 0.5", 15), ("m // 2 + n / 2", 3), ("1e9", 1e9)]
)
def test_formulas_are_arithmetic_over_symbols(text, expected):
    assert value(text, "flops", {"m": 3, "n": 4}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "m ** 9",
        "__import__('os')",
        "q + 1",
        "m.real",
        "[m]",
        "m if n else 1",
        "",
        "m n",
        "-m",
        "1/0",
        "True",
        "9" * 500,
        "'a' * 9",
        "1e40",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(BadRequest, match="flops"):
        value(text, "flops", {"m": 3, "n": 4})


def test_a_problem_with_flops_is_another_problem_and_one_without_is_what_it_was():
    assert matmul(flops="2*m*n*k").problem_id != matmul().problem_id
    assert matmul(flops=None).content_hash == content_hash(matmul())
    with pytest.raises(BadRequest, match="no tensor uses q"):
        matmul(flops="q")
