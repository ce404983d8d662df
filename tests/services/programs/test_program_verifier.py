"""A program by turns with and without a kernel: real runs of small programs, without torch; what they must not pass."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.program_speed import PlacedKernel, VerifyOptions, VerifyReport
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.output_comparison import WrittenText, compare_outputs, data_difference
from gpu_mcp_server.services.programs.program_verifier import measured_runs
from tests.laboratory import laboratory

PYTHON = "/usr/bin/python3"
COUNTING = """
import json, os
with open("%s.%d" % (os.environ["GPU_MCP_OVERLAY_COUNTS"], os.getpid()), "w") as file:
    json.dump([{"calls": 3, "passed_on": 1}], file)
"""
"""An overlay whose kernel ran."""
ENTRY = {"attempt_id": "a-1", "problem_id": "p-1", "kind": "operator", "target": "aten::mm", "candidate": "a-1.so"}
PRINTS = "import os\nprint('epoch 1 took: loss', 0.5 if 'GPU_MCP_OVERLAY_COUNTS' not in os.environ else {after})\n"


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        yield lab


async def verify(
    lab: Lab,
    text: str,
    *more: str,
    overlay: str = COUNTING,
    outputs: list[str] | None = None,
    kernels: Sequence[Mapping[str, str]] = (ENTRY,),
    **options: Any,
) -> VerifyReport:
    of = (await lab.store.workspaces.write(None, {"bench.py": text})).workspace_id
    files: Mapping[str, str] = {
        "bench.py": text,
        "speedup_overlay/overlay.json": json.dumps({"of": of, "kernels": kernels}),
        "speedup_overlay/sitecustomize.py": overlay,
    }
    copy = (await lab.store.workspaces.write(None, files)).workspace_id
    wish = VerifyOptions.model_validate({"pairs": 6, **options})
    return await lab.programs.verifier.verify([PYTHON, *more, "bench.py"], copy, None, outputs or [], wish)


async def test_a_measured_program_has_an_interval_its_kernel_s_count_and_equal_numbers(lab: Lab):
    found = await verify(lab, PRINTS.format(after="0.50001"), "-W", "ignore")
    assert found.status in ("faster", "slower", "same"), found.summary()
    low, middle, high = found.speedup_low or 0, found.speedup or 0, found.speedup_high or 0
    assert 0 < low <= middle <= high and found.pairs == 6
    assert [(kernel.calls, kernel.passed_on) for kernel in found.kernels] == [(3, 1)]
    assert "a-1 for operator aten::mm ran 3 times in each run; 1 calls of a run went" in found.summary()
    assert found.compared == "stdout: 2 numbers agree" and "of the whole" in found.summary()
    runs = (await lab.commands.status(found.job_id or "")).stdout.splitlines()
    assert len(runs) == 2 + 2 * 6 and runs[:3:2] == ["first run, without the kernel", "pair 1 of 6, without the kernel"]


async def test_other_numbers_an_unused_kernel_and_a_failing_program_are_no_gain(lab: Lab):
    wrong = await verify(lab, PRINTS.format(after="0.51"))
    assert wrong.status == "wrong" and wrong.speedup is None
    assert "stdout, run 1: number 2 is 0.5 before and 0.51 after" in wrong.summary()
    unused = await verify(lab, PRINTS.format(after="0.5"), overlay="")
    assert unused.status == "unused" and "never called what it replaces" in unused.summary()
    passed = await verify(lab, PRINTS.format(after="0.5"), overlay=COUNTING.replace('"calls": 3', '"calls": 0'))
    assert passed.status == "unused" and "all 1 calls of a run have other types" in passed.summary()
    fails = await verify(lab, "raise SystemError('plums')\n")
    assert fails.status == "failed" and "the program as it was ended with 1" in fails.summary()
    assert "plums" in fails.summary()
    no_gpu = measured_runs(
        "ok", {**GOOD, "failed": "ended with 1", "said": "0 active drivers ([])"}, [], OPTIONS, PLACED
    )
    assert "TRITON_INTERPRET" in no_gpu["notes"][1]
    gone = await verify(lab, "print(1)\n", outputs=["gone.json"])
    assert gone.status == "failed" and "left no file gone.json" in gone.summary()


async def test_each_of_several_kernels_must_have_run(lab: Lab):
    kernels = [ENTRY, {**ENTRY, "attempt_id": "a-2", "target": "aten::add"}]
    ran = COUNTING.replace('"passed_on": 1}', '"passed_on": 1}, {"calls": CALLS, "passed_on": 7}')
    both = await verify(lab, "print(1.0)\n", overlay=ran.replace("CALLS", "4"), kernels=kernels)
    assert [kernel.calls for kernel in both.kernels] == [3, 4] and both.speedup, both.summary()
    one = await verify(lab, "print(1.0)\n", overlay=ran.replace("CALLS", "0"), kernels=kernels)
    assert (one.status, one.speedup) == ("unused", None), one.summary()
    assert "the kernel a-2 never ran: all 7 calls" in one.summary() and "a-1 never" not in one.summary()
    fewer = await verify(lab, "print(1.0)\n", kernels=kernels)
    assert fewer.status == "unused", "a record that leaves a kernel out says nothing of it"


async def test_what_could_not_be_measured_is_refused_before_it_runs(lab: Lab):
    with pytest.raises(BadRequest, match="ignore PYTHONPATH"):
        await verify(lab, "print(1)\n", "-uI")
    with pytest.raises(BadRequest, match="outside the program"):
        await verify(lab, "print(1)\n", outputs=["../x"])
    plain = (await lab.store.workspaces.write(None, {"bench.py": "print(1)\n"})).workspace_id
    with pytest.raises(BadRequest, match="no kernel put in"):
        await lab.programs.verifier.verify([PYTHON, "bench.py"], plain)
    for kernels in ([], [{"attempt_id": "a-1"}], [ENTRY] * 17):
        with pytest.raises(BadRequest, match="not as apply_attempt writes it"):
            await verify(lab, "print(1)\n", kernels=kernels)


OPTIONS = VerifyOptions(rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"converged", b"DIVERGED"),
        (b"loss is 3.14.", b"loss is 9.99."),
        (b"3.14s", b"9.14s"),
        (b"-inf", b"inf"),
        (b"NaN", b"Infinity"),
        (b"1.0", b"nan"),
        (b"nan", b"1.0"),
        (b"", b"loss 1.0"),
        (b"1.0 1.0", b"1.0"),
        (b"token 50256", b"token 50257"),
        (b"a\xff", b"a\xfe"),
        (b"\0a", b"\0b"),
    ],
)
def test_other_words_numbers_and_signs_are_wrong(before: bytes, after: bytes):
    assert data_difference(before, after, OPTIONS)
    assert compare_outputs(["stdout"], [[before]], [[after]], OPTIONS).wrong


def test_equal_words_and_near_numbers_agree_and_outputs_without_numbers_show_nothing():
    assert WrittenText.parse(b"step 3: loss 1.5e-3, x86_64 5. ok -2").numbers == ["3", "1.5e-3", "86", "64", "5", "-2"]
    for before, after in [
        (b"loss is 3.14.", b"loss  is 3.1401.\n"),
        (b"[1. 2.]", b"[1.0001 2.]"),
        (b"-inf NaN", b"-Infinity nan"),
        (b"0.5s", b"+0.5001s"),
    ]:
        assert not data_difference(before, after, OPTIONS)
    for silent in (b"", b"done"):
        found = compare_outputs(["stdout"], [[silent]], [[silent]], OPTIONS)
        assert found.empty and not found.wrong and "shows nothing" in found.said and "agree" not in found.said


def test_the_outputs_of_every_run_are_compared():
    late = compare_outputs(["stdout"], [[b"1.0"], [b"1.0"]], [[b"1.0"], [b"2.0"]], OPTIONS)
    assert late.wrong == "stdout, run 2: number 1 is 1.0 before and 2.0 after"
    unsteady = compare_outputs(["stdout"], [[b"1.0"], [b"3.0"]], [[b"1.0"], [b"1.0"]], OPTIONS)
    assert unsteady.unsteady and not unsteady.wrong


def test_numbers_that_differ_without_the_kernel_too_are_left_out_where_that_is_asked_for():
    skip = VerifyOptions(rtol=1e-3, atol=0, skip_unsteady=True)
    before = [[b"loss 4.5, 8 ms"], [b"loss 4.5, 9 ms"], [b"loss 4.5, 8 ms"]]
    found = compare_outputs(["stdout"], before, [[b"loss 4.5001, 70 ms"], [b"loss 4.5, 8 ms"]], skip)
    assert not found.wrong and not found.unsteady and not found.empty
    assert found.said == ("stdout: 1 number agrees, 1 left out, which differ without the kernel too (number 2 first)")
    assert compare_outputs(["stdout"], before, [[b"loss 4.6, 8 ms"]], skip).wrong
    assert compare_outputs(["stdout"], before, [[b"loss 4.5, 8 s"]], skip).wrong, "words are compared"
    assert compare_outputs(["stdout"], [*before, [b"cost 4.5, 8 ms"]], [[b"loss 4.5, 8 ms"]], skip).unsteady
    assert compare_outputs(["x"], [[b"\0a"], [b"\0b"]], [[b"\0a"]], skip).unsteady, "bytes are no numbers"
    nothing = compare_outputs(["stdout"], [[b"8 ms"], [b"9 ms"]], [[b"7 ms"]], skip)
    assert nothing.empty and "no other numbers, which shows nothing" in nothing.said
    assert compare_outputs(["stdout"], before, [[b"loss 4.5, 8 ms"]], OPTIONS).unsteady


async def test_a_run_neither_changes_the_other_side_nor_learns_which_one_it_is(lab: Lab):
    """Each run finds its files as they were given; whatever it tries is seen, or comes to nothing."""
    text = "import os\nprint(len(os.listdir()), os.getcwd(), 1.0)\nopen('left', 'w').close()\n"
    slows = COUNTING + (
        "for root, _, names in os.walk(os.path.dirname(os.getcwd())):\n"
        "    if 'bench.py' in names and root != os.getcwd() and 'before' in root:\n"
        "        open(os.path.join(root, 'bench.py'), 'a').write('import time; time.sleep(1)')\n"
    )
    found = await verify(lab, text, overlay=slows)
    assert found.status == "failed" and "an earlier run changed them" in found.summary(), found.summary()
    names = "import os\nprint(os.environ.get('GPU_MCP_OVERLAY_COUNTS', '') [:0], os.path.exists('left'), 1.0)\n"
    tells = "import os\nif os.environ['GPU_MCP_OVERLAY_COUNTS'][-1].isdigit(): raise SystemExit(3)\n" + COUNTING
    plain = await verify(lab, names + "open('left', 'w').close()\n", overlay=tells)
    assert plain.speedup is not None and "one sandbox" in plain.summary(), plain.summary()


GOOD: dict[str, Any] = {
    "before_s": [2.0] * 6, "after_s": [1.0] * 6, "counts": [[{"calls": 1, "passed_on": 0}]] * 7,
    "texts": ["MS4w"], "before_outputs": [[0]] * 7, "after_outputs": [[0]] * 7,
    "failed": "", "side": "", "said": "",
}  # fmt: skip


PLACED = [PlacedKernel(attempt_id="a-1")]
FORGED: list[dict[str, Any]] = [
    {"counts": [1]},
    {"counts": [[{"calls": "9", "passed_on": 0}]] * 7},
    {"counts": [[]] * 7},
    {"counts": [[{"calls": 1, "passed_on": 0}] * 2] * 7},
    {"counts": []},
    {"before_s": [float("inf")] * 6},
    {"before_s": [float("nan")] * 6},
    {"after_s": [-1.0] * 6},
    {"before_s": [2.0] * 5},
    {"after_outputs": [[5]] * 7},
    {"after_outputs": [[]] * 7},
    {"texts": ["?"]},
    {"failed": 7},
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_record_is_refused_in_words(forged: dict[str, Any]):
    found = measured_runs("ok", {**GOOD, **forged}, ["stdout"], VerifyOptions(pairs=6), PLACED)
    assert set(found) == {"notes"} and "says nothing" in found["notes"][0]


def test_a_record_counts_only_where_its_job_ended_well():
    assert measured_runs("ok", GOOD, ["stdout"], VerifyOptions(pairs=6), PLACED)["speedup"] == 2.0
    ended = measured_runs("timeout", GOOD, ["stdout"], VerifyOptions(pairs=6), PLACED)
    assert ended["status"] == "timeout" and "speedup" not in ended
