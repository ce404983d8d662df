"""The reference's context on a GPU is made in a thread of its own, and is there when it says that it started."""

import json
import subprocess

import pytest

from tests.judge.harness import torch_python
from tests.judge_package import packages

SCRIPT = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
from gpu_mcp_judge.reference import arrays_torch_cuda as arrays
from gpu_mcp_judge.verdicts import JudgeFailed

made, gate, main = [], threading.Event(), threading.get_ident()

class Driver:
    def __init__(self):
        if threading.get_ident() != main:
            gate.wait(60)
        made.append("thread" if threading.get_ident() != main else "main")
        if sys.argv[2] == "fails":
            raise JudgeFailed("no GPU")

arrays.Driver = Driver
arrays.GpuTurns = lambda driver: "turns"
arrays.torch.cuda.set_device = lambda device: made.append(("set", device.index))
arrays.torch.zeros = lambda *size, device: None
one = arrays.TorchCudaArrays()
one.begin()
before = list(made)
gate.set()
try:
    one.start()
    said = one.turns
except JudgeFailed as error:
    said = str(error)
print(json.dumps([before, made, said]))
"""


@pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
@pytest.mark.parametrize(("how", "said"), [("works", "turns"), ("fails", "no GPU")])
def test_a_context_is_begun_beside_and_awaited(how, said):
    ran = subprocess.run(
        [torch_python(), "-I", "-c", SCRIPT, packages(), how], capture_output=True, text=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[], ["thread", ["set", 0], "main"], said]
    assert not ran.stderr, "what goes wrong in the thread is told once, by who needs it"
