"""Equipment that a host lacks is named, and is neither a verdict on the candidate nor an attempt."""

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, MachineLacks, NotFound, ToolMissing
from gpu_mcp_server.models.build import BuildOptions
from gpu_mcp_server.models.evaluation import TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.python_siblings import joined_python, texts_in, with_own_places
from gpu_mcp_server.services.evaluation.missing_equipment import check_one_file, program_missing_in
from gpu_mcp_server.services.lab import Lab
from tests.judge.harness import torch_python
from tests.judge.misfit_packages import packages_of, python_with_misfits
from tests.laboratory import PROBLEM, laboratory

pytestmark = pytest.mark.timeout(400)
needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
WHOLE: dict[str, Any] = {**PROBLEM, **{side: [TensorSpec(**PROBLEM[side][0])] for side in ("inputs", "outputs")}}
SMOKE = TimingOptions(tier="smoke")
AUTOTUNED = """
import torch, triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"SIZE": 128}), triton.Config({"SIZE": 64})], key=["n"])
@triton.jit
def doubled(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2 + 1, mask=at < n)

def launch(x, y, n):
    doubled[lambda meta: (triton.cdiv(n, meta["SIZE"]),)](x, y, n)
"""
MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
        return x * 2 + 1
"""


@pytest.fixture(scope="module")
async def torch_lab() -> AsyncIterator[Lab]:
    async with laboratory(hosts={"local": {"kind": "local", "judge_python": torch_python()}}) as lab:
        yield lab


async def affine(lab: Lab) -> str:
    x, y = (TensorSpec(name=name, dtype="float32", shape=["n"]) for name in "xy")
    text = "import torch\ndef reference(x):\n    return x * 2 + 1\n"
    problem = await lab.evaluation.registry.register(
        name="affine", inputs=[x], outputs=[y], shapes=[{"n": 1024}], rtol=1e-5, atol=1e-6, reference=text,
        fixed_shapes=True,
    )  # fmt: skip
    return problem.problem_id


@needs_torch
async def test_an_autotuned_triton_kernel_is_judged_by_the_interpreter(torch_lab: Lab):
    source = CandidateSource(AUTOTUNED, "triton", "kernel.py")
    found = await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), source, device="cpu")

    assert found.verdict == "correct", found.reason
    assert "not timed" in (found.note or "")
    assert "the first configuration" in str(found.shapes[0].notes)
    wrong = CandidateSource(AUTOTUNED.replace("* 2 + 1", "* 2 + 1.01"), "triton", "kernel.py")
    again = await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), wrong, device="cpu")
    assert again.verdict == "incorrect"


@needs_torch
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import nonexistent_abc", "imports the module 'nonexistent_abc'"),
        ("import torch.nonexistent_part", "imports the module 'torch.nonexistent_part'"),
        ("import ctypes; ctypes.CDLL('libcuda.so.1')", "loads the library 'libcuda.so.1'"),
        ("import ctypes; ctypes.CDLL('libsurely_not_there.so.3')", "loads the library 'libsurely_not_there.so.3'"),
        ("x = x.cuda()", "Torch not compiled with CUDA enabled (model.py line 5)"),
        ("raise RuntimeError('0 active drivers ([]). There should only be one.')", "asks for a GPU"),
        ("assert x.is_cuda", "asks for a GPU"),
        ("import subprocess; subprocess.run(['nvcc'])", "has 'nvcc' run"),
    ],
)
async def test_what_is_not_there_is_named_and_is_no_attempt(torch_lab: Lab, body: str, words: str):
    if "nvcc" in body and shutil.which("nvcc"):
        pytest.skip("there is an nvcc here")
    problem = await affine(torch_lab)
    before = len((await torch_lab.store.experience.list("recent")).attempts)
    with pytest.raises(MachineLacks) as error:
        await torch_lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(MODEL.format(body=body), "python", "model.py"), timing=SMOKE, device="cpu"
        )

    assert words in str(error.value) and "host 'local'" in str(error.value), error.value
    assert len((await torch_lab.store.experience.list("recent")).attempts) == before
    newest = (await torch_lab.commands.recent(1))[0]
    assert "not judged" in str((await torch_lab.commands.status(newest.job_id)).note), "its job can be asked about"


@needs_torch
async def test_a_launcher_without_its_package_or_its_gpu_is_named_and_no_attempt(torch_lab: Lab):
    problem = await affine(torch_lab)
    before = len((await torch_lab.store.experience.list("recent")).attempts)
    launch = "\ndef launch(x, y, n):\n    raise RuntimeError('anything at all')\n"
    for text, words in (
        ("import tilelang.not_there", "imports the module 'tilelang.not_there'"),
        ("from triton.experimental import gluon", "has kernels in Gluon, which run on a GPU alone"),
    ):
        source = CandidateSource(text + launch, "launcher", "kernel.py")
        with pytest.raises(MachineLacks) as error:
            await torch_lab.evaluation.evaluator.evaluate(problem, source, timing=SMOKE, device="cpu")
        assert words in str(error.value)
    assert len((await torch_lab.store.experience.list("recent")).attempts) == before


@needs_torch
async def test_a_reference_that_asks_for_a_gpu_is_quoted_by_the_end_of_its_traceback(torch_lab: Lab):
    text = "import torch\ndef reference(x):\n    raise RuntimeError('0 active drivers ([])')\n"
    tensor = TensorSpec(name="x", dtype="float32", shape=["n"])
    with pytest.raises(MachineLacks, match=r"\(not believed\): RuntimeError: 0 active drivers"):
        await torch_lab.evaluation.registry.register(
            name="p", reference=text, inputs=[tensor], outputs=[tensor.model_copy(update={"name": "y"})],
            shapes=[{"n": 8}], rtol=0.0, atol=0.0,
        )  # fmt: skip


@needs_torch
async def test_packages_that_do_not_fit_each_other_are_named_and_no_attempt(tmp_path: Path):
    python = python_with_misfits(tmp_path, torch_python())
    text = "import asks.name\ndef launch(x, y, n):\n    y.copy_(x * 2 + 1)\n"
    source = CandidateSource(text, "launcher", "kernel.py")
    words = "asks 1.5 uses asked_of.gone, which asked-of 2.0 does not have"
    host = {"kind": "local", "judge_python": python, "roots": [str(packages_of(torch_python()))]}
    async with laboratory(hosts={"local": host}) as lab:
        with pytest.raises(MachineLacks) as error:
            await lab.evaluation.evaluator.evaluate(await affine(lab), source, timing=SMOKE, device="cpu")
        assert f"do not fit each other: {words}, as installed on host 'local'" in str(error.value)
        assert f"versions that fit each other into judge_python ({python})" in error.value.hint
        assert not (await lab.store.experience.list("recent")).attempts
        wish = BuildOptions(library=False, signature={"x": "fp32[8]", "y": "fp32[8]"}, constants={"n": 8})
        made = await lab.builds.compiler.compile(source, wish)
        assert made.status == "failed" and made.diagnostics[0].message == f"packages do not fit each other: {words}"
        assert "The source is not at fault" in (made.diagnostics[0].hint or "")


EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline

def built():
    return load_inline("on_gpu", "int f(int x);", "int f(int x) {{ return x; }}", functions=["f"])

{load}
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {call}
        return x * 2 + 1
"""


@needs_torch
@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"load": "built()", "call": "pass"}, r"compile CUDA \(extension on_gpu\), and torch \S+ has no CUDA on host"),
        ({"load": "try: built()\nexcept Exception: pass", "call": "pass"}, "has no CUDA on host"),
        ({"load": "", "call": "built()"}, "the candidate asks for a GPU, as it is judged on the processor"),
        ({"load": "torch.utils.cpp_extension.CUDA_HOME = '/usr'", "call": "built()"}, "the candidate asks for a GPU"),
    ],
)
async def test_an_extension_in_cuda_is_no_fault_where_torch_has_none(
    torch_lab: Lab, places: dict[str, str], words: str
):
    python = (await torch_lab.jobs.runner.probe("local")).judge
    if python is None or "+cpu" not in str(python.torch):
        pytest.skip("torch has CUDA here")
    source = CandidateSource(EXTENSION.format(**places), "python", "model.py")
    with pytest.raises(MachineLacks, match=words):
        await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), source, timing=SMOKE, device="cpu")


@needs_torch
@pytest.mark.parametrize(
    "body",
    [
        "raise ModuleNotFoundError(\"No module named 'torch'\")",
        "raise OSError('libc.so.6: cannot open shared object file')",
        "raise RuntimeError('/job/candidate.so: undefined symbol: cublasCreate_v2')",
        "raise FileNotFoundError(\"No such file or directory: 'gcc'\")",
    ],
)
async def test_who_says_that_something_is_missing_which_is_there_gets_a_verdict(torch_lab: Lab, body: str):
    source = CandidateSource(MODEL.format(body=body), "python", "model.py")
    found = await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), source, timing=SMOKE, device="cpu")

    assert found.verdict == "incorrect"


@needs_torch
async def test_who_has_answered_and_then_misses_something_keeps_its_attempt_without_a_verdict(torch_lab: Lab):
    body = "self.calls = getattr(self, 'calls', 0) + 1\n        if self.calls > 4: import nonexistent_abc"
    problem = await affine(torch_lab)
    with pytest.raises(MachineLacks):
        await torch_lab.evaluation.evaluator.evaluate(
            problem, CandidateSource(MODEL.format(body=body), "python", "model.py"), device="cpu"
        )

    (kept, *_) = (await torch_lab.store.experience.list("recent", problem_id=problem)).attempts
    assert (kept.status, kept.verdict) == ("refused", None) and "nonexistent_abc" in (kept.reason or "")


@needs_torch
async def test_an_audit_that_misses_something_confirms_nothing_and_stays_on_record(torch_lab: Lab):
    """A candidate that does not want to be judged again cannot undo that somebody tried to."""
    source = CandidateSource(MODEL.format(body=""), "python", "model.py")
    first = await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), source, timing=SMOKE, device="cpu")
    assert first.verdict == "correct", first.reason
    text = MODEL.format(body="import nonexistent_abc").encode()
    artifact = await torch_lab.store.artifacts.put(text, name="model.py", media_type="text/x-python")
    await torch_lab.store.db.execute(
        "UPDATE attempts SET source_artifact_id = ? WHERE attempt_id = ?", (artifact, first.attempt_id)
    )
    result = await torch_lab.evaluation.auditor.audit(first.attempt_id)

    assert result.outcome == "not_judged" and "nonexistent_abc" in result.why
    kept = await torch_lab.store.experience.get(result.audit_attempt_id)
    assert (kept.status, kept.parent_id) == ("refused", first.attempt_id)


async def test_a_reference_that_imports_what_is_not_there_is_an_error_that_names_it(own_lab: Lab):
    reference = "import nonexistent_abc\n" + PROBLEM["reference"]
    with pytest.raises(MachineLacks, match="the reference imports the module 'nonexistent_abc'"):
        await own_lab.evaluation.registry.register(**{**WHOLE, "reference": reference})


async def test_a_host_whose_judge_lacks_torch_is_named_and_nothing_is_recorded(own_lab: Lab):
    probe = await own_lab.jobs.runner.probe("local")
    if probe.judge and probe.judge.torch:
        pytest.skip("the judge's Python has torch")
    problem = await own_lab.evaluation.registry.register(**WHOLE)
    with pytest.raises(ToolMissing, match="torch is not installed on host 'local'"):
        await own_lab.evaluation.evaluator.evaluate(problem.problem_id, CandidateSource(MODEL, "python", "model.py"))
    assert not (await own_lab.store.experience.list("recent")).attempts


@pytest.mark.parametrize(
    ("text", "named"),
    [("from .helper import f\n", ".helper"), ("from . import helper, other\n", ".helper, other")],
)
def test_a_file_that_imports_from_beside_itself_is_refused_before_it_is_an_attempt(text: str, named: str):
    with pytest.raises(BadRequest, match=f"imports {named} from a file beside it .line 1."):
        check_one_file(text)


def test_a_file_that_may_do_without_is_judged():
    check_one_file("try:\n    from .helper import f\nexcept ImportError:\n    f = None\n")
    check_one_file("no python at all {")


@pytest.mark.parametrize(
    ("log", "program"),
    [
        ("FAILED: main.o\n/bin/sh: 1: icc: not found\n", ""),
        ("FAILED: main.o\n/bin/sh: 1: g++: not found\n", ""),
        ("FAILED: cuda.o\n/bin/sh: 1: nvcc: not found\n", "nvcc"),
        ("RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", "ninja"),
        ("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "nvcc"),
        ("main.cpp:1:2: error: #error /bin/sh: 1: nvcc: not found", ""),
    ],
)
async def test_a_build_that_failed_for_want_of_a_program_is_told_from_one_of_a_bad_source(
    lab: Lab, log: str, program: str
):
    """This host has a g++ and, as far as the log matters, no nvcc."""
    probe = (await lab.jobs.runner.probe("local")).model_copy(update={"nvcc": None})

    assert program_missing_in(log, probe) == program


@pytest.mark.parametrize(
    "head",
    [
        "from __future__ import annotations",
        "from __future__ import (\n    annotations,\n    division,  # old\n)",
        '"""What é does."""; from __future__ import annotations; import json',
        "from   __future__ import annotations as later, division",
        "# first\r\nfrom __future__ import \\\r\n    annotations",
    ],
)
def test_imports_from_the_future_stand_first_however_they_are_written(head: str):
    sent = head + "\nimport beside\n\ndef launch(x: Nowhere) -> None:\n    raise ValueError(beside.half(4))\n"
    text = joined_python({"norms.py": sent, "beside.py": "def half(x):\n    return x / 2\n"}, "norms.py")
    made: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), made)

    with pytest.raises(ValueError, match=r"2\.0") as raised:
        made["launch"](None)
    lines = raised.value.__traceback__
    assert lines is not None and lines.tb_next is not None
    place = f"candidate.py line {lines.tb_next.tb_lineno}"
    own = 1 + len(re.split("\r\n|\n", head)) + 3
    assert with_own_places(place, text, "norms.py") == f"norms.py line {own}"


def test_advice_is_of_the_files_that_were_sent_and_not_of_what_installs_them():
    own = "import beside\n\ndef launch(x, y, n):\n    y.copy_(beside.half(x) * 4 + 1)\n"
    beside = "import triton\n\ndef half(x):\n    return x / 2\n"
    text = joined_python({"norms.py": own, "beside.py": beside}, "norms.py", first=False)

    assert texts_in(text) == [own, beside]
    assert texts_in(own) == [own]
    lookalike = "def _install_siblings(a):\n    pass\n_install_siblings(1)\n"
    assert texts_in(lookalike) == [lookalike]
    numbers = "def _install_siblings(a, b): pass\n_install_siblings({'x': 1}, 2)\nimport cupy\n"
    hidden = "".join(texts_in(numbers + "\n\nif False:\n    import os\nimport numba\n"))
    assert "import cupy" in hidden and "import numba" in hidden


@needs_torch
async def test_an_error_names_the_file_and_line_that_were_sent(torch_lab: Lab):
    sent = "from __future__ import annotations\nimport beside\n\n\ndef launch(x, y, n):\n    beside.half(x)\n    raise ValueError\n"
    text = joined_python({"norms.py": sent, "beside.py": "def half(x):\n    return x / 2\n"}, "norms.py", first=False)
    source = CandidateSource(text, "launcher", "norms.py")
    found = await torch_lab.evaluation.evaluator.evaluate(await affine(torch_lab), source, timing=SMOKE, device="cpu")
    assert found.verdict == "incorrect" and "(norms.py line 7)" in found.reason, found.reason
    with pytest.raises(NotFound) as said:
        await torch_lab.builds.inspector.inspect(found.attempt_id)
    assert "compile_kernel of the same file" in said.value.hint
