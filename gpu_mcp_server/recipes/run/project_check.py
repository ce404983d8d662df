"""Builds and tests a project as it stands, and says whose turn it is: the rules by which a project run routes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_mcp_server.errors import LimitExceeded, NotFound
from gpu_mcp_server.models.build import Diagnostic
from gpu_mcp_server.models.job import JobResult
from gpu_mcp_server.models.project import ProjectBuild
from gpu_mcp_server.models.recipe import Stage
from gpu_mcp_server.recipes.run.project_files import BUILD_FILE, Role, owner_of_file
from gpu_mcp_server.recipes.run.run_context import Ground

LINK = re.compile(
    r"undefined reference|undefined symbol|multiple definition|duplicate symbol|cannot find -l|ld returned|"
    r"collect2|nvlink error|Undefined reference|DSO missing"
)
"""Messages of linkers: GNU ld, lld, nvlink."""
NO_HEADER = re.compile(r"([^:\s]+): No such file or directory")
COMMANDS, COMMANDS_BYTES = "build/compile_commands.json", 4 << 20
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu")
CTEST = ["ctest", "--test-dir", "build", "--output-on-failure", "--timeout", "60"]
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""Open MPI's, for tests that start ranks on few cores."""
BUILD_S, TEST_S = 900.0, 600.0
TEXT = 6000
"""Characters of what a build or a test said."""


@dataclass(frozen=True)
class ProjectCheck:
    """Result of building and testing a project, and the role whose turn it is."""

    outcome: str
    """green, untested (every test was skipped), configure_failed, compile_failed, link_failed, tests_failed, no_tests,
    tests_disputed, broken."""
    role: Role | None = None
    """Whose turn it is; nobody's where it is green."""
    text: str = ""
    """What was said, for that role."""
    tests: int = 0

    @property
    def stage(self) -> Stage:
        """The stage at which it failed."""
        return "target" if self.role is None else "correctness" if self.outcome.startswith("tests_") else "compile"


async def check_project(ground: Ground, files: Mapping[str, str]) -> ProjectCheck:
    """Build and test a project in a workspace of its own.

    Raises:
        ToolMissing, HostError: If the host lacks CMake or cannot be used.
    """
    lab, plan = ground.lab, ground.plan
    if not files:
        return ProjectCheck("broken", "coder", "there is no file yet")
    if BUILD_FILE not in files:
        return ProjectCheck("configure_failed", "builder", f"there is no {BUILD_FILE} at the top")
    listing = await lab.store.workspaces.write(None, files)
    host = lab.hosts.choose(plan.host)
    probe = await lab.hosts.probe(host)
    gpus = 1 if probe.gpus and plan.language == "cuda" else 0
    build = await lab.builds.projects.build(
        listing.workspace_id, system="cmake", arch="native" if gpus else None, timeout_s=BUILD_S, host=host
    )
    if build.status != "ok":
        return judge_build(build, files)
    if untested := await _untested_sources(ground, listing.workspace_id, files):
        return ProjectCheck("no_tests", "builder", f"no target compiles {', '.join(untested)}")
    result = await lab.commands.run(
        CTEST, workspace_id=listing.workspace_id, tests=(), gpus=gpus, timeout_s=TEST_S, host=host, env=ENVIRONMENT
    )
    return judge_tests(result)


async def _untested_sources(ground: Ground, workspace_id: str, files: Mapping[str, str]) -> list[str]:
    """Return the tester's sources that CMake compiles into nothing; none where it does not say what it compiles."""
    try:
        commands = await ground.lab.store.workspaces.read_bytes(workspace_id, COMMANDS, COMMANDS_BYTES)
    except (NotFound, LimitExceeded):
        return []
    return missing_sources(commands.decode("utf-8", "replace"), files)


def missing_sources(commands: str, files: Mapping[str, str]) -> list[str]:
    """Return the tester's sources that are in none of CMake's commands: the text of compile_commands.json."""
    tests = [path for path in files if owner_of_file(path) == "tester" and path.endswith(SOURCES)]
    return [path for path in tests if f'/{path}"' not in commands]


def judge_build(build: ProjectBuild, files: Mapping[str, str]) -> ProjectCheck:
    """Say whose turn it is after a failed build: configure and link errors are the builder's, others their file's.

    A header of the project that is not found where it is included is the builder's too, as are the system's.
    """
    errors = [d for d in build.diagnostics if d.severity == "error"] or build.diagnostics
    text = "\n".join(d.line_text() for d in errors)[:TEXT] or f"{build.status}: {build.note or 'no message'}"
    if build.stage == "configure":
        return ProjectCheck("configure_failed", "builder", text)
    if build.status != "failed":
        return ProjectCheck("broken", "coder", f"the build ended as {build.status}: {text}")
    first = next((d for d in errors if not LINK.search(d.message)), None)
    if first is None:
        return ProjectCheck("link_failed", "builder", text)
    header = NO_HEADER.match(first.message)
    if header is not None and _is_includable(header[1], first, files):
        return ProjectCheck("compile_failed", "builder", text)
    return ProjectCheck("compile_failed", _owner(first), text)


def _is_includable(header: str, diagnostic: Diagnostic, files: Mapping[str, str]) -> bool:
    name = header.rpartition("/")[2]
    return any(path.rpartition("/")[2] == name for path in files) or f"<{header}>" in " ".join(diagnostic.context)


def _owner(diagnostic: Diagnostic) -> Role:
    """Return whose file a message is about; the coder's where it names none of the project's."""
    path = diagnostic.file or ""
    return "coder" if not path or path.startswith("/") else owner_of_file(path)


def judge_tests(result: JobResult) -> ProjectCheck:
    """Say whose turn it is after the tests: failed ones are the coder's, none at all the builder's."""
    report = result.tests
    said = "\n".join(filter(None, [result.note, result.stdout[-TEXT:], result.stderr[-TEXT:]]))
    if report is None or report.total == 0:
        what = "ctest found no test: enable_testing() and add_test() for each program below tests/"
        role: Role = "builder" if result.status in ("ok", "failed") else "coder"
        return ProjectCheck("no_tests", role, f"{what}\n{said}"[:TEXT])
    if report.failed or result.status != "ok":
        return ProjectCheck("tests_failed", "coder", "\n".join([*report.lines(), said])[:TEXT], report.total)
    if report.skipped == report.total:
        return ProjectCheck("untested", None, f"all {report.total} tests were skipped", report.total)
    return ProjectCheck("green", None, report.lines()[0], report.total)
