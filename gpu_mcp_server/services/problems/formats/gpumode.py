"""A task of GPU MODE's reference-kernels: `task.yml`, with reference.py and what it imports beside or above it."""

import re
from collections.abc import Mapping
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.task_functions import TaskFunctions, functions_of
from gpu_mcp_server.services.problems.suite_problems import read_yaml, suite_problem

TITLE = "task.yml (GPU MODE reference-kernels)"
MAIN_FILES = ("task.yml",)
SUBMISSION = "@SUBMISSION@"
AITER = re.compile(r"^[^\S\n]*(?:import|from)\s+aiter\b", re.MULTILINE)
"""AMD's library, for which the judge has a stand-in where it is missing."""
RANKS = "Problems of several ranks are out of scope; run_command runs such programs."


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is a task's file."""
    return source.name in MAIN_FILES or ("@SUBMISSION@" in source.text and "benchmarks:" in source.text)


async def problem(source: ProblemSource) -> Problem:
    """Return the problem; tests and benchmarks are its cases.

    Raises:
        BadRequest: If it is of several ranks, not Python, or incomplete.
        NotFound: If a file that it names is not there.
    """
    task = read_yaml(source.text, source.name or "The task")
    if task.get("multi_gpu") or task.get("world_size"):
        raise BadRequest("The task is of several ranks.", hint=RANKS)
    if task.get("lang", "py") != "py":
        raise BadRequest(f"The task's lang is {task.get('lang')!r}.", hint="Those in Python (py) can be imported.")
    texts = await _texts(source, task)
    reference = texts.pop("reference.py", None)
    if reference is None:
        raise BadRequest("The task names no reference.py.", hint="Its `files` must list it.")
    cases = [_without_seed(case) for part in ("tests", "benchmarks") for case in _cases(task, part)]
    if any("world_size" in case for case in cases):
        raise BadRequest("The task is of several ranks.", hint=RANKS)
    name = str(task.get("name") or (source.folder.name if source.folder else "") or "GPU MODE task")
    several = await _several(source, task, reference)
    return suite_problem(
        name, reference, kind="gpumode", cases=[{**several.fixed, **case} for case in cases], wish=source.wish,
        files=texts, description=str(task.get("description") or ""), rtol=several.rtol, atol=several.atol,
        **({"functions": several.functions} if several.functions else {}),
        **({"aiter": True} if AITER.search(reference) else {}),
    )  # fmt: skip


async def _several(source: ProblemSource, task: Mapping[str, Any], reference: str) -> TaskFunctions:
    """Return the functions of a task that asks for several; its evaluation says with which sizes."""
    main = next((path for name, path in _listed(task) if name == _main_of(task)), None)
    evaluation = await source.text_near(main) if main is not None and "def ref_kernel" not in reference else ""
    return functions_of(reference, evaluation)


def _main_of(task: Mapping[str, Any]) -> str:
    return str(cast("Mapping[str, Any]", task.get("config") or {}).get("main") or "eval.py")


def _listed(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and sources of a task's files."""
    listed = task.get("files")
    if not isinstance(listed, list):
        raise BadRequest("The task lists no files.", hint="Each has a name and a source.")
    if not all(isinstance(each, dict) for each in cast("list[Any]", listed)):
        raise BadRequest("A file of the task has no name and source.", hint="Correct `files`.")
    entries = cast("list[dict[str, Any]]", listed)
    return [(str(each.get("name")), str(each.get("source"))) for each in entries]


async def _texts(source: ProblemSource, task: Mapping[str, Any]) -> dict[str, str]:
    """Return the Python files of a task by the names that it gives them, without submission and evaluation."""
    main = _main_of(task)
    found: dict[str, str] = {}
    for name, path in _listed(task):
        if path != SUBMISSION and name not in (main, "eval.py") and name.endswith(".py"):
            found[name] = await source.text_near(path)
    return found


def _cases(task: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    listed: Any = task.get(part) or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in cast("list[Any]", listed)):
        raise BadRequest(f"{part} of the task is no list of values by name.", hint="Correct it.")
    return cast("list[dict[str, Any]]", listed)


def _without_seed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case without its seed: the judge draws another one for each call, in secret."""
    return {str(name): value for name, value in case.items() if name != "seed"}
