"""A problem may require instructions: they are looked up in the machine code of what is correct.

No GPU is here: a judge's real reply on the processor stands in for one on a GPU, beside binaries that nvcc makes.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import ImportOverrides, TensorSpec
from gpu_mcp_server.services.builds.build_cache import BuildCache
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.required_instructions import NOT_READ
from gpu_mcp_server.services.evaluation.trial_judge import _code
from gpu_mcp_server.services.evaluation.verdict_cache import VerdictCache
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.detect import read_problem
from tests.judge.harness import torch_python
from tests.laboratory import HONEST, PROBLEM, laboratory
from tests.services.evaluation.test_extension_builds import HONEST as RELU_EXTENSION
from tests.services.evaluation.test_extension_builds import RELU, as_model, needs_torch
from tests.services.evaluation.test_verdict_cache import PROBLEM as NEGATION

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
TENSOR_CORES = (Path(__file__).parents[2] / "toolchains/data/tensor_cores.cu").read_text()
LAUNCH = 'extern "C" int launch(const float *x, float *y, long n, cudaStream_t stream) { return 0; }\n'
WHOLE: dict[str, Any] = {**PROBLEM, **{side: [TensorSpec(**PROBLEM[side][0])] for side in ("inputs", "outputs")}}
FP8 = "the problem requires fp8 tensor core"
TOML = NEGATION.replace("fixed_shapes = true", 'requires = ["fp8 tensor core", "WORD"]')


async def asked(lab: Lab, tier: str, requires: tuple[str, ...], wait_s: float) -> Evaluation:
    problem = await lab.evaluation.registry.register(**WHOLE, requires=requires)
    source, timing = CandidateSource(HONEST, "c", "kernel.c"), TimingOptions.model_validate({"tier": tier})
    return await lab.evaluation.evaluator.evaluate(problem.problem_id, source, timing=timing, wait_s=wait_s)


async def judged(lab: Lab, tier: str = "performance", requires: tuple[str, ...] = ("fp8 tensor core",)) -> Evaluation:
    found = await asked(lab, tier, requires, 240)
    assert found.verdict == "correct", found.reason
    return found


async def settled_as_on_a_gpu(lab: Lab, evaluation: Evaluation, **context: Any) -> Evaluation:
    """Settle a judged job again as if the candidate had these binaries and had run on a GPU."""
    row = await lab.jobs.table.get(evaluation.job_id or "")
    done = await lab.jobs.runner.wait(row.job_id, row.host)
    assert done is not None
    given: dict[str, Any] = {"device": "cuda", "binaries": [], "unread": "", **context}
    return await lab.evaluation.verdicts.finish(done, replace(row, context={**row.context, **given}))


async def binary(lab: Lab, kernels: str) -> str:
    """Return the library that nvcc makes for sm_90a of some of the kernels of tensor_cores.cu."""
    probe = await lab.hosts.probe("local")
    if probe.nvcc is None or "nvdisasm" not in probe.toolchains.tools:
        pytest.skip("nvcc or nvdisasm is not installed")
    text = re.sub(rf"(?m)^(?:WG)?MMA\((?!(?:{kernels}),).*$", "", TENSOR_CORES)
    text = re.sub(r"(?ms)^KERNEL .*?^}$", "", text) + LAUNCH
    source = CandidateSource(text, "cuda", "kernel.cu")
    wish = {"arch": "sm_90a", "compiler": "nvcc", "flags": ["-DARCH=90"], "library": True}
    result = await lab.builds.compiler.compile(source, BuildOptions.model_validate(wish))
    assert result.status == "ok", result.summary()
    return result.artifact_id or ""


async def test_work_in_another_type_is_not_accepted(lab: Lab):
    right = await asked(lab, "performance", ("fp8 tensor core",), 0)
    assert right.status == "running", "its record has no verdict yet"
    work = await binary(lab, "bf16_group|bf16")
    found = await settled_as_on_a_gpu(lab, right, binaries=[work])
    said = "the machine code of 2 kernels has bf16 (HGMMA.64x8x16.F32.BF16) instead"
    other = "the machine code of 2 kernels has bf16 (HMMA.16816.F32.BF16) instead"

    assert (found.verdict, found.trust, found.speedup) == ("incorrect", "", None)
    assert found.reason in (f"{FP8}; {said}", f"{FP8}; {other}")
    attempt = await lab.store.experience.get(found.attempt_id)
    assert (attempt.verdict, attempt.reason, attempt.speedup) == ("incorrect", found.reason, None)
    best = await lab.store.experience.list("best", problem_id=found.problem_id, limit=9)
    assert found.attempt_id not in [each.attempt_id for each in best.attempts]


@pytest.mark.parametrize(
    ("kernels", "verdict"), [("fp8_group|bf16", "correct"), ("fp8", "incorrect"), ("-", "incorrect")]
)
async def test_the_instructions_of_the_machine_code_decide_not_those_of_the_source(
    lab: Lab, kernels: str, verdict: str
):
    found = await settled_as_on_a_gpu(lab, await judged(lab), binaries=[await binary(lab, kernels)])

    assert found.verdict == verdict, (found.trust, found.evidence, found.reason)
    if verdict == "correct":
        assert FP8 not in found.trust and "fp8 (QGMMA.64x8x32.F32.E4M3.E5M2)" in found.evidence["tensor_cores"]
    elif kernels == "fp8":
        assert "of 1 kernel has fp16 (HMMA.16816.F32) instead" in found.reason, "Hopper's mma.sync widens fp8"


async def test_each_of_several_is_required(lab: Lab):
    both = await judged(lab, requires=("fp8 tensor core", "int8 tensor core"))
    found = await settled_as_on_a_gpu(lab, both, binaries=[await binary(lab, "fp8_group")])

    assert found.verdict == "incorrect" and found.reason.startswith("the problem requires int8 tensor core; ")


async def test_what_cannot_be_read_leaves_the_verdict_and_makes_its_time_unconfirmable(lab: Lab):
    right = await judged(lab)
    none = f"{FP8}, which only NVIDIA's GPUs have: judge it on one"
    assert right.trust.startswith(f"unconfirmable: {none}")
    assert none in ((await judged(lab, "smoke")).note or "")

    python = await settled_as_on_a_gpu(lab, right, unread="kernels that Python compiles or calls as it runs")
    words = await lab.store.artifacts.put(b"\x7fELF no machine code", name="kernel.so")
    garbage = await settled_as_on_a_gpu(lab, right, binaries=[words])
    besides = {"binaries": [await binary(lab, "bf16")], "unread": "kernels of -lcublas"}
    linked = await settled_as_on_a_gpu(lab, right, **besides)
    for found, said in (
        (python, "and kernels that Python compiles or calls as it runs cannot be read: write them in CUDA"),
        (garbage, "and its machine code cannot be read: The disassembler failed"),
        (linked, "bf16 (HMMA.16816.F32.BF16) instead, and kernels of -lcublas cannot be read"),
    ):
        assert found.verdict == "correct" and found.trust.startswith(f"unconfirmable: {FP8}"), found.trust
        assert (found.evidence.get("tensor_cores") == NOT_READ) == (found is garbage)
        assert said in found.trust, found.trust


@needs_torch
async def test_a_file_with_an_extension_says_what_was_compiled_and_that_there_may_be_more():
    wish = ImportOverrides(requires=["bf16 tensor core"])
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        info = await lab.evaluation.registry.import_file(ProblemSource("relu.py", RELU, wish=wish))
        found = await lab.evaluation.evaluator.evaluate(
            info.problem_id, as_model(RELU_EXTENSION), timing=TimingOptions(tier="smoke")
        )
        context = (await lab.jobs.table.get(found.job_id or "")).context
        built = await lab.store.artifacts.read(context["binaries"][0])

    assert "machine code with instructions of: bf16 tensor core" in info.conditions
    assert found.verdict == "correct" and "requires bf16 tensor core, which only NVIDIA's GPUs have" in (
        found.note or ""
    )
    assert built.startswith(b"\x7fELF") and "that Python compiles" in context["unread"]


async def test_an_unknown_word_is_refused_with_those_there_are(lab: Lab):
    with pytest.raises(BadRequest, match=r"fp4 tensor core.*fp8 tensor core.*fp64 tensor core"):
        await lab.evaluation.registry.register(**WHOLE, requires=["fp7 tensor core"])
    with pytest.raises(
        BadRequest, match=r"trials\.requires\.1: 'WORD' is none of the words there. There it takes 'fp4 tensor core'"
    ):
        await read_problem(ProblemSource("p.toml", TOML))


async def test_what_is_required_is_part_of_the_problem(lab: Lab):
    problem = await read_problem(ProblemSource("p.toml", TOML.replace("WORD", "int8 tensor core")))
    plain = await read_problem(ProblemSource("p.toml", TOML.replace('"fp8 tensor core", "WORD"', "")))

    assert problem.requires == ["fp8 tensor core", "int8 tensor core"] and problem.content_hash != plain.content_hash
    info = lab.store.problems.info(problem)
    assert "machine code with instructions of: fp8 tensor core, int8 tensor core" in info.conditions


async def test_a_verdict_without_the_disassembler_s_word_is_not_kept(lab: Lab):
    found = await settled_as_on_a_gpu(lab, await judged(lab), unread="kernels of -lcublas")
    kept = VerdictCache(BuildCache(lab.store.db, lab.store.artifacts), lab.store.experience)
    for key, evidence in (("first", found.evidence), ("second", {**found.evidence, "tensor_cores": NOT_READ})):
        await kept.put(key, found.model_copy(update={"evidence": evidence}))
    assert await kept.get("first") is not None and await kept.get("second") is None


@pytest.mark.parametrize("call", ["cuModuleLoadData(&m, p)", "cudaLibraryLoadFromFile(&l, p)", "dlopen(p, 1)", "f()"])
def test_who_loads_code_as_it_runs_may_have_kernels_that_are_not_read(call: str):
    source = SimpleNamespace(text=f"int launch() {{ return {call}; }}", language="cuda")
    ready = SimpleNamespace(built=None, binding="", binaries=())
    unread = _code(cast("Any", SimpleNamespace(source=source, flags=())), cast("Any", ready))["unread"]
    assert unread == ("" if call == "f()" else f"what it loads by {call.partition('(')[0]}")
