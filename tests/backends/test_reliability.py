"""docs/reference/reliability.md: every row names tests that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from gpu_mcp_server.backends.contract import BEHAVIOURS
from gpu_mcp_server.backends.contract.escapes import ATTEMPTS

TESTS = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (\d+) \| (.+) \| (.+) \|$", (TESTS.parent / "docs" / "reference" / "reliability.md").read_text(), re.MULTILINE
)


@cache
def functions(file: str) -> set[str]:
    nodes = ast.walk(ast.parse((TESTS / file).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_rows_are_all_there_and_each_attempt_has_its_own():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 125
    tried = {int(number) for number, _, where in ROWS if "*sandbox check*" in where}
    assert tried - {65} == {attempt.row for attempt in ATTEMPTS}


@pytest.mark.parametrize(("number", "where"), [(n, w) for n, _, w in ROWS])
def test_what_a_row_names_is_there(number: str, where: str):
    named = where.split(", ")
    assert named
    for name in named:
        if name != "*sandbox check*":
            file, _, function = name.strip("`").partition("::")
            assert function in functions(file) if function else file in {f"{b.room}-{b.name}" for b in BEHAVIOURS}, name
