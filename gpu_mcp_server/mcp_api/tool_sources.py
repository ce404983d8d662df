"""Sources that an agent hands in: text, a file of its workspace, or a file on the machine it shares with us."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.models.build import CandidateLanguage, Language
from gpu_mcp_server.services.workspaces.local_files import IN_WORKSPACE

if TYPE_CHECKING:
    from gpu_mcp_server.models.comparison import CandidateSpec
    from gpu_mcp_server.models.problem import Implementation, ImportOverrides, ProblemInfo
    from gpu_mcp_server.models.workspace import WorkspaceListing
    from gpu_mcp_server.services.builds.candidate_source import CandidateSource
    from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate
    from gpu_mcp_server.services.problems.formats.base import ProblemSource
    from gpu_mcp_server.services.workspaces.workspace_store import Workspaces

REFERENCE_LIMIT_BYTES = 1 << 20
ANY_LANGUAGE = get_args(CandidateLanguage)


class SourceResolver:
    """Turns what tools take as source into text or files, once for all tools."""

    def __init__(self, workspaces: "Workspaces", *, local_files: bool) -> None:
        """Keep where to look; `local_files` only when the caller is on this machine."""
        self._workspaces = workspaces
        self._local_files = local_files

    async def resolve(
        self,
        text: str | None,
        path: str | None,
        workspace_id: str | None,
        language: CandidateLanguage | None,
        languages: "Sequence[str]" = ANY_LANGUAGE,
    ) -> "CandidateSource":
        """Return the source of a candidate: exactly one of `text` and `path`, in one of the languages."""
        from gpu_mcp_server.services.builds.candidate_source import source_of

        return await source_of(
            self._workspaces,
            text=text,
            path=path,
            workspace_id=workspace_id,
            language=language,
            allow_local=self._local_files,
            languages=languages,
        )

    async def compilable(
        self,
        text: str | None,
        path: str | None,
        workspace_id: str | None,
        language: CandidateLanguage | None,
        flags: "Sequence[str]" = (),
    ) -> "CandidateSource":
        """Return a source that is compiled alone, with the headers that it includes from around it."""
        from gpu_mcp_server.services.builds.includes import with_headers

        if text is not None and language is None:
            known = ", ".join(get_args(Language))
            raise BadRequest("The language of a source given as text is not known.", hint=f"Set language: {known}.")
        source = await self.resolve(text, path, workspace_id, language, get_args(Language))
        return await with_headers(source, path, workspace_id, self._workspaces, flags)

    async def resolve_many(self, candidates: "Sequence[CandidateSpec]") -> "list[NamedCandidate]":
        """Return the candidates of one call with their sources.

        Raises:
            GpuMcpError: If one has none that can be read; it is named.
        """
        from gpu_mcp_server.services.evaluation.candidate_batches import NamedCandidate

        entrants: list[NamedCandidate] = []
        for c in candidates:
            try:
                source = await self.resolve(c.source, c.path, c.workspace_id, c.language)
            except GpuMcpError as error:
                raise error.prefix_with(f"None was judged, as of candidate {c.name!r}") from None
            entrants.append(NamedCandidate(c.name, source, c.flags, c.entry, fresh=c.fresh))
        return entrants

    async def implementation(
        self,
        text: str | None,
        path: str | None,
        workspace_id: str | None,
        language: "CandidateLanguage | None",
        entry: str,
        flags: tuple[str, ...],
    ) -> "Implementation":
        """Return a candidate as a problem keeps it: one source file.

        Raises:
            BadRequest: If it is a folder, or empty.
        """
        from gpu_mcp_server.models.problem import Implementation

        given = await self.resolve(text, path, workspace_id, language)
        if given.files is not None or not given.text:
            raise BadRequest("An implementation is one file with something in it.", hint="Give source, or its path.")
        return Implementation(language=given.language, source=given.text, entry=entry, flags=flags)

    async def files(self, text: str | None, path: str | None, workspace_id: str | None) -> dict[str, str]:
        """Return sources by path: one given as text or path, or all text files of a workspace or local folder."""
        from gpu_mcp_server.services.builds.candidate_source import texts_of

        if text is None and path is None and workspace_id is not None:
            return await texts_of(self._workspaces, workspace_id)
        one = await self.resolve(text, path, workspace_id, "cuda" if text is not None else None)
        if one.files is None:
            return {one.name: one.text}
        return {p: f.data.decode("utf-8", "replace") for p, f in one.files.items() if b"\0" not in f.data}

    async def program(
        self, text: str | None, path: str | None, workspace_id: str | None
    ) -> tuple[dict[str, str], str | None]:
        """Return the sources of a program and which is the main one, where that was said."""
        from gpu_mcp_server.services.builds.candidate_source import texts_of
        from gpu_mcp_server.services.nccl.transform import local_program

        if workspace_id is not None and text is None:
            return await texts_of(self._workspaces, workspace_id), path
        if path is None and text is None:
            raise BadRequest("No program is given.", hint="Give workspace_id of write_files, or path.")
        if path is None or text is not None:
            return await self.files(text, path, workspace_id), None
        self._require_local("Use write_files and give its workspace_id, or send text.")
        return await asyncio.to_thread(local_program, Path(path))

    async def reference(self, text: str | None, path: str | None) -> str:
        """Return the Python source of a reference: exactly one of `text` and `path`."""
        from gpu_mcp_server.services.workspaces.local_files import read_local

        if (text is None) == (path is None):
            raise BadRequest("Give either `reference` (Python text) or `reference_path` (a file of this machine).")
        if path is None:
            return str(text)
        self._require_local("Send the text in `reference`.")
        try:
            return (await asyncio.to_thread(read_local, Path(path), REFERENCE_LIMIT_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise BadRequest(f"{path!r} is binary junk, not text.", hint="Give Python source in UTF-8.") from error

    @asynccontextmanager
    async def problem(
        self, text: str | None, path: str | None, wish: "ImportOverrides | None" = None
    ) -> "AsyncGenerator[ProblemSource]":
        """Give a problem's file: exactly one of `text` and `path`, a file or its folder, there for the block.

        A path of `workspace:ID/PATH` is one in a workspace, as which a laptop's files come.
        """
        from gpu_mcp_server.models.problem import ImportOverrides
        from gpu_mcp_server.services.problems.formats.base import ProblemSource
        from gpu_mcp_server.services.problems.formats.detect import source_at
        from gpu_mcp_server.services.workspaces.local_files import checked_path

        if (text is None) == (path is None):
            raise BadRequest("Give either `path` (a file or folder) or `text` (of a file).")
        wish = wish or ImportOverrides()
        if path is None:
            yield ProblemSource("", str(text), wish=wish)
        elif not path.startswith(IN_WORKSPACE):
            self._require_local("Send the file in `text`, or its folder by write_files and name workspace:ID/PATH.")
            yield replace(await source_at(Path(path)), wish=wish)
        else:
            workspace_id, _, below = path.removeprefix(IN_WORKSPACE).partition("/")
            async with self._workspaces.laid_out(workspace_id) as folder:
                yield replace(await source_at(folder / (checked_path(below) if below else ".")), wish=wish)

    async def import_from(
        self,
        text: str | None,
        path: str | None,
        wish: "ImportOverrides | None",
        register: "Callable[[ProblemSource], Awaitable[ProblemInfo]]",
    ) -> "ProblemInfo":
        """Register the problem that a file is, while it is there."""
        async with self.problem(text, path, wish) as source:
            return await register(source)

    async def write(
        self, files: Mapping[str, str] | None, workspace_id: str | None, local_path: str | None
    ) -> "WorkspaceListing":
        """Write texts, or a local file or folder, into a workspace."""
        if (files is None) == (local_path is None):
            raise BadRequest("Give either `files` (texts by path) or `local_path` (of this machine).")
        if files is not None:
            return await self._workspaces.write(workspace_id, files)
        self._require_local("Send the text in `files`.")
        return await self._workspaces.write_local(workspace_id, Path(str(local_path)))

    def _require_local(self, hint: str) -> None:
        if not self._local_files:
            more = "`gpu-mcp-server connect URL` in place of the URL sends files of the client's machine."
            raise BadRequest("This server reads no files of its own machine for you.", hint=f"{hint} {more}")
