"""An overlay knows a call again by types, sizes, steps and plain values, quickly, and takes no other for it."""

import subprocess
from pathlib import Path

import pytest

from gpu_mcp_server.package_files import CALL_FILES, JUDGE, WORKERS
from tests.judge.harness import torch_python

pytestmark = pytest.mark.skipif(not torch_python(), reason="TEST_TORCH_PYTHON names no Python with torch")
FILES = [
    WORKERS / "program_overlay.py",
    *CALL_FILES,
    JUDGE / "candidate/launcher_call.py",
]
CANDIDATE = """
def launch(x, gain, y):
    y.fill_(7)
"""
SETTING = """
import torch
import call_writer as records
import program_overlay

class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(4))

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x, by=1, bound=0.5):
        return (x * self.inner.gain * by).clamp_max(bound)

def plan_of(module, *args):
    skeleton = records.Skeleton()
    form = skeleton.take((args, {}))
    case = {
        "tensors": [records.about_tensor(t) for t in skeleton.tensors], "leaves": skeleton.leaves, "dims": [],
        "answer": {"tensor": 0}, "answer_leaves": [], "outputs": [{"shape": list(args[0].shape), "dtype": "float32"}],
    }
    return {
        "kind": "module", "form": "launcher", "entry": "launch", "candidate": "candidate.py", "device": "cpu",
        "skeleton": form, "state": ["inner.gain"], "passed": [], "module": records.describe_module(module, None),
        "cases": [case], "attempt_id": "a-1",
    }

x, model = torch.randn(3, 4), Scale().eval()
overlay = program_overlay.Overlay(plan_of(model, x, *LEAVES))
program_overlay.replaced_class(overlay, Scale)

def by_kernel(*args, of=model, **kwargs):
    before = overlay.calls
    with torch.no_grad():
        answer = of(*args, **kwargs)
    assert (overlay.calls > before) == bool((answer == 7).all()), answer
    return overlay.calls > before
"""


def run(folder: Path, leaves: str, checks: str) -> None:
    """Run checks beside an overlay whose kernel was judged at calls with some plain values behind the tensor."""
    for path in FILES:
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "candidate.py").write_text(CANDIDATE)
    text = f"LEAVES = {leaves}\n{SETTING}\n{checks}"
    command = [torch_python(), "-c", f"import sys; sys.path.insert(0, '.')\n{text}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_a_call_of_tensors_is_known_again_and_others_are_not(tmp_path: Path):
    checks = """
for _ in range(3):
    assert by_kernel(x) and by_kernel(torch.randn(3, 4)) and by_kernel(torch.nn.Parameter(x))
    assert not by_kernel(torch.randn(4, 3).t())
    assert not by_kernel(torch.randn(2, 4))
    assert not by_kernel(x.double())
    assert not by_kernel(x, 1)
    assert not by_kernel(x=x)
with torch.no_grad():
    assert overlay._case((x.to_sparse_csr(),), {})[0] is None
    assert overlay._case((torch.nested.nested_tensor([x[0], x[1]]),), {})[0] is None
"""
    run(tmp_path, "()", checks)


def test_plain_values_are_told_apart_by_type_too(tmp_path: Path):
    checks = """
for _ in range(3):
    assert by_kernel(x, 1, 0.25)
    for by, bound in ((True, 0.25), (1.0, 0.25), (2, 0.25), (1, 0.5), (1, float("inf")), (1, float("nan"))):
        assert not by_kernel(x, by, bound), (by, bound)
"""
    run(tmp_path, "(1, 0.25)", checks)


def test_a_value_that_is_not_finite_stays_in_its_place(tmp_path: Path):
    checks = """
for _ in range(3):
    assert by_kernel(x, 1, float("inf"))
    assert not by_kernel(x, 1, 3.0)
    assert not by_kernel(x, 2, float("inf"))
assert not any(float("inf") in key for key in overlay._known)
"""
    run(tmp_path, "(1, float('inf'))", checks)


def test_a_module_with_another_part_is_looked_at_again(tmp_path: Path):
    checks = """
assert by_kernel(x)
kept = model.inner
model.inner.gain = torch.nn.Parameter(torch.full((4,), 2.0))
assert by_kernel(x), "other values are no other module"
model.inner = torch.nn.Identity()
model.inner.gain = torch.nn.Parameter(torch.ones(4))
assert not by_kernel(x)
model.inner = kept
assert by_kernel(x)
model.train()
assert not by_kernel(x)
"""
    run(tmp_path, "()", checks)
