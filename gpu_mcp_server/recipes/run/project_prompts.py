"""Prompts of a project's roles: what is wanted, the files, what failed, and which files are theirs."""

from collections.abc import Mapping

from gpu_mcp_server.models.recipe import ProjectChange, ProjectSpecification
from gpu_mcp_server.models.run_plan import HintKind, RunPlan
from gpu_mcp_server.recipes.agents.prompt_builder import (
    FILE_CHARS,
    FILES_CHARS,
    Findings,
    answer_form,
    findings_text,
    given_files,
    hints,
)
from gpu_mcp_server.recipes.run.project_files import OWNED, Role, owner_of_file
from gpu_mcp_server.runtime.result_limits import cut_text

HEADLESS = (
    "You are called by a program, once for each step. It builds with CMake, runs ctest and tells you what came of it; "
    "you have no tools here."
)
ANALYST = (
    "You write the specification, no code. Pin down what the request leaves open: formulas, functions with their "
    "signatures, types, sizes, value ranges, edge cases. Say what must hold of every answer, so that a test can check "
    "it by another way than the code takes."
)
ROLES: Mapping[Role, str] = {
    "coder": (
        "You write the sources, no tests and no build files. Keep all that can be tested in a library, apart from "
        "main(). Handle sizes that divide by nothing, and empty input. Use 64-bit indices where 2^31 can be passed. "
        "Where a failing test contradicts the specification, answer with an `objection` in place of changes."
    ),
    "tester": (
        "You write test programs below tests/, one main() each; it returns 0 where all holds, and says which value was "
        "expected and found where not. Compute the expected answer another way than the sources do. Choose sizes "
        "at which code takes another path: 0, 1, a tile's edge, one beyond. Where a test needs a device that is not "
        "there, it returns 77, which counts as skipped. A test that cannot fail is sent back: mistakes are planted. "
        "One that breaks nothing of the specification is `harmless`: give its line as it is told, and the reason. "
        "Where the coder objects to a test that is right, answer with an `objection` in place of changes."
    ),
    "builder": (
        "You write CMakeLists.txt: a library of the sources, a program for each file below tests/, enable_testing(), "
        "and add_test() for each with SKIP_RETURN_CODE 77. Programs of several ranks are run by "
        "${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 4. Name the CUDA architectures. Nothing is downloaded."
    ),
}
STAGES: Mapping[Role, HintKind] = {"coder": "correctness", "tester": "correctness", "builder": "compile"}


def specification_prompt(plan: RunPlan, refused: str) -> str:
    """Return the analyst's prompt."""
    parts = [HEADLESS, ANALYST, f"Wanted: {plan.request}", f"Language: {plan.language}.", given_files(plan)]
    parts += [f"Your last answer could not be used: {refused}"] if refused else []
    return _joined([*parts, answer_form(ProjectSpecification, plan.language)])


def change_prompt(
    plan: RunPlan,
    specification: ProjectSpecification,
    files: Mapping[str, str],
    role: Role,
    failed: str,
    refused: str,
    found: Findings,
) -> str:
    """Return the prompt of a role that writes: its own files whole, and those of others that it builds on."""
    parts = [HEADLESS, ROLES[role], f"Your files: {OWNED[role]}. The files of others stay as they are."]
    parts += [f"Wanted: {plan.request}", f"Language: {plan.language}."]
    parts += [f"Specification:\n\n{specification.model_dump_json(exclude_defaults=True)}"]
    parts += [given_files(plan)] if not files else []
    parts += [f"What came of the project as it stands; mend this and nothing else:\n\n{failed}"] if failed else []
    parts += [f"Your last answer could not be used: {refused}"] if refused else []
    parts += [*findings_text(found, plan), *hints(plan, STAGES[role])]
    return _joined([*parts, _files_text(files, role), answer_form(ProjectChange, plan.language)])


def _files_text(files: Mapping[str, str], role: Role) -> str:
    """Return the files, a role's own first, as far as they fit; the others by name."""
    parts: list[str] = []
    left = FILES_CHARS
    for path in sorted(files, key=lambda path: (owner_of_file(path) != role, path)):
        if left <= 0:
            parts.append(f"{path}: {len(files[path])} characters, not shown")
            continue
        text = cut_text(files[path], min(FILE_CHARS, left))
        left -= len(text)
        parts.append(f"{path}:\n\n```\n{text}\n```")
    return "\n\n".join(parts) or "There are no files yet."


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
