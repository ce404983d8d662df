"""Candidates that are Python files, judged on the CPU by a Python that has torch."""

import subprocess
from pathlib import Path

import pytest

from tests.judge.harness import EXAMPLES, edited, judge, torch_python
from tests.judge_package import packages

pytestmark = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")

INTERPRETED = {"untimed": "Triton's interpreter", "interpreted": "Triton's interpreter"}
MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
LAUNCH = """
import torch
import triton
import triton.language as tl

@triton.jit
def softmax(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * cols + at, powers / tl.sum(powers, axis=0), mask=at < cols{more})

def launch(x, y, rows, cols):
    softmax[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
"""


@pytest.fixture
def court(tmp_path: Path):
    def sit(source: str, kind: str, **task):
        path = tmp_path / "candidate.py"
        path.write_text(source)
        outcome = judge(
            tmp_path,
            task.pop("reference", EXAMPLES / "reference.py"),
            path,
            python=torch_python(),
            candidate=kind,
            **{"prepare_s": 100, "max_rounds": 7, **task},
        )
        assert outcome.exit_code == 0, outcome.stderr + (tmp_path / "noise.txt").read_text()[-2000:]
        return outcome.verdict

    return sit


def test_a_model_is_judged_and_timed_and_the_copy_is_said(court):
    verdict = court(MODEL.format(body="return torch.softmax(x, -1)"), "model", round_ms=1)

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "copied into the judge's" in str(verdict["shapes"][0]["notes"])
    assert verdict["evidence"]["candidate_torch"]


COMPILED = """
import torch

def wrong_where_sizes_are_unknown(graph, examples):
    unknown = any(isinstance(each, torch.SymInt) for each in examples)
    def run(*given):
        found = graph.forward(*given)
        timed = any(list(getattr(each, "shape", ())) == [64, 96] for each in given)
        return [found[0] + 1] if unknown and timed else found
    return run

@torch.compile(backend=wrong_where_sizes_are_unknown)
def softmax(x):
    return torch.softmax(x, -1)

{how}
"""
HOW = ("def launch(x, y, rows, cols):\n    y.copy_(softmax(x))", MODEL.format(body="return softmax(x)"))


@pytest.mark.parametrize(("kind", "how"), [("launcher", HOW[0]), ("model", HOW[1])], ids=["launch", "ModelNew"])
def test_what_is_timed_is_compiled_for_the_declared_shape_alone(court, kind, how):
    """Behind hidden shapes torch.compile has a slower kernel for all sizes, and takes that at each."""
    verdict = court(COMPILED.format(how=how), kind, shapes=[{"rows": 64, "cols": 96}], round_ms=1)

    assert verdict["verdict"] == "correct", verdict["reason"]


def test_kernels_for_all_sizes_that_cannot_be_forgotten_are_noted(court):
    how = HOW[1] + "\ndef refuse():\n    raise RuntimeError\ntorch.compiler.reset = refuse"
    source = COMPILED.replace("found[0] + 1", "found[0] + 0").format(how=how)
    verdict = court(source, "model", shapes=[{"rows": 64, "cols": 96}], round_ms=1)

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert "did not clear its caches (RuntimeError)" in str(verdict["shapes"][0]["notes"])


def test_a_models_results_are_copied_at_once_in_rounds_that_say_so(court):
    """As a GPU's do, where they stay in an arena otherwise."""
    copied = edited("devices/device.py", ("    copied = False", "    copied = True"))
    body = MODEL.format(body="return torch.softmax(x, -1)")
    shape = court(body, "model", round_ms=5, owner_files=copied)["shapes"][0]

    assert shape["verdict"] == "correct", shape["reason"]
    assert shape["samples"]["changed_calls"], "those rounds must have been played"


@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [
        ("return torch.softmax(x, 0)", "incorrect", "wrong"),
        ("return torch.softmax(x, -1)[1:]", "incorrect", "output y has shape [63, 1000], expected [64, 1000]"),
        ("return x, x", "incorrect", "ModelNew returned 2 values, the problem has 1"),
        ("torch.softmax(x, -1)", "incorrect", "ModelNew returned NoneType for output y, not a tensor"),
        ("return torch.softmax(x, -1).numpy()", "incorrect", "ModelNew returned ndarray for output y, not a tensor"),
        ("return torch.softmax(x, -1) + 7j", "incorrect", "output y is torch.complex64, expected torch.float32"),
        ("raise RuntimeError('no luck')", "incorrect", "RuntimeError: no luck (candidate.py line 5)"),
        ("assert x.sum() == 7", "incorrect", "AssertionError: of `assert x.sum() == 7` (candidate.py line 5)"),
        (
            "assert len(x) == 7, 'few'",
            "incorrect",
            "AssertionError: few of `assert len(x) == 7, 'few'` (candidate.py line 5)",
        ),
        ("raise ValueError('bad \\ud800 text')", "incorrect", "ValueError: bad ? text (candidate.py line 5)"),
        (
            "raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})",
            "incorrect",
            "its text raises ZeroDivisionError",
        ),
        ("x.add_(1); return torch.softmax(x, -1)", "incorrect", "inputs are read-only"),
        ("import os; os._exit(0)", "incorrect", "exited with status 0"),
        ("import time; time.sleep(1000)", "incorrect", "did not end its first call (compilation counts) within 3 s"),
    ],
)
def test_a_model_that_fails_is_told_how(court, body, verdict, reason):
    found = court(MODEL.format(body=body), "model", **({"prepare_s": 3} if "sleep" in body else {}))

    assert found["verdict"] == verdict, found["reason"]
    assert reason in found["reason"]


FORGED = """
import sys
import torch
link = sys.modules["gpu_mcp_judge.channel.packet_link"]
send = link.Link.send
def forged(self, message, descriptors=()):
    return send(self, dict(message, {more}), descriptors)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        link.Link.send = forged
        return torch.softmax(x, -1)
"""


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ("ran_ns=10**400", "correct"),
        ("ran_ns=float('nan')", "correct"),
        ("code=10**4000, call='A' * 300000", "incorrect"),
        ("error=['A' * 300000]", "incorrect"),
    ],
)
def test_what_a_candidate_says_neither_fails_the_judge_nor_floods_its_reason(court, more, verdict):
    found = court(FORGED.format(more=more), "model", round_ms=1)

    assert found["verdict"] == verdict
    assert len(found["reason"]) < 2000


@pytest.mark.parametrize(
    ("more", "verdict", "words"),
    [("", "correct", ""), (" + 0.9", "incorrect", "y is torch.float32, expected torch.int64")],
)
def test_an_index_with_a_fraction_is_not_the_index_it_is_cut_to(court, more, verdict, words):
    task = {
        "reference": "import numpy as np\n\ndef softmax(x):\n    return x.argmax(axis=1)\n",
        "outputs": [{"name": "y", "dtype": "int64", "shape": ["rows"]}],
    }
    found = court(MODEL.format(body="return x.argmax(dim=1)" + more), "model", **task)

    assert found["verdict"] == verdict and words in found["reason"], found["reason"]


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("def f(:", "model", "SyntaxError: invalid syntax (candidate.py line 1)"),
        ("x = 1", "model", "no class ModelNew"),
        (
            "from torch import nn\nclass Part(nn.Module): pass\nclass Model(nn.Module): pass",
            "model",
            "no class ModelNew: if its Model is the answer, end the file with ModelNew = Model",
        ),
        ("def launch(x, y, rows, cols): pass", "model", "no class ModelNew: its launch wants the language launcher"),
        (
            "class ModelNew:\n    def __init__(self, d): pass",
            "model",
            "cannot be constructed with 0 arguments: TypeError",
        ),
        ("x = 1", "launcher", "no function launch: define launch(*inputs, *outputs, *dimensions)"),
        ("import os; os._exit(0)", "launcher", "exited with status 0 without finishing its calls, while it was loaded"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_incorrect_and_says_why(court, source, kind, reason):
    verdict = court(source, kind)

    assert verdict["verdict"] == "incorrect"
    assert reason in verdict["reason"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class ModelNew(Model): pass", "Model"),
        ("class ModelNew(nn.Module): pass", "nn"),
        ("class ModelNew:\n    def __init__(self): self.size = height", "height"),
        ("import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return scaled(x)", "scaled"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_a_name_that_only_the_problem_has_is_said_to_be_its(court, source, name, there):
    problem = "import torch.nn as nn\nwidth, height = 3, 4\nclass Model: pass\ndef scaled(x): return x\n"
    problem += "def get_init_inputs(): return []\n"
    problem = problem if there else problem.replace(name, "other")
    found = court(f"open('problem.py', 'w').write({problem!r})\n{source}", "model")

    assert found["verdict"] == "incorrect" and f"NameError: name '{name}' is not defined" in found["reason"]
    assert ("the problem's file has it, and a candidate runs without that file" in found["reason"]) == there


def test_a_file_that_imports_what_is_not_there_is_not_judged(court):
    verdict = court("import nothing_like_it", "launcher")

    said = "the file cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_it' (candidate.py line 1)"
    lack = {"kind": "module", "name": "nothing_like_it", "role": "candidate", "early": True, "said": said}
    assert "verdict" not in verdict and verdict["lacks"] == lack


def test_triton_on_the_processor_is_checked_and_not_timed(court):
    verdict = court(LAUNCH.replace("{more}", ""), "launcher", **INTERPRETED, round_timeout_s=60)

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["note"] == "correct; not timed: Triton's interpreter"
    assert verdict["speedup"] is None
    assert verdict["shapes"][0]["calls_checked"] == 3, "one with inputs as declared, two with others"
    assert verdict["evidence"]["first_calls_s"][0] > 0, "its compilers' time, apart from the judge's"


@pytest.mark.parametrize("how", ["x.mul_(2)", "x[0, 0] = float('nan')"])
def test_a_launcher_that_writes_to_an_input_is_incorrect_in_the_interpreter_too(court, how):
    source = f"import torch\ndef launch(x, y, rows, cols):\n    y.copy_(torch.softmax(x, -1))\n    {how}\n"
    found = court(source, "launcher", **INTERPRETED, round_timeout_s=60)

    assert found["verdict"] == "incorrect"
    assert "writes to input x: inputs are read-only" in found["reason"], found["reason"]


@pytest.mark.parametrize(
    ("writes", "verdict", "words"),
    [
        ("", "incorrect", "the launcher returned Tensor, which the judge ignores: write into"),
        ("y.copy_", "correct", ""),
    ],
)
def test_a_launcher_that_returns_its_answer_is_told_to_write_it(court, writes, verdict, words):
    source = f"import torch\ndef launch(x, y, rows, cols):\n    return {writes}(torch.softmax(x, -1))\n"
    found = court(source, "launcher", **INTERPRETED, round_timeout_s=60)

    assert found["verdict"] == verdict and words in found["reason"], found["reason"]


@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        ("def run(x):\n    return torch.softmax(x, -1)", "correct", ""),
        ("def custom_kernel(data):\n    return [torch.softmax(data, -1)]", "correct", ""),
        ("def solve(x, y):\n    y.copy_(torch.softmax(x, -1))", "correct", ""),
        ("def run(x):\n    return torch.softmax(x, -1)[:1]", "incorrect", "returned a Tensor (1, "),
        ("def run(x):\n    return None", "incorrect", "returned a NoneType; wanted is a tensor ("),
        ("def run(x):\n    return x, x", "incorrect", "returned 2 results: 1 tensors are wanted"),
    ],
)
def test_a_suites_function_is_called_by_what_it_takes(court, source, verdict, words):
    found = court(f"import torch\n{source}\n", "launcher", tier="smoke")

    assert found["verdict"] == verdict and words in found["reason"], found["reason"]


def test_a_launcher_that_assigns_to_an_output_is_told_what_that_does(court):
    source = "import torch\ndef launch(x, y, rows, cols):\n    y = torch.softmax(x, -1)\n"
    found = court(source, "launcher", tier="smoke")

    assert found["verdict"] == "incorrect"
    assert "no output was written; the launcher assigns to y, which then names another tensor" in found["reason"]


def test_a_triton_kernel_that_misses_the_tail_is_incorrect(court):
    source = LAUNCH.replace("{more}", ") if cols % 64 == 0 else tl.store(y, 0.0").replace("{more}", "")
    verdict = court(source, "launcher", **INTERPRETED, round_timeout_s=60)

    assert verdict["verdict"] == "incorrect", verdict


LIKE_A_PACKAGE = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def softmax(x, y, cols, scale, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * cols + at, mask=at < cols, other=-float("inf"))
    powers = libdevice.{function}((values - tl.max(values, axis=0)) * scale.to(tl.float32))
    tl.store(y + tl.program_id(0) * cols + at, libdevice.div_rn(powers, tl.sum(powers, axis=0)), mask=at < cols)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, device="cuda")
        softmax[(len(x),)](x, y, x.shape[1], {scale}, BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
"""A model as packages of kernels are written: libdevice's functions, and a scalar that is cast."""


@pytest.mark.parametrize(
    ("function", "scale", "verdict"),
    [("exp", 1.0, "correct"), ("fast_expf", 1.0, "correct"), ("exp", 1.01, "incorrect"), ("expm1", 1.0, "incorrect")],
)
def test_a_model_in_triton_is_judged_by_the_interpreter(court, function, scale, verdict):
    source = LIKE_A_PACKAGE.format(function=function, scale=scale)
    found = court(source, "model", **INTERPRETED, round_timeout_s=60)

    assert found["verdict"] == verdict, found["reason"]
    assert "raised" not in found["reason"]


def test_a_function_that_the_interpreter_lacks_is_no_fault_of_the_candidate(court):
    source = LIKE_A_PACKAGE.format(function="j0", scale=1.0)
    found = court(source, "model", **INTERPRETED, round_timeout_s=60)

    assert found["lacks"]["kind"] == "gpu" and "interpreter mode: __nv_j0f" in found["lacks"]["said"], found


def test_a_model_that_writes_to_an_input_is_incorrect_in_the_interpreter_too(court):
    source = LIKE_A_PACKAGE.format(function="exp", scale=1.0).replace("        return y", "        return x.copy_(y)")
    found = court(source, "model", **INTERPRETED, round_timeout_s=60)

    assert found["verdict"] == "incorrect"
    assert "writes to input x: inputs are read-only" in found["reason"], found["reason"]


def test_a_launcher_that_writes_nothing_is_a_cheat(court):
    verdict = court("def launch(x, y, rows, cols):\n    pass\n", "launcher", **INTERPRETED)

    assert (verdict["verdict"], "returned without computing" in verdict["reason"]) == ("cheat", True)


OWN = "import os\nos.environ['TRITON_INTERPRET'] = '1'\n" + LAUNCH.replace("{more}", "").split("def launch")[0]
FALLBACKS = {
    "plain torch": ("model", MODEL.format(body="return torch.softmax(x, -1)"), "it launches no kernel of its own"),
    "a kernel whose result is dropped": (
        "model",
        OWN + "class ModelNew(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        y = torch.empty_like(x)\n"
        "        softmax[(x.shape[0],)](x.clone(), y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))\n"
        "        return torch.softmax(x, -1)\n",
        "1 launches of its own kernels left out",
    ),
    "a launcher that asks torch": (
        "launcher",
        "import torch\ndef launch(x, y, rows, cols):\n    y.copy_(torch.softmax(x, -1))\n",
        "it launches no kernel of its own",
    ),
}


@pytest.mark.parametrize("name", list(FALLBACKS))
def test_a_fall_back_to_the_library_is_found_where_the_problem_forbids_it(court, name):
    kind, source, words = FALLBACKS[name]
    verdict = court(source, kind, libraries="forbidden", tier="correctness", fixed_shapes=True, round_timeout_s=60)

    assert verdict["verdict"] == "incorrect", verdict
    assert verdict["reason"].startswith("fell back to the library, which the problem forbids") and words in str(verdict)


def test_a_library_that_decides_ties_otherwise_is_a_fall_back_too(court):
    """Of 64 normal float16 the largest has an equal in about one row of 300."""
    task = {
        "reference": "import torch\ndef f(x):\n    return x.argmax(dim=1).to(torch.int32)\n", "entry": "f", "framework": "torch",
        "inputs": [{"name": "x", "dtype": "float16", "shape": ["rows", "cols"], "distribution": "normal"}],
        "outputs": [{"name": "at", "dtype": "int32", "shape": ["rows"]}],
        "shapes": [{"rows": 9000, "cols": 64}], "libraries": "forbidden", "tier": "correctness", "fixed_shapes": True,
    }  # fmt: skip
    source = MODEL.format(body="return (x.shape[1] - 1 - x.flip(1).argmax(dim=1)).to(torch.int32)")
    verdict = court(source, "model", round_timeout_s=60, **task)

    assert verdict["verdict"] == "incorrect", verdict
    assert verdict["reason"].startswith("fell back to the library, which the problem forbids")


@pytest.mark.parametrize(
    ("kind", "source", "blind", "words"),
    [
        ("launcher", LAUNCH.replace("{more}", ""), [], "its answer rests on its own kernels (1 launches left out)"),
        (
            "model",
            MODEL.format(body="return torch.softmax(x, -1)"),
            ["ctypes"],
            "does not see kernels made with ctypes",
        ),
    ],
)
def test_a_kernel_that_does_the_work_is_no_fall_back_and_what_ghosts_do_not_see_is_said(
    court, kind, source, blind, words
):
    task = {"libraries": "forbidden", "tier": "correctness", "fixed_shapes": True, "round_timeout_s": 60}
    interpreted = INTERPRETED if kind == "launcher" else {}
    verdict = court(source, kind, blind_to=blind, **interpreted, **task)

    assert verdict["verdict"] == "correct" and words in verdict["trials_summary"], verdict


GHOSTS = """
import sys, types
sys.path.insert(0, sys.argv[1])
import torch
from gpu_mcp_judge.candidate.ghost_replay import Ghost
own = types.ModuleType("own")
def fresh(x): return x + 1
def within(x, y): y.copy_(x); return y
def number(x): return 7
own.fresh, own.within, own.number = fresh, within, number
candidate = {"kept": fresh}
x, y = torch.zeros(4), torch.zeros(4) - 5
with Ghost(torch, [own], [candidate]) as ghost:
    assert own.fresh(x).isnan().all() and candidate["kept"](x).isnan().all()
    assert own.within(x, y) is y and (y == -5).all(), "what it writes is lost"
    assert own.number(x) == 7 and own.fresh(x.int()).eq(2).all()
    assert ghost.launches == 5
assert own.fresh is fresh and candidate["kept"] is fresh and own.within(x, y).eq(0).all()
"""


def test_ghosts_of_extension_functions_lose_what_they_write_and_spoil_what_they_return():
    done = subprocess.run([torch_python(), "-c", GHOSTS, packages()], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


EIGHT = {
    "framework": "torch",
    "entry": "f",
    "inputs": [
        {"name": "a", "dtype": "float8_e4m3fn", "shape": ["n"]},
        {"name": "b", "dtype": "float4_e2m1fn_x2", "shape": ["n"]},
    ],
    "outputs": [
        {"name": "sum", "dtype": "float32", "shape": ["n"]},
        {"name": "twice", "dtype": "float8_e5m2", "shape": ["n"]},
    ],
    "shapes": [{"n": 1024}],
    "reference": """
import torch
def f(a, b):
    return a.float() + b.view(torch.uint8).float(), (2 * a.float()).to(torch.float8_e5m2)
""",
    "tier": "correctness",
}


def test_a_model_gets_packed_floats_by_torchs_types(court):
    body = "return x.float() + b.view(torch.uint8), (x.float() + x.float()).to(torch.float8_e5m2)"
    verdict = court(MODEL.replace("self, x", "self, x, b").format(body=body), "model", **EIGHT)

    assert verdict["verdict"] == "correct", verdict["reason"]


GRADIENTS = {
    "framework": "torch",
    "entry": "f",
    "inputs": [
        {"name": "x", "dtype": "float32", "shape": ["n"]},
        {"name": "w", "dtype": "float32", "shape": ["n"]},
        {"name": "d_y", "dtype": "float32", "shape": ["n"]},
    ],
    "outputs": [{"name": name, "dtype": "float32", "shape": ["n"]} for name in ("y", "grad_x", "grad_w")],
    "shapes": [{"n": 512}],
    "backward": 2,
    "reference": "import torch\ndef f(x, w):\n    return torch.tanh(x) * w\n",
    "tier": "correctness",
}
OWN_BACKWARD = """
import torch
class Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, w):
        t = torch.tanh(x)
        context.save_for_backward(t, w)
        return t * w
    @staticmethod
    def backward(context, d):
        t, w = context.saved_tensors
        return d * w * (1 - t * t), d * t SLIP
class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        return Product.apply(x, w)
"""


@pytest.mark.parametrize(
    ("source", "verdict", "words"),
    [
        (OWN_BACKWARD.replace("SLIP", ""), "correct", ""),
        (OWN_BACKWARD.replace("SLIP", "* 1.01"), "incorrect", "grad_w"),
        (OWN_BACKWARD.replace("Product.apply(x, w)", "Product.apply(x, w).detach()").replace("SLIP", ""),
         "incorrect", "no output has a gradient"),
    ],
)  # fmt: skip
def test_gradients_are_compared_where_a_problem_declares_backward(court, source, verdict, words):
    found = court(source, "model", **GRADIENTS)

    assert found["verdict"] == verdict and words in found["reason"], found["reason"]
    if verdict == "correct":
        assert set(found["evidence"]["errors"]) == {"y", "grad_x", "grad_w"}, "each is held against double precision"


TOTAL = {
    "framework": "torch",
    "entry": "f",
    "inputs": [{"name": "x", "dtype": "DTYPE", "shape": ["rows", "cols"], "distribution": "uniform"}],
    "outputs": [{"name": "y", "dtype": "DTYPE", "shape": ["rows"]}],
    "shapes": [{"rows": 4, "cols": 2000}],
    "reference": "import torch\ndef f(x):\n    return (1e8 + x.double().sum(1)).to(x.dtype)\n",
    "tier": "correctness",
    "rtol": 1.2e-5,
}


@pytest.mark.parametrize(
    ("slip", "dtype", "robust"),
    [("", "float32", "yes"), ("", "bfloat16", "yes"), ("s[1] *= 1.01", "float32", "no")],
)
def test_a_model_is_forgiven_what_adding_up_in_order_loses(court, slip, dtype, robust):
    """Each small term is lost next to the large one: 1,000 of 1e8 as declared, within the tolerance, three times as much
    with the offset. What is lost has a deviation of 13."""
    body = f"""
        s = torch.full((x.shape[0],), 1e8)
        for column in x.float().T:
            s = s + column
        if not torch.equal(x, x.abs()):
            {slip or "pass"}
        return s.to(x.dtype)"""
    task = {**TOTAL, **{side: [{**TOTAL[side][0], "dtype": dtype}] for side in ("inputs", "outputs")}}
    found = court(MODEL.format(body=body), "model", **task)

    assert found["verdict"] == "correct", found["reason"]
    assert found["robust"].startswith(robust), "the slip is at inputs that are not all positive alone"


def test_a_launcher_of_a_suite_that_uses_no_triton_is_called_and_timed(tmp_path: Path):
    source = tmp_path / "candidate.py"
    source.write_text("import torch\n\ndef run(x, y, rows, cols):\n    torch.softmax(x, -1, out=y)\n")
    task = {"candidate": "launcher", "prepare_s": 100, "max_rounds": 7}
    outcome = judge(tmp_path, EXAMPLES / "reference.py", source, python=torch_python(), **task)
    assert outcome.verdict["verdict"] == "correct", outcome.verdict
    assert outcome.verdict["shapes"][0]["candidate"]["median_us"] > 0, "it is no interpreter's time"


WRITTEN_FOR_A_GPU = (
    LAUNCH.format(more="")
    + """
import argparse
from triton.runtime import driver

DEVICE = triton.runtime.driver.active.get_active_torch_device()
SIZE = driver.active.utils.get_device_properties(DEVICE.index)["multiprocessor_count"]
argparse.ArgumentParser().parse_args()

def start(x, y, rows, cols):
    assert x.is_cuda and x.device == DEVICE and driver.active.get_current_target().backend == "cuda"
    block = triton.next_power_of_2(cols)
    kernel = softmax.warmup(x, y, cols, BLOCK=block, grid=(1,))
    kernel._init_handles()
    answer = torch.empty_like(x, device="cuda")
    kernel[(min(rows, SIZE * kernel.n_regs),)](x, answer, cols, block)
    y.copy_(answer)

given = torch.rand(2000, 1000, device=DEVICE)
start(given, torch.empty_like(given), *given.shape)
print(triton.testing.do_bench(lambda: given + 1))
later = torch.softmax
{more}
"""
)


def interpreted_in_full(court, more: str, **changes: str):
    text = WRITTEN_FOR_A_GPU.replace("def launch(", "def other(").replace("{more}", more)
    for old, new in changes.items():
        text = text.replace(old, new)
    return court(text, "launcher", **INTERPRETED, fixed_shapes=True, tier="correctness", round_timeout_s=60), text[
        : text.index("kernel[(min")
    ].count("\n") + 1


def test_a_file_with_its_own_test_and_benchmark_is_interpreted_without_them(court):
    found, line = interpreted_in_full(court, "launch = start")
    assert found["verdict"] == "correct", found["reason"]
    notes = found["shapes"][0]["notes"]
    (note,) = [note for note in notes if "not run as the file was loaded" in note]
    assert f"the judge makes its own (candidate.py line {line}), and 1 more" in note
    assert any("registers" in each and "made up" in each for each in notes)


@pytest.mark.parametrize(
    ("more", "changes", "words"),
    [
        ("table = 1 / 0\n\ndef launch(x, y, rows, cols):\n    y.copy_(x + table)\n", {}, "ZeroDivisionError"),
        ("launch = start", {"y.copy_(answer)": "y.copy_(x)"}, "wrong"),
    ],
    ids=["what it calls was not defined", "wrong"],
)
def test_a_file_that_was_not_run_in_full_is_no_better_for_it(court, more: str, changes: dict[str, str], words: str):
    found, _ = interpreted_in_full(court, more, **changes)
    assert found["verdict"] == "incorrect" and words in found["reason"], found["reason"]
