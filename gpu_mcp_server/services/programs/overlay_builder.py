"""Puts judged kernels into a copy of a program's workspace, as an overlay that a variable switches on and off."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.models.program_speed import ApplyReport
from gpu_mcp_server.package_files import CALL_FILES, JUDGE, WORKERS
from gpu_mcp_server.services.builds.candidate_source import NAMES, CandidateSource
from gpu_mcp_server.services.builds.compiler import Compiler
from gpu_mcp_server.services.programs.capture_content import GRID, MAIN
from gpu_mcp_server.services.programs.git_patch import git_patch
from gpu_mcp_server.services.programs.program_text import decode_source, overlay_line
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
MOST_KERNELS = 16
PLAN_BYTES = MOST_KERNELS << 20
Name = Field(max_length=300)


class KernelEntry(BaseModel):
    """One kernel of an overlay: what is read of it here; the rest is for `workers/program_overlay.py`."""

    model_config = ConfigDict(extra="allow")
    attempt_id: str = Name
    problem_id: str = Name
    kind: str = Name
    target: str = Name
    candidate: str = Name


class OverlayFile(BaseModel):
    """An overlay's `overlay.json`. It is not trusted: every writer of the workspace can change it."""

    of: str = Name
    kernels: list[KernelEntry] = Field(min_length=1, max_length=MOST_KERNELS)


def parse_overlay(data: bytes, workspace_id: str) -> OverlayFile:
    """Return what an overlay holds.

    Raises:
        BadRequest: If its file has another form than apply_attempt writes.
    """
    try:
        return OverlayFile.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:200]}"
        raise BadRequest(
            f"{PLAN} of workspace {workspace_id} is not as apply_attempt writes it ({why}).",
            hint="Call apply_attempt for the program's own workspace again, once for each kernel.",
        ) from error


class OverlayBuilder:
    """Attempts in, patched copies of workspaces out."""

    def __init__(self, store: Store, compiler: Compiler) -> None:
        self._store, self._compiler = store, compiler

    async def apply(self, attempt_id: str, workspace_id: str) -> ApplyReport:
        """Make a copy of a workspace in which an attempt's kernel answers the calls that it was judged at.

        Args:
            attempt_id: A correct attempt at a captured problem.
            workspace_id: The program's files, or a copy with kernels, which the new copy has too; a kernel of the same
                problem makes place. Both are left as they are.

        Raises:
            BadRequest: If the attempt is not correct, or there is no sound way.
            LimitExceeded: If the copy has `MOST_KERNELS` already.
            NotFound: If a handle names nothing.
        """
        attempt = await self._store.experience.get(attempt_id)
        problem = await self._store.problems.get(attempt.problem_id or "")
        _check(attempt, problem)
        known = {ref.path: ref for ref in await self._store.workspaces.manifest(workspace_id)}
        of, there = workspace_id, list[KernelEntry]()
        if PLAN in known:
            overlay = parse_overlay(
                await self._store.workspaces.read_bytes(workspace_id, PLAN, PLAN_BYTES), workspace_id
            )
            of, there = overlay.of, overlay.kernels
        plan = overlay_plan(problem, attempt)
        kernels = [each for each in there if each.problem_id != problem.problem_id]
        if len(kernels) >= MOST_KERNELS:
            raise LimitExceeded(
                f"Workspace {workspace_id} has {len(kernels)} kernels; the limit is {MOST_KERNELS}.",
                hint="Put it into a copy that has fewer.",
            )
        plans = [*(each.model_dump() for each in kernels), plan]
        changed = await self._files(attempt, plan) | await self._hooked_script(plan, problem, workspace_id)
        changed[PLAN] = f"{json.dumps({'of': of, 'kernels': plans}, indent=1)}\n".encode()
        gone = {f"{FOLDER}/{each.candidate}" for each in there if each not in kernels}
        kept = [ref for path, ref in known.items() if path not in changed and path not in gone]
        copy = await self._copy(kept, changed)
        notes = _notes(plan, attempt)
        notes += [f"it takes the place of {each.attempt_id}" for each in there if each not in kernels]
        return ApplyReport(
            workspace_id=copy,
            of=of,
            attempt_id=attempt_id,
            replaces=f"{plan['kind']} {problem.adapter['target']}",
            cases=len(plan["cases"]),
            kernel_speedup=attempt.speedup,
            kernels=[each["attempt_id"] for each in plans],
            patch=await self._store.artifacts.put(
                (await self._patch(of, copy)).encode(), name="speedup.patch", media_type="text/x-diff"
            ),
            files=sorted(changed),
            notes=notes,
        )

    async def _files(self, attempt: Attempt, plan: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the overlay's files."""
        text = await self._store.artifacts.read(attempt.source_artifact_id or "")
        language = str(attempt.language)
        content = text if plan["form"] != "library" else await self._library(text.decode(), language, attempt)
        sources = {
            "sitecustomize.py": WORKERS / "overlay_site.py",
            "program_overlay.py": WORKERS / "program_overlay.py",
            **{path.name: path for path in CALL_FILES},
            "launcher_call.py": JUDGE / "candidate" / "launcher_call.py",
        }
        found = {f"{FOLDER}/{name}": path.read_bytes() for name, path in sources.items()}
        return found | {f"{FOLDER}/{plan['candidate']}": content}

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
        line = overlay_line(name)
        if line in text.splitlines():
            return {}
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

    async def _copy(self, kept: Sequence[FileRef], changed: Mapping[str, bytes]) -> str:
        workspaces, artifacts = self._store.workspaces, self._store.artifacts
        stored = await artifacts.put_blobs(changed.values())
        refs = [FileRef(path, sha256, size) for path, (sha256, size) in zip(changed, stored, strict=True)]
        copy = await workspaces.create()
        return await workspaces.place(copy, copy, [*kept, *refs])

    async def _patch(self, of: str, copy: str) -> str:
        """Return what the copy changed and added, as a patch of the program's own workspace."""
        workspaces = self._store.workspaces
        old = {ref.path: ref.sha256 for ref in await workspaces.manifest(of)}
        paths = [ref.path for ref in await workspaces.manifest(copy) if old.get(ref.path) != ref.sha256]
        before = {path: await workspaces.read_bytes(of, path) for path in paths if path in old}
        return git_patch(before, {path: await workspaces.read_bytes(copy, path) for path in paths})


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
        "target": facts["target"],
        "candidate": f"{attempt.attempt_id}.{'so' if form == 'library' else 'py'}",
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
