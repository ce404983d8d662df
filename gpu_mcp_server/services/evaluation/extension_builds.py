"""Extensions of Python candidates (`load_inline`), built before they are judged and kept by content, failures too."""

import ast
import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gpu_mcp_server.models.build import CompileResult
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.package_files import worker_source
from gpu_mcp_server.services.builds.build_plans import PlannedBuild, compiling_environment
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.evaluation.judge_files import JUDGE
from gpu_mcp_server.services.evaluation.missing_equipment import check_cuda_in, program_error, program_missing_in
from gpu_mcp_server.services.evaluation.prewarming import Prewarming
from gpu_mcp_server.services.hosts.host_connections import HostProbe, JudgePython
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.architectures import number_of, own_archs
from gpu_mcp_server.toolchains.base import CompilePlan, Toolchain

ASKS = re.compile(r"\bcpp_extension\b|\bload_inline\b")
REQUESTS = "requests.json"
WARM = 'IMPORTS = ("torch.utils.cpp_extension",)\n'
"""What both sandboxes import before they have a job: one to three seconds."""
ASKED = "built/asked"
"""Tells the candidate's process that it asks for extensions, so that it says what became of them."""
ASK_S = 180.0
"""For a candidate to say what it wants."""
CPP = CandidateSource("", "cpp", "extension.cpp")
"""What the compiler is told that it builds."""
BINDINGS = "main.cpp"
"""What load_inline makes of cpp_sources, and of its bindings of `functions`."""
UNDECLARED = re.compile(r"\W(\w+)\W was not declared in this scope")
UNDECLARED_HINT = (
    "load_inline binds {0} in main.cpp: declare it in cpp_sources; it must be a C++ function that launches, as no "
    "__global__ kernel can be bound"
)
TWICE = re.compile(r"redefinition of .*\bPyInit_")
TWICE_HINT = "load_inline writes a PYBIND11_MODULE for its `functions`: leave out yours, or leave out `functions`"
LOCAL = re.compile(r'^[^\S\n]*#\s*include\s*"', re.MULTILINE)
"""A header that the candidate may have written itself."""
OTHER_KERNELS = re.compile(r"\b(?:triton|ctypes|cupy|numba|cutlass|tilelang|pycuda|torch\.compile)\b")
"""What a Python file may compute with besides torch and its extensions."""
FAILED, BUILT = "did not compile: extension ", "was built: extension "
"""What the candidate's process says of a build (judge/candidate/torch_extensions.py): a word that is not needed for
one that failed before, and that can only take back what would be said otherwise."""


@dataclass(frozen=True)
class Extensions:
    """Extensions built for one candidate."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """For the candidate's workspace: libraries, and what the compiler said of sources that it refused."""
    failed: CompileResult | None = None
    """A build without which the file cannot be loaded."""
    said: Sequence[str] = ()
    unbuilt: bool = False
    """Whether extensions were built, and none compiled."""
    binaries: Sequence[str] = ()
    """Artifacts of those that were built."""


class ExtensionBuilder:
    """Finds out what a candidate wants built, and builds it apart from the candidate."""

    def __init__(self, compiler: Compiler, artifacts: Artifacts, announcements: Prewarming) -> None:
        self._compiler, self._artifacts, self._announcements = compiler, artifacts, announcements

    async def build(self, source: CandidateSource, problem: Problem, probe: HostProbe, host: str) -> Extensions:
        """Build what a Python candidate will ask torch for; nothing where it asks for nothing, or cannot be asked.

        The candidate's own code runs in one sandbox and says what it wants; the compiler runs in another, which has
        the request alone. So nobody can put something else under a request's name. Both import torch ahead: the
        compiler's while the candidate is asked, the next candidate's as soon as this one has been.
        """
        if probe.judge is None or not ASKS.search(source.text):
            return Extensions()
        files: dict[str, bytes] = {ASKED: b""}
        said: list[str] = []
        binaries: list[str] = []
        failed: CompileResult | None = None
        requests, unknown = await self._requests(source, problem, probe, probe.judge, host)
        if unknown:
            said.append(f"extensions are left to the candidate: it was asked which ones, and that ended with {unknown}")
        for request in requests:
            begin = time.monotonic()
            result = await self._compiler.run_build(CPP, _build(request, probe, probe.judge), host, probe)
            key = key_of(request)
            name = str(request["arguments"]["name"])
            if result.status == "ok" and result.artifact_id:
                files[f"built/{key}.so"] = await self._artifacts.read(result.artifact_id)
                binaries.append(result.artifact_id)
                how = "as built before" if result.cached else f"built in {time.monotonic() - begin:.0f} s"
                said.append(f"extension {name} {how}")
            elif result.status == "failed" and _by_itself(request):
                log = await self._artifacts.read(result.log_artifact_id) if result.log_artifact_id else b""
                text = log.decode("utf-8", "replace")
                check_cuda_in(text, name, probe.judge, host)
                if missing := program_missing_in(text, probe):
                    raise program_error(missing, "candidate", host)
                files[f"built/{key}.txt"] = log
                failed = failed or with_binding_hint(result, request)
                said.append(f"extension {name} does not compile: {_first_error(with_binding_hint(result, request))}")
            else:
                said.append(f"extension {name} is left to the candidate: its build ended with {result.status}")
        unbuilt = failed is not None and not any(name.endswith(".so") for name in files)
        return Extensions(files, None if tolerates_failure(source.text) else failed, said, unbuilt, binaries)

    async def _requests(
        self, source: CandidateSource, problem: Problem, probe: HostProbe, python: JudgePython, host: str
    ) -> tuple[list[dict[str, Any]], str]:
        """Return what a candidate asks for, and how asking it ended where that is not known."""
        files = {
            "candidate.py": source.text,
            "judge_extensions.py": (JUDGE / "candidate/torch_extensions.py").read_text("utf-8"),
        }
        if problem.kind == "module":
            files["problem.py"] = problem.reference
        plan = CompilePlan(
            ("requests", *_capability(probe)), files, compiling_environment(probe), output=REQUESTS,
            roots=tuple(python.roots), worker="discover_extensions", python=python.path, wall_s=ASK_S, long=True,
            warm=WARM,
        )  # fmt: skip
        build = PlannedBuild(_torch(python), plan, None)
        if not await self._compiler.has_build(build, probe):
            to_come = _build({"environment": {}}, probe, python).plan
            await self._announcements.job(*self._compiler.job_of_plan(to_come, probe, host), host)
        asked = await self._compiler.run_build(CPP, build, host, probe)
        if asked.status != "ok" or not asked.artifact_id:
            return [], asked.status
        return requests_in(await self._artifacts.read(asked.artifact_id)), ""


def requests_in(data: bytes) -> list[dict[str, Any]]:
    """Return the requests that a candidate's process wrote, as far as they are such."""
    try:
        found: Any = json.loads(data)
    except ValueError:
        return []
    requests = cast("list[Any]", found) if isinstance(found, list) else []
    return [r for r in requests if _sound(r)][:8]


def _sound(request: Any) -> bool:
    if not isinstance(request, dict) or set(cast("dict[str, Any]", request)) != {"arguments", "sources", "environment"}:
        return False
    fields = cast("dict[str, Any]", request)
    arguments = cast("dict[str, Any]", fields["arguments"]) if isinstance(fields["arguments"], dict) else {}
    name = arguments.get("name")
    return isinstance(name, str) and re.fullmatch(r"\w{1,100}", name) is not None


def with_binding_hint(result: CompileResult, request: Mapping[str, Any]) -> CompileResult:
    """Return a failed build whose first error has a hint where the bindings that load_inline wrote are at fault."""
    main = next((str(text) for name, text in request["sources"] if name == BINDINGS), "")
    if not result.diagnostics or result.diagnostics[0].file != BINDINGS:
        return result
    first, *others = result.diagnostics
    missing = UNDECLARED.search(first.message)
    if missing and re.search(rf"^m\.def\(.*\b{missing.group(1)}\b", main, re.MULTILINE):
        hint = UNDECLARED_HINT.format(missing.group(1))
    elif TWICE.search(first.message) and main.count("PYBIND11_MODULE") > 1:
        hint = TWICE_HINT
    else:
        return result
    return result.model_copy(update={"diagnostics": [first.model_copy(update={"hint": hint}), *others]})


def _first_error(result: CompileResult) -> str:
    if not result.diagnostics:
        return "no reason"
    first = result.diagnostics[0]
    return first.line_text().partition("\n")[0][:200] + (f"; {first.hint}" if first.hint else "")


def key_of(request: Mapping[str, Any]) -> str:
    """Return a request's name, as judge/candidate/torch_extensions.py has it."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _capability(probe: HostProbe) -> list[str]:
    """Return the compute capability of the host's first NVIDIA GPU as torch writes it, such as 9.0; empty without."""
    numbers = filter(None, map(number_of, own_archs(probe.gpus)))
    return [f"{number // 10}.{number % 10}" for number in numbers][:1]


def _torch(python: JudgePython) -> Toolchain:
    return Toolchain("torch", python.path, f"{python.torch} of Python {python.version}")


def _build(request: Mapping[str, Any], probe: HostProbe, python: JudgePython) -> PlannedBuild:
    roots = (*python.roots, *([probe.nvcc.root] if probe.nvcc else []))
    files = {"request.json": json.dumps(request, sort_keys=True), "nvcc_shim.py": worker_source("nvcc_shim")}
    plan = CompilePlan(
        ("build", "kernel.so"), files, compiling_environment(probe),
        roots=roots, worker="extension_build", python=python.path, long=True, warm=WARM,
    )  # fmt: skip
    archs = request["environment"].get("TORCH_CUDA_ARCH_LIST")
    return replace(PlannedBuild(_torch(python), plan, None), arch=str(archs) if archs else None)


def _by_itself(request: Mapping[str, Any]) -> bool:
    """Say whether a build depends on nothing that only the candidate's process had."""
    arguments = json.dumps(request["arguments"])
    return "/job" not in arguments and "/tmp" not in arguments and not LOCAL.search(str(request["sources"][0][1]))  # noqa: S108


def tolerates_failure(text: str) -> bool:
    """Say whether a file may live without a build that failed: it catches exceptions somewhere."""
    try:
        return any(isinstance(node, ast.Try) for node in ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def fallback_of(source: str, failed: bool, notes: Iterable[str]) -> str:
    """Return what a verdict says first of a candidate none of whose extensions was built; empty where one was.

    Args:
        source: The candidate's text.
        failed: Whether extensions were built ahead of it, and none compiled.
        notes: Of the verdict's shapes, among them the candidate's own.
    """
    said = set(notes)
    own = any(note.startswith(FAILED) for note in said)
    if not (failed or own):
        return ""
    if any(note.startswith(BUILT) for note in said):
        return "an extension of it did not compile; it says that it built another one" if failed else ""
    how = "without it" if OTHER_KERNELS.search(source) else "with torch"
    return f"its extension did not compile; it computed {how}"
