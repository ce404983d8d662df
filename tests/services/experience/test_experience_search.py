"""Search in the attempts of all problems."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.recipe import AdviceScore, HintEffect
from gpu_mcp_server.services.experience.experience_search import ExperienceSearch, signature, size_class
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.store.database import Database

PROBLEMS = {
    "p-1": '{"name": "row softmax", "description": "", "reference": "def f(x)", "shapes": [{"n": 64, "m": 64}], '
    '"inputs": [{"dtype": "float16"}], "outputs": [{"dtype": "float32"}]}',
    "p-2": '{"name": "layer norm", "description": "of 100% of rows", "reference": "def g(x)", "shapes": [{"n": 200000}], '
    '"inputs": [{"dtype": "bfloat16"}], "outputs": [{"dtype": "bfloat16"}]}',
}


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "lab.db") as db:
        for problem_id, json in PROBLEMS.items():
            sql = "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES (?, ?, 'now', ?)"
            await db.execute(sql, (problem_id, problem_id, json))
        yield db


async def tried(db: Database, problem_id: str, verdict: str | None, speedup: float | None = None, **more: Any) -> str:
    experience = AttemptStore(db)
    device = more.pop("device", "NVIDIA H200")
    shown = {name: value for name, value in more.items() if name != "evidence"}
    attempt = await experience.start("evaluate", problem_id=problem_id, **shown)
    status = "judged" if verdict else "compile_failed"
    evidence = {"confirmed_by": "itself", **more.pop("evidence", {})}
    await experience.finish(attempt, status=status, verdict=verdict, speedup=speedup, device=device, evidence=evidence)
    return attempt


async def test_verified_rows_come_first_and_failures_are_there(db: Database):
    wrong = await tried(db, "p-1", "incorrect", reason="wrong at row 7")
    slow = await tried(db, "p-1", "correct", 1.2)
    fast = await tried(db, "p-1", "correct", 3.0, note="one warp a row")
    cheat = await tried(db, "p-1", "correct", 90.0)
    await AttemptStore(db).void(cheat, "not had twice")
    await tried(db, "p-2", "correct", 2.0, device="AMD MI300")
    memory = ExperienceSearch(db)

    found = await memory.find("softmax row")
    assert [a.attempt_id for a in found.attempts[:2]] == [fast, slow]
    assert {a.attempt_id: a.outcome for a in found.attempts[2:]} == {cheat: "voided", wrong: "incorrect"}
    assert [a.problem for a in (await memory.find(dtype="bfloat16")).attempts] == ["layer norm"]
    assert [a.problem for a in (await memory.find(arch="mi300")).attempts] == ["layer norm"]
    assert [a.problem for a in (await memory.find("100%")).attempts] == ["layer norm"]
    assert (await memory.find("nothing_of")).summary().startswith("nothing like it was tried; ask with fewer")
    assert [a.problem for a in (await memory.find(shape="medium")).attempts] == ["layer norm"]
    one = await memory.find("softmax", limit=1)
    assert one.left_out == 3 and one.attempts[0].idea == "one warp a row"
    with pytest.raises(BadRequest, match="Nothing is asked"):
        await memory.find()
    known = await tried(db, "p-2", "correct", 1.0, versions={"arch": "sm_90"})
    assert [a.attempt_id for a in (await memory.find("norm", arch="sm_90", shape="medium")).attempts] == [known]
    assert not (await memory.find("softmax", arch="sm_90")).attempts


async def test_an_error_is_found_by_what_it_is_not_by_its_names(db: Database):
    mine = await tried(db, "p-1", None, reason="kernel.cu(12): error: identifier 'foo' is undefined")
    await tried(db, "p-1", None, reason="kernel.cu(12): error: expected a ';'")
    found = await ExperienceSearch(db).find(error="other.cu(99): error: identifier 'bar_2' is undefined\nmore")
    assert [a.attempt_id for a in found.attempts] == [mine]


CRASH = (
    "rows=64, cols=1000: crashed with SIGSEGV: an access outside the buffers, a write to an input, or a stack overflow"
)
WRONG = "rows=64: output y[0, 0] is 0.1, expected 0.2; 28868 of 64000 elements are wrong"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("SIGSEGV", CRASH), ("sigsegv", CRASH), ("segmentation fault", CRASH), ("crashes", CRASH),
        ("stack overflows", CRASH), ("wrong answer", WRONG), ("wrong elements", WRONG), ("expected", WRONG),
        ("compile error", "kernel.c:6: error: 'retrn' undeclared"), ("undeclared", "kernel.c:6: error: 'retrn' undeclared"),
        ("timeout", "did not return from its calls and was killed"),
    ],
)  # fmt: skip
async def test_an_error_is_found_by_a_word_of_it_or_its_kind(db: Database, asked: str, reason: str):
    for each in (CRASH, WRONG, "did not return from its calls and was killed"):
        await tried(db, "p-1", "incorrect", reason=each)
    await tried(db, "p-1", None, reason="kernel.c:6: error: 'retrn' undeclared")
    await tried(db, "p-1", "correct", 2.0, reason="its extension did not compile; it computed with torch, no SIGSEGV")

    found = (await ExperienceSearch(db).find(error=asked)).attempts
    assert reason in {a.reason for a in found} and len(found) == 1, [a.reason for a in found]


async def test_verified_rows_stand_in_the_order_of_rankings_and_say_their_trust(db: Database):
    doubted = await tried(db, "p-1", "correct", 99.0, evidence={"unconfirmable": "it waits for the GPU"})
    wide = await tried(db, "p-1", "correct", 9.0, evidence={"confirmed_by": None, "speedup_range": [2.0, 40.0]})
    narrow = await tried(db, "p-1", "correct", 5.0, evidence={"confirmed_by": None, "speedup_range": [4.9, 5.1]})
    sure = await tried(db, "p-1", "correct", 1.5, evidence={"speedup_range": [1.4, 1.6]})
    voided = await tried(db, "p-1", "correct", 200.0)
    await AttemptStore(db).void(voided, "not had twice", sure)
    wrong = await tried(db, "p-1", "incorrect", reason="wrong at 7")

    found = await ExperienceSearch(db).find("softmax")
    assert [a.attempt_id for a in found.attempts] == [sure, narrow, wide, doubted, wrong, voided]
    assert "speed-up 1.5 (1.4-1.6), confirmed" in found.attempts[0].line_text()
    assert [a.trust for a in found.attempts[1:]] == [
        "provisional", "provisional", "unconfirmable: it waits for the GPU", None, "contradicted",
    ]  # fmt: skip


async def test_a_step_is_a_technique_only_where_the_child_is_faster_beyond_both_intervals(db: Database):
    async def step(note: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        first = await tried(db, "p-1", "correct", before.pop("speedup"), evidence=before)
        await tried(db, "p-1", "correct", after.pop("speedup"), parent_id=first, note=note, evidence=after)

    await step("tied", {"speedup": 2.0, "speedup_range": [1.5, 2.6]}, {"speedup": 3.0, "speedup_range": [2.5, 3.6]})
    await step("wide", {"speedup": 1.0, "speedup_range": [0.9, 1.1]}, {"speedup": 9.0, "speedup_range": [1.2, 80.0]})
    await step("narrow", {"speedup": 1.0, "speedup_range": [0.9, 1.1]}, {"speedup": 2.0, "speedup_range": [1.9, 2.1]})
    await step("doubtful parent", {"speedup": 1.0, "unconfirmable": "busy"}, {"speedup": 5.0})
    await step("doubtful child", {"speedup": 1.0}, {"speedup": 5.0, "unconfirmable": "busy"})
    await step("first look", {"speedup": 1.0}, {"speedup": 5.0, "confirmed_by": None})

    lessons = (await ExperienceSearch(db).lessons("softmax")).lessons
    assert [x.says for x in lessons if x.kind == "technique"] == ["narrow", "wide"], "by the gain that is sure"


MATMUL = (
    '{"name": "int8_matmul", "description": "", "reference": "def reference(a, b): return a @ b", "shapes": [{"n": 64}], '
    '"inputs": [{"dtype": "int8"}], "outputs": [{"dtype": "int32"}]}'
)


@pytest.mark.parametrize(
    ("asked", "problems"),
    [
        ("matrix product", {"int8_matmul"}), ("gemm", {"int8_matmul"}), ("matrix multiplication", {"int8_matmul"}),
        ("int8", {"int8_matmul"}), ("int8 gemm", {"int8_matmul"}), ("matmuls", {"int8_matmul"}),
        ("softmax rows", {"row softmax"}), ("soft", {"row softmax"}), ("layernorm", {"layer norm"}),
        ("layer normalization", {"layer norm"}), ("convolution", set()), ("softmax gemm", set()),
        ("a OR b", set()), ('NEAR("row" softmax)', set()), ("-", set()),
    ],
)  # fmt: skip
async def test_an_operation_is_found_by_stems_and_other_names(db: Database, asked: str, problems: set[str]):
    sql = "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES ('p-3', 'p-3', 'now', ?)"
    await db.execute(sql, (MATMUL,))
    for problem_id in ("p-1", "p-2", "p-3"):
        await tried(db, problem_id, "correct", 2.0)

    assert {a.problem for a in (await ExperienceSearch(db).find(asked)).attempts} == problems


async def test_what_the_environment_refused_is_no_attempt(db: Database):
    attempts = AttemptStore(db)
    for status in ("refused", "no_gpu", "broken", "cancelled", "error"):
        attempt = await attempts.start("evaluate", problem_id="p-1")
        await attempts.finish(attempt, status=status, reason="no AMD device on host 'local'")

    assert not (await ExperienceSearch(db).find("softmax")).attempts
    assert not (await attempts.list("failures", problem_id="p-1")).attempts
    assert not (await ExperienceSearch(db).lessons("softmax")).lessons


async def test_a_profile_says_what_bounds_an_attempt(db: Database):
    bound = await tried(db, "p-1", "correct", 2.0)
    other = await tried(db, "p-1", "correct", 3.0)
    profile = await AttemptStore(db).start("profile", problem_id="p-1", parent_id=bound)
    await AttemptStore(db).finish(profile, status="ok", reason="bound by L2 tags; work: 1.23 ms")
    memory = ExperienceSearch(db)
    found = await memory.find(bottleneck="L2 tags")
    assert [(a.attempt_id, a.bottleneck) for a in found.attempts] == [(bound, "bound by L2 tags; work: 1.23 ms")]
    assert (await memory.bound_of(bound), await memory.bound_of(other)) == ("L2 tags", None)


async def test_lessons_are_steps_that_helped_failures_that_came_again_and_notes(db: Database):
    first = await tried(db, "p-1", "correct", 1.0)
    step = await tried(db, "p-1", "correct", 2.5, parent_id=first, note="vector loads")
    await tried(db, "p-1", "correct", 2.0, parent_id=step, note="made it worse")
    await tried(db, "p-1", "correct", 9.0, parent_id=first, note="other device", device="A100")
    for row in (3, 17):
        await tried(db, "p-1", "incorrect", reason=f"wrong at row {row}")
    late = await AttemptStore(db).start("evaluate", problem_id="p-1")
    await AttemptStore(db).finish(late, status="cancelled", reason="not begun: the call's time was over")
    memory = ExperienceSearch(db)
    kept = await memory.add_note("tails need a mask", attempt_id=first)
    await memory.add_note("of the other", problem_id="p-2")

    lessons = (await memory.lessons("softmax")).lessons
    assert [(x.says, x.before, x.after) for x in lessons if x.kind == "technique"] == [("vector loads", 1.0, 2.5)]
    assert [(x.says, x.times) for x in lessons if x.kind == "failure"] == [("wrong at row 17", 2)]
    assert [x.says for x in lessons if x.kind == "note"] == ["tails need a mask"]
    assert kept.note_id in kept.summary() and "1 -> 2.5: vector loads" in (await memory.lessons()).summary()
    assert (await memory.lessons(problem_id="p-2")).lessons[0].says == "of the other"
    with pytest.raises(NotFound):
        await memory.lessons(problem_id="p-9")
    with pytest.raises(NotFound):
        await memory.add_note("x", attempt_id="a-9")
    with pytest.raises(BadRequest):
        await memory.add_note("  ")


def test_signatures_differ_where_errors_do():
    assert signature("a.cu(3): error: 12 bytes") == signature("b.cu(40): error: 7 bytes")
    assert signature("error: no operator") != signature("error: no member")
    assert [size_class(s) for s in ('[{"n": 8}]', '[{"n": 8}, {"n": 4096, "m": 4096}]', "[]")] == [
        "small",
        "large",
        "small",
    ]


async def test_a_correct_fix_after_a_failure_is_a_lesson_by_itself(db: Database):
    broken = await tried(db, "p-1", None, reason="k.c:3: error: 'flaot' undeclared\nmore", note="one loop")
    fixed = await tried(db, "p-1", "correct", 1.0, parent_id=broken, note="float, as it is written")
    await tried(db, "p-1", "incorrect", reason="wrong at 0", parent_id=broken, note="float too")
    voided = await tried(db, "p-1", "correct", 9.0, parent_id=broken, note="nothing at all")
    await AttemptStore(db).void(voided, "not had twice")

    (fix,) = [one for one in (await ExperienceSearch(db).lessons(problem_id="p-1")).lessons if one.kind == "fix"]
    assert (fix.attempt_id, fix.says) == (fixed, "k.c:3: error: 'flaot' undeclared -> float, as it is written")


async def test_lessons_say_what_advice_of_a_kind_promised_and_brought_on_each_device(db: Database):
    for measured, device in ((1.5, "NVIDIA H200"), (0.9, "NVIDIA H200"), (None, "NVIDIA H200"), (2.0, "AMD MI300")):
        attempt = await tried(db, "p-1", "correct" if measured else "incorrect", measured, device=device)
        score = AdviceScore(topic="spills", predicted=1.25, measured=measured, profiled="a-0")
        await AttemptStore(db).add_evidence(attempt, "advice", score.model_dump_json())
    for number, more in enumerate(({}, {"unconfirmable": "busy"})):
        attempt = await tried(db, "p-1", "correct", 90.0, evidence=more)
        score = AdviceScore(topic="spills", predicted=1.25, measured=90.0, profiled="a-0")
        await AttemptStore(db).add_evidence(attempt, "advice", score.model_dump_json())
        if number == 0:
            await AttemptStore(db).void(attempt, "not had twice")
    effect = HintEffect(text="look at the tail", before="correctness", after="performance", helped=True)
    for _ in range(2):
        hint = await tried(db, "p-2", "correct", 1.0)
        await AttemptStore(db).add_evidence(hint, "hint", effect.model_dump_json())
    await AttemptStore(db).void(hint, "not had twice")

    said = [one.says for one in (await ExperienceSearch(db).lessons()).lessons if one.kind in ("advice", "hint")]
    assert said == [
        "advice 'spills' on NVIDIA H200: predicted 1.25x, measured 1.20x (medians); faster in 1 of 5, "
        "not correct or not timed in 3",
        "advice 'spills' on AMD MI300: predicted 1.25x, measured 2.00x (medians); faster in 1 of 1",
        "helped (correctness to performance): look at the tail",
    ]


async def test_kin_is_of_one_operation_and_that_of_one_type_comes_first(db: Database):
    for problem_id, dtype in (("p-3", "float32"), ("p-4", "float64")):
        text = PROBLEMS["p-1"].replace("row softmax", f"softmax of {dtype}").replace("float32", dtype)
        sql = "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES (?, ?, 'now', ?)"
        await db.execute(sql, (problem_id, problem_id, text))
    for problem_id in ("p-1", "p-2", "p-4", "p-3"):
        slow = await tried(db, problem_id, "correct", 1.0)
        await tried(db, problem_id, "correct", 2.0 + (problem_id == "p-4"), parent_id=slow, note=f"faster {problem_id}")
    memory = ExperienceSearch(db)

    assert [one.says for one in await memory.kindred_lessons("p-1", "float32", None)] == ["faster p-3", "faster p-4"]
    assert [one.says for one in await memory.kindred_lessons("p-1", "float32", None, limit=1)] == ["faster p-3"]
    assert await memory.kindred_lessons("p-2", "bfloat16", None) == []
    text = PROBLEMS["p-1"].replace("row softmax", "softmax, bound otherwise")
    await db.execute(
        "INSERT INTO problems (problem_id, content_hash, created_at, json) VALUES ('p-5', 'p-5', 'now', ?)", (text,)
    )
    slow = await tried(db, "p-5", "correct", 1.0)
    fast = await tried(db, "p-5", "correct", 1.5, parent_id=slow, note="faster p-5")
    profile = await AttemptStore(db).start("profile", problem_id="p-5", parent_id=fast)
    await AttemptStore(db).finish(profile, status="ok", reason="bound by L2 tags; work: 1.23 ms")
    for bound, first in ((None, ["faster p-3", "faster p-5"]), ("L2 tags", ["faster p-5", "faster p-3"])):
        assert [one.says for one in await memory.kindred_lessons("p-1", "float32", bound, limit=2)] == first
    await tried(db, "p-1", "incorrect", reason="wrong at 7")
    await tried(db, "p-1", "incorrect", reason="wrong at 9")
    await tried(db, "p-1", "incorrect", reason="crashed")
    assert [(one.says, one.times) for one in await memory.recurring_failures("p-1")] == [("wrong at 9", 2)]


async def test_a_run_starts_only_from_what_is_confirmed_and_of_the_same_content(db: Database):
    alike = {"host": "local", "language": "c", "entry": "launch"}
    made = {**alike, "problem_hash": "p-1", "evidence": {"generation": 1}}
    good = await tried(db, "p-1", "correct", 2.0, **made)
    await tried(db, "p-1", "correct", 3.0, **{**made, "evidence": {"generation": 0}})
    await tried(db, "p-1", "correct", 4.0, **{**made, "evidence": {"generation": 1, "unconfirmable": "busy"}})
    unsure = {"generation": 1, "confirmed_by": None}
    provisional = await tried(db, "p-1", "correct", 4.5, **{**made, "evidence": unsure})
    await tried(db, "p-1", "correct", 5.0, **{**made, "problem_hash": "another"})
    await tried(db, "p-1", "correct", 6.0, **{**made, "host": "far"})
    await tried(db, "p-1", "incorrect", 7.0, **made)
    voided = await tried(db, "p-1", "correct", 8.0, **made)
    await AttemptStore(db).void(voided, "not had twice")

    memory = ExperienceSearch(db)
    assert await memory.confirmed_best("p-1", generation=1, **alike) == [good]
    assert await memory.confirmed_best("p-1", accept_provisional=True, generation=1, **alike) == [provisional, good]
