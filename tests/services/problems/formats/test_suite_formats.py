"""Suites as they are published, in tasks of our own making: each imports unchanged, and judges a candidate of its form."""

import json
import re
import struct
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpu_mcp_server.judge.adapters
from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, ProblemRefused
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides, ProblemInfo
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, python_kind
from gpu_mcp_server.services.evaluation.problem_registry import refusal_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import GROUP, known_formats, read_problem, source_at
from gpu_mcp_server.services.problems.formats.torch_call import torch_problem
from tests.judge.harness import torch_python
from tests.laboratory import Folder, called, client_of, laboratory, refused
from tests.services.problems.test_kernelbench_problems import needs_torch

pytestmark = pytest.mark.timeout(600)  # each judges several candidates, on a machine that others use too
UNTIMED = TimingOptions(tier="correctness")
ADAPTERS = Path(gpu_mcp_server.judge.adapters.__file__).parent
TASK = """
name: scaled sum
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../shared/utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../shared/eval.py"}
lang: py
description: Add two rows and scale them.
config: {main: eval.py}
tests:
  - {"size": 64, "scale": 2, "seed": 1}
  - {"size": 64, "scale": 2, "seed": 2}
benchmarks:
  - {"size": 500, "scale": 3, "seed": 9}
ranking_by: geom
"""
UTILS = """
import torch
def verbose_allclose(received, expected, rtol=1e-05, atol=1e-08, max_print=5):
    return [] if torch.allclose(received.float(), expected.float(), rtol=rtol, atol=atol) else ["differs"]
def match_reference(data, output, reference, rtol=1e-05, atol=1e-08):
    why = verbose_allclose(output, reference(data), rtol=rtol, atol=atol)
    return not why, " ".join(why)
def make_match_reference(reference, **kwargs):
    return lambda data, output: match_reference(data, output, reference=reference, **kwargs)
"""
REFERENCE = """
import torch
from task import Settings
from utils import make_match_reference

def generate_input(size: int, scale: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    pair = {"a": torch.randn(size, device="cuda", generator=gen), "b": torch.randn(2, size, generator=gen).T}
    out, spare = torch.empty(size, device="cuda"), torch.empty(size, device="cuda")
    return pair, Settings(scale, torch.randn(3, generator=gen)), out, spare

def ref_kernel(data):
    pair, settings, out, _ = data
    out[...] = (pair["a"] + pair["b"].sum(dim=1)) * settings.scale + settings.bias.sum()
    return out

check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)
"""
SEEDED = """
import torch
from utils import make_match_reference

def generate_input(size: int, scale: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(size, device="cuda", generator=gen) * 10 + seed, torch.empty(size, device="cuda")

def ref_kernel(data):
    return torch.sort(data[0])[0]

check_implementation = make_match_reference(ref_kernel)
"""
RIGHT = """
from task import Settings
def custom_kernel(data):
    pair, settings, out, spare = data
    spare.copy_(pair["b"][:, 0] + pair["b"][:, 1])
    out.copy_((pair["a"] + spare) * settings.scale + settings.bias.sum())
    return out
"""


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as opened:
        yield opened


def gpumode_task(folder: Path, task: str = TASK, reference: str = REFERENCE) -> Path:
    own, shared = folder / "suite" / "scaled", folder / "suite" / "shared"
    for each in (own, shared):
        each.mkdir(parents=True)
    (own / "task.yml").write_text(task)
    (own / "reference.py").write_text(reference)
    (own / "task.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Settings:\n    scale: int\n    bias: object\n"
    )
    (shared / "utils.py").write_text(UTILS)
    return own


async def imported(lab: Lab, path: Path, **wish: Any) -> ProblemInfo:
    source = await source_at(path)
    return await lab.evaluation.registry.import_file(
        ProblemSource(source.name, source.text, source.folder, source.part, ImportOverrides(**wish))
    )


async def judged(lab: Lab, problem_id: str, text: str, language: Any = "python") -> Evaluation:
    name = {"python": "m.py", "c": "m.c"}[language]
    return await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource(text, language, name), device="cpu", timing=UNTIMED, wait_s=550.0
    )


@needs_torch
async def test_a_task_of_gpu_mode_imports_as_it_is_and_judges_custom_kernels(lab: Lab, tmp_path: Path):
    info = await imported(lab, gpumode_task(tmp_path))

    assert [shape["case"] for shape in info.shapes] == [1, 2]
    assert [shape["size"] for shape in info.shapes] == [64, 500]
    assert (info.rtol, info.atol) == (1e-3, 1e-4)
    assert (
        "strides" in info.tensors and info.tensors.count("float32") == 4
    )  # two, bias, and the answer: neither `out` nor `spare` is an input
    assert python_kind(RIGHT) == "python"
    assert python_kind("class Loss(nn.CrossEntropyLoss): ...\ndef get_inputs(): ...") == "python"
    assert (await judged(lab, info.problem_id, RIGHT)).verdict == "correct"
    wrong = await judged(lab, info.problem_id, RIGHT.replace("settings.scale", "2"))
    assert wrong.verdict == "incorrect"
    misnamed = await judged(lab, info.problem_id, RIGHT.replace("custom_kernel", "kernel"))
    assert "the file has neither ModelNew nor custom_kernel" in misnamed.reason


@needs_torch
async def test_memory_of_one_element_is_for_an_answer_without_dimensions(lab: Lab, tmp_path: Path):
    """As of a sum, of which the public solution writes into it: it was an input, and a write to it incorrect."""
    change = {
        "torch.empty(size": "torch.empty(1",
        "torch.sort(data[0])[0]": "data[0].double().sum().float()",
        "+ seed": "",
    }
    reference = SEEDED
    for old, new in change.items():
        reference = reference.replace(old, new)
    info = await imported(lab, gpumode_task(tmp_path, reference=reference))

    assert info.tensors.count("float32") == 2
    kernel = "def custom_kernel(data):\n    x, out = data\n    out[0] = x.sum()\n    return out[0]"
    assert (await judged(lab, info.problem_id, kernel)).verdict == "correct"
    assert (await judged(lab, info.problem_id, kernel.replace("x.sum()", "x[1:].sum()"))).verdict == "incorrect"


@needs_torch
async def test_a_task_whose_values_are_as_large_as_its_seed_gets_seeds_of_a_suites_size(lab: Lab, tmp_path: Path):
    """With a seed of nine digits float32 keeps nothing of what is drawn, and the mean was a right answer."""
    info = await imported(lab, gpumode_task(tmp_path, reference=SEEDED))
    problem = await lab.store.problems.get(info.problem_id)

    assert problem.adapter["seeds"] == 1 << 16
    kernel = "import torch\ndef custom_kernel(data):\n    return torch.sort(data[0], descending=False).values"
    assert (await judged(lab, info.problem_id, kernel)).verdict == "correct"
    unsorted = kernel.replace("torch.sort(data[0], descending=False).values", "data[0].clone()")
    assert (await judged(lab, info.problem_id, unsorted)).verdict == "incorrect"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("lang: py", "lang: py\nmulti_gpu: true"), "several ranks"),
        (("../shared/utils.py", "../../../../etc/utils.py"), "leaves the folders"),
        (("../shared/utils.py", "../shared/passwords.txt"), "leaves the folders"),
        (('"source": "reference.py"', '"source": "@SUBMISSION@"'), "no reference.py"),
        (('{"size": 64, "scale": 2, "seed": 1}', '{"size": &a [&b [1, 2], *b], "scale": {1: 2}}'), None),
        (("tests:", "tests: 5\nothers:"), "no list of values"),
        (("name: scaled sum", "name: [unclosed"), "no YAML"),
        (("../shared/utils.py", "../utils.py"), "task.yml needs '../utils.py'. Copy it there from the suite's"),
    ],
)
async def test_a_task_that_is_none_is_refused_unrun(tmp_path: Path, change: tuple[str, str], says: str | None):
    path = gpumode_task(tmp_path, TASK.replace(*change, 1))
    if says is None:  # nested values are plain all the same
        assert (await read_problem(await source_at(path))).cases
        return
    with pytest.raises((BadRequest, NotFound), match=says):
        await read_problem(await source_at(path))


@pytest.mark.parametrize("layer", ["&l{0} [{1}]", "&l{0} {{<<: [{1}]}}"], ids=["lists", "merged"])
@pytest.mark.parametrize("first", ["[1, 1]", "[]", "{a: 1}"])
@pytest.mark.parametrize("change", [('"scale": 2', '"scale": *l20'), ("name: scaled sum", "name: *l20")])
async def test_yaml_that_blows_up_is_refused(tmp_path: Path, change: tuple[str, str], first: str, layer: str):
    layers = "\n".join(f"l{i}: " + layer.format(i, ", ".join([f"*l{i - 1}"] * 9)) for i in range(1, 21))
    bomb = f"l0: &l0 {first}\n{layers}\n" + TASK.replace(*change, 1)
    with pytest.raises(LimitExceeded, match="100000 values, with its aliases put in"):
        await read_problem(await source_at(gpumode_task(tmp_path, bomb)))


async def test_yaml_that_holds_itself_is_refused(tmp_path: Path):
    with pytest.raises(BadRequest, match="is no YAML"):
        await read_problem(await source_at(gpumode_task(tmp_path, "l: &l [*l]\n" + TASK)))


@pytest.mark.parametrize("value", ["!!bool x", '!!int ""', "!!timestamp x", "!!float x"])
async def test_a_yaml_value_that_is_not_what_its_tag_says_is_refused(tmp_path: Path, value: str):
    with pytest.raises(BadRequest, match="is no YAML"):
        await read_problem(await source_at(gpumode_task(tmp_path, TASK.replace("scaled sum", value))))


async def test_a_suites_problem_that_takes_too_much_names_the_wish_for_its_smaller_cases(tmp_path: Path):
    problem = await read_problem(await source_at(trace_folder(tmp_path)))
    for reason in (
        "the reference did not answer 'describe' within 240 s",
        "the reference ran out of memory",
        "the problem is too large: its tensors take 4.3 GB, the limit on cpu is 1.1 GB",
    ):
        assert "the wish max_bytes, which leaves larger cases out" in str(refusal_of(problem, {"reason": reason}))
    assert "max_bytes" not in str(refusal_of(problem, {"reason": "the reference failed to load"}))


async def test_a_definition_may_name_its_references_file(tmp_path: Path):
    """Stand-in for an older form of SOL-ExecBench."""
    plain = await read_problem(await source_at(trace_folder(tmp_path)))
    named = {**DEFINITION, "reference_file": "reference.py"}
    (tmp_path / "reference.py").write_text(named.pop("reference"))

    assert await read_problem(await source_at(trace_folder(tmp_path, named))) == plain
    (tmp_path / "reference.py").unlink()
    with pytest.raises(NotFound, match=r"definition.json needs 'reference.py'"):
        await read_problem(await source_at(tmp_path))


DEFINITION: dict[str, Any] = {
    "name": "row_scale",
    "op_type": "scale",
    "axes": {
        "M": {"type": "var"}, "H_qo": {"type": "const", "value": 8}, "half": {"type": "expr", "expression": "H_qo // 2"}
    },
    "inputs": {
        "x": {"shape": ["M", "H_qo"], "dtype": "float32"},
        "weight": {"shape": ["half"], "dtype": "float32"},
        "n_valid": {"shape": None, "dtype": "int32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["M", "half"], "dtype": "float32"}},
    "reference": "import torch\ndef run(x, weight, n_valid, eps):\n"
    "    y = x[:, ::2] * weight + eps\n    y[n_valid:] = 0\n    return y\n",
}  # fmt: skip


def workload(m: int, n_valid: int) -> dict[str, Any]:
    how = {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 0.5}}
    return {"uuid": f"w{m}", "axes": {"M": m}, "inputs": {**how, "n_valid": {"type": "scalar", "value": n_valid}}}


def trace_folder(folder: Path, definition: dict[str, Any] | None = None, more: Any = ()) -> Path:
    (folder / "definition.json").write_text(json.dumps(definition or DEFINITION))
    lines = [workload(16, 5), workload(48, 9), *more]
    (folder / "workload.jsonl").write_text("\n".join(json.dumps(each) for each in lines))
    return folder


RETURNS = "def run(x, weight, n_valid, eps):\n    y = x[:, ::2] * weight + eps\n    y[n_valid:] = 0\n    return y\n"
HANDED = "def run(x, weight, n_valid, eps, y):\n    y.copy_(x[:, ::2] * weight + eps)\n    y[n_valid:] = 0\n"
LAUNCHER = """
#include <stdint.h>
int launch(const float *x, const float *weight, float *y, int64_t m, int64_t n_valid) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < 4; j++) y[i * 4 + j] = i < n_valid ? x[i * 8 + 2 * j] * weight[j] + 0.5f : 0;
    return 0;
}
"""


@needs_torch
async def test_a_definition_with_workloads_imports_and_judges_each_kind_of_candidate(lab: Lab, tmp_path: Path):
    stored = workload(4, 1)
    stored["inputs"]["x"] = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
    info = await imported(lab, trace_folder(tmp_path, more=[stored]))

    assert [dict(shape) for shape in info.shapes] == [
        {"case": 1, "m": 16, "argument_2": 5}, {"case": 2, "m": 48, "argument_2": 9}
    ]  # fmt: skip
    assert (info.rtol, info.atol) == (
        1e-2,
        1e-2,
    ) and "the stored tensor 'x.safetensors' is not there" in info.description
    assert (await judged(lab, info.problem_id, HANDED)).verdict == "correct"
    assert (await judged(lab, info.problem_id, RETURNS.replace("[n_valid:]", "[7:]"))).verdict == "incorrect"
    assert (await judged(lab, info.problem_id, LAUNCHER, "c")).verdict == "correct"


@needs_torch
async def test_outputs_by_name_are_in_the_definitions_order(lab: Lab, tmp_path: Path):
    """Solutions of flashinfer-trace return dictionaries, whose keys stand in any order."""
    two = {name: {"shape": ["M"], "dtype": "float32"} for name in ("low", "high")}
    run = "def run(x, weight, n_valid, eps):\n    return {'low': x.amin(1), 'high': x.amax(1)}\n"
    definition = {**DEFINITION, "outputs": two, "reference": "import torch\n" + run}
    info = await imported(lab, trace_folder(tmp_path, definition))
    other = run.replace("'low': x.amin(1), 'high': x.amax(1)", "'high': x.amax(1), 'low': x.amin(1)")
    assert (await judged(lab, info.problem_id, other)).verdict == "correct"
    wrong = run.replace("amin", "amed").replace("amax", "amin").replace("amed", "amax")
    assert (await judged(lab, info.problem_id, wrong)).verdict == "incorrect"


def safetensors(key: str, kind: str, values: list[float]) -> bytes:
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps({key: {"dtype": kind, "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


@needs_torch
async def test_small_tensors_that_a_workload_stores_come_with_the_problem(lab: Lab, tmp_path: Path):
    folder, how = tmp_path / "definitions" / "scale", {"type": "safetensors", "path": "blob/w.safetensors"}
    (tmp_path / "blob").mkdir()
    folder.mkdir(parents=True)
    (tmp_path / "blob" / "w.safetensors").write_bytes(safetensors("w", "F32", [1, 0, -2, 4]))
    lines = [workload(m, 3) for m in (8, 20)]
    for line, key in zip(lines, ("w", "other"), strict=True):
        line["inputs"]["weight"] = {**how, "tensor_key": key}
    (folder / "definition.json").write_text(json.dumps(DEFINITION))
    (folder / "workload.jsonl").write_text(json.dumps(lines[0]))
    info = await imported(lab, folder)

    fixed = RETURNS.replace("* weight", "* torch.tensor([1.0, 0.0, -2.0, 4.0])")
    assert (await judged(lab, info.problem_id, "import torch\n" + fixed)).verdict == "correct"
    (folder / "workload.jsonl").write_text(json.dumps(lines[1]))
    with pytest.raises(BadRequest, match="No tensor 'other' is in the safetensors file"):
        await read_problem(await source_at(folder))


async def test_what_a_workload_lacks_is_named(tmp_path: Path):
    folder, more = trace_folder(tmp_path), workload(4, 1)
    for how, says in {
        "zeros": r"an input is 'zeros', and known kinds are random, scalar",
        "safetensors": r"the stored tensor 'blob/gone\.safetensors' is not there",
    }.items():
        more["inputs"]["x"] = {"type": how, "path": "blob/gone.safetensors", "tensor_key": "x"}
        (folder / "workload.jsonl").write_text(json.dumps(more))
        with pytest.raises(BadRequest, match=says):
            await read_problem(await source_at(folder))
    (folder / "workload.jsonl").unlink()
    with pytest.raises(NotFound) as caught:
        await read_problem(await source_at(folder))
    assert "Put workload.jsonl beside the definition, or in a data set" in str(caught.value.hint)


async def test_a_definition_is_never_run_to_be_read(tmp_path: Path):
    evil = {**DEFINITION, "axes": {**DEFINITION["axes"], "half": {"type": "expr", "expression": "__import__('os')"}}}
    with pytest.raises(BadRequest, match="axis half has no value"):
        await read_problem(await source_at(trace_folder(tmp_path, evil)))


SWEPT = """
import torch
class Model(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n, k))
    def forward(self, x):
        return x @ self.weight
n, k = 8, 2
def get_inputs():
    return [torch.randn(4, n)]
def get_init_inputs():
    return [n, k]
"""


@needs_torch
async def test_a_sweep_of_shapes_has_its_own_model_and_weights_at_each(lab: Lab, tmp_path: Path):
    (tmp_path / "reference.py").write_text(SWEPT)
    (tmp_path / "shapes.py").write_text('"""Sizes."""\nFEW = 2\nSHAPES = [{"n": 8, "k": FEW}, {"n": 30, "k": 5}]\n')
    (tmp_path / "problem.yaml").write_text(
        "name: swept\nflops_formula: '2 * n * k'\nbytes_formula: 'n'\ntolerance: {float32: 0.001}\n"
    )
    info = await imported(lab, tmp_path)

    assert [(shape["n"], shape["k"]) for shape in info.shapes] == [(8, 2), (30, 5)] and info.rtol == 1e-3
    right = SWEPT.replace("x @ self.weight", "(self.weight.T @ x.T).T")
    assert (await judged(lab, info.problem_id, right)).verdict == "correct"
    assert (await judged(lab, info.problem_id, SWEPT.replace("x @", "2 * x @"))).verdict == "incorrect"


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ("SEEDS = (0, 1)\n", r"has no SHAPES that can be read: it sets none\. Write SHAPES = "),
        ("SHAPES = [{'n': len('ab')}]\n", "has no SHAPES that can be read: "),
        ("SHAPES = [8, 30]\n", "SHAPES is no list of values by name"),
    ],
)
async def test_a_sweep_whose_sizes_cannot_be_read_unrun_says_so(tmp_path: Path, shapes: str, says: str):
    for name, text in {"problem.yaml": "regime: memory\n", "reference.py": SWEPT, "shapes.py": shapes}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadRequest, match=says):
        await read_problem(await source_at(tmp_path))


@needs_torch
async def test_cases_that_take_more_than_the_wish_are_left_out_and_said(lab: Lab, tmp_path: Path):
    info = await imported(lab, trace_folder(tmp_path, more=[workload(4096, 3)]), max_bytes=10_000)

    assert [shape["m"] for shape in info.shapes] == [16, 48] and "1 of 3 cases left out" in " ".join(info.notes)
    with pytest.raises(
        ProblemRefused, match=r"each of the 3 cases takes more.* the smallest seen takes [0-9]+.*with the wish max"
    ):
        await imported(lab, tmp_path, max_bytes=10)


@needs_torch
async def test_one_line_makes_a_problem_of_a_function_of_torch(lab: Lab):
    registry = lab.evaluation.registry
    info = await registry.import_torch("torch.nn.functional.gelu", [[8, 32], [4, 100]], "bfloat16")

    assert (info.rtol, [(s["x_0"], s["x_1"]) for s in info.shapes]) == (1e-2, [(8, 32), (4, 100)])
    right = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
    exact = right.format("(0.5 * x.float() * (1 + torch.erf(x.float() / 2**0.5))).bfloat16()")
    assert (await judged(lab, info.problem_id, exact)).verdict == "correct"
    assert (await judged(lab, info.problem_id, right.format("torch.relu(x)"))).verdict == "incorrect"


@needs_torch
async def test_the_tool_makes_a_problem_of_one_line():
    with Folder() as folder:
        hosts = {"local": {"kind": "local", "judge_python": torch_python()}}
        async with client_of(folder, hosts=hosts) as client:
            made = await called(client, "import_problem", torch="torch.matmul", shapes=[[[8, 32], [32, 4]]])
            again = await called(client, "import_problem", torch="torch.matmul", shapes=[[[8, 32], [32, 4]]])
            assert "shapes" in await refused(client, "import_problem", torch="torch.matmul")
            lacks_dim = await refused(client, "import_problem", torch="torch.cumsum", shapes=[[8, 32]])

    assert made["problem_id"] == again["problem_id"] and again["registered"] == "already"
    assert 'missing 1 required positional arguments: "dim"' in lacks_dim and "a file with Model" in lacks_dim
    assert made["rtol"] == 1e-4
    assert made["tensors"] == "x0 float32 [8, 32], x1 float32 [32, 4] -> y float32 [8, 4]"


@pytest.mark.parametrize(
    ("name", "shapes", "dtype", "says"),
    [
        ("os.system", [[4]], "float32", "no function of torch"),
        ("torch.exp(__import__('os'))", [[4]], "float32", "no function of torch"),
        ("torch.exp", [[4], [[4], [4]]], "float32", "different numbers of inputs"),
        ("torch.exp", [[0]], "float32", "gives no sizes"),
        ("torch.exp", [], "float32", "different numbers"),
        ("torch.exp", [[4]], "float8_e5m2", "cannot be drawn"),
    ],
)
def test_a_line_that_makes_no_problem_says_why(name: str, shapes: list[Any], dtype: str, says: str):
    with pytest.raises(BadRequest, match=says):
        torch_problem(name, shapes, dtype, ImportOverrides())


ARENA = """
source_file_path: [pytorch_code_module/scaled.py]
compile_command: [python3 eval_tools/compile.py]
correctness_command: [python3 eval_tools/check.py]
target_file_path: hip/scaled.hip
task_type: torch2hip
prompt: {instructions: Scale rows.}
"""
ARENA_OUTPUTS = """
rtol = 1e-5
atol = 1e-6
replaces = "pytorch_code_module/scaled.py"
run = ["python3", "pytorch_code_module/scaled.py", "{n}", "{seed}"]
cases = [{ n = 64 }]
outputs = [{ name = "y", source = "out.bin", format = "binary", dtype = "float32" }]
"""
BOOK = """
import torch
class Scaled(torch.nn.Module):
    def __init__(self, width, factor=1):
        super().__init__()
        self.factor = factor * width
    def forward(self, x):
        return x * self.factor
def get_inputs():
    for rows in (3, 40):
        yield [torch.randn(rows, 8)]
def get_init_inputs():
    return [[], {"width": 8, "factor": 2}]
"""


@needs_torch
async def test_a_task_of_the_arena_is_judged_by_its_pytorch_module(lab: Lab, tmp_path: Path):
    (tmp_path / "pytorch_code_module").mkdir()
    (tmp_path / "config.yaml").write_text(ARENA)
    (tmp_path / "pytorch_code_module" / "scaled.py").write_text("x = 1")
    with pytest.raises(BadRequest, match="the judge does not accept its own command's PASS"):
        await read_problem(await source_at(tmp_path))
    (tmp_path / "pytorch_code_module" / "scaled.py").write_text(BOOK)
    info = await imported(lab, tmp_path)

    assert [shape["x_0"] for shape in info.shapes] == [3, 40]
    assert (await judged(lab, info.problem_id, BOOK.replace("x * self.factor", "self.factor * x"))).verdict == "correct"
    assert (await judged(lab, info.problem_id, BOOK.replace("x * self", "x + self"))).verdict == "incorrect"


async def test_wishes_go_with_the_arenas_modules_and_not_with_its_programs(tmp_path: Path):
    for name, text in {"config.yaml": ARENA, "pytorch_code_module/scaled.py": BOOK}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    wish = ImportOverrides(max_bytes=1000, rtol=0.5)
    assert (await read_problem(replace(await source_at(tmp_path), wish=wish))).rtol == 0.5

    (tmp_path / "pytorch_code_module/scaled.py").write_text("x = 1")
    (tmp_path / "extractor.toml").write_text(ARENA_OUTPUTS)
    with pytest.raises(BadRequest, match=r"this task is a program\. Write them into extractor\.toml"):
        await read_problem(replace(await source_at(tmp_path), wish=wish))
    found = await read_problem(replace(await source_at(tmp_path), wish=ImportOverrides(max_bytes=1000)))
    assert found.kind == "program" and found.program and found.program.replaces == "pytorch_code_module/scaled.py"


@pytest.mark.parametrize(
    ("sources", "where", "says"),
    [
        (
            "[a.cu, b.cu]",
            "image_repo_path: /opt/lib",
            "a.cu, b.cu are missing; the task names image_repo_path /opt/lib",
        ),
        ("a.cu", "", "a.cu is missing"),
        ("[]", "repo_url: https://host/lib.git", "the task names repo_url https://host/lib.git"),
    ],
)
async def test_a_task_of_the_arena_whose_sources_are_elsewhere_says_where(
    tmp_path: Path, sources: str, where: str, says: str
):
    (tmp_path / "config.yaml").write_text(
        f"source_file_path: {sources}\n{where}\ncompile_command: [make]\ncorrectness_command: [check]\n"
    )
    with pytest.raises(BadRequest) as caught:
        await read_problem(await source_at(tmp_path))
    assert str(caught.value.args[0]) == f"The task's sources are not in its folder: {says}."
    assert "extractor.toml" in str(caught.value.hint)


async def test_another_package_adds_a_format_as_the_page_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (
        (Path(__file__).parents[4] / "docs/reference/problem-formats.md").read_text().split("## A format of another")[1]
    )
    entry, code = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[0] for kind in ("toml", "python"))
    (group,) = tomllib.loads(entry)["project"]["entry-points"].items()
    package = tmp_path / "installed"
    facts = package / "ops_format-1.0.dist-info"
    facts.mkdir(parents=True)
    (package / "ops_format.py").write_text(code)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ops-format\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{group[0]}]\nops = {group[1]['ops']}\n")
    (tmp_path / "ops.json").write_text(re.findall(r"`(\{.*\})`", page)[0])
    monkeypatch.setattr(sys, "path", [str(package), *sys.path])
    known_formats.cache_clear()
    try:
        found = await read_problem(await source_at(tmp_path))
        (tmp_path / "ops.json").write_text("{}")
        with pytest.raises(BadRequest, match=r"looks like ops\.json .*KeyError: 'torch'"):
            await read_problem(await source_at(tmp_path))
    finally:
        known_formats.cache_clear()

    assert (group[0], found.name, found.cases) == (GROUP, "row softmax", [{"rows": 4, "columns": 80}])
    assert "return torch.softmax(x, dim=1)" in found.reference


TWO = """
import torch

ATOL = 1e-5
RTOL = 1e-4

def reference_forward(x, scale):
    return (x * scale[:, None]).logsumexp(dim=1)

def reference_backward(x, scale, grad):
    return torch.softmax(x * scale[:, None], dim=1) * (grad * scale)[:, None]

def generate_inputs(rows, columns, seed=42):
    torch.manual_seed(seed)
    x, scale, grad = torch.randn(rows, columns, device="cuda"), torch.rand(rows), torch.randn(rows)
    return x, scale, grad
"""
EVALUATION = "ROWS = 3_2\ndef check(columns):\n    return generate_inputs(ROWS, columns, seed=1)\n"
PAIR = """
import torch
def lse_forward(x, scale):
    z = x * scale[:, None]
    top = z.amax(dim=1)
    return top + (z - top[:, None]).exp().sum(dim=1).log()
def lse_backward(x, scale, grad):
    z = (x * scale[:, None] - lse_forward(x, scale)[:, None]).exp()
    return z * grad[:, None] * scale[:, None]
"""


@needs_torch
async def test_a_task_of_two_functions_is_judged_by_both(lab: Lab, tmp_path: Path):
    """Sizes that only its evaluation has are in the cases; each function is told by the end of its name."""
    task = TASK.replace('"size": 64, "scale": 2', '"columns": 40').replace('"size": 500, "scale": 3', '"columns": 70')
    own = gpumode_task(tmp_path, task, TWO)
    (own / "eval.py").write_text(EVALUATION)
    (own / "task.yml").write_text(task.replace("files:", 'files:\n  - {"name": "eval.py", "source": "eval.py"}'))
    problem = await imported(lab, own)
    assert [shape["columns"] for shape in problem.shapes] == [40, 70]
    assert (problem.rtol, problem.atol) == (1e-4, 1e-5)
    assert "[32, columns]" in problem.tensors
    assert (await judged(lab, problem.problem_id, PAIR)).verdict == "correct"
    wrong = await judged(lab, problem.problem_id, PAIR.replace("* scale[:, None]\n", "\n"))
    assert wrong.verdict == "incorrect"
    assert "output" in wrong.reason
    lacking = await judged(lab, problem.problem_id, PAIR.replace("lse_backward", "other"))
    assert lacking.verdict != "correct" and "ModelNew nor a function *_" in lacking.reason


@needs_torch
async def test_a_suites_own_tolerance_at_a_shape_is_told_and_decides_nothing(lab: Lab, tmp_path: Path):
    """The strictest tolerance holds for all; sizes may be texts, and a case with an empty tensor is left out."""
    definition = {
        "axes": {"M": {"type": "var"}},
        "inputs": {"x": {"shape": ["M", "3"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["M", "3"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    }
    (tmp_path / "definition.json").write_text(json.dumps(definition))
    rules = [
        {"tolerance": {"max_atol": 0.5, "max_rtol": 0.1, "required_match_ratio": 0.9}},
        {"checks": [{"max_atol": 1e-4, "max_rtol": 1e-3, "required_matched_ratio": 1.0, "max_error_cap": 0.1}]},
        {},
    ]
    sizes = (40, 60, 0)
    lines = [{"axes": {"M": m}, "inputs": {}, **rule} for m, rule in zip(sizes, rules, strict=True)]
    (tmp_path / "workload.jsonl").write_text("\n".join(json.dumps(each) for each in lines))
    info = await imported(lab, tmp_path)
    assert [shape["m"] for shape in info.shapes] == [40, 60]
    assert (info.rtol, info.atol) == (1e-3, 1e-4)
    assert any("1 cases are left out, as a tensor of theirs is empty" in note for note in info.notes)
    assert any("strictest" in each for each in info.conditions)

    def off(share: float, by: float) -> str:
        return f"def run(x):\n    y = x * 2\n    y.view(-1)[:int(y.numel() * {share})] += {by}\n    return y\n"

    assert (await judged(lab, info.problem_id, off(0, 0))).verdict == "correct"
    taken = await judged(lab, info.problem_id, off(0.05, 9))
    assert taken.verdict == "incorrect"
    assert "the suite's own rule takes it: 95 % of the elements are within atol 0.5 and rtol 0.1, 90 %" in taken.reason
    refused = await judged(lab, info.problem_id, off(0.25, 9))
    assert "the suite's own rule refuses it: 75 % of the elements" in refused.reason


@pytest.mark.parametrize("rule", [{"max_atol": -1}, {"max_rtol": "1"}, {"required_match_ratio": 1.5}])
async def test_a_tolerance_that_is_none_is_refused(tmp_path: Path, rule: dict[str, Any]):
    trace_folder(tmp_path, more=[{**workload(8, 1), "tolerance": rule}])
    with pytest.raises(BadRequest, match="A workload's tolerance is"):
        await read_problem(await source_at(tmp_path))


FOURS = """
import torch
import aiter
from aiter import dtypes
from aiter.ops.shuffle import shuffle_weight
from aiter.ops.triton.quant import dynamic_mxfp4_quant
from aiter.utility.fp4_utils import e8m0_shuffle
from utils import make_match_reference

def pair(x):
    codes, scales = dynamic_mxfp4_quant(x)
    return codes.view(dtypes.fp4x2), e8m0_shuffle(scales).view(dtypes.fp8_e8m0)

def generate_input(size: int, scale: int, seed: int):
    torch.manual_seed(seed)
    a, b = torch.randn(size, 64, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)
    codes, scales = pair(b * torch.logspace(-2, 2, 32)[:, None])
    return a, shuffle_weight(codes), scales

def ref_kernel(data):
    a, codes, scales = data
    mine, own = pair(a)
    return aiter.gemm_a4w4(mine, codes, own, scales, dtype=dtypes.bf16, bpreshuffle=True)

check_implementation = make_match_reference(ref_kernel, rtol=1e-2, atol=1e-2)
"""
BY_HAND = """
import torch
TABLE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

def custom_kernel(data):
    a, codes, scales = data
    rows = torch.zeros(a.shape[0], 64)
    for block in range(2):
        part = a[:, 32 * block:32 * block + 32].float()
        mantissa, exponent = torch.frexp(part.abs().amax(dim=1, keepdim=True))
        step = 2.0 ** (exponent - 1 + (mantissa >= 0.875) - 2)  # the power of two next to the largest, over 4
        size = part.abs() / step
        unit = 0.5 * 2 ** ((size >= 2).int() + (size >= 4).int())
        rows[:, 32 * block:32 * block + 32] = ((size / unit).round() * unit).clamp(max=6) * part.sign() * step
    plain, tiled = torch.zeros(32, 64), codes.view(torch.uint8).flatten().tolist()
    powers = scales.view(torch.uint8).flatten().tolist()
    for n in range(32):
        for k in range(64):
            byte = k // 2
            at = ((n // 16 * 1 + byte // 32) * 2 + byte % 32 // 16) * 256 + n % 16 * 16 + byte % 16
            code = tiled[at] >> 4 if k % 2 else tiled[at] & 15
            of = k // 32
            exponent = powers[((of % 4 * 16 + n % 16) * 2 + of // 4) * 2 + n // 16]
            plain[n, k] = TABLE[code & 7] * (-1) ** (code >> 3) * 2.0 ** (exponent - 127)
    return (rows @ plain.T).to(torch.bfloat16)
"""


@needs_torch
async def test_a_task_that_calls_aiter_is_judged_by_its_definition_where_aiter_is_missing(lab: Lab, tmp_path: Path):
    task = TASK.replace('"size": 500, "scale": 3', '"size": 40, "scale": 3')
    problem = await imported(lab, gpumode_task(tmp_path, task, FOURS))
    assert any("aiter is not on this host" in note for note in problem.notes)
    assert (await judged(lab, problem.problem_id, BY_HAND)).verdict == "correct"
    wrong = await judged(lab, problem.problem_id, BY_HAND.replace("n % 16 * 16 + byte % 16", "byte % 16 * 16 + n % 16"))
    assert wrong.verdict == "incorrect"
    assert "elements are wrong" in wrong.reason


@needs_torch
@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("from aiter import QuantType, get_triton_quant", "this name of aiter;"),
        ("from aiter.ops.shuffle import shuffle_weight, shuffle_bytes", "this name of aiter.ops.shuffle;"),
        ("import aiter; aiter.get_triton_quant()", "aiter.get_triton_quant;"),
    ],
)
def test_a_name_of_aiter_without_a_definition_says_so(use: str, what: str):
    done = with_aiter(use)
    assert "get_triton_quant" in done.stderr or "shuffle_bytes" in done.stderr
    assert f"the judge has no definition of {what} install aiter for judge_python" in done.stderr


@needs_torch
def test_a_kernel_that_asks_whether_aiter_has_a_name_goes_on_without_it():
    done = with_aiter(
        "import aiter\n"
        "print(hasattr(aiter, 'flash_attn_func'), getattr(aiter, 'rms_norm', None))\n"
        "try:\n    from aiter import rms_norm\nexcept ImportError:\n    print('without')\n"
        "import inspect; inspect.getmodule(aiter.mla.mla_decode_fwd)"
    )
    assert (done.stdout, done.stderr) == ("False None\nwithout\n", "")


def with_aiter(code: str) -> "subprocess.CompletedProcess[str]":
    code = f"import aiter_definitions as d; d.install_aiter()\n{code}"
    return subprocess.run(
        [torch_python(), "-c", code], cwd=ADAPTERS, capture_output=True, text=True, timeout=500, check=False
    )


@needs_torch
async def test_an_answer_is_of_the_type_of_the_memory_for_it_though_the_reference_computes_a_wider_one(
    lab: Lab, tmp_path: Path
):
    wider = REFERENCE.replace(
        """    out[...] = (pair["a"] + pair["b"].sum(dim=1)) * settings.scale + settings.bias.sum()
    return out
""",
        """    wide = pair["a"].double() + pair["b"].double().sum(dim=1)
    return wide * settings.scale + settings.bias.double().sum()
""",
    )
    task = TASK.replace('"size": 500, "scale": 3', '"size": 40, "scale": 3')
    problem = await imported(lab, gpumode_task(tmp_path, task, wider))
    assert problem.launcher_c.count("double") == 0
    assert (await judged(lab, problem.problem_id, RIGHT)).verdict == "correct"
    assert (
        await judged(lab, problem.problem_id, RIGHT.replace("return out", "return out.double()"))
    ).verdict == "correct"
    assert (await judged(lab, problem.problem_id, RIGHT.replace("[:, 1]", "[:, 0]"))).verdict == "incorrect"
