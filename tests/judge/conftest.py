"""A court for candidates: writes, compiles and judges them."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compiled import compiled
from tests.judge.harness import EXAMPLES, Outcome, build, judge
from tests.judge_package import JUDGE

Court = Callable[..., Outcome]


HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a libcuda.so.1 made from kernels.cu and the fake, and of a fake NVML."""
    folder = tmp_path_factory.mktemp("driver")
    kernels = re.sub(r"(?m)^#(include|pragma).*", "", (JUDGE / "devices/kernels.cu").read_text())
    cuda = {"fake_cuda.cpp": (HERE / "fake_cuda.cpp").read_text(), "kernels_without_includes.h": kernels}
    nvml = {"fake_nvml.cpp": (HERE / "fake_nvml.cpp").read_text()}
    for library, files in (("libcuda.so.1", cuda), ("libnvidia-ml.so.1", nvml)):
        command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-o", library, next(iter(files))]
        (folder / library).symlink_to(compiled(library, files, *command))
    return folder


@pytest.fixture
def court(tmp_path: Path) -> Court:
    """Return a function that judges C source (or an example's name) against the softmax reference."""

    def sit(candidate: str, **task: Any) -> Outcome:
        if candidate.endswith(".c"):
            source = EXAMPLES / candidate
        else:
            source = tmp_path / "candidate.c"
            source.write_text(candidate)
        first = not (tmp_path / "candidate").exists()
        folder = tmp_path if first else Path(tempfile.mkdtemp(dir=tmp_path))
        outcome = judge(folder, task.pop("reference", EXAMPLES / "reference.py"), build(source), **task)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return sit


@pytest.fixture
def register(tmp_path: Path) -> Court:
    """Return a function that registers a reference's source."""

    def sit(reference: str | Path, **task: Any) -> Outcome:
        outcome = judge(tmp_path, reference, **task)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return sit
