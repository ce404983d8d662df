"""A program by turns with and without a kernel: real runs of small programs, without torch; what they must not pass."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.program_speed import VerifyOptions, VerifyReport
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.program_verifier import difference, printed_numbers
from tests.laboratory import laboratory

PYTHON = "/usr/bin/python3"
COUNTING = """
import json, os
with open("%s.%d" % (os.environ["GPU_MCP_OVERLAY_COUNTS"], os.getpid()), "w") as file:
    json.dump({"calls": 3, "passed_on": 1}, file)
"""
"""An overlay whose kernel ran."""
PRINTS = "import os\nprint('epoch 1 took: loss', 0.5 if 'GPU_MCP_OVERLAY_COUNTS' not in os.environ else {after})\n"


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        yield lab


async def verify(
    lab: Lab, text: str, *more: str, overlay: str = COUNTING, outputs: list[str] | None = None, **options: Any
) -> VerifyReport:
    of = (await lab.store.workspaces.write(None, {"bench.py": text})).workspace_id
    files: Mapping[str, str] = {
        "bench.py": text,
        "speedup_overlay/overlay.json": json.dumps({"of": of, "attempt_id": None}),
        "speedup_overlay/sitecustomize.py": overlay,
    }
    copy = (await lab.store.workspaces.write(None, files)).workspace_id
    wish = VerifyOptions(**{"pairs": 6, **options})
    return await lab.programs.verifier.verify([PYTHON, *more, "bench.py"], copy, None, outputs or [], wish)


async def test_a_measured_program_has_an_interval_its_kernel_s_count_and_equal_numbers(lab: Lab):
    found = await verify(lab, PRINTS.format(after="0.50001"), "-W", "ignore")
    assert found.status in ("faster", "slower", "same"), found.summary()
    low, middle, high = found.speedup_low or 0, found.speedup or 0, found.speedup_high or 0
    assert 0 < low <= middle <= high and found.pairs == 6
    assert (found.kernel_calls, found.passed_on) == (3, 1)
    assert found.compared == "stdout: 2 numbers agree" and "of the whole" in found.summary()


async def test_other_numbers_an_unused_kernel_and_a_failing_program_are_no_gain(lab: Lab):
    wrong = await verify(lab, PRINTS.format(after="0.51"))
    assert wrong.status == "wrong" and wrong.speedup is None
    assert "stdout: number 2 is 0.5 before and 0.51 after" in wrong.summary()
    unused = await verify(lab, PRINTS.format(after="0.5"), overlay="")
    assert unused.status == "unused" and "the kernel never ran" in unused.summary()
    fails = await verify(lab, "raise SystemError('plums')\n")
    assert fails.status == "failed" and "the program as it was ended with 1" in fails.summary()
    assert "plums" in fails.summary()
    gone = await verify(lab, "print(1)\n", outputs=["gone.json"])
    assert gone.status == "failed" and "left no file gone.json" in gone.summary()


async def test_what_could_not_be_measured_is_refused_before_it_runs(lab: Lab):
    with pytest.raises(BadRequest, match="ignore PYTHONPATH"):
        await verify(lab, "print(1)\n", "-uI")
    with pytest.raises(BadRequest, match="outside the program"):
        await verify(lab, "print(1)\n", outputs=["../x"])
    plain = (await lab.store.workspaces.write(None, {"bench.py": "print(1)\n"})).workspace_id
    with pytest.raises(BadRequest, match="no kernel put in"):
        await lab.programs.verifier.verify([PYTHON, "bench.py"], plain)


def test_numbers_are_found_in_prose_and_compared_within_the_tolerance():
    assert printed_numbers(b"step 3: loss 1.5e-3, v2.0 x86_64 5. ok -2") == [3.0, 1.5e-3, 5.0, -2.0]
    options = VerifyOptions(rtol=1e-3, atol=0)
    assert not difference([1.0, float("nan"), float("inf")], [1.0005, float("nan"), float("inf")], options)
    assert difference([1.0], [float("nan")], options) and difference([1.0], [], options)
    assert difference([1.0], [1.01], options) == "number 1 is 1 before and 1.01 after"
