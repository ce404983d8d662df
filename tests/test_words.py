"""Rules of CONTRIBUTING for words that a machine can check: who acts is named, and docstrings ask no question."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("gpu_mcp_server/**/*.py"), *ROOT.glob("toolsets/**/*.py")])
CONTRACT = ROOT / "gpu_mcp_server" / "backends" / "contract"
"""Its texts describe attacks to developers of backends, and are the ids of its tests."""
PAGES = ("tools", "settings", "commands", "results", "plan")
NO_ACTORS = re.compile(r"\b(?:nobody|somebody|anybody|whoever|those (?:that|who)|(?<![-\w])who)\b", re.IGNORECASE)
WHAT_IS = re.compile(r"(?:^|[.;:] )what (?:is|was|are|were)\b(?![^.;:]*\?)", re.IGNORECASE)
QUESTION = re.compile(r"(?:What(?:ever)?|Which|How|Where|Who(?:se|ever)?|Whether|When|Why|Those|That|Everything)\b")
TO_COME = {
    "gpu_mcp_server/recipes/agents/prompt_builder.py",
    "gpu_mcp_server/recipes/modes/agent_mode.py",
}
"""Prompts of measured runs: other words are another experiment."""


def is_said(text: str) -> bool:
    """Say whether a literal is a sentence or a part of one, no name or key."""
    return len(text.split()) > 2


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the literals of a module besides its docstrings."""
    tree = ast.parse(path.read_bytes())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def offence(text: str) -> str:
    """Return the words of a text that stand for an actor without naming it; empty if there are none."""
    found = NO_ACTORS.search(text) or WHAT_IS.search(text)
    return found[0] if found else ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nobody waits for it.", "Nobody"),
        ("ask who runs the host", "who"),
        ("It ended: what is left is killed.", ": what is"),
        ("best has those that are correct", "those that"),
        ("the whole of it; whole", ""),
        ("What is wave quantization?", ""),
        ("Say what is asked for.", ""),
    ],
)
def test_a_sentence_without_an_actor_is_told_from_one_with_an_actor(text: str, words: str):
    assert offence(text) == words


def test_messages_name_their_actors():
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {offence(text)!r} in {text[:80]!r}"
        for path in SOURCES
        if CONTRACT not in path.parents and path.relative_to(ROOT).as_posix() not in TO_COME
        for line, text in messages(path)
        if is_said(text) and offence(text)
    ]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_names_its_actors(page: str):
    """Its tables are the descriptions of tools, settings, commands, fields and keys; values in backticks may be names."""
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    lines = [re.sub(r"`[^`]*`", "", line) for line in text.splitlines()]
    cells = [cell.strip() for line in lines for cell in line.split("|")]

    assert len(cells) > 20
    assert not [f"{offence(cell)!r} in {cell[:120]!r}" for cell in cells if offence(cell)]


@pytest.mark.parametrize("folder", ["gpu_mcp_server", "toolsets", "benchmarks", "examples", "tests"])
def test_a_docstring_says_first_what_a_thing_is_or_does(folder: str):
    """A module or class is named by a noun or a verb, a function by a verb; a question word names neither."""
    files = sorted((ROOT / folder).rglob("*.py"))
    offences = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {said.splitlines()[0]}"
        for path in files
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and (said := ast.get_docstring(node) or "")
        and QUESTION.match(said)
    ]

    assert files
    assert not offences, "\n".join(offences)
