"""Validates a job specification. The server checks its own input too; here nothing is taken on trust.

A NUL byte in a text would end up between bubblewrap's options, a role's name is part of paths: both are refused.
"""

import math
import re
from typing import Any, Dict, Iterable, Set, Tuple

from ..files.job_files import FilesError, checked_path
from ..protocol import PRIORITIES, VENDORS, FileRef, GpuRequest, JobSpec, Limits, ProcessSpec, ProtocolError

ID = re.compile(r"[a-z0-9][a-z0-9-]{3,63}\Z")
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
VARIABLE = re.compile(r"[^=\0]+\Z", re.DOTALL)
MODES = ("exclusive", "shared", "windowed", "none")
FOREIGN = ("wait", "warn", "other")
MAX_LABEL_BYTES = 64
MAX_PROCESSES = 64
MAX_FILES = 50_000
MAX_TREES = 8
MAX_LINKS = 200
"""All of them may be one role's, which gets its descriptors in one message (descriptors.MOST)."""
MAX_STDIN_BYTES = 1 << 20
MAX_COMMAND_BYTES = 1 << 20
MAX_GRACE_S = 86_400
MAX_PROGRAM_BYTES = 100 << 10
"""Linux gives a single argument 128 KiB."""


def validate_spec(spec: JobSpec) -> JobSpec:
    """Return the specification when it is sound.

    Raises:
        ProtocolError: Naming the first thing that is not.
    """
    _need(_named(ID, spec.id), "bad job id %r", spec.id)
    _need(_named(NAME, spec.purpose), "bad purpose %r", spec.purpose)
    _need(0 < len(spec.processes) <= MAX_PROCESSES, "%d processes; the limits are 1 and 64", len(spec.processes))
    for process in spec.processes:
        _process(process)
        _need(not process.counted or spec.purpose == "profile", "only a profile is counted, not a %r", spec.purpose)
    roles = [p.role for p in spec.processes]
    _need(len(set(roles)) == len(roles), "roles are named twice: %r", roles)
    accounts = {(p.workspace, p.account) for p in spec.processes}
    _need(len(accounts) == len({w for w, _ in accounts}), "a workspace with two accounts: %r", spec.id)
    _links(spec.links, set(roles))
    _files(spec.files, {p.workspace for p in spec.processes})
    _trees(spec.trees)
    for path in _texts(spec.outputs, "outputs"):
        if path != "*":
            _path(path)
    for root in _texts(spec.roots, "roots"):
        _need(root.startswith("/"), "root %r is no absolute path", root)
    _gpus(spec.gpus)
    asks = any(process.trusted for process in spec.processes)
    _need(asks or not spec.gpus.ahead, "ahead: no trusted role of job %r asks for its turn", spec.id)
    _limits(spec.limits)
    _text(spec.min_level, "min_level")
    for name in ("network", "detached"):
        _need(isinstance(getattr(spec, name), bool), "bad " + name + " %r", getattr(spec, name))
    _need(_number(spec.grace_s) and 0 <= spec.grace_s <= MAX_GRACE_S, "bad grace_s %r", spec.grace_s)
    size = len(_text(spec.stdin, "stdin", nul=True))
    _need(size <= MAX_STDIN_BYTES, "stdin of %d bytes; the limit is 1 MiB", size)
    return spec


def _need(sound: bool, message: str, shown: Any) -> None:
    if not sound:
        if isinstance(shown, (bool, int)):
            raise ProtocolError(message % shown)
        raise ProtocolError((message.replace("%r", "%s").replace("%d", "%s")) % repr(shown)[:120])


def _named(pattern: "re.Pattern[str]", value: Any) -> bool:
    return isinstance(value, str) and bool(pattern.match(value))


def _text(value: Any, what: str, nul: bool = False) -> bytes:
    if not isinstance(value, str) or ("\0" in value and not nul):
        raise ProtocolError("%s: not a text without NUL: %.80r" % (what, value))
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ProtocolError("%s: not a text: %s" % (what, ascii(value)[:80])) from None


def _texts(values: Any, what: str) -> Tuple[str, ...]:
    _need(isinstance(values, tuple), what + " is no list: %r", values)
    for value in values:
        _text(value, what)
    return values


def _path(path: str) -> None:
    try:
        checked_path(path)
    except FilesError as error:
        raise ProtocolError(str(error)) from None


def _process(process: ProcessSpec) -> None:
    for name in (process.role, process.workspace, process.account or "main"):
        _need(_named(NAME, name), "bad name of a role, workspace or account: %r", name)
    _need(bool(_texts(process.argv, "argv")) and bool(process.argv[0]), "no program in argv: %r", process.argv)
    _need(hasattr(process.env, "items"), "env is no mapping: %r", process.env)
    _need(process.profiled in (True, False), "bad profiled %r", process.profiled)
    _need(process.counted in (True, False), "bad counted %r", process.counted)
    size = len(_text(process.program, "program"))
    _need(size <= MAX_PROGRAM_BYTES, "a program of %d bytes; the limit is 100 KiB", size)
    _text(process.python, "python")
    _need(not process.python or process.python.startswith("/"), "python %r is no absolute path", process.python)
    size += sum(len(_text(a, "argv")) + 1 for a in process.argv)
    for name, value in process.env.items():
        _need(bool(VARIABLE.match(name)) and not name.startswith("LINK_"), "bad environment variable %r", name)
        size += len(_text(name, "env")) + len(_text(value, "env")) + 2
    _need(size <= MAX_COMMAND_BYTES, "a command of %d bytes; the limit is 1 MiB", size)


def _links(links: Any, roles: Set[str]) -> None:
    _need(isinstance(links, tuple), "links is no list: %r", links)
    _need(len(links) <= MAX_LINKS, "%d links; the limit is 200", len(links))
    for link in links:
        pair: Set[Any] = set(link)
        _need(len(link) == 2 == len(pair) and pair <= roles, "a link must join two roles: %r", link)


def _files(files: Any, workspaces: Set[str]) -> None:
    _need(isinstance(files, dict), "files is no mapping: %r", files)
    for workspace, refs in files.items():
        _need(workspace in workspaces, "files for a workspace that no process has: %r", workspace)
        _need(len(refs) <= MAX_FILES, "%d files; the limit is 50000", len(refs))
        _tree(refs)


def _trees(named: Any) -> None:
    _need(isinstance(named, dict), "trees is no mapping: %r", named)
    _need(len(named) <= MAX_TREES, "%d trees; the limit is 8", len(named))
    for name, refs in named.items():
        _need(_named(NAME, name), "bad name of a tree: %r", name)
        _need(0 < len(refs) <= MAX_FILES, "%d files in a tree; the limits are 1 and 50000", len(refs))
        _tree(refs)


def _tree(refs: Iterable[FileRef]) -> None:
    names: Set[str] = set()
    folders: Set[str] = set()
    for ref in refs:
        _text(ref.path, "path")
        _path(ref.path)
        _need(_named(SHA256, ref.sha256), "not a sha256: %r", ref.sha256)
        _need(_whole(ref.size) and _whole(ref.mode), "bad size or mode of %r", ref.path)
        names.add(ref.path)
        # Stopping at a known folder keeps deep trees linear: its parents are in the set already.
        at = ref.path.rpartition("/")[0]
        while at and at not in folders:
            folders.add(at)
            at = at.rpartition("/")[0]
    # One path as file and as folder cannot be laid; the failure would come late and half done.
    both = names & folders
    _need(not both, "a path is a file and a folder: %r", next(iter(both), ""))


def _whole(value: Any, least: int = 0) -> bool:
    # bool is an int in Python, and JSON numbers have no size limit.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 62


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _gpus(gpus: GpuRequest) -> None:
    _need(_whole(gpus.count) and gpus.count <= 64, "bad count of GPUs: %r", gpus.count)
    _need(gpus.mode in MODES and (gpus.count == 0 or gpus.mode != "none"), "bad mode of GPUs: %r", gpus.mode)
    _need(gpus.mode != "windowed" or gpus.count == 1, "a windowed job has one GPU, not %r", gpus.count)
    _texts(gpus.uuids, "uuids")
    _need(gpus.vendor in ("", *VENDORS), "bad vendor of GPUs: %r", gpus.vendor)
    for name in ("wait_s", "keep_s", "idle_s"):
        value: Any = getattr(gpus, name)
        _need(_number(value) and value >= 0, "bad " + name + ": %r", value)
    _need(_positive(gpus.weight), "weight must be above 0: %r", gpus.weight)
    for name in ("arch", "user"):
        value = getattr(gpus, name)
        _need(len(_text(value, name)) <= MAX_LABEL_BYTES, name + " is too long: %r", value)
    _need(_whole(gpus.memory_bytes), "bad memory_bytes of GPUs: %r", gpus.memory_bytes)
    _need(gpus.nvlink in (True, False), "bad nvlink: %r", gpus.nvlink)
    _need(gpus.ahead in (True, False), "bad ahead: %r", gpus.ahead)
    _need(gpus.foreign in FOREIGN, "bad foreign: %r", gpus.foreign)
    _need(gpus.priority in PRIORITIES, "bad priority: %r", gpus.priority)
    _need(gpus.lease == "" or _named(ID, gpus.lease), "bad lease: %r", gpus.lease)


def _limits(limits: Limits) -> None:
    values: Dict[str, Any] = limits._asdict()
    for name in ("wall_s", "cpu_s", "cpus"):
        value: Any = values[name]
        if value is not None or name == "wall_s":
            _need(_positive(value), "limit " + name + " must be above 0: %r", value)
    for name, value in values.items():
        if name not in ("wall_s", "cpu_s", "cpus"):
            least = 0 if name == "output_bytes" else 1
            _need(_whole(value, least), "limit " + name + " must be a whole number above 0: %r", value)
