"""A task of AgentKernelArena or GEAK v3 and v4: `config.yaml` with commands, and a PyTorch module among its files."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.problems.formats import program
from gpu_mcp_server.services.problems.formats.base import AS_IT_IS, ProblemSource
from gpu_mcp_server.services.problems.kernelbench_problems import defines
from gpu_mcp_server.services.problems.suite_problems import read_yaml, suite_problem

TITLE = "config.yaml (AgentKernelArena, GEAK v3 and v4)"
MAIN_FILES = ("config.yaml",)
COMMANDS = ("compile_command", "correctness_command")
EXTRACTOR = "extractor.toml"
MODULES = "pytorch_code_module"
"""The folder in which tasks that start from PyTorch have their module."""


def recognizes(source: ProblemSource) -> bool:
    """Say whether it has the commands of such a task."""
    return all(f"{name}:" in source.text for name in COMMANDS)


async def problem(source: ProblemSource) -> Problem:
    """Return the problem: the task's PyTorch module, or the program that extractor.toml says how to read.

    Raises:
        BadRequest: If it has neither: what a task's own command says of itself is not believed.
        NotFound: If a file is not there.
    """
    task = read_yaml(source.text, source.name or "The task")
    if source.folder is None:
        raise BadRequest("A task that is sent as text has no files.", hint="Give the path of its folder.")
    name = str(task.get("name") or source.folder.name)
    about = str(cast("Mapping[str, Any]", task.get("prompt") or {}).get("instructions") or "")
    files = await program.files_of(source.folder)
    texts = {path: each.text for path, each in files.items() if path.endswith(".py") and each.text is not None}
    for path, text in texts.items():
        listed = PurePosixPath(path).parts[0] == MODULES or path == "model.py"
        if listed and {"get_inputs", "get_init_inputs"} <= defines(text):
            return suite_problem(name, text, kind="module", cases=[{}], wish=source.wish, description=about)
    if EXTRACTOR in files:
        if source.wish.model_copy(update={"accept_degenerate": False, "max_bytes": None}) != AS_IT_IS:
            raise BadRequest(
                "Wishes go with a PyTorch module, and this task is a program.", hint=f"Write them into {EXTRACTOR}."
            )
        return program.problem_from_table(_program(task, name, about, files))
    hint = f"{EXTRACTOR} into its folder, as resource gpu-mcp://docs/problem-formats has it, or make a problem of the "
    if elsewhere := _sources_elsewhere(task, files):
        raise BadRequest(
            f"The task's sources are not in its folder: {elsewhere}.",
            hint=f"Copy them and {hint}kernel with register_problem.",
        )
    raise BadRequest(
        f"The task has no PyTorch module to compare with ({MODULES}/*.py or model.py with get_inputs and "
        "get_init_inputs), and the judge does not accept its own command's PASS.",
        hint=f"Put {hint}kernel with register_problem.",
    )


def _sources_elsewhere(task: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return where a task's sources are that its folder lacks; empty where it has them."""
    given: Any = task.get("source_file_path") or []
    named = cast("list[Any]", given) if isinstance(given, list) else [given]
    lacking = [str(each) for each in named if PurePosixPath(str(each)).as_posix() not in files]
    place = next((f"{key} {str(task[key])[:200]}" for key in ("repo_url", "image_repo_path") if task.get(key)), "")
    if not lacking and (named or not place):
        return ""
    lacks = f"{', '.join(lacking[:3])[:300]} {'are' if len(lacking) > 1 else 'is'} missing" if lacking else ""
    return "; ".join(each for each in (lacks, f"the task names {place}" if place else "") if each)


def _program(task: Mapping[str, Any], name: str, about: str, files: Mapping[str, Any]) -> dict[str, Any]:
    given = program.table_of(files[EXTRACTOR].text or "")
    target = task.get("target_file_path") or (cast("list[Any]", task.get("source_file_path") or [""]))[0]
    beside = {path: each for path, each in files.items() if path not in (EXTRACTOR, *MAIN_FILES)}
    return {"name": name, "description": about[:8000], "files": beside, "replaces": str(target), **given}
