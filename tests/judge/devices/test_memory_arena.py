"""Outputs that a candidate only names, in the owner's arena; the driver is a fake over memory files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judge_package import packages

SCRIPT = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from gpu_mcp_judge.devices import memory_arena
memory_arena.SPARE_BYTES = 1 << 16
from gpu_mcp_judge.numerics.random_inputs import Well
from gpu_mcp_judge.devices.cuda import CudaDevice
from gpu_mcp_judge.devices.memory_arena import PooledBuffers
from gpu_mcp_judge.channel.supervisor_client import Player
from gpu_mcp_judge.numerics.tensors import Tensor
from gpu_mcp_judge.verdicts import Judged

task = {"framework": "torch", "rtol": 1e-5, "atol": 1e-6, "pool": True, "gpu_index": 0}
device = CudaDevice(Well("11" * 32), task)
item = Tensor("x", "float32", (8, 50), ("a", "b"), "normal")
out = Tensor("y", "float32", (8, 50), ("a", "b"), "normal")
buffers = device.buffers([item], [out], 3)
assert isinstance(buffers, PooledBuffers)
player = Player("candidate", None, None)

def array(address, count=400):
    return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)

def play(names, factor=2.0, written=None):
    buffers.fill()
    for call in range(3):
        given = array(buffers.staged.address + call * buffers.input_layout.stride)
        array(buffers.expected.address + call * buffers.expected_layout.stride)[:] = 2 * given
    buffers.poison()
    buffers.publish()
    for call, name in enumerate(names):
        given = array(buffers.given.address + call * buffers.input_layout.stride)
        at = buffers.arena.address + name if name >= 0 else int(buffers.places[call, 0])
        if 0 <= name <= buffers.arena.size - 1600 or name == -1:
            if written is None or call in written:
                array(at)[:] = factor * given
    buffers.names[:, 0] = names
    finished = buffers.stop(player)
    return finished, buffers.check(), buffers.trespass()

try:
    print(eval(sys.argv[2]))
except Judged as judged:
    print(judged.verdict, judged)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("[(f, c.passed, t) for f, c, t in [play([0, 4096, 8192])]]", "[(True, True, '')]"),
        ("[(f, c.passed, t) for f, c, t in [play([8192, -1, 0])]]", "[(True, True, '')]"),
        (
            "[(f, c.wrong.tolist()) for f, c, t in [play([0, 4096, 8192], factor=3.0)]]",
            "[(False, [[400], [400], [400]])]",
        ),
        ("play([0, 1584, 8192])", "incorrect ModelNew returned the same memory for two calls"),
        ("play([0, 0, 8192])", "incorrect ModelNew returned the same memory for two calls"),
        ("play([0, 4096, 1 << 40])", "incorrect named outputs that do not lie in the judge's memory"),
        ("play([0, 4096, -2])", "incorrect named outputs that do not lie in the judge's memory"),
        ("play([0, 4096, 8193])", "incorrect named outputs that do not lie in the judge's memory"),
        ("play([0, 4096, buffers.arena.size - 1592])", "incorrect named outputs that do not lie in the judge's memory"),
    ],
)
def test_names_are_checked_and_what_lies_there_is_compared(driver: Path, what: str, said: str):
    assert said in run(driver, what)


def test_what_was_named_is_poisoned_before_the_next_round(driver: Path):
    what = "[play([0, 4096, 8192]), play([0, 4096, 8192], written=[1])][1][1].wrong.tolist()"

    assert run(driver, what) == "[[400], [0], [400]]"


@pytest.mark.parametrize(
    ("values", "first", "found"),
    [
        ("np.broadcast_to(one, (3, 400))", 0, "[5.0, 5.0, 5.0]"),
        ("np.broadcast_to(one, (2, 400))", 1, "[0.0, 5.0, 5.0]"),
        ("np.broadcast_to(one, (1, 400))", 1, "[0.0, 5.0, 0.0]"),
        ("np.stack([one, 2 * one])", 1, "[0.0, 5.0, 10.0]"),
    ],
)
def test_inputs_that_were_made_elsewhere_get_into_the_sets_that_they_are_for(driver: Path, values: str, first, found):
    given = "array(buffers.staged.address + call * buffers.input_layout.stride)"
    put = f"[buffers.put_input(0, {values}, {first}) for one in [np.full(400, 5, dtype=np.float32)]]"
    read = f"[float(part[0]) for call in range(3) for part in [{given}] if (part == part[0]).all()]"
    clear = f"[{given}.fill(0) for call in range(3)]"

    assert run(driver, f"[{clear}, {put}, {read}][2]") == found


def run(driver: Path, what: str) -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, packages(), what], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()
