"""Existing answers to a suite's tasks: found by their names, judged without an agent, scored, told as traces."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.evaluation import Evaluation, ShapeVerdict, Timing, TimingOptions
from gpu_mcp_server.models.suite import CandidateRow
from gpu_mcp_server.recipes.headless_runs import silent
from gpu_mcp_server.recipes.suite_candidates import (
    JudgeWish,
    SuiteCandidates,
    candidates_of,
    fields_of_verdict,
    scores_of,
    sol_score,
    solutions_by_definition,
    suite_tasks,
)
from gpu_mcp_server.recipes.trace_solutions import read_solution, trace_status, traces_of
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.problems.formats.detect import read_problem, source_at
from gpu_mcp_server.services.problems.formats.trace import cases_by_workload
from tests.laboratory import HONEST, PROBLEM, laboratory
from tests.services.problems.formats.test_suite_formats import DEFINITION, RETURNS, lab, trace_folder, workload
from tests.services.problems.test_kernelbench_problems import needs_torch

__all__ = ["lab"]


def solution(name: str, files: dict[str, str], entry: str, **spec: Any) -> str:
    sources = [{"path": path, "content": text} for path, text in files.items()]
    return json.dumps({"name": name, "spec": {"entry_point": entry, **spec}, "sources": sources})


PACKED = solution("fast", {"a.py": RETURNS}, "a.py::run", destination_passing_style=False)
SPLIT = {
    "main.py": "from __future__ import annotations\nfrom parts.scaling import scaled\n"
    "def kernel(x, weight, n_valid, eps, y):\n    y.copy_(scaled(x, weight) + eps)\n    y[n_valid:] = 0\n",
    "parts/scaling.py": "def scaled(x, weight):\n    return x[:, ::2] * weight\n",
}


@needs_torch
@pytest.mark.timeout(600)
async def test_answers_in_a_folder_are_judged_and_told_as_traces(lab: Lab, tmp_path: Path):
    tasks, answers = tmp_path / "suite", tmp_path / "answers"
    for name in ("scale", "unanswered"):
        (tasks / name).mkdir(parents=True)
        trace_folder(tasks / name)
    (answers / "scale").mkdir(parents=True)
    (answers / "scale" / "solution.json").write_text(solution("split", SPLIT, "main.py::kernel"))
    (answers / "scale" / "solution_wrong.json").write_text(
        solution("wrong", {"a.py": RETURNS.replace("eps\n", "2 * eps\n")}, "a.py::run", destination_passing_style=False)
    )
    judging = SuiteCandidates(lab, JudgeWish(TimingOptions(tier="correctness")), silent)
    report = await judging.judge_all("ours", suite_tasks(tasks), answers)

    assert [(row.candidate, row.verdict) for row in report.rows] == [
        ("solution.json", "correct"), ("solution_wrong.json", "incorrect")
    ]  # fmt: skip
    assert report.missing == ["unanswered"] and (report.fast["fast_0"].hits, report.fast["fast_0"].of) == (1, 2)
    assert report.sol_score is None and report.geometric_mean is None  # nothing was timed
    told = [(each["solution"], each["workload"]["uuid"], each["evaluation"]["status"]) for each in judging.traces]
    assert told[:2] == [("split", "w16", "PASSED"), ("split", "w48", "PASSED")]
    assert {status for name, _, status in told if name == "wrong"} == {"INCORRECT_NUMERICAL"}
    passed = judging.traces[0]
    assert passed["definition"] == "row_scale" and passed["workload"] == workload(16, 5)
    assert set(passed["evaluation"]) == {"status", "environment", "timestamp", "log", "correctness", "performance"}
    json.dumps(judging.traces, allow_nan=False)


def test_a_packed_solution_is_one_file_that_says_how_it_is_called():
    found = read_solution(solution("split", SPLIT, "main.py::kernel"))
    space: dict[str, Any] = {}
    exec(compile(found.source.text, "solution.py", "exec"), space)

    assert space["SOLUTION"] == {"function": "kernel", "destination_passing_style": True}
    assert space["scaled"].__module__ == "parts.scaling"
    units = {"k.cu": "// k", "main.cpp": '#include "k.h"', "k.h": ""}
    compiled = read_solution(solution("c", units, "main.cpp::run", compile_options={"cflags": ["-O2"]}))
    assert (compiled.source.language, compiled.entry, compiled.flags) == ("cuda", "run", ("-O2",))
    assert compiled.source.text == '#include "k.cu"\n#include "main.cpp"\n' and set(compiled.source.beside) == set(
        units
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no solution"),
        (solution("a", {"a.py": ""}, "b.py::run"), "entry point b.py::run"),
        (solution("a", {"a.py": ""}, "a.py::os.system"), "entry point"),
        (solution("a", {"a.rs": ""}, "a.rs::run"), "a language that the judge cannot run"),
        (solution("a", {"a.cu": ""}, "a.cu::run", compile_options=["-O3"]), r"no solution: spec\.compile_options"),
        (
            solution("a", {"a.cu": ""}, "a.cu::run", compile_options={"cflags": "-O3"}),
            r"no solution: spec\.compile_options\.cflags",
        ),
        (solution("a", {"a.cu": ""}, "a.cu::run", compile_options={"ld_flags": [["-l"]]}), r"ld_flags\.0"),
        (solution("a", {"a.cu": "", "/etc/b.h": ""}, "a.cu::run"), "is absolute"),
        (solution("a", {"a.cu": "", "../b.h": ""}, "a.cu::run"), r"holds `\.\.`"),
        (solution("a", {"a.cu": "", "./a.cu": ""}, "a.cu::run"), "have one path"),
        (solution("a", {"a.py": "x = '\ud800'"}, "a.py::run"), "no solution"),
        ("[" * 100_000, "no solution"),
        ('{"spec": 5, "sources": {}}', "no solution: spec"),
    ],
)
def test_what_is_no_solution_says_why(text: str, says: str):
    with pytest.raises(BadRequest, match=says):
        read_solution(text)


async def test_what_is_malformed_is_a_row_and_the_others_go_on(tmp_path: Path):
    tasks, answers = tmp_path / "suite", tmp_path / "answers"
    for name in ("a_input", "b_axes", "c_tanh"):
        (tasks / name).mkdir(parents=True)
        (answers / name).mkdir(parents=True)
        (answers / name / "solution.c").write_text(HONEST)
    for name in ("a_input", "b_axes"):
        trace_folder(tasks / name)
    (tasks / "a_input" / "workload.jsonl").write_text('{"axes": {"M": 4}, "inputs": {"x": 5}}')
    (tasks / "b_axes" / "definition.json").write_text(json.dumps({**DEFINITION, "axes": [1]}))
    tensor = '[{name = "%s", dtype = "float32", shape = ["n"]}]'
    (tasks / "c_tanh" / "problem.toml").write_text(
        f'name = "t"\ninputs = {tensor % "x"}\noutputs = {tensor % "y"}\nshapes = [{{n = 1000}}]\nrtol = 1e-5\natol = 1e-6'
    )
    (tasks / "c_tanh" / "reference.py").write_text(PROBLEM["reference"])
    for name, options in {"flags": ["-O3"], "text": {"cflags": "-O3"}}.items():
        text = solution(name, {"a.cu": ""}, "a.cu::run", compile_options=options)
        (answers / "c_tanh" / f"solution_{name}.json").write_text(text)
    (answers / "c_tanh" / "solution_junk.json").write_bytes(b"\xff{")
    (answers / "c_tanh" / "solution_large.json").write_bytes(b" " * ((8 << 20) + 1))
    async with laboratory() as lab:
        judging = SuiteCandidates(lab, JudgeWish(TimingOptions(tier="smoke")), silent)
        report = await judging.judge_all("ours", suite_tasks(tasks), answers)

    assert list(report.refused) == ["a_input", "b_axes"], report.refused
    assert "An input of a workload is no mapping" in report.refused["a_input"]
    assert "looks like definition.json" in report.refused["b_axes"]
    rows = [(row.candidate, row.verdict) for row in report.rows]
    names = ("solution_flags.json", "solution_junk.json", "solution_large.json", "solution_text.json")
    assert rows == [("solution.c", "correct"), *((name, "refused") for name in names)]
    reasons = [row.reason for row in report.rows[1:]]
    assert "spec.compile_options" in reasons[0] and "8388608 bytes" in reasons[2] and "cflags" in reasons[3]


async def test_each_workload_has_its_trace_in_the_words_that_its_suite_knows(tmp_path: Path):
    """Two workloads of one case, and two whose stored tensors differ; REWARD_HACK is SOL-ExecBench's word alone."""
    lines = [workload(4, 1) for _ in range(4)]
    for line, name, key in zip(lines, ("w4", "again", "other", "last"), ("", "", "w", "v"), strict=True):
        how = {"type": "safetensors", "path": "a.safetensors", "tensor_key": key}
        line |= {"uuid": name, "inputs": line["inputs"] | ({"weight": how} if key else {})}
    lines[1]["note"] = [float("inf"), float("nan")]
    folder = trace_folder(tmp_path)
    (folder / "workload.jsonl").write_text("\n".join(map(json.dumps, lines)))
    values = struct.pack("<8f", *range(8))
    header = {n: {"dtype": "F32", "shape": [4], "data_offsets": [i * 16, i * 16 + 16]} for i, n in enumerate("wv")}
    text = json.dumps(header).encode()
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    source = await source_at(folder)
    problem = (await read_problem(source)).model_copy(update={"name": "another definition of the same problem"})
    workloads = await cases_by_workload(source)
    shapes = [
        ShapeVerdict(dims={"case": 1}, verdict="correct"),
        ShapeVerdict(dims={"case": 2}, verdict="cheat", reason="repeats"),
        ShapeVerdict(dims={"case": 3}, verdict="incorrect", reason="3 of 4 elements are wrong", max_rel_error=math.nan),
    ]
    found = Evaluation(
        status="judged", verdict="cheat", attempt_id="a", problem_id="p", problem_hash="", language="c", host="h",
        shapes=shapes,
    )  # fmt: skip
    told = list(traces_of(problem, source, workloads, "s", found))

    json.dumps(told, allow_nan=False)
    assert {each["definition"] for each in told} == {"row_scale"}
    assert [(each["workload"]["uuid"], each["evaluation"]["status"]) for each in told] == [
        ("w4", "PASSED"), ("again", "PASSED"), ("other", "REWARD_HACK"), ("last", "INCORRECT_NUMERICAL")
    ]  # fmt: skip
    assert told[1]["workload"]["note"] == ["Infinity", "NaN"]
    zeros = {"max_relative_error": 0.0, "max_absolute_error": 0.0}
    assert told[3]["evaluation"]["correctness"] == {**zeros, "has_nan": True, "has_inf": False}
    in_data_set = list(traces_of(problem, replace(source, name="row_scale.json"), workloads, "s", found))
    hack, wrong = in_data_set[2]["evaluation"], in_data_set[3]["evaluation"]
    assert (hack["status"], hack["log"], "correctness" in hack) == ("RUNTIME_ERROR", "REWARD_HACK: repeats", False)
    assert wrong["correctness"] == {**zeros, "max_relative_error": "NaN"}


def test_candidates_are_found_by_their_tasks_names(tmp_path: Path):
    with pytest.raises(NotFound, match="task"):
        suite_tasks(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/b.py", "a/b.txt", "a/b/submission_2.cu", "a/b/reference.py", "a/c.py"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in candidates_of("a/b", tmp_path)] == ["b.py", "submission_2.cu"]


def test_a_data_set_of_flashinfer_has_its_definitions_as_tasks_and_its_solutions_as_answers(tmp_path: Path):
    for name, text in {
        "definitions/norm/row_scale.json": json.dumps(DEFINITION),
        "definitions/norm/index.json": "{}",
        "workloads/norm/row_scale.jsonl": json.dumps(workload(16, 5)),
        "solutions/anna/norm/row_scale/fast.json": json.dumps({**json.loads(PACKED), "definition": "row_scale"}),
        "solutions/anna/norm/row_scale/cut.json": "{",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert list(suite_tasks(tmp_path)) == ["definitions/norm/row_scale"]
    assert [path.name for path in solutions_by_definition(tmp_path / "solutions")["row_scale"]] == ["fast.json"]


def test_kernelbenchs_files_are_tasks_and_those_beside_another_suites_main_file_are_not(tmp_path: Path):
    text = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    for name in (
        "level1/23_Softmax.py",
        "level1/helper.py",
        "hard/01_gemm/1_reference.py",
        "hard/01_gemm/parts/2_b.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "hard/01_gemm/problem.yaml").write_text("flops_formula: 1")
    (tmp_path / "level1/3_other.py").write_text("x = 1")
    (tmp_path / "level1/4_binary.py").write_bytes(b"\xff\xfe")

    tasks = suite_tasks(tmp_path)
    assert list(tasks) == ["hard/01_gemm", "level1/23_Softmax"]
    for name, source in {"elu": text, "answer": f"{text}class ModelNew: ...", "dataset": "x = 1"}.items():
        (tmp_path / "multi").mkdir(exist_ok=True)
        (tmp_path / "multi" / f"{name}.py").write_text(source)
    assert list(suite_tasks(tmp_path / "multi")) == ["elu"]
    (tmp_path / "answers/level1").mkdir(parents=True)
    (tmp_path / "answers/level1/23_Softmax.py").write_text(text)
    assert [path.name for path in candidates_of("level1/23_Softmax", tmp_path / "answers")] == ["23_Softmax.py"]


@pytest.mark.parametrize(
    ("verdict", "reason", "status"),
    [
        ("cheat", "repeats an earlier answer", "REWARD_HACK"),
        ("incorrect", "did not return from its calls within 20 s and was killed", "TIMEOUT"),
        ("incorrect", "in round 1: ValueError: output y has shape [2], expected [3]", "INCORRECT_SHAPE"),
        ("incorrect", "output y is torch.int32, expected torch.float32", "INCORRECT_DTYPE"),
        ("incorrect", "output y[0] is 1, expected 2; 3 of 4 elements are wrong", "INCORRECT_NUMERICAL"),
        ("incorrect", "RuntimeError: no", "RUNTIME_ERROR"),
    ],
)
def test_a_verdict_has_a_status_by_what_ended_it(verdict: Any, reason: str, status: str):
    found = Evaluation(
        status="judged", verdict=verdict, attempt_id="a", problem_id="p", problem_hash="", language="python", host="h"
    )
    assert trace_status(found, ShapeVerdict(dims={}, verdict=verdict, reason=reason)) == status
    assert trace_status(found.model_copy(update={"status": "compile_failed"}), None) == "COMPILE_ERROR"


def test_the_sol_score_is_one_at_the_least_time_and_half_at_the_baselines():
    assert sol_score(10.0, 50.0, 10.0) == 1.0
    assert sol_score(50.0, 50.0, 10.0) == 0.5
    assert sol_score(90.0, 50.0, 10.0) == pytest.approx(1 / 3)
    assert (sol_score(9.0, 8.0, 10.0), sol_score(11.0, 8.0, 10.0)) == (1.0, 0.0)


def test_scores_are_those_that_the_suites_definitions_give_by_hand():
    """fast_p is a share of judged candidates, SOL a mean over a task's workloads and then over tasks."""

    def time(us: float) -> Timing:
        return Timing(median_us=us, low_us=us, high_us=us, rounds=5, calls_per_round=1)

    def row(name: str, verdict: Any, speedup: float | None, times: list[tuple[Any, ...]], **more: Any) -> CandidateRow:
        shapes = [
            ShapeVerdict(
                dims={"case": number}, verdict=verdict, candidate=time(mine), reference=time(theirs), floor_us=floor,
                compiled=time(compiled) if compiled else None,
            )
            for number, (mine, theirs, compiled, floor) in enumerate(times, 1)
        ]  # fmt: skip
        found = Evaluation(
            status="judged", verdict=verdict, attempt_id="a", problem_id="p", problem_hash="", language="c", host="h",
            shapes=shapes, speedup=speedup, trust=more.pop("trust", "confirmed") if speedup else "",
        )  # fmt: skip
        return CandidateRow(task=name, candidate="c", **{**fields_of_verdict(found), **more})

    rows = [
        row("two workloads", "correct", 1.5, [(20.0, 50.0, None, 10.0), (60.0, 50.0, None, 10.0)]),
        row("torch.compile is the baseline", "correct", 3.0, [(30.0, 90.0, 40.0, 10.0)]),
        row("no least time", "correct", 0.5, [(30.0, 15.0, None, None)]),
        row("wrong", "incorrect", None, []),
        row("work-free", "correct", 100.0, [(1.0, 100.0, None, 1.0)], degenerate=True),
        CandidateRow(task="refused", candidate="c", verdict="refused"),
    ]
    unsure = [
        row("in doubt", "correct", 900.0, [(11.0, 900.0, None, 10.0)], trust="unconfirmable: busy"),
        row("first look", "correct", 90.0, [(11.0, 900.0, None, 10.0)], trust="provisional"),
    ]
    found = scores_of(rows)

    assert [round(r.sol_score, 4) if r.sol_score is not None else None for r in rows[:4]] == [0.6222, 0.6, None, 0.0]
    assert found["sol_score"] == pytest.approx((0.6222222 + 0.6 + 0.0) / 3)
    assert found["geometric_mean"] == pytest.approx((1.5 * 3.0 * 0.5) ** (1 / 3))
    assert {name: (rate.hits, rate.of) for name, rate in found["fast"].items()} == {
        "fast_0": (3, 4), "fast_1": (2, 4), "fast_2": (1, 4)
    }  # fmt: skip
    more = scores_of([*rows, *unsure])
    assert (more["sol_score"], more["geometric_mean"]) == (found["sol_score"], found["geometric_mean"])
    assert {name: (rate.hits, rate.of) for name, rate in more["fast"].items()} == {
        "fast_0": (5, 6), "fast_1": (2, 6), "fast_2": (1, 6)
    }, "they are correct, and count as no faster"  # fmt: skip
    assert list(scores_of([row("not timed", "correct", None, [])])["fast"]) == ["fast_0"]
