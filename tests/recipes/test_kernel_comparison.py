"""Kernels of two trees: which a change touches, what turns of judging say, and what the command prints."""

import math
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.cli.implementations import one_line
from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.comparison import KernelChange, KernelChanges
from gpu_mcp_server.models.evaluation import Evaluation
from gpu_mcp_server.recipes.kernel_comparison import (
    compare_kernels,
    decide,
    decide_by_looks,
    failure_of,
    touched_kernels,
)
from gpu_mcp_server.recipes.kernel_revisions import TreeProblem, open_tree, read_tree
from tests.laboratory import laboratory

PROBLEM = r"""
name = "twice plus one"
reference = "def reference(x):\n    return 2 * x + 1\n"
rtol = 1e-5
atol = 1e-6
inputs = [{ name = "x", dtype = "float32", shape = ["n"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n"] }]
shapes = [{ n = 1000 }]
trials = { fixed_shapes = true, distributions = "declared" }
[implementations]
"""
KERNEL = """#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (int k = 0; k < REPEATS; k++) {
        for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + 1;
        __asm__ volatile("" ::: "memory");
    }
    return 0;
}
"""


def write(root: Path, folder: str, problem: str = PROBLEM, **kernels: str) -> None:
    """Write a problem with kernels in C, each in a file of its own."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    named = "".join(f'{name} = {{ language = "c", path = "{name}.c" }}\n' for name in kernels)
    (root / folder / "problem.toml").write_text(problem + named)
    for name, text in kernels.items():
        (root / folder / f"{name}.c").write_text(text)


def git(repository: Path, *arguments: str) -> str:
    who = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    command = ["git", "-C", repository, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**who, **nobody}).stdout


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ([0.970, 0.972, 0.969, 0.971, 0.968, 0.970], "slower"),
        ([1.050, 1.048, 1.052, 1.051, 1.049, 1.050], "faster"),
        ([1.002, 0.998, 1.004, 0.997, 1.001, 0.999], "same"),
        ([0.995, 0.995, 0.995, 0.995, 0.995, 0.9951], "same"),  # sure, and too little to tell
        ([0.97, 1.05, 0.92, 1.03, 0.98, 1.01], "unknown"),  # a change of 3 % is not excluded
        ([0.97], "unknown"),
        ([], "unknown"),
    ],
)
def test_pairs_of_turns_decide(ratios: list[float], status: str):
    assert decide([math.log(ratio) for ratio in ratios]) == status


def test_half_of_the_turns_decide_where_they_can_and_all_of_them_where_not():
    even, spread = [0.970, 0.972, 0.969, 0.971], [0.90, 1.04, 0.95, 0.99]
    assert decide_by_looks([math.log(ratio) for ratio in even], 8) == "slower"
    assert decide_by_looks([math.log(ratio) for ratio in spread], 8) == "unknown"
    assert decide_by_looks([math.log(ratio) for ratio in [*spread, *[0.9701, 0.9699] * 13]], 30) == "slower"
    assert decide_by_looks([math.log(ratio) for ratio in [*even, *spread]], 8) == "slower", "later ones cannot undo it"


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("turns", [3, 6, 8])
def test_looks_together_take_one_of_a_hundred_equal_kernels_for_changed(turns: int, spread: float):
    draw = random.Random(f"{turns} {spread}")
    found = [decide_by_looks([draw.gauss(0, spread) for _ in range(turns)], turns) for _ in range(2000)]
    assert (
        sum(status in ("slower", "faster") for status in found) <= 33
    )  # 20 are expected at most, 4.5 is their deviation


def test_three_per_cent_are_found_where_pairs_of_turns_differ_by_one():
    draw = random.Random(3)
    found = [decide_by_looks([draw.gauss(math.log(0.97), 0.01) for _ in range(8)], 8) for _ in range(1000)]
    assert sum(status == "slower" for status in found) >= 950


@pytest.mark.parametrize(
    ("status", "verdict", "failure"),
    [
        ("judged", "correct", None),
        ("judged", "cheat", "wrong"),
        ("compile_failed", None, "wrong"),
        ("running", None, "refused"),  # still not judged after an hour: that says nothing of the kernel
        ("refused", None, "refused"),
    ],
)
def test_a_kernel_without_a_verdict_is_not_called_wrong(status: Any, verdict: Any, failure: str | None):
    found = Evaluation(
        status=status, verdict=verdict, attempt_id="a-1", problem_id="p-1", problem_hash="1", language="c", host="local"
    )
    assert failure_of(found) == failure


def repository(folder: Path) -> None:
    """Make a repository of two commits at which kernels became slower and wrong, one stayed, others came and went."""
    quick, slow = KERNEL.replace("REPEATS", "1"), KERNEL.replace("REPEATS", "400")
    write(folder, "a", slower=quick, wrong=quick, kept=quick, gone=quick)
    git(folder, "init", "-q", ".")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "before")
    write(folder, "a", slower=slow, wrong=quick.replace("+ 1;", "+ 2;"), kept=quick)
    write(folder, "b", "name = 3\n")
    write(folder, "c", added=quick)
    (folder / "elsewhere").symlink_to("/etc")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "after")


@pytest.mark.timeout(900)
async def test_kernels_that_a_change_touches_are_judged_against_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository(tmp_path)
    (tmp_path / "a" / "slower.c").write_text("not what the revision has")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    details: list[str] = []

    async def tell(message: str) -> None:
        told.append(message)

    async def detail(message: str) -> None:
        details.append(message)

    async with laboratory() as lab:
        found = await compare_kernels(lab, "HEAD~1", "HEAD", tell=tell, detail=detail, turns=3)
        attempts = await lab.store.experience.list("best")

    rows = {row.name: row for row in found.rows}
    assert set(rows) == {"a:slower", "a:wrong", "a:gone", "b:*", "c:added"} and found.untouched == 1
    slower = rows["a:slower"]
    assert slower.speed is not None and slower.high is not None and slower.speed < 0.5
    # on a busy machine three turns may leave the interval wide, and then the row says so
    assert slower.status == ("slower" if slower.high < 1 else "unknown")
    assert len(slower.base_attempts) == len(slower.head_attempts) == slower.turns == 3
    assert rows["a:wrong"].status == "wrong" and "of 1000 elements are wrong" in rows["a:wrong"].note
    assert (rows["c:added"].status, rows["c:added"].base_attempts, rows["a:gone"].status) == ("new", [], "removed")
    assert rows["b:*"].status == "refused" and "problem.toml" in rows["b:*"].note
    assert found.fails() and not attempts.attempts  # no ranking holds a turn
    assert told[0] == "3 kernels are touched: up to 15 judgements on local"
    assert told[2] == "1/3 a:slower: turn 1 of 3, base"
    assert told[3].startswith("1/3 a:slower: turn 1 of 3, head (before: correct, ")
    assert "2/3 a:wrong: " + rows["a:wrong"].line_text() in told and "compiling" in "".join(details)


async def test_a_tree_that_is_none_is_said(tmp_path: Path):
    for name in ("no-such-revision", "--output=x"):
        with pytest.raises(NotFound, match="folder or git revision"):
            async with open_tree(name, tmp_path):
                pass
    write(tmp_path, "a", one="x")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "problem.toml").symlink_to(tmp_path / "a" / "problem.toml")
    assert set(await read_tree(tmp_path)) == {"a"}


async def test_a_base_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path):
    write(tmp_path, "a", one="x")
    (kernel,) = touched_kernels({"a": TreeProblem(None, "it is no TOML")}, await read_tree(tmp_path))
    assert kernel.base is None and "base's problem cannot be read: it is no TOML" in kernel.note

    git(tmp_path, "init", "-q", ".")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    blob = git(tmp_path, "hash-object", "a/one.c").strip()
    (tmp_path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(BadRequest, match="git cat-file ended with"):
        async with open_tree("HEAD", tmp_path):
            pass


def test_a_tree_without_a_kernel_is_not_taken_for_one_without_changes():
    def said(untouched: int) -> str:
        return KernelChanges(base="a", head="b", rows=[], untouched=untouched, turns=3, host="h", seconds=1.0).summary()

    assert "no `problem.toml` of either tree has a table `[implementations]`" in said(0)
    assert "[implementations]" not in said(2)


def test_what_the_change_s_author_wrote_formats_no_table():
    row = KernelChange(name="a:*x* | y", status="wrong", note="[see](https://example.org) <img src=x>\n@team")
    text = KernelChanges(base="b`c", head=".", rows=[row], untouched=0, turns=3, host="h", seconds=1.0).summary()

    (line,) = [line for line in text.splitlines() if "wrong**" in line]
    assert r"a:\*x\* \| y" in line and r"\[see\]\(https" in line and "<img" not in line and r"\@team" in line
    assert "`b'c`" in text
    assert one_line("a:x\n::add-mask::y\x1b[2J").startswith("a:x ::add-mask::y") and "\x1b" not in one_line("\x1b[2J")
