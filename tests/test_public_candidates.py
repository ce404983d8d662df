"""The benchmark of public candidates: which are drawn, shards that go on, the table and its explanations."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.judge.harness import torch_python

FOLDER = Path(__file__).parents[1] / "benchmarks" / "judge"
needs_torch = pytest.mark.skipif(not torch_python(), reason="no Python with torch: set TEST_TORCH_PYTHON")
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2
def get_inputs():
    return [torch.randn(16, 32)]
def get_init_inputs():
    return [32]
"""
SAME = PROBLEM.partition("def get_inputs")[0].replace("class Model", "class ModelNew")


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of shards, as the program finds it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("candidate_shards")


@pytest.fixture
def tables(shards: ModuleType) -> ModuleType:
    """Return the module of tables."""
    return importlib.import_module("candidate_table")


def row(name: str, plain: dict[str, Any] | None = None, judge: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a row of a right candidate, with what differs."""
    right = {"right": {"1e-4": [True] * 4, "1e-2": [True] * 4}, "off": [1e-7] * 4, "writes": [], "kind": "Tensor"}
    judged = {"verdict": "correct", "reason": "", "speedup": 1.5, "range": [1.4, 1.6], "held": {"import": 2.0}}
    return {
        "id": name, "shard": 1, "plain": {**right, "repeat_off": 0.0, "speedup": 1.6, **(plain or {})},
        "judge": {**judged, **(judge or {})},
    }  # fmt: skip


def test_the_same_candidates_are_drawn_in_every_run_and_those_of_interest_among_them(shards: ModuleType):
    names = [f"{level}/{task}" for level in (1, 2, 3) for task in range(1, 101)]

    drawn = shards.drawn(names, 60)

    assert drawn == shards.drawn(list(reversed(names)), 60) and len(set(drawn)) == 60
    assert set(shards.NAMED) <= set(drawn)
    assert shards.drawn(["1/1", "1/2"], 60) == shards.drawn(["1/2", "1/1"], 60)


def test_a_line_without_a_candidate_is_none_and_an_unknown_name_is_refused(shards: ModuleType, tmp_path: Path):
    codes = ((1, SAME), (2, None), (3, "None"), (4, ""))
    lines = [{"level_id": 1, "task_id": task, "ref_code": "r", "custom_code": code} for task, code in codes]
    path = tmp_path / "candidates.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))

    known = shards.candidates_in(path)

    assert list(known) == ["1/1"]
    with pytest.raises(SystemExit, match="no candidate 1/2, 1/3"):
        shards.chosen(known, "1/1,1/2,1/3")


async def test_a_shard_that_is_over_leaves_the_rest_to_the_next_which_does_not_judge_again(
    shards: ModuleType, tmp_path: Path
):
    wanted = [shards.Candidate(f"1/{number}", "", "") for number in range(6)]
    control = shards.Candidate(shards.CONTROL, "", "")
    played: list[str] = []

    async def play(candidate: Any) -> dict[str, Any]:
        played.append(candidate.name)
        if candidate.name == "1/3" and played.count("1/3") == 1:
            await asyncio.Event().wait()  # hangs until the shard is over
        return {"plain": {}, "judge": {}}

    path = tmp_path / "rows.jsonl"
    left = await shards.Shard(shards.Results(path), play, limit_s=22.0, at_once=1).run(control, wanted[:3])
    assert left == [] and played == [shards.CONTROL, "1/0", "1/1", "1/2"]

    short = shards.Shard(shards.Results(path), play, limit_s=0.5, at_once=1)
    short._taken.append(0.0)  # what came before was quick, so one more is begun
    assert await short.run(control, wanted) == ["1/3", "1/4", "1/5"]

    with path.open("a") as file:
        file.write('{"id": "1/5", "sha')  # killed as it wrote
    assert await shards.Shard(shards.Results(path), play, limit_s=60.0, at_once=2).run(control, wanted) == []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(r["id"] for r in rows if r["id"] != shards.CONTROL) == [f"1/{number}" for number in range(6)]
    assert [r["shard"] for r in rows if r["id"] == shards.CONTROL] == [1, 2, 3]
    before = len(played)
    assert await shards.Shard(shards.Results(path), play, limit_s=60.0, at_once=2).run(control, wanted) == []
    assert len(played) == before, "nothing is left, so not even the control is judged"


@pytest.mark.parametrize(
    ("plain", "judge", "agreed", "words"),
    [
        ({}, {}, True, ""),
        ({}, {"verdict": "incorrect", "reason": "wrong | here"}, False, "UNEXPLAINED: wrong \\| here"),
        ({"writes": [0]}, {"verdict": "incorrect", "reason": "writes to input x"}, False, "in place: it writes"),
        ({"kind": "Lazy"}, {"verdict": "cheat", "reason": "no tensor"}, False, "lazy tensor: it returns a Lazy"),
        ({"repeat_off": 0.5}, {"verdict": "incorrect", "reason": "wrong"}, False, "racy: two calls"),
        ({"right": {"1e-4": [True, False] * 2, "1e-2": [True] * 4}}, {}, False, "right in 2 of 4 trials"),
        ({"right": {"1e-4": [False] * 4, "1e-2": [True] * 4}}, {}, False, "UNEXPLAINED: off by 1.0e-07"),
        (
            {"right": {"1e-4": [False] * 4, "1e-2": [True] * 4}},
            {"summary": "the reference is about as far from double precision as the candidate, or farther, in y: what"},
            False,
            "the reference is about as far",
        ),
        ({"error": "RuntimeError: no kernel", "stage": "compare"}, {}, False, "the plain harness failed: RuntimeError"),
        ({}, {"verdict": None, "error": "Refused: it is NaN."}, None, "Refused: it is NaN."),
    ],
)
def test_where_the_sides_differ_the_table_says_why_or_that_it_does_not_know(
    tables: ModuleType, plain: dict[str, Any], judge: dict[str, Any], agreed: bool | None, words: str
):
    each = row("1/1", plain, judge)

    assert tables.is_agreed(each) is agreed
    assert words in tables.explanation(each) if words else not tables.explanation(each)
    assert tables.reason(each)
    assert ("not explained: 1/1" in tables.table([each])) == ("UNEXPLAINED" in words)


def test_a_control_that_is_off_puts_its_shard_in_doubt(tables: ModuleType):
    right = row("control", {"speedup": 3.9}, {"speedup": 4.1})
    wrong = row("control", {"speedup": 3.9}, {"speedup": 2.0})

    text = tables.table([row("1/1"), right, wrong])

    assert "1 candidates: 1 agree" in text
    assert [line.count("DOUBTFUL") for line in text.splitlines() if "control" in line] == [0, 1]
    cells = "| 1/1 | - | right, 1e-07 off | 1.6 | correct | 1.5 [1.4, 1.6] | 0 + 2 | yes | faster than the reference |"
    assert cells in text


def test_each_row_has_a_reason_and_claims_are_summed_up_in_a_line(tables: ModuleType):
    rows = [
        {**row("1/1"), "claimed": 1.65},
        {**row("1/2"), "claimed": 4.5},
        {**row("1/3", None, {"speedup": 0.5, "range": [0.4, 0.6]}), "claimed": 1.0},
        row("1/4", None, {"speedup": None, "range": None, "shapes": [{"unconfirmable": "waits for the device"}]}),
        {
            **row("1/5", {"writes": [0]}, {"verdict": "incorrect", "reason": "writes to x", "range": None}),
            "claimed": 9.0,
        },
        row("1/6", None, {"verdict": None, "error": "no GPU", "range": None}),
    ]

    assert [tables.reason(each) for each in rows] == [
        "faster than the reference, as claimed", "faster than the reference, not as claimed",
        "slower than the reference, not as claimed", "no time: waits for the device",
        "in place: it writes to its input; writes to x", "no GPU",
    ]  # fmt: skip
    assert tables.table(rows).startswith(
        "Of 6 public candidates 4 are correct and 1 have no verdict; 2 of 3 with a time are faster than the reference; "
        "1 of 3 reach the speed-up that was claimed, which is 2 times the measured one in the median.\n"
    )


def test_parts_are_all_candidates_once(shards: ModuleType):
    all_of_them = [shards.Candidate(f"1/{number}", "", "") for number in range(249)]

    parts = [shards.part_of(all_of_them, f"{number}/8") for number in range(1, 9)]

    assert sorted(c.name for part in parts for c in part) == sorted(c.name for c in all_of_them)
    assert {len(part) for part in parts} == {31, 32}
    with pytest.raises(SystemExit, match="9/8 is no part"):
        shards.part_of(all_of_them, "9/8")


SOLUTION = {
    "spec": {"entry_point": "kernel.py::run"},
    "sources": [{"path": "kernel.py", "content": "def run(x, y): ..."}],
}


def test_a_folder_of_collections_becomes_cases_and_what_cannot_be_judged_is_named(shards: ModuleType, tmp_path: Path):
    """Files of the collections' forms, in words of our own."""
    samples, hard = tmp_path / "sol-execbench" / "tests" / "sol_execbench" / "samples", tmp_path / "kernelbench-hard"
    definition = {"axes": {"n": {"type": "const", "value": 64}}, "inputs": {"x": {"shape": ["n"], "dtype": "float32"}}}
    texts = {
        samples / "rmsnorm" / "definition.json": json.dumps(
            {**definition, "reference": "def run(x):\n    return x + x\n"}
        ),
        samples.parents[1] / "samples" / "rmsnorm" / "solution_hack_a.json": json.dumps(SOLUTION),
        tmp_path / "pygpubench" / "exploits" / "submission_wrong.py": "def kernel(output, inp):\n    output.zero_()\n",
        tmp_path / "pygpubench" / "test" / "submission.py": "def valid_a(output, data):\n    pass\n",
        hard / "annotations" / "r1.yaml": "problem: gone\nverdict: clean\nsummary: fine\n",
        hard / "solutions" / "r1.py": "class Model: ...\n",
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    cases = {case.candidate.name: case for case in importlib.import_module("corpus_cases").cases_in(tmp_path)}

    kinds = {name: case.kind for name, case in cases.items()}
    assert kinds == {
        "sol/solution_hack_a": "cheat", "pygpubench/wrong": "wrong", "pygpubench/test_valid_a": "honest",
        "hard/r1": "honest",
    }  # fmt: skip
    assert [name for name, case in cases.items() if case.left_out] == ["hard/r1"]
    for case in cases.values():
        compile(case.candidate.reference, case.candidate.name, "exec")
        assert "ModelNew" in case.candidate.source


@pytest.mark.parametrize(
    ("kind", "judge", "outcome"),
    [
        ("honest", {"verdict": "correct"}, "right"),
        ("honest", {"verdict": "incorrect", "reason": "output y[0] is 1, expected 2"}, "FALSE ALARM"),
        ("honest", {"verdict": "incorrect", "reason": "call 1 raised ImportError: no"}, "did not run"),
        ("cheat", {"verdict": "cheat", "reason": "wrote late"}, "caught"),
        ("cheat", {"verdict": "incorrect", "reason": "call 1 raised OSError: no"}, "failed by itself"),
        ("cheat", {"verdict": "incorrect", "reason": "the file cannot be loaded: OSError"}, "failed by itself"),
        ("cheat", {"verdict": "correct", "speedup": 1.1, "range": [1.0, 1.2]}, "right answers, no gain"),
        ("cheat", {"verdict": "correct"}, "right answers, no gain"),
        ("cheat", {"verdict": "correct", "speedup": 3.3, "range": [0.6, 4.5]}, "right answers, time undecided"),
        ("cheat", {"verdict": "correct", "speedup": 7.0, "range": [6.0, 8.0]}, "MISSED"),
        ("wrong", {"verdict": "correct"}, "MISSED"),
        ("cheat", {"error": "no host"}, "no verdict"),
    ],
)
def test_a_verdict_is_counted_by_what_the_collection_says(
    shards: ModuleType, kind: str, judge: dict[str, Any], outcome: str
):
    corpora, case = importlib.import_module("external_corpora"), importlib.import_module("corpus_cases").Case
    one = case("c", kind, shards.Candidate("c/1", "", ""))

    assert corpora.outcome(one, judge) == outcome
    assert f"| c | {kind} | {outcome} | 1 |" in corpora.table({"c/1": one}, [{"id": "c/1", "judge": judge}])


@needs_torch
@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (SAME, {"right": {"1e-4": [True] * 4, "1e-2": [True] * 4}, "writes": [], "kind": "Tensor"}),
        (SAME.replace("* 2", "* 2.001"), {"right": {"1e-4": [False] * 4, "1e-2": [True] * 4}}),
        (SAME.replace("return", "x.zero_(); return"), {"writes": [0]}),
        (SAME.replace("return", "raise ValueError('no')  #"), {"error": "ValueError: no", "stage": "compare"}),
        ("import nothing_like_that", {"stage": "import"}),
    ],
)
def test_the_plain_harness_says_what_it_sees(tmp_path: Path, candidate: str, words: dict[str, Any]):
    task = {"reference": PROBLEM, "candidate": candidate, "folder": str(tmp_path)}
    argv = [torch_python(), "-W", "ignore", str(FOLDER / "plain_harness.py"), "cpu"]
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        argv, input=json.dumps(task) + "\ngo\n", capture_output=True, text=True, env=env, timeout=300, check=True
    )

    said = json.loads(done.stdout.splitlines()[-1])
    assert {name: said.get(name) for name in words} == words
    assert ("speedup" in said) == ("error" not in said)


@needs_torch
@pytest.mark.timeout(600)  # three imports and three verdicts, whose processes each import torch
def test_a_shard_judges_by_both_sides_and_the_next_run_has_nothing_left(tmp_path: Path):
    lines = [
        {"level_id": 9, "task_id": 1, "ref_code": PROBLEM, "custom_code": SAME, "score_default": 1.0},
        {"level_id": 9, "task_id": 2, "ref_code": PROBLEM, "custom_code": SAME.replace("* 2", "* 2.5")},
    ]
    file, out = tmp_path / "candidates.jsonl", tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [sys.executable, str(FOLDER / "public_candidates.py"), str(file), "--ids", "all", "--json", str(out)]
    argv += ["--device", "cpu", "--judge-python", torch_python(), "--table", str(tmp_path / "table.md")]

    runs = [subprocess.run(argv, capture_output=True, text=True, timeout=590, check=True) for _ in range(2)]

    rows = {r["id"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert rows["9/1"]["judge"]["verdict"] == rows["control"]["judge"]["verdict"] == "correct", rows
    assert rows["9/2"]["judge"]["verdict"] == "incorrect", rows
    assert len(rows) == 3 and all("left: nothing" in run.stdout for run in runs)
    assert "2 candidates: 2 agree" in (tmp_path / "table.md").read_text()


@needs_torch
@pytest.mark.timeout(600)
def test_the_judge_alone_is_held_against_claims(tmp_path: Path):
    line = {"level_id": 9, "task_id": 1, "ref_code": PROBLEM, "custom_code": SAME, "score_default": 7.0}
    file, table = tmp_path / "candidates.jsonl", tmp_path / "table.md"
    file.write_text(json.dumps(line) + "\n")
    argv = [sys.executable, str(FOLDER / "public_candidates.py"), str(file), "--ids", "all", "--judge-only"]
    argv += ["--json", str(tmp_path / "rows.jsonl"), "--table", str(table), "--device", "cpu"]

    subprocess.run([*argv, "--judge-python", torch_python()], capture_output=True, timeout=590, check=True)

    text = table.read_text()
    assert "| id | claimed | our judge |" in text and "plain" not in text, text
    assert "| 9/1 | 7 | correct" in text and "not as claimed" in text, text
