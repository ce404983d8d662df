"""A GEAK-HIP task: an instruction file (JSON) and, for each task, a folder with Makefile and test program.

The format says what to optimize and not what is right: the program checks itself and prints PASS. So a task needs an
extractor, as `extractor` in its instruction or as `extractor.toml` in its folder: the fields of a program problem that
say which files or numbers are outputs (`outputs`), with which parameters it is run (`run`, `cases`, `generator`) and
within which tolerance (`rtol`, `atol`); `said` names what the program says of itself.

Source: AMD-AGI/GEAK-agent, branch GEAK-HIP, example_hip/README.md.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, NotFound
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program import ProgramFile
from gpu_mcp_server.services.problems.formats.base import ProblemSource
from gpu_mcp_server.services.problems.formats.program import files_of, problem_from_table
from gpu_mcp_server.services.workspaces.local_files import checked_path

TITLE = "a GEAK-HIP instruction file (JSON; FILE#TASK names one of several)"
MAIN_FILES = ("FromRe_instructions.json",)
TELLING = ("task", "file_path", "file_name")
EXTRACTOR = "extractor.toml"
SAID = {
    "verdict": r"(?i)\b(PASS(?:ED)?|FAIL(?:ED)?|Validation (?:passed|failed))\b",
    "time": r"(?i)([\d.]+ ?(?:us|ms|s)(?:/launch)?)\b",
}
UNJUDGED: dict[str, Any] = {
    "rtol": 0.0,
    "atol": 0.0,
    "cases": [{}],
    "outputs": [{"name": "stdout", "source": "stdout", "format": "exact"}],
}
"""What stands in the place of an extractor where nothing is run."""
_TARGET = re.compile(r"^[^\S\n]*(?:TARGET|EXAMPLE|EXE|EXECUTABLE)\s*[:?]?=\s*(\S+)\s*$", re.MULTILINE)
_RULE = re.compile(r"^(?!all\b|clean\b|\.)([\w./-]+)\s*:(?!=)", re.MULTILINE)
_HIP_COMPILER = re.compile(r"^[^\S\n]*(HIPCC|HIPCXX)\s*[:?]?=", re.MULTILINE)


def recognizes(source: ProblemSource) -> bool:
    """Say whether it is JSON with tasks."""
    return bool(_tasks(source.text))


def _tasks(text: str) -> list[dict[str, Any]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    listed = cast("list[Any]", found if isinstance(found, list) else [found])
    tasks = [cast("dict[str, Any]", task) for task in listed if isinstance(task, dict)]
    right = [all(isinstance(task.get(name), str) for name in TELLING) for task in tasks]
    return tasks if tasks and all(right) else []


async def problem(source: ProblemSource) -> Problem:
    """Return the problem of the task that is meant.

    Raises:
        BadRequest: If it is not clear which task, or the task has no extractor.
        NotFound: If its folder or its file is not there.
    """
    task, files = await _read(source)
    given = {**_given(task, files, source.name), **_extractor(task, files)}
    if _calls_hipcc(given.get("build", ())):
        given.setdefault("device", "hip")
    if "run" not in given:
        raise BadRequest(
            f"How task {task['task']!r} is run does not show in its Makefile.",
            hint='Say so in its extractor: run = ["./test_silu"].',
        )
    return problem_from_table(given)


async def project(source: ProblemSource) -> Problem:
    """Return a task as something to compile alone: what it computes is not asked, so no extractor is needed.

    Raises:
        BadRequest, NotFound: As `problem` does, but for the extractor.
    """
    task, files = await _read(source)
    return problem_from_table({"run": ["./task"], **_given(task, files, source.name), **UNJUDGED})


async def has_extractor(source: ProblemSource) -> bool:
    """Say whether a task says which numbers are its outputs, so that it can be judged.

    Raises:
        BadRequest, NotFound: If it is no task, or its extractor cannot be read.
    """
    task, files = await _read(source)
    return isinstance(task.get("extractor"), dict) or EXTRACTOR in files


def tasks_of(source: ProblemSource) -> list[str]:
    """Return the names of a file's tasks, in its order.

    Raises:
        BadRequest: If it is no instruction file, or two tasks have one name.
    """
    names = [str(task["task"]) for task in _tasks(source.text)]
    if not names or len(set(names)) != len(names):
        why = "has two tasks of one name" if names else "is no instruction file of GEAK-HIP"
        raise BadRequest(f"{source.name} {why}.", hint=f"It is JSON: a list of objects with {', '.join(TELLING)}.")
    return names


def wants_hip(problem: Problem) -> bool:
    """Say whether a project is built for an AMD device: its build calls hipcc."""
    return _calls_hipcc(problem.program.build if problem.program else [])


def _calls_hipcc(build: Sequence[str]) -> bool:
    return any("hipcc" in word or word == "HIP_PLATFORM=amd" for word in build)


async def _read(source: ProblemSource) -> tuple[dict[str, Any], Mapping[str, ProgramFile]]:
    """Return the task that is meant, and its folder's files."""
    task = _chosen(source)
    if source.folder is None:
        raise BadRequest("A GEAK-HIP task needs its folder.", hint="Give the path of the instruction file.")
    below = task["file_path"].strip("/")
    folder = source.folder if below in ("", ".") else source.folder / checked_path(below)
    files = await files_of(folder)
    name = checked_path(task["file_name"])
    if name not in files:
        raise NotFound("the task's file", name, hint=f"{str(folder)!r} has {', '.join(list(files)[:20])}.")
    return task, files


def _given(task: Mapping[str, Any], files: Mapping[str, ProgramFile], instructions: str) -> dict[str, Any]:
    name = checked_path(task["file_name"])
    return {
        "name": task["task"],
        "description": str(task.get("instruction", ""))[:8000],
        "files": {path: file for path, file in files.items() if path not in (EXTRACTOR, instructions)},
        "replaces": name,
        "said": SAID,
        **_commands(files),
    }


def _chosen(source: ProblemSource) -> dict[str, Any]:
    tasks = _tasks(source.text)
    names = [task["task"] for task in tasks]
    if not source.part and len(tasks) == 1:
        return tasks[0]
    if source.part not in names:
        raise BadRequest(
            f"The file has {len(tasks)} tasks" + (f", none called {source.part!r}." if source.part else "."),
            hint=f"Give FILE#TASK, with one of {', '.join(names[:30])}.",
        )
    return tasks[names.index(source.part)]


def _extractor(task: Mapping[str, Any], files: Mapping[str, ProgramFile]) -> dict[str, Any]:
    given = task.get("extractor")
    if isinstance(given, dict):
        return cast("dict[str, Any]", given)
    if EXTRACTOR not in files:
        raise BadRequest(
            f"Task {task['task']!r} does not say which files or numbers are its outputs; its own PASS is not believed.",
            hint=f'Put {EXTRACTOR} into its folder: rtol = 1e-2, atol = 1e-2, run = ["./test_silu", "--B", "{{B}}"], '
            'cases = [{B = 64}], outputs = [{name = "y", source = "out.bin", format = "binary", dtype = "bfloat16"}].',
        )
    try:
        return tomllib.loads(files[EXTRACTOR].text or "")
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{EXTRACTOR} is no TOML: {error}.", hint="Correct it.") from error


def _commands(files: Mapping[str, ProgramFile]) -> dict[str, Any]:
    """Return how a task's folder is built and run: by its Makefile, or a Python test without a build."""
    makefile = next((files[name].text for name in ("Makefile", "makefile", "GNUmakefile") if name in files), None)
    if makefile is None:
        test = next((path for path in files if re.fullmatch(r"test_\w+\.py", path)), None)
        return {"run": ["{python}", test]} if test else {}
    named = _TARGET.search(makefile) or _RULE.search(makefile)
    # A compiler below a fixed folder is taken from PATH instead: ROCm's own, or the distribution's. Variables on make's
    # command line reach the environment of hipcc, which otherwise takes a host that has nvcc for one of NVIDIA's.
    compilers = sorted(set(_HIP_COMPILER.findall(makefile)))
    build = ["make", *(f"{name}=hipcc" for name in compilers), *(["HIP_PLATFORM=amd"] if compilers else [])]
    return {"build": build, **({"run": [f"./{named.group(1)}"]} if named else {})}
