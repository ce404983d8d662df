"""Many candidates in one call, through the real laboratory; and programs from file to verdict."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.evaluation import Evaluation, TimingOptions
from gpu_mcp_server.models.problem import TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource, source_of_attempt
from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate, _row  # pyright: ignore[reportPrivateUsage]
from gpu_mcp_server.services.evaluation.concurrency import DeadlinePassed, Slots
from gpu_mcp_server.services.evaluation.trial_records import LATE
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from tests.laboratory import HONEST, PROBLEM

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
SLOW = HONEST.replace("for (", "for (volatile int k = 0; k < 4; k++) for (")
WRONG = HONEST.replace("+ 1;", "+ 1.5f;")
BROKEN = "int launch(void) { return x; }"
LONG = [{"n": 400_000}]
"""Calls of milliseconds, which are timed on a busy machine too."""
CHEAT = "int launch(void) { return 0; }"


def entrant(name: str, text: str) -> NamedCandidate:
    return NamedCandidate(name, CandidateSource(text, "c", f"{name}.c"))


async def registered(lab: Lab, **more: Any) -> str:
    given = {**PROBLEM, "shapes": [{"n": 1000}], **more}
    tensors = {k: [TensorSpec(**t) for t in given[k]] for k in ("inputs", "outputs")}
    return (await lab.evaluation.registry.register(**{**given, **tensors})).problem_id


@pytest.mark.usefixtures("long_rounds")
async def test_candidates_come_back_as_one_table_best_first(lab: Lab):
    given = [entrant("wrong", WRONG), entrant("broken", BROKEN), entrant("slow", SLOW), entrant("cheat", CHEAT)]
    told: list[str] = []

    async def progress(message: str) -> None:
        told.append(message)

    problem_id = await registered(lab, shapes=LONG)
    table = await lab.evaluation.batches.compare(problem_id, [*given, entrant("fast", HONEST)], progress=progress)

    assert {row.name for row in table.rows[:2]} == {"fast", "slow"}
    assert [row.name for row in table.rows[2:]] == ["wrong", "cheat", "broken"]
    speeds = [row.speedup or 0 for row in table.rows[:2]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(row.speedup is None or row.speedup_range is not None for row in table.rows)
    assert all(row.speedup or "not timed" in row.reason for row in table.rows[:2]), table.summary()
    assert [row.verdict or row.status for row in table.rows] == [
        "correct",
        "correct",
        "incorrect",
        "cheat",
        "compile_failed",
    ]
    assert table.complete and table.reference[0].startswith("n=400000: ")
    assert "undeclared" in table.rows[-1].reason
    assert any(message.startswith("fast: ") for message in told)
    attempts = (await lab.store.experience.list("recent", limit=10)).attempts
    assert {a.batch_id for a in attempts} == {table.batch_id} and len(attempts) == 5
    assert {a.tier for a in attempts} == {"performance"}


async def test_below_performance_nothing_is_timed_and_that_is_said(lab: Lab):
    problem_id = await registered(lab)
    table = await lab.evaluation.batches.compare(problem_id, [entrant("a", HONEST), entrant("b", WRONG)], tier="smoke")

    assert [(row.verdict, row.speedup, row.time_us) for row in table.rows] == [
        ("correct", None, None),
        ("incorrect", None, None),
    ]
    assert "nothing was timed" in (table.note or "")
    one = await lab.evaluation.evaluator.evaluate(
        problem_id, CandidateSource(HONEST, "c", "a.c"), timing=TimingOptions(tier="correctness")
    )
    assert (one.verdict, one.tier, one.speedup) == ("correct", "correctness", None)
    assert "tier correctness: not timed" in one.summary()
    best = (await lab.store.experience.list("best", problem_id=problem_id)).attempts
    assert best and {(a.rank, a.trust) for a in best} == {(None, None)}, "they are listed, and rank nowhere"


async def test_when_the_time_is_over_what_is_known_comes_back(own_lab: Lab):
    table = await own_lab.evaluation.batches.compare(
        await registered(own_lab), [entrant("a", HONEST), entrant("b", SLOW)], wait_s=0
    )

    assert not table.complete
    assert {row.status for row in table.rows} <= {"not_begun", "running"}
    for attempt in (await own_lab.store.experience.list("recent", limit=5)).attempts:
        assert attempt.status in ("cancelled", "running")


async def test_a_candidate_that_cannot_be_judged_does_not_spoil_the_others(lab: Lab):
    given = [
        entrant("good", HONEST),
        NamedCandidate("flags", CandidateSource(HONEST, "c", "f.c"), flags=("-fplugin=x.so",)),
    ]
    table = await lab.evaluation.batches.compare(await registered(lab, shapes=LONG), given, wait_s=60)

    assert [row.status for row in table.rows] == ["judged", "error"] and not table.complete
    assert table.rows[0].verdict == "correct", table
    assert "-fplugin" in table.rows[1].reason and table.rows[1].reason.count("Allowed are") == 1
    assert "call again" not in table.summary() and "job_status" not in table.summary()
    listed = (await lab.store.experience.list("recent", problem_id=table.problem_id)).attempts
    names = {attempt.source_name for attempt in listed}
    assert names and "f.c" not in names, "what was refused was no try"


async def test_a_source_has_the_name_under_which_its_own_attempt_came(own_lab: Lab):
    """The store keeps the same content once, under its first name."""
    store = own_lab.store
    ids = {name: await store.artifacts.put(HONEST.encode(), name=name) for name in ("first.c", "second.c")}
    assert len(set(ids.values())) == 1
    for given, name in (("second.c", "second.c"), (None, "first.c")):
        attempt_id = await store.experience.start(
            "evaluate", source_artifact_id=ids["first.c"], source_name=given, language="c"
        )
        attempt = await store.experience.get(attempt_id)
        assert (await source_of_attempt(store.artifacts, attempt)).name == name


@pytest.mark.parametrize(("reason", "status"), [("no AMD device on host 'local'", "refused"), (LATE, "not_begun")])
def test_only_what_had_no_turn_has_not_begun(reason: str, status: str):
    names = ("attempt_id", "problem_id", "problem_hash", "language", "host")
    refused = Evaluation.model_validate({"status": "refused", "reason": reason, **dict.fromkeys(names, "hip")})

    assert _row(entrant("a", HONEST), refused).status == status


@pytest.mark.parametrize(
    ("given", "implementations", "words"),
    [
        ([], [], "There are 0 candidates"),
        ([entrant("a", HONEST)] * 2, [], "are called 'a'"),
        ([], ["naive"], "The problem has no implementations of its own"),
    ],
)
async def test_what_cannot_be_compared_is_refused(
    lab: Lab, given: list[NamedCandidate], implementations: list[str], words: str
):
    with pytest.raises(BadRequest, match=words):
        await lab.evaluation.batches.compare(await registered(lab), given, implementations=implementations)


async def test_implementations_that_come_with_a_problem_are_judged_by_name(lab: Lab, tmp_path: Path):
    (tmp_path / "naive.c").write_text(HONEST)
    text = json.dumps(PROBLEM["reference"])
    toml = f'name = "twice"\nreference = {text}\nrtol = 1e-5\natol = 1e-6\nshapes = [{{ n = 1000 }}]\n'
    toml += 'inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]\n'
    toml += 'outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]\n'
    toml += '[implementations.naive]\nlanguage = "c"\npath = "naive.c"\n'
    toml += f'[implementations.wrong]\nlanguage = "c"\nsource = {json.dumps(WRONG)}\n'
    problem = await lab.evaluation.registry.import_file(ProblemSource("problem.toml", toml, tmp_path))
    table = await lab.evaluation.batches.compare(
        problem.problem_id, [entrant("mine", HONEST)], implementations=["all"], tier="smoke"
    )
    with pytest.raises(BadRequest, match=r"no implementation 'fast'\. It has naive, wrong"):
        await lab.evaluation.batches.compare(problem.problem_id, [], implementations=["fast"])

    assert problem.implementations == ["naive", "wrong"]
    assert {row.name: row.verdict for row in table.rows} == {
        "naive": "correct",
        "mine": "correct",
        "wrong": "incorrect",
    }


async def test_judging_on_the_processor_waits_for_the_compilers():
    slots = Slots(2, compile_slots=2, judge_slots=1, quiet=True, deadline=asyncio.get_running_loop().time() + 60)
    order: list[str] = []
    gate = asyncio.Event()

    async def one(name: str) -> None:
        async with slots.compiling():
            if name == "second":
                await gate.wait()
            order.append(f"compiled {name}")
        async with slots.judging():
            order.append(f"judged {name}")

    first, second = asyncio.create_task(one("first")), asyncio.create_task(one("second"))
    while not order:
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second)
    assert order[:2] == ["compiled first", "compiled second"]


async def test_no_more_are_judged_at_a_time_than_there_are_places_and_late_ones_are_told():
    loop = asyncio.get_running_loop()
    slots = Slots(2, compile_slots=1, judge_slots=1, quiet=False, deadline=loop.time() + 0.05)
    async with slots.judging():
        with pytest.raises(DeadlinePassed):
            async with slots.judging():
                pass


def test_a_rows_long_reason_still_says_how_the_launcher_is_called():
    names = ("attempt_id", "problem_id", "problem_hash", "language", "host")
    reason = (
        f"n=1000: {'crashed with SIGSEGV, for one of many reasons; ' * 9}launch has z where it gets x: int launch(x)"
    )
    judged = Evaluation.model_validate({"status": "judged", "reason": reason, **dict.fromkeys(names, "c")})

    said = _row(entrant("a", HONEST), judged).reason
    assert said.startswith("n=1000: crashed") and said.endswith("launch has z where it gets x: int launch(x)")
