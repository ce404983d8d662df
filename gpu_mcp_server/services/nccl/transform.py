"""NCCL programs: analyzed and transformed. The files that come in stay as they are; new ones go to a workspace."""

import asyncio
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.collective import CollectiveGraph
from gpu_mcp_server.models.transform import Api, Library, Stage, TransformResult
from gpu_mcp_server.services.documentation.doc_search import Documents
from gpu_mcp_server.services.workspaces.local_files import collect, read_local
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".hh", ".cpp", ".cc", ".cxx", ".c", ".inl", ".inc")
MAX_FILES = 400
MAX_BESIDE = 200
MAX_FILE_BYTES = 1 << 20
MAX_BYTES = 8 << 20
"""Sources of one program. Parsing runs at about 3 MB/s."""

STAGE_API = (
    "ncclCommWindowRegister",
    "ncclMemAlloc",
    "ncclDevCommCreate",
    "ncclLsaBarrierSession",
    "ncclGetLsaPointer",
)
"""What windows (stage A) and device kernels (stage B) are made with."""
CITED = 4
_NCCL_NAME = re.compile(r"\b(?:nccl[A-Z]\w+|NCCL_[A-Z]\w+)")
_INCLUDE = re.compile(r'^[^\S\n]*#\s*include\s*"([^"\n]+)"', re.MULTILINE)


class Collectives:
    """Analyzes and transforms."""

    def __init__(self, workspaces: Workspaces, documents: Documents) -> None:
        self._workspaces, self._documents = workspaces, documents

    async def analyze(self, files: Mapping[str, str], main: str | None = None) -> CollectiveGraph:
        """Find what a program communicates; graph.json and its pictures go to a workspace.

        Raises:
            BadRequest: If there are no sources, too many, or `main` is not among them.
        """
        sources, main = sources_of(files, main)
        with _depth_said():
            graph, pictures = await asyncio.to_thread(_analyzed, sources, main)
        if not graph.sites:
            return graph
        whole = json.dumps(graph.model_dump(mode="json", exclude_none=True), indent=1)
        listing = await self._workspaces.write(None, {"graph.json": whole, **pictures})
        reasons = [r for s in graph.sites for f in (s.stage_a, s.stage_b) for r in f.reasons]
        see = await self._cited([graph.stages, *graph.notes, *reasons])
        return graph.model_copy(update={"workspace_id": listing.workspace_id, "see": see})

    async def transform(
        self,
        files: Mapping[str, str],
        main: str | None = None,
        *,
        stages: Sequence[Stage] | None = None,
        api: Api = "auto",
        nccl_version: tuple[int, int, int] | None = None,
        library: Library = "nccl",
    ) -> TransformResult:
        """Take a program to the device as far as it goes without an agent; new files go to a workspace.

        Args:
            files: Text by path.
            main: Where the collectives are, or the file that includes or calls it; absent: the only source with main.
            stages: Which; absent: all.
            api: What the generated kernels use; auto is lsa; `nccl run` takes gin where no NVLink is.
            nccl_version: Of the headers that it will be built against.
            library: Whose headers; for RCCL nothing is generated, and the reason is said.

        Raises:
            BadRequest: As `analyze`.
        """
        from gpu_mcp_server.nccl.stages.transformation import STAGES, transform

        sources, main = sources_of(files, main)
        chosen = tuple(stages or STAGES)
        with _depth_said():
            result, made = await asyncio.to_thread(
                transform, sources, main, stages=chosen, api=api, nccl_version=nccl_version, library=library
            )
        see = await self._cited([*result.needs_agent, *result.advice])
        if not made:
            return result.model_copy(update={"see": see})
        listing = await self._workspaces.write(None, {**files, **made, "transform.diff": result.diff})
        return result.model_copy(update={"workspace_id": listing.workspace_id, "see": see})

    async def _cited(self, advice: Sequence[str]) -> list[str]:
        """Return the entries of the installed NCCL that advice names, then those that the stages rest on."""
        named = [name for text in advice for name in _NCCL_NAME.findall(text)]
        return (await self._documents.lookup_names(list(dict.fromkeys([*named, *STAGE_API]))))[:CITED]


@contextmanager
def _depth_said() -> Generator[None]:
    try:
        yield
    except RecursionError as error:
        raise BadRequest(
            "The program nests expressions deeper than can be followed (about 900 levels).",
            hint="Leave generated sources out: give the files with the collectives and what they include.",
        ) from error


def sources_of(files: Mapping[str, str], main: str | None) -> tuple[dict[str, str], str]:
    """Return the sources among files and the main one.

    Raises:
        BadRequest: If there are none, too many, or the main one cannot be told.
    """
    sources = {p: t for p, t in files.items() if p.endswith(SUFFIXES)}
    total = sum(len(t) for t in sources.values())
    if not sources:
        raise BadRequest("There is no C, C++ or CUDA source among the files.", hint="Give a .cu file or its project.")
    if len(sources) > MAX_FILES or total > MAX_BYTES:
        raise BadRequest(
            f"There are {len(sources)} sources with {total} bytes; the limits are {MAX_FILES} and {MAX_BYTES}.",
            hint="Give the program's own files, without its dependencies.",
        )
    if main is not None and main not in sources:
        raise BadRequest(f"{main!r} is not among the sources.", hint=f"They are: {', '.join(sorted(sources)[:10])}.")
    return sources, main or _main_of(sources)


def local_program(path: Path) -> tuple[dict[str, str], str | None]:
    """Read a program of this machine: a folder, or a file with the sources beside it and what those include below.

    Raises:
        NotFound, PathRefused, LimitExceeded: As for every local file or folder.
    """
    if path.is_dir():
        found = [f for f in collect(path) if f.path.endswith(SUFFIXES) and f.size <= MAX_FILE_BYTES]
        return {f.path: f.source.read_text("utf-8", "replace") for f in found[: MAX_FILES + 1]}, None
    files = {path.name: read_local(path, MAX_FILE_BYTES).decode("utf-8", "replace")}
    folder = path.parent.resolve()
    pending = [p.name for p in sorted(folder.glob("*"))[:MAX_BESIDE] if p.name.endswith(SUFFIXES) and p.is_file()]
    pending += _INCLUDE.findall(files[path.name])
    while pending and len(files) <= MAX_FILES:
        name = pending.pop(0)
        target = (folder / name).resolve()
        plain = target.relative_to(folder).as_posix() if target.is_relative_to(folder) else None
        if plain is None or plain in files or not target.is_file() or target.stat().st_size > MAX_FILE_BYTES:
            continue
        files[plain] = target.read_text("utf-8", "replace")
        below = plain.rpartition("/")[0]
        pending += [f"{below}/{n}" if below else n for n in _INCLUDE.findall(files[plain])]
    return files, path.name


def _main_of(sources: Mapping[str, str]) -> str:
    if len(sources) == 1:
        return next(iter(sources))
    units = {p: t for p, t in sources.items() if not p.endswith((".h", ".cuh", ".hpp", ".hh", ".inl", ".inc"))}
    with_main = [p for p, t in units.items() if " main(" in t]
    with_nccl = [p for p in with_main if "nccl" in sources[p]] or with_main
    candidates = with_nccl or [p for p, t in units.items() if "nccl" in t]
    if len(candidates) == 1:
        return candidates[0]
    raise BadRequest(
        f"{len(sources)} files could be the program's main file.",
        hint=f"Name it: {', '.join(sorted(candidates or sources)[:10])}.",
    )


def _analyzed(sources: Mapping[str, str], main: str) -> tuple[CollectiveGraph, dict[str, str]]:
    from gpu_mcp_server.nccl.analysis.communication_graph import Analysis
    from gpu_mcp_server.nccl.analysis.graph_export import export_graph
    from gpu_mcp_server.nccl.analysis.graph_rendering import mermaid, svg

    graph = export_graph(Analysis(sources, main))
    return graph, {"graph.mmd": mermaid(graph), "graph.svg": svg(graph)}
