"""A candidate's source, from text, a workspace or a local file."""

import ast
import asyncio
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import cast, get_args

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.build import LANGUAGES, CandidateLanguage, JudgedKind, Language
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.services.builds.python_siblings import joined_python, siblings_of
from gpu_mcp_server.services.workspaces.file_archive import MAX_TREE_BYTES, ArchiveFile, Tree, pack, unpack
from gpu_mcp_server.services.workspaces.local_files import collect, is_folder, read_local
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.toolchains.python_languages import imports_of

MAX_SOURCE_BYTES = 1 << 20
TREE_TYPE = "application/x-tar"
SUITE_NAMES = ("custom_kernel", "run")
"""Functions by which suites call a candidate: GPU MODE, and flashinfer-trace and SOL-ExecBench."""
_FUNCTION = re.compile(r"^def (?:custom_kernel|run|solve)\b", re.MULTILINE)
MAX_TEXTS = 500
MAX_TEXTS_BYTES = 8 << 20

LANGUAGE_BY_SUFFIX = {suffix: name for name, facts in LANGUAGES.items() for suffix in facts.suffixes}
NAMES = {name: facts.source_name for name, facts in LANGUAGES.items()}


@dataclass(frozen=True)
class CandidateSource:
    """One file."""

    text: str
    language: CandidateLanguage
    name: str
    """File name, with no folder."""
    files: Tree | None = None
    """Of a program, where more than one file was given; there is no text then."""
    beside: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other files that it includes, by path relative to the compiler's working folder."""
    folder: str = ""
    """Where it lies in that one, if not at its top."""

    def stored_form(self) -> tuple[bytes, str]:
        """Return the bytes that are kept of it, and their media type."""
        return (self.text.encode(), "text/plain") if self.files is None else (pack(self.files), TREE_TYPE)


def kept_source(
    data: bytes, media_type: str | None, language: CandidateLanguage, name: str | None = None
) -> CandidateSource:
    """Return the source whose `stored_form` these bytes are."""
    if media_type == TREE_TYPE:
        return CandidateSource("", "program", "project.tar", unpack(data))
    return CandidateSource(data.decode(), language, name or NAMES[language])


async def source_of_attempt(artifacts: Artifacts, attempt: Attempt) -> CandidateSource:
    """Return an attempt's source under its file's name; an old one's content has the name under which it came first.

    Raises:
        NotFound: If its source is gone.
    """
    if not attempt.source_artifact_id:
        raise NotFound("source of attempt", attempt.attempt_id, hint="list_attempts shows which have one.")
    data = await artifacts.read(attempt.source_artifact_id)
    kept = await artifacts.info(attempt.source_artifact_id)
    language = cast("CandidateLanguage", attempt.language if attempt.language in NAMES else "c")
    return kept_source(data, kept.media_type, language, attempt.source_name or kept.name)


def compiled_language(source: CandidateSource) -> Language:
    """Return the language of a source that is compiled.

    Raises:
        BadRequest: If it is a Python file, which compiles its kernels itself.
    """
    if source.language == "program":
        raise BadRequest("A program is built by its problem's command.", hint="evaluate_kernel builds it.")
    if source.language == "python":
        raise BadRequest(
            "A Python candidate is not compiled beforehand.", hint="evaluate_kernel loads it; its first call compiles."
        )
    return source.language


async def source_of(
    workspaces: Workspaces,
    *,
    text: str | None = None,
    path: str | None = None,
    workspace_id: str | None = None,
    language: str | None = None,
    allow_local: bool = False,
    languages: Sequence[str] = get_args(CandidateLanguage),
) -> CandidateSource:
    """Return the source that a call means: `text`, or `path` in a workspace or on the server's own machine.

    Args:
        workspaces: Where `path` is looked up if there is a `workspace_id`.
        text: The source itself; exactly one of it and `path` is given.
        path: A file of the workspace, otherwise a local one.
        workspace_id: Workspace of `path`.
        language: c, cpp, cuda, triton, launcher or python; taken from the path's suffix if it is not given, for .py
            and a text in Python from what it defines.
        allow_local: Whether local files may be read, as over stdio.
        languages: Those that the caller takes.

    Raises:
        BadRequest: If the language is none of those, the arguments contradict each other, or the source is not text.
        NotFound: If there is no such file or workspace.
        PathRefused: If the path leaves the workspace, or is no regular file.
        LimitExceeded: If the source has more than 1 MiB.
    """
    if "program" in languages and language in (None, "program") and text is None:
        files = await _folder(workspaces, path, workspace_id, allow_local=allow_local)
        if files is not None:
            return CandidateSource("", "program", "project.tar", files)
    if (text is None) == (path is None):
        hint = "Leave one of them out." if path is not None else "Neither is there."
        raise BadRequest("Give the source either as text or as a path.", hint=hint)
    if path is None:
        if workspace_id is not None:
            raise BadRequest("workspace_id goes with a path.", hint="Give the path of the source in the workspace.")
        data = _encoded(text or "")
    elif workspace_id is not None:
        data = await workspaces.read_bytes(workspace_id, path, MAX_SOURCE_BYTES)
    elif allow_local:
        data = await asyncio.to_thread(read_local, Path(path), MAX_SOURCE_BYTES)
    else:
        raise BadRequest(
            "This server does not read local files.", hint="Use write_files and give its workspace_id, or send text."
        )
    decoded = _decoded(data)
    chosen = _language(language, path, decoded, languages)
    if path is not None and path.endswith(".py"):
        decoded = await _with_siblings(workspaces, decoded, path, workspace_id)
    return CandidateSource(decoded, chosen, PurePosixPath(path).name if path is not None else NAMES[chosen])


async def _with_siblings(workspaces: Workspaces, text: str, path: str, workspace_id: str | None) -> str:
    """Return a Python file with those of its own folder that it imports.

    What is installed, and the problem's own files, come before them.
    """
    folder, name = Path(path).parent, PurePosixPath(path).name
    there = {ref.path for ref in await workspaces.manifest(workspace_id)} if workspace_id is not None else set[str]()

    async def read(beside: str) -> str | None:
        near = folder / beside
        try:
            if workspace_id is not None:
                known = near.as_posix() in there
                data = await workspaces.read_bytes(workspace_id, near.as_posix(), MAX_SOURCE_BYTES) if known else b""
            else:
                inside = near.is_file() and near.resolve().is_relative_to(folder.resolve())
                data = await asyncio.to_thread(read_local, near, MAX_SOURCE_BYTES) if inside else b""
        except OSError:
            return None
        return _decoded(data) if data.strip() else None

    found = {each: content for each, content in (await siblings_of(text, read)).items() if each != name}
    joined = joined_python({**found, name: text}, name, first=False)
    if len(joined.encode()) > MAX_SOURCE_BYTES:
        raise LimitExceeded(
            f"The candidate and the {len(found)} files that it imports have {len(joined.encode())} bytes; "
            f"the limit is {MAX_SOURCE_BYTES}.",
            hint="Import less from beside it.",
        )
    return joined


async def _folder(
    workspaces: Workspaces, path: str | None, workspace_id: str | None, *, allow_local: bool
) -> Tree | None:
    """Return all files of a workspace, if no path is given, or of a local folder; otherwise None.

    Raises:
        LimitExceeded: If they have more than 64 MiB.
        NotFound, PathRefused: As for every workspace and local folder.
    """
    if workspace_id is not None and path is None:
        refs = await workspaces.manifest(workspace_id)
        if sum(ref.size for ref in refs) > MAX_TREE_BYTES:
            raise LimitExceeded("The workspace has more than 64 MiB.", hint="Put the project into one of its own.")
        return {ref.path: ArchiveFile(await workspaces.read_bytes(workspace_id, ref.path), ref.mode) for ref in refs}
    if workspace_id is not None or path is None or not allow_local or PurePosixPath(path).suffix in LANGUAGE_BY_SUFFIX:
        return None
    if await asyncio.to_thread(is_folder, path):
        found = await asyncio.to_thread(collect, Path(path))
        contents = await asyncio.to_thread(lambda: [file.source.read_bytes() for file in found])
        return {
            file.path: ArchiveFile(data, 0o755 if file.executable else 0o644)
            for file, data in zip(found, contents, strict=True)
        }
    return None


async def texts_of(workspaces: Workspaces, workspace_id: str) -> dict[str, str]:
    """Return the text files of a workspace, by path.

    Raises:
        NotFound: If there is no such workspace.
        LimitExceeded: If there are more than 500 files, or 8 MiB.
    """
    manifest = await workspaces.manifest(workspace_id)
    if len(manifest) > MAX_TEXTS or sum(f.size for f in manifest) > MAX_TEXTS_BYTES:
        raise LimitExceeded(
            f"Workspace {workspace_id} has {len(manifest)} files; {MAX_TEXTS} of 8 MiB together can be read at once.",
            hint="Give the path of one file.",
        )
    found: dict[str, str] = {}
    for file in manifest:
        data = await workspaces.read_bytes(workspace_id, file.path)
        if b"\0" not in data:
            found[file.path] = data.decode("utf-8", "replace")
    return found


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("The source is binary junk, not text.", hint="Send the source as UTF-8 text.") from error
    if len(data) > MAX_SOURCE_BYTES:
        raise LimitExceeded(
            f"The source has {len(data)} bytes; the limit is {MAX_SOURCE_BYTES}.", hint="Send a smaller source."
        )
    return data


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"The source is binary junk, or not in UTF-8: byte {error.start} is 0x{data[error.start]:02x}.",
            hint="Send C, C++, CUDA or Python source, converted to UTF-8 where it is in another encoding.",
        ) from error
    if "\0" in text:
        raise BadRequest(
            f"The source is binary junk, not text: NUL at character {text.index(chr(0))}.",
            hint="Send C, C++, CUDA or Python source.",
        )
    if not text.strip():
        raise BadRequest("The source is empty.", hint="Send C, C++, CUDA or Python source.")
    return text


def python_kind(text: str) -> CandidateLanguage:
    """Say what a Python candidate is: `python` if it defines ModelNew, else what `launcher_language` says.

    Raises:
        BadRequest: If it is neither, or no Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(f"The candidate is not Python: {error}.", hint="Correct it, or set language.") from error
    if any(isinstance(s, ast.ClassDef) and s.name == "ModelNew" for s in body):
        return "python"
    functions = {s.name for s in body if isinstance(s, ast.FunctionDef)}
    assigned = {t.id for s in body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)}
    asked = (functions | assigned) & set(SUITE_NAMES) or any(_is_model(s) for s in body)
    if "launch" not in functions and asked:
        return "python"
    if functions:
        return launcher_language(text)
    raise BadRequest(
        "The Python file defines neither a class ModelNew nor a launcher.",
        hint="language python: class ModelNew; triton, launcher: def launch(*inputs, *outputs, *dimensions).",
    )


def launcher_language(text: str) -> CandidateLanguage:
    """Say in which language a Python file with a launcher is: `triton` if in that alone, else `launcher`."""
    found = {language.package for language in imports_of(text).languages()}
    return "triton" if found == {"triton"} else "launcher"


def judged_kind(source: str, language: str, problem: Problem) -> JudgedKind:
    """Return how the judge calls a candidate: a suite's function is a launcher where the problem is not the suite's."""
    facts = LANGUAGES.get(language)
    kind = facts.judged_as if facts else "library"
    if kind == "model" and not problem.adapter and "ModelNew" not in source and _FUNCTION.search(source):
        return "launcher"
    return kind


def _is_model(statement: ast.stmt) -> bool:
    """Say whether a statement is a module's class: Model, or one of any name that derives from a module of torch."""
    if not isinstance(statement, ast.ClassDef):
        return False
    bases = [ast.unparse(base) for base in statement.bases]
    return statement.name == "Model" or any(b.endswith("Module") or b.startswith(("nn.", "torch.nn.")) for b in bases)


def _language(given: str | None, path: str | None, text: str, languages: Sequence[str]) -> CandidateLanguage:
    known = ", ".join(languages)
    if given is not None:
        if given not in languages:
            raise BadRequest(f"{given!r} is no language that is known here.", hint=f"Known are {known}.")
        named = cast("CandidateLanguage", given)
        return launcher_language(text) if named in ("triton", "launcher") else named
    if path is None:
        try:
            if "python" in languages:
                return python_kind(text)
        except BadRequest:
            pass  # it is in C or the like, or nothing that can be judged
        raise BadRequest("The language of a source given as text is not known.", hint=f"Set language to {known}.")
    suffix = PurePosixPath(path).suffix.lower()
    if suffix == ".py":
        return python_kind(text)
    if suffix not in LANGUAGE_BY_SUFFIX:
        raise BadRequest(
            f"The language of {path!r} is not known from its suffix.",
            hint=f"Set language to {known}, or use one of {', '.join(LANGUAGE_BY_SUFFIX)}, .py.",
        )
    return cast("CandidateLanguage", LANGUAGE_BY_SUFFIX[suffix])
