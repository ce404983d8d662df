"""Installed packages that do not fit each other are the machine's fault; the same error of a candidate's line is not."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.toolchains.hints import hint_for
from tests.judge.harness import EXAMPLES, judge, torch_python
from tests.judge.misfit_packages import python_with_misfits

needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
LAUNCH = "import torch\ncalls = []\ndef launch(x, y, rows, cols):\n    calls.append(1)\n    {}\n    y.copy_(torch.softmax(x, -1))\n"
NO_NAME = "asks 1.5 uses asked_of.gone, which asked-of 2.0 does not have"
MISFITS = [
    ("import asks.attribute", NO_NAME),
    ("import asks.name", NO_NAME),
    ("import asks.wrapped", NO_NAME),
    ("import asks.getter", f"asks 1.5 uses numpy.float_, which numpy {np.__version__} does not have"),
    ("import asks.refusal", "asks 1.5 cannot be imported: asks needs asked_of 1.9 or less. Got 2.0."),
    ("import asks.torn", "asks 1.5 uses asks.gone, which it does not have: files of several versions lie there"),
]
OWN_FAULTS = [
    "import asked_of; asked_of.gone",
    "from asked_of import gone",
    "import numpy; numpy.float_",
    "import asks; asks.call('gone')",
    "raise ImportError('asks needs asked_of 1.9 or less')",
    "raise AttributeError(\"module 'asked_of' has no attribute 'gone'\")",
    "import asked_of as a; raise TypeError(\"bad\\nraised in %s line 1: module 'asked_of' has no attribute 'gone'\" % a.__file__)",
]


@pytest.fixture(scope="module")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    @cache
    def made_from(base: str) -> str:
        return python_with_misfits(tmp_path_factory.mktemp("python"), base)

    return made_from


@pytest.mark.parametrize(("line", "misfit"), MISFITS)
def test_a_reference_is_not_to_blame_for_packages_that_do_not_fit(
    tmp_path: Path, python_of: Callable[[str], str], line: str, misfit: str
):
    reference = line + "\n" + (EXAMPLES / "reference.py").read_text()
    outcome = judge(tmp_path, reference, python=python_of(sys.executable))

    lack = {"kind": "packages", "name": misfit, "role": "reference", "early": True}
    found = outcome.verdict.get("lacks") or {}
    assert found.pop("said", "") and found == lack, (outcome.verdict, outcome.stderr)


def judged(tmp_path: Path, python: str, body: str, **task: Any) -> dict[str, Any]:
    """Judge a launcher of which a line stands before its answer."""
    (tmp_path / "launcher.py").write_text(LAUNCH.format(body))
    outcome = judge(
        tmp_path, EXAMPLES / "reference.py", tmp_path / "launcher.py",
        python=python, candidate="launcher", prepare_s=100, round_timeout_s=100, max_rounds=7, **task,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    return outcome.verdict


@needs_torch
@pytest.mark.parametrize(("line", "misfit"), MISFITS[:5])
def test_a_candidate_is_not_to_blame_for_packages_that_do_not_fit(
    tmp_path: Path, python_of: Callable[[str], str], line: str, misfit: str
):
    verdict = judged(tmp_path, python_of(torch_python()), line)

    name = misfit if "numpy" not in misfit else verdict["lacks"]["name"]
    assert "verdict" not in verdict and name.startswith("asks 1.5 ")
    assert verdict["lacks"].pop("said")
    assert verdict["lacks"] == {"kind": "packages", "name": name, "role": "candidate", "early": True}


@needs_torch
@pytest.mark.parametrize("line", OWN_FAULTS)
def test_the_same_error_of_a_line_of_its_own_is_the_candidates(
    tmp_path: Path, python_of: Callable[[str], str], line: str
):
    verdict = judged(tmp_path, python_of(torch_python()), line)

    assert verdict.get("verdict") == "incorrect", verdict


@needs_torch
def test_who_has_answered_and_then_meets_a_misfit_keeps_its_attempt(tmp_path: Path, python_of: Callable[[str], str]):
    verdict = judged(tmp_path, python_of(torch_python()), "if len(calls) > 4: import asks.name")

    assert "verdict" not in verdict and verdict["lacks"]["early"] is False


@pytest.mark.parametrize(
    ("worker", "python"),
    [("triton_aot", sys.executable), pytest.param("launcher_aot", torch_python(), marks=needs_torch)],
)
def test_what_compiles_says_the_same(tmp_path: Path, python_of: Callable[[str], str], worker: str, python: str):
    request: dict[str, Any] = {
        "file": "k.py",
        "signature": {},
        "constants": {},
        "options": {},
        "backend": "cuda",
        "warp": 32,
    }
    request |= {"entry": "", "kernel": "k", "arch": "sm_90" if worker == "launcher_aot" else "90"}
    program = f"{worker_source(worker)}\nmain([{json.dumps(request)!r}])"
    for line, words in (
        ("import asks.name", f"packages do not fit each other: {NO_NAME}"),
        ("import asked_of; asked_of.gone", "AttributeError: module 'asked_of' has no attribute 'gone'"),
    ):
        (tmp_path / "k.py").write_text(f"\n\n{line}\n")
        command = [python_of(python), "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"k.py:3:1: error: {words}" in done.stderr, done.stderr
    assert "versions that fit" in (hint_for(f"packages do not fit each other: {NO_NAME}") or "")
