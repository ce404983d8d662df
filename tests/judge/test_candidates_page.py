"""Examples of docs/reference: candidates that the judge finds correct, files that are problems."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_mcp_server.package_files import CANDIDATES, PROBLEM_FORMATS, page
from gpu_mcp_server.services.evaluation.built_candidate import BuiltCandidate
from gpu_mcp_server.services.problems.formats.detect import read_problem, source_at
from tests.judge.harness import EXAMPLES, build, judge, torch_python
from tests.judge.launchers import compile_launcher, python_for
from tests.judge.program_harness import PROGRAM

EXAMPLE = dict(re.findall(r"```(\w+)\n(.*?)```", page(CANDIDATES), re.DOTALL))
TOML = re.findall(r"```toml\n(.*?)```", page(PROBLEM_FORMATS), re.DOTALL)
LAUNCHERS: Mapping[str, str] = dict(re.findall(r"#### (\w+)[^\n]*\n\n```python\n(.*?)```", page(CANDIDATES), re.DOTALL))
"""By the first word of the heading."""
PYTHON = [t for t in re.findall(r"```python\n(.*?)```", page(CANDIDATES), re.DOTALL) if t not in LAUNCHERS.values()]
ON_PROCESSOR = ("Numba", "CUDA", "Operators", "Helion", "Warp", "JAX")
COMPILED = ("Gluon", "CuTe", "TileLang", "CUDA", "CuPy", "Helion", "cuTile", "Warp")
BY_NVCC = ("TileLang", "CuPy")
LOWER = """
import contextlib, sys
import jax
import jax.numpy as jnp

jax.default_backend = lambda: "gpu"
named = {}
exec(sys.argv[1].replace("import torch\\n", ""), named)
gpu = contextlib.nullcontext()
if hasattr(jax.sharding, "AbstractDevice"):  # 0.11 lowers for a GPU that it knows by name
    kind = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    gpu = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=kind))
with gpu:
    traced = named["rowwise"].trace(jax.ShapeDtypeStruct((4096, 1000), jnp.float32))
    print(traced.lower(lowering_platforms=("cuda",)).as_text())
"""
"""Lowers Pallas for a GPU where there is none. Source: jax 0.10.2 and 0.11.2 (_src/pallas/triton)."""


def test_the_c_example_is_correct(tmp_path: Path):
    source = tmp_path / "kernel.c"
    source.write_text(EXAMPLE["c"])
    outcome = judge(tmp_path, EXAMPLES / "reference.py", build(source), max_rounds=7)

    assert outcome.verdict["verdict"] == "correct", outcome.verdict["reason"]


def test_the_cuda_example_compiles(tmp_path: Path):
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc here")
    source = tmp_path / "kernel.cu"
    source.write_text(EXAMPLE["cuda"])
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_90", "-o", str(tmp_path / "k.so"), str(source)]
    subprocess.run(command, check=True)


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(("number", "kind", "untimed"), [(0, "launcher", "Triton's interpreter"), (1, "model", "")])
def test_a_python_example_is_correct(tmp_path: Path, number: int, kind: str, untimed: str):
    source = tmp_path / "candidate.py"
    source.write_text(PYTHON[number])
    outcome = judge(
        tmp_path,
        EXAMPLES / "reference.py",
        source,
        python=torch_python(),
        candidate=kind,
        untimed=untimed,
        interpreted=untimed,
        prepare_s=100,
        max_rounds=7,
        round_timeout_s=100,
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.verdict["verdict"] == "correct", outcome.verdict["reason"]


def test_every_language_has_an_example_that_is_tested():
    assert set(LAUNCHERS) == {*ON_PROCESSOR, *COMPILED}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ON_PROCESSOR)
def test_an_example_in_another_language_is_correct_on_the_processor(tmp_path: Path, name: str):
    source, text = tmp_path / "candidate.py", LAUNCHERS[name]
    python = python_for(text)
    source.write_text(text)
    interpreter = BuiltCandidate("launcher", text.encode()).interpreter
    outcome = judge(
        tmp_path,
        EXAMPLES / "reference.py",
        source,
        python=python,
        candidate="launcher",
        interpreted=interpreter,
        untimed=interpreter,
        tier="smoke",
        shapes=[{"rows": 3, "cols": 40}],
        prepare_s=240,
        round_timeout_s=240,
        timeout_s=500,
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.verdict["verdict"] == "correct", outcome.verdict["reason"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COMPILED)
def test_an_example_in_another_language_compiles_without_a_gpu(tmp_path: Path, name: str):
    tensor = "fp32[64,1000]"
    sizes, by_nvcc = {"rows": 64, "cols": 1000}, name in BY_NVCC
    said = compile_launcher(tmp_path, LAUNCHERS[name], {"x": tensor, "y": tensor}, sizes, by_nvcc=by_nvcc)
    assert len(said["kernels"]) == 1 and "softmax" in said["kernels"][0], said


def test_the_example_in_pallas_is_lowered_for_a_gpu():
    """A block of 1000 columns, which is no power of two, passes in the interpreter and not on a GPU."""
    text = LAUNCHERS["JAX"]
    python, command = python_for(text), ("-I", "-c", LOWER)
    lowered = subprocess.run([python, *command, text], capture_output=True, text=True, check=False)
    assert lowered.returncode == 0, lowered.stderr[-2000:]
    assert "xla.gpu.triton" in lowered.stdout
    unpadded = text.replace("pl.next_power_of_2(x.shape[1])", "x.shape[1]")
    refused = subprocess.run([python, *command, unpadded], capture_output=True, text=True, check=False)
    assert "whose size is a power of 2" in refused.stderr, refused.stderr[-2000:]


async def test_the_examples_of_problem_files_are_problems(tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/problem.toml").write_text(TOML[0])
    (tmp_path / "own/naive.c").write_text(EXAMPLE["c"])
    shutil.copy(EXAMPLES / "reference.py", tmp_path / "own")
    (tmp_path / "program").mkdir()
    (tmp_path / "program/program.toml").write_text(TOML[1])
    (tmp_path / "program/app.c").write_text(PROGRAM)

    own = await read_problem(await source_at(tmp_path / "own"))
    assert own.implementations["naive"].source == EXAMPLE["c"]
    program = (await read_problem(await source_at(tmp_path / "program"))).program
    assert program is not None and program.secret() and program.replaces == "app.c"
