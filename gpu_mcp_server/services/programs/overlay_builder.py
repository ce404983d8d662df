"""Puts a judged kernel into a copy of a program's workspace, as an overlay that a variable switches on and off."""

import difflib
import json
from collections.abc import Mapping
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program_speed import ApplyReport
from gpu_mcp_server.package_files import JUDGE, WORKERS
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.programs.capture_content import GRID, MAIN
from gpu_mcp_server.services.programs.program_text import decode_source
from gpu_mcp_server.services.store import Store
from gpu_mcp_server.workers.program_hooks import hooked_script

FOLDER = "speedup_overlay"
"""In the copy; PYTHONPATH names it."""
PLAN = f"{FOLDER}/overlay.json"
FORMS = {
    **dict.fromkeys(("c", "cpp", "cuda"), "library"),
    **dict.fromkeys(("triton", "launcher"), "launcher"),
    "python": "model",
}
"""Form of a candidate by its language."""
TEXT_BYTES = 1 << 20


class OverlayBuilder:
    """Attempts in, patched copies of workspaces out."""

    def __init__(self, store: Store, compiler: Compiler) -> None:
        self._store, self._compiler = store, compiler

    async def apply(self, attempt_id: str, workspace_id: str) -> ApplyReport:
        """Make a copy of a workspace in which an attempt's kernel answers the calls that it was judged at.

        Args:
            attempt_id: A correct attempt at a captured problem.
            workspace_id: The program's files; they are left as they are.

        Raises:
            BadRequest: If the attempt is not correct, the workspace has a kernel already, or there is no sound way.
            NotFound: If a handle names nothing.
        """
        attempt = await self._store.experience.get(attempt_id)
        problem = await self._store.problems.get(attempt.problem_id or "")
        _check(attempt, problem)
        await self._check_plain(workspace_id)
        plan = overlay_plan(problem, attempt) | {"of": workspace_id}
        changed, hooked = await self._files(attempt, plan), await self._hooked_script(plan, problem, workspace_id)
        copy = await self._copy(workspace_id, {**changed, **hooked})
        patch = await self._patch(workspace_id, {**changed, **hooked})
        return ApplyReport(
            workspace_id=copy,
            of=workspace_id,
            attempt_id=attempt_id,
            replaces=f"{plan['kind']} {problem.adapter['target']}",
            cases=len(plan["cases"]),
            kernel_speedup=attempt.speedup,
            patch=await self._store.artifacts.put(patch.encode(), name="speedup.patch", media_type="text/x-diff"),
            files=sorted({**changed, **hooked}),
            notes=_notes(plan, attempt),
        )

    async def _check_plain(self, workspace_id: str) -> None:
        """Refuse a workspace that has a kernel: a second overlay would take the first one's place.

        Raises:
            BadRequest: If it has one.
        """
        if any(ref.path == PLAN for ref in await self._store.workspaces.manifest(workspace_id)):
            raise BadRequest(
                f"Workspace {workspace_id} has a kernel put in already; a copy holds one kernel.",
                hint="Give the program's own workspace, of which it is a copy.",
            )

    async def _files(self, attempt: Attempt, plan: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the overlay's files."""
        text = await self._store.artifacts.read(attempt.source_artifact_id or "")
        language = str(attempt.language)
        content = text if plan["form"] != "library" else await self._library(text.decode(), language, attempt)
        sources = {
            "sitecustomize.py": WORKERS / "overlay_site.py",
            "program_overlay.py": WORKERS / "program_overlay.py",
            "program_hooks.py": WORKERS / "program_hooks.py",
            "call_records.py": JUDGE / "adapters" / "call_records.py",
            "kernel_launches.py": JUDGE / "adapters" / "kernel_launches.py",
            "launcher_call.py": JUDGE / "candidate" / "launcher_call.py",
        }
        found = {f"{FOLDER}/{name}": path.read_bytes() for name, path in sources.items()}
        return found | {PLAN: json.dumps(plan).encode(), f"{FOLDER}/{plan['candidate']}": content}

    async def _library(self, text: str, language: str, attempt: Attempt) -> bytes:
        source = CandidateSource(text, cast("Any", language), NAMES[language])
        flags = json.loads(attempt.flags or "[]")
        built = await self._compiler.build(source, host=str(attempt.host), flags=flags)
        if not built.artifact_id:
            raise BadRequest(
                f"{attempt.attempt_id} no longer compiles on {attempt.host!r}.", hint="compile_kernel shows the errors."
            )
        return await self._store.artifacts.read(built.artifact_id)

    async def _hooked_script(self, plan: Mapping[str, Any], problem: Problem, workspace_id: str) -> dict[str, bytes]:
        """Return the script with a line that offers its own function or class to the overlay; nothing if not needed."""
        where, _, name = str(plan["replaces"]).partition(":")
        if where not in ("__main__", MAIN) or plan["kind"] == "operator":
            return {}
        path = str(problem.adapter.get("script") or "").removeprefix("./")
        text = decode_source(await self._store.workspaces.read_bytes(workspace_id, path, TEXT_BYTES), path)
        line = (
            f'{name} = getattr(__import__("sys").modules.get("program_hooks"), "MAIN", {{}})'
            f'.get("{name}", lambda it: it)({name})  # itself without the overlay'
        )
        try:
            hooked = hooked_script(text, name, line)
        except SyntaxError as error:
            raise BadRequest(f"{path} is no Python: {error}.", hint="Correct its syntax, then call again.") from error
        if hooked is None:
            raise BadRequest(
                f"{path} of {workspace_id} defines no {name} at its top level.",
                hint="Give the workspace whose program the problem was captured from.",
            )
        return {path: hooked.encode()}

    async def _copy(self, workspace_id: str, changed: Mapping[str, bytes]) -> str:
        workspaces, artifacts = self._store.workspaces, self._store.artifacts
        kept = [ref for ref in await workspaces.manifest(workspace_id) if ref.path not in changed]
        stored = await artifacts.put_blobs(changed.values())
        refs = [FileRef(path, sha256, size) for path, (sha256, size) in zip(changed, stored, strict=True)]
        copy = await workspaces.create()
        return await workspaces.place(copy, copy, [*kept, *refs])

    async def _patch(self, workspace_id: str, changed: Mapping[str, bytes]) -> str:
        """Return the changes as a unified diff; binary files are only named."""
        there = {ref.path for ref in await self._store.workspaces.manifest(workspace_id)}
        parts: list[str] = []
        for path, content in sorted(changed.items()):
            before = await self._store.workspaces.read_bytes(workspace_id, path) if path in there else b""
            try:
                old, new = before.decode(), content.decode()
            except UnicodeDecodeError:
                parts.append(f"Binary file {path}: read_file of the copy, {len(content)} bytes\n")
                continue
            first = f"a/{path}" if path in there else "/dev/null"
            parts += difflib.unified_diff(old.splitlines(True), new.splitlines(True), first, f"b/{path}")
        return "".join(parts)


def overlay_plan(problem: Problem, attempt: Attempt) -> dict[str, Any]:
    """Return the overlay's plan for `workers/program_overlay.py`.

    Raises:
        BadRequest: If an answer of the program has a form that cannot be made again.
    """
    record: dict[str, Any] = json.loads(problem.files["capture.json"])
    facts, cases = problem.adapter, list[dict[str, Any]]()
    for case, shape in zip(problem.cases, problem.shapes, strict=True):
        one = record["sets"][case["recorded"]["at"]]
        if one["answer"] is None:
            raise BadRequest(
                f"{facts['target']} returns values other than tensors and plain numbers.",
                hint="Capture a function inside of it that returns tensors.",
            )
        told = {name: one[name] for name in ("leaves", "answer", "answer_leaves")}
        told["tensors"] = [{key: t[key] for key in ("dtype", "shape", "strides")} for t in one["tensors"]]
        sizes = [(t, [shape[d] if isinstance(d, str) else d for d in t.shape]) for t in problem.outputs]
        told["outputs"] = [{"dtype": t.dtype, "shape": size} for t, size in sizes]
        cases.append(told | {"dims": [shape[symbol] for symbol in problem.symbols()]})
    form = FORMS[str(attempt.language)]
    replaces = record["module"]["class"] if facts["of"] == "module" else facts["target"].removesuffix(GRID)
    return {
        "kind": facts["of"],
        "replaces": replaces,
        "overload": facts.get("overload"),
        "device": facts["runs_on"],
        "skeleton": record["skeleton"],
        "passed": record["passed"],
        "module": record["module"],
        "written": record.get("written") or [],
        "pure": record.get("pure") or [],
        "state": problem.state,
        "cases": cases,
        "form": form,
        "entry": attempt.entry or "launch",
        "candidate": "candidate.so" if form == "library" else "candidate.py",
        "attempt_id": attempt.attempt_id,
        "problem_id": problem.problem_id,
    }


def _check(attempt: Attempt, problem: Problem) -> None:
    if problem.adapter.get("kind") != "captured":
        raise BadRequest(
            f"{attempt.attempt_id} answers {problem.problem_id}, which was not captured from a program.",
            hint="capture_problem makes a problem of a program's calls; judge the kernel there.",
        )
    if attempt.kind != "evaluate" or attempt.verdict != "correct" or attempt.voided:
        why = attempt.voided or attempt.verdict or attempt.status
        raise BadRequest(
            f"{attempt.attempt_id} is not correct ({why}); only correct kernels are put into a program.",
            hint="list_attempts with view best and the problem_id lists correct attempts.",
        )
    language, device = str(attempt.language), str(problem.adapter.get("runs_on"))
    elsewhere = FORMS.get(language) == "library" and (language == "cuda") != (device == "cuda")
    if language not in FORMS or elsewhere:
        raise BadRequest(
            f"A kernel in {language} cannot be put into a program that runs on {device}.",
            hint=f"Use one of {', '.join(FORMS)}; C and C++ answer calls on the CPU, CUDA on a GPU.",
        )


def _notes(plan: Mapping[str, Any], attempt: Attempt) -> list[str]:
    notes = [
        "calls with other types, sizes, steps or values than the kernel was judged at go to the program's own code"
    ]
    if plan["kind"] in ("function", "module"):
        notes.append("where gradients are wanted, backward is the program's own: it computes its forward once more")
    if attempt.trust != "confirmed":
        notes.append(f"the kernel's time is {attempt.trust or 'not known'}")
    notes.append("verify_in_place measures the whole program with and without it")
    return notes
