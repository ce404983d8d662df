"""Candidates that are Python files, judged on the CPU by a Python that has torch."""

from pathlib import Path

import pytest

from tests.judge.harness import EXAMPLES, judge, torch_python

pytestmark = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")

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
            EXAMPLES / "reference.py",
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


@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [
        ("return torch.softmax(x, 0)", "incorrect", "wrong"),
        ("return torch.softmax(x, -1)[1:]", "incorrect", "output y has shape [63, 1000], expected [64, 1000]"),
        ("return x, x", "incorrect", "ModelNew returned 2 values, the problem has 1"),
        ("raise RuntimeError('no luck')", "incorrect", "RuntimeError: no luck (candidate.py line 5)"),
        ("x.add_(1); return torch.softmax(x, -1)", "incorrect", "inputs are read-only"),
        ("import os; os._exit(0)", "incorrect", "exited with status 0"),
        ("import time; time.sleep(1000)", "incorrect", "did not end its first call (compilation counts) within 3 s"),
    ],
)
def test_a_model_that_fails_is_told_how(court, body, verdict, reason):
    found = court(MODEL.format(body=body), "model", **({"prepare_s": 3} if "sleep" in body else {}))

    assert found["verdict"] == verdict, found["reason"]
    assert reason in found["reason"]


@pytest.mark.parametrize(
    ("source", "kind", "reason"),
    [
        ("def f(:", "model", "SyntaxError"),
        ("x = 1", "model", "no class ModelNew"),
        ("x = 1", "triton", "no function launch: define launch(*inputs, *outputs, *dimensions)"),
        ("import nothing_like_it", "triton", "ModuleNotFoundError: No module named 'nothing_like_it'"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_incorrect_and_says_why(court, source, kind, reason):
    verdict = court(source, kind)

    assert verdict["verdict"] == "incorrect"
    assert reason in verdict["reason"]


def test_triton_on_the_processor_is_checked_and_not_timed(court):
    verdict = court(LAUNCH.replace("{more}", ""), "triton", untimed="Triton's interpreter", round_timeout_s=60)

    assert verdict["verdict"] == "correct", verdict["reason"]
    assert verdict["note"] == "correct; not timed: Triton's interpreter"
    assert verdict["speedup"] is None and verdict["shapes"][0]["calls_checked"] == 1


def test_a_triton_kernel_that_misses_the_tail_is_incorrect(court):
    source = LAUNCH.replace("{more}", ") if cols % 64 == 0 else tl.store(y, 0.0").replace("{more}", "")
    verdict = court(source, "triton", untimed="Triton's interpreter", round_timeout_s=60)

    assert verdict["verdict"] == "incorrect", verdict


def test_a_launcher_that_writes_nothing_is_a_cheat(court):
    verdict = court("def launch(x, y, rows, cols):\n    pass\n", "triton", untimed="x")

    assert (verdict["verdict"], "returned without computing" in verdict["reason"]) == ("cheat", True)
