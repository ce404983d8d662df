"""Inputs that the reference makes on a GPU do not leave it: the driver is a fake over memory files."""

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judge_package import packages

HERE = Path(__file__).parents[1]
SCRIPT = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu_mcp_judge.inputs import input_transfer
from gpu_mcp_judge.devices.cuda_driver import Shared
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.devices.cuda import CudaDevice
from gpu_mcp_judge.numerics.tensors import Tensor

COUNT, SETS = 300, 5
input_transfer.AT_ONCE_BYTES = 2 * 2560
task = {"framework": "torch", "rtol": 1e-5, "atol": 1e-6}
device = CudaDevice(Well("11" * 32), task)
kinds = ("made", "weights", "weights", "made")
items = [Tensor("t%d" % n, "float32", (COUNT,), ("n",), kind) for n, kind in enumerate(kinds)]
out = Tensor("y", "float32", (COUNT,), ("n",), "normal")

def array(address):
    return np.frombuffer((ctypes.c_float * COUNT).from_address(address), dtype=np.float32)

class Reference:
    asked = []
    error = ""
    def thaw(self):
        pass
    def ask(self, do, timeout_s, descriptors, **task):
        self.asked.append((task["kind"], task["where"]["sets"]))
        if "gpu_bytes" not in task:
            return {"error": self.error}
        memory, _ = Shared.adopt(device.tools.driver, os.dup(descriptors[0]), task["gpu_bytes"], writable=True)
        for number in range(task["where"]["sets"]):
            for which, offset in zip(task["which"], task["where"]["offsets"]):
                array(memory.address + number * task["where"]["stride"] + offset)[:] = 10 * (task["seed"] + number) + which
        memory.close()
        return {"error": self.error}

def values(buffers):
    start, where = buffers.staged.address, buffers.input_layout
    return [[set(array(start + n * where.stride + at).tolist()) for at in where.offsets] for n in range(buffers.sets)]

reference = Reference()
print(eval(sys.argv[2]))
"""


@pytest.fixture
def told(driver: Path):
    def tell(what: str, **environment: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, packages(), what],
            env={"LD_LIBRARY_PATH": str(driver), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    return tell


def test_every_set_has_the_weights_and_inputs_of_its_own(told):
    made = "(b := device.buffers(items, [out], SETS), input_transfer.draw(device, b, reference, 7, 1.0), values(b))[1:]"
    sets = [[{70.0 + 10 * n}, {1.0}, {2.0}, {73.0 + 10 * n}] for n in range(5)]
    assert eval(told(made)) == ("", sets)


def test_what_travels_at_once_is_limited_and_weights_are_asked_for_at_every_shape(told):
    asked = "[(input_transfer.draw(device, device.buffers(items, [out], n), reference, 7, 1.0), n) for n in (5, 1)]"
    found = eval(told(f"({asked}, reference.asked, device.weights, device.weights_bytes)"))
    weights = ("weights", 1)
    assert found[1] == [weights, ("made", 2), ("made", 2), ("made", 1), weights, ("made", 1)]
    assert found[2:] == (None, 2560)


def test_where_buffers_leave_no_room_on_the_gpu_it_travels_in_a_file(told):
    """Four sets of weights of 120 MB, twice each, leave less than a fifth of them of the fake GPU's 1 GiB."""
    large = "items.__setitem__(slice(None), [Tensor('w', 'float32', (30_000_000,), ('n',), 'weights')])"
    kept = "(b := device.buffers(items, [out], 4), input_transfer.draw(device, b, reference, 7, 1.0), type(device.weights).__name__)[1:]"
    found = told(f"({large}, {kept})[1]", CUDA_FAKE_COUNT=secrets.token_hex(8))
    assert eval(found) == ("", "ByFile")


def test_what_could_not_be_made_is_told_and_nothing_of_it_is_kept(told):
    failed = "setattr(reference, 'error', 'no such layer')"
    drawn = "input_transfer.draw(device, (b := device.buffers(items, [out], 2)), reference, 7, 1.0)"
    free = "os.listdir('/proc/self/fd')"
    found = told(
        f"({failed}, b0 := device.buffers(items, [out], 2), n := len({free}), {drawn}, b.close(), n - len({free}))[3:]"
    )
    assert eval(found) == ("no such layer", None, 0)
