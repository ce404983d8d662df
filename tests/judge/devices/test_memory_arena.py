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

task = {"framework": "torch", "rtol": 1e-5, "atol": 1e-6, "pool": True}
device = CudaDevice(Well("11" * 32), task)
item = Tensor("x", "float32", (8, 50), ("a", "b"), "normal")
out = Tensor("y", "float32", (8, 50), ("a", "b"), "normal")
buffers = device.buffers([item], [out], 3)
assert isinstance(buffers, PooledBuffers)
player = Player("candidate", None, None)

def array(address, count=400):
    return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)

def play(names, factor=2.0, written=None, late=None):
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
    buffers.stop(player)
    if late is not None:
        array(buffers.arena.address + late)[:] = 2 * given
    return buffers.have_changed(), buffers.check(), buffers.trespass()

try:
    print(eval(sys.argv[2]))
except Judged as judged:
    print(judged.verdict, judged)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("[(late, c.passed, t) for late, c, t in [play([0, 4096, 8192])]]", "[(False, True, '')]"),
        ("[(late, c.passed, t) for late, c, t in [play([8192, -1, 0])]]", "[(False, True, '')]"),
        (
            "[(late, c.wrong.tolist()) for late, c, t in [play([0, 4096, 8192], factor=3.0)]]",
            "[(False, [[400], [400], [400]])]",
        ),
        (
            "[(late, c.passed) for late, c, t in [play([0, 4096, 8192], written=[0, 1], late=8192)]]",
            "[(True, True)]",
        ),
        ("play([0, 1584, 8192])", "incorrect ModelNew returned the same memory for two calls"),
        ("play([0, 0, 8192])", "incorrect ModelNew returned the same memory for two calls"),
        ("play([0, 4096, 1 << 40])", "incorrect named outputs that do not lie in the judge's memory"),
        ("play([0, 4096, -2])", "incorrect named outputs that do not lie in the judge's memory"),
        ("[(late, c.passed, t) for late, c, t in [play([0, 4096, 8196])]]", "[(False, True, '')]"),
        ("play([0, 4096, 8193])", "incorrect named outputs that do not lie in the judge's memory"),
        ("play([0, 4096, buffers.arena.size - 1592])", "incorrect named outputs that do not lie in the judge's memory"),
    ],
)
def test_names_are_checked_and_what_lies_there_is_compared(driver: Path, what: str, said: str):
    assert said in run(driver, what)


STRIDED = """
def lay(strides, names, wrong=None, late=False):
    \"\"\"Answer three calls with results of some strides, at names in the arena, as a candidate does.\"\"\"
    buffers.fill()
    buffers.poison()
    buffers.publish()
    buffers.take_strides([list(strides)])
    for call, name in enumerate(names):
        given = array(buffers.staged.address + call * buffers.input_layout.stride).reshape(8, 50)
        array(buffers.expected.address + call * buffers.expected_layout.stride)[:] = 2 * given.ravel()
        whole = array(buffers.arena.address + name, buffers.arena.size // 4 - name // 4)
        at = np.lib.stride_tricks.as_strided(whole, (8, 50), [4 * step for step in strides])
        at[...] = 2 * (given if 0 not in strides else given * 0)
        if wrong is not None:
            at[wrong] += 1
        if late:
            at[...] = 0
    buffers.names[:, 0] = names
    buffers.stop(player)
    if late:
        at[...] = 2 * given
    check = buffers.check()
    return buffers.have_changed(), check.passed, check.wrong.tolist()

def told(what):
    try:
        return buffers.take_strides(what)
    except Judged as judged:
        return str(judged)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("lay((1, 8), [0, 4096, 8192])", "(False, True, [[0], [0], [0]])", id="transposed"),
        pytest.param("lay((60, 1), [4, 4096, 8192])", "(False, True, [[0], [0], [0]])", id="rows of a wider one"),
        pytest.param("lay((200, 3), [0, 8192, 16384])", "(False, True, [[0], [0], [0]])", id="every third"),
        pytest.param("lay((1, 8), [0, 4096, 8192], late=True)[0]", "True", id="late"),
        pytest.param("lay((1, 8), [0, 4096, 8192], wrong=(3, 7))[1:]", "(False, [[1], [1], [1]])", id="one is wrong"),
        pytest.param("lay((0, 1), [0, 4096, 8192])[1]", "False", id="one row for all"),
        pytest.param("lay((1, 8), [0, 1596, 8192])", "the same memory for two calls", id="one on the other"),
        pytest.param("lay((60, 1), [0, 1200, 8192])", "the same memory for two calls", id="one between the other"),
        pytest.param("lay((1, 8), [0, 4096, 8194])", "do not lie in the judge's memory", id="between two elements"),
        pytest.param("lay((1, 50), [0, 4096, buffers.arena.size - 1600])", "do not lie in", id="beyond the arena"),
        pytest.param("told([[1, 1 << 60]])", "strides that are none", id="endless"),
        pytest.param("told([[1, -8]])", "strides that are none", id="backwards"),
        pytest.param("told([[1.0, 8]])", "strides that are none", id="no number"),
        pytest.param("told([[1, 1 << 39]])", "do not lie in the judge's memory", id="long"),
        pytest.param("told([[1]])", "strides that are none", id="too few"),
        pytest.param("told(7)", "strides that are none", id="no list"),
    ],
)
def test_results_of_any_strides_are_compared_where_they_lie(driver: Path, what: str, said: str):
    assert said in run(driver, what, STRIDED)


def test_what_lies_between_the_elements_of_a_result_is_not_poisoned(driver: Path):
    """It may be the candidate's own, as a border that it keeps."""
    first = "lay((60, 1), [0, 8192, 16384])"
    border = "array(buffers.arena.address, 480).reshape(8, 60)"
    what = f"[{first}, {border}.__setitem__((slice(None), slice(50, None)), 7), buffers.poison(), "
    what += f"bool(({border}[:, 50:] == 7).all()), bool(np.isnan({border}[:, :50]).all())][-2:]"

    assert run(driver, what, STRIDED) == "[True, True]"


def test_two_results_of_a_call_may_lie_between_each_other(driver: Path):
    """As the halves of one tensor do."""
    both = STRIDED.replace("def lay", "buffers = device.buffers([item], [out, out], 2)\ndef lay")
    what = "[buffers.take_strides([[100, 1], [100, 1]]), buffers.poison(), "
    what += "buffers.names.__setitem__(slice(None), [[0, 200], [4096, 4296]]), buffers._take(), buffers._overlap(), "
    what += "buffers.names.__setitem__(slice(None), [[0, 200], [3000, 4296]]), setattr(buffers, 'fresh', True), "
    what += "buffers._take(), buffers._overlap()]"

    assert run(driver, what, both).replace("None, ", "") == "[False, True]"


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


def run(driver: Path, what: str, more: str = "") -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("\ntry:", more + "\ntry:"), packages(), what],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()
