"""Defines the protocol between server and hostd: job specifications, records, and the frames that carry them.

A frame is `>IQ` (bytes of the JSON header, bytes of the attachment), the header, the attachment. Requests carry
`id` and `verb`; the reply carries the same `id` and either `ok` (the answer) or `error` (`kind`, `message`, `hint`).
Attachments are file contents laid end to end; the header's `blobs` lists their `[sha256, size]`.
"""

import json
import struct
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple, Type, TypeVar, cast

PROTOCOL_VERSION = 1

# Sizes first: a reader refuses too large a frame before it takes it, and attachments travel as bytes, not as JSON.
HEADER = struct.Struct(">IQ")
MAX_HEADER_BYTES = 16 << 20
MAX_ATTACHMENT_BYTES = 1 << 30

LEVELS = ("unconfined", "landlock", "apptainer", "namespaces", "full")
"""Sandbox levels, weakest first; what each means is in `hostd/sandbox`."""
BOXED = LEVELS[2:]
"""Those whose jobs have namespaces of their own."""

T = TypeVar("T")


class ProtocolError(Exception):
    """The other side sent something that is not a frame."""


# Named tuples: dataclasses took a fifth of the time in which hostd starts.
class FileRef(NamedTuple):
    """A file of a workspace, by content."""

    path: str
    """Relative to the workspace, `/` between parts, never `..`."""
    sha256: str
    size: int
    mode: int = 0o644


class Limits(NamedTuple):
    """Limits of a job; the record names each one that strikes."""

    wall_s: float = 60.0
    cpu_s: Optional[float] = None
    """CPU seconds of a role's processes together; `None` leaves only the wall clock."""
    memory_bytes: int = 8 << 30
    """Of each process group (role) of the job."""
    processes: int = 512
    """Processes and threads of each role."""
    cpus: Optional[float] = None
    """CPU share, where a cgroup can enforce it."""
    output_bytes: int = 1 << 20
    """Kept of each of stdout and stderr; the rest is counted and dropped."""
    file_bytes: int = 1 << 30
    """Size of any one file."""
    disk_bytes: int = 2 << 30
    """Sum of a workspace's files."""
    disk_files: int = 10_000
    tmp_bytes: int = 64 << 20
    """Size of `/tmp` inside the sandbox; charged to memory."""
    shm_bytes: int = 64 << 20
    """Size of `/dev/shm` inside the sandbox; charged to memory."""
    tmp_files: int = 100_000
    """Files in each of these two: one takes a kilobyte of the kernel's memory, however small it is."""


VENDORS = ("nvidia", "amd")
"""Makers of GPUs that jobs can have, in the order in which hosts are looked through."""
PRIORITIES = ("interactive", "batch", "background")
"""Classes of jobs that wait for GPUs, first come first."""


class GpuRequest(NamedTuple):
    """GPUs that the job wants."""

    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]  # frames name it so; no code calls tuple.count
    mode: str = "none"
    """`exclusive` for timing and profiling, `shared` for correctness, `none` otherwise. With `windowed` a job shares
    one GPU with others of the kind, and its trusted role asks for windows in which it has the GPU alone.

    With `count` 0 the job asks for the processor. An `exclusive` job runs alone there, as it times. `shared` jobs run
    beside each other, one for each core and four at most, and never beside an `exclusive` one."""
    uuids: Tuple[str, ...] = ()
    """Only these, when not empty."""
    wait_s: float = 60.0
    """How long to wait for the locks before giving up with status `no_gpu`."""
    vendor: str = "nvidia"
    """Whose: one of `VENDORS`; empty for those of any one vendor, NVIDIA's first."""
    arch: str = ""
    """Only GPUs of this architecture, such as `sm_90` or `gfx942`."""
    memory_bytes: int = 0
    """Only GPUs with at least so much memory."""
    nvlink: bool = False
    """Several GPUs: each must reach each other by NVLink."""
    foreign: str = "other"
    """Compute processes that are not ours, on a GPU that is wanted alone: `wait` until they are gone, `warn` and take
    it, or take another (`other`), and warn when there is none."""
    priority: str = "interactive"
    """`interactive` before `batch` before `background`; who waits long rises."""
    user: str = ""
    """Who it is for, where several people share a login: each has a share."""
    weight: float = 1.0
    """Share of `user` against others of the same login, and against all where the host believes this login."""
    lease: str = ""
    """Reservation whose GPUs to use; when it has ended the job waits like others, and its note says so."""
    keep_s: float = 0.0
    """A reservation (purpose `reserve`) ends when it was not used for so long."""
    idle_s: float = 0.0
    """A reservation that was not used for so long is asked to leave when somebody waits."""
    ahead: bool = False
    """The job's processes may start before its turn, at the head of the line or next to it. Its trusted role asks its
    supervisor for the `turn` before anything of the job touches a GPU, and says `ready` once nothing else is left.
    Until then the job is queued, and others are let past it."""


class ProcessSpec(NamedTuple):
    """One process of a job."""

    argv: Tuple[str, ...]
    """Never a shell line. `{python}` as argv[0] is the interpreter that runs hostd."""
    role: str = "main"
    env: Mapping[str, str] = {}
    trusted: bool = False
    """True for our own harness: it gets the control link and is never frozen. It is sandboxed all the same."""
    workspace: str = "main"
    """Which of the job's workspaces is its `/job`."""
    account: str = ""
    """Where hostd is root, processes of one account share a uid; unless it is named, each workspace has its own."""
    gpu: bool = True
    """Whether it sees the GPUs of the job."""
    program: str = ""
    """Source of a Python program to run in place of `argv[0]`: its `main` gets the other arguments. Its `prepare` may
    have been called ahead of the job, in a sandbox that waits for a job with the same program."""
    python: str = ""
    """Interpreter of `program` where it is not the one that runs hostd: it finds what is installed for it."""
    profiled: bool = False
    """Whether it may trace its own children, as profilers and checkers do."""
    counted: bool = False
    """Whether perf may count and sample its events, as profiles on a processor do."""

    def account_name(self) -> str:
        """Return the account, the workspace's own unless one is named."""
        return self.account or "workspace-" + self.workspace


class JobSpec(NamedTuple):
    """Specification of one job."""

    id: str
    processes: Tuple[ProcessSpec, ...]
    """The job ends when the first of them (the leader) has ended; the others are killed then."""
    purpose: str = "run"
    """What it is for (`run`, `compile`, `judge`, `fetch`, `batch`), for listings."""
    links: Tuple[Tuple[str, str], ...] = ()
    """Pairs of roles that get a connected `SOCK_SEQPACKET` pair. A process finds its end in the environment:
    `LINK_<OTHER ROLE IN CAPITALS>` holds the descriptor's number."""
    files: Mapping[str, Tuple[FileRef, ...]] = {}
    """Files laid into each workspace before the start."""
    trees: Mapping[str, Tuple[FileRef, ...]] = {}
    """Files by the name of a folder that all processes can read and none can write. `TREE_<NAME IN CAPITALS>` in their
    environment says where it is. It is there when `prepare` of a program is called."""
    outputs: Tuple[str, ...] = ()
    """Files of the leader's workspace to bring back: paths, or `*` for everything that is new or changed."""
    roots: Tuple[str, ...] = ()
    """Folders of the host shown read-only inside, besides `/usr`: interpreters, toolchains."""
    gpus: GpuRequest = GpuRequest()
    limits: Limits = Limits()
    min_level: str = "namespaces"
    network: bool = False
    """Only for purpose `fetch`, never with a GPU, and for ranks of a batch job (`batch`) where settings allow it."""
    detached: bool = False
    """An attached job ends with its caller; a detached one at its deadline."""
    grace_s: float = 0.0
    """How long an attached job goes on after its channel was lost, for somebody to ask for it again."""
    stdin: str = ""
    """Text given to the leader on stdin, 1 MiB at most."""

    def contents(self) -> Set[str]:
        """Return the sha256 of all files that must be on the host."""
        return {file.sha256 for refs in [*self.files.values(), *self.trees.values()] for file in refs}


class ProcessRecord(NamedTuple):
    """End of one process."""

    role: str
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    peak_memory_bytes: Optional[int] = None
    oom_kills: int = 0


class OutputFile(NamedTuple):
    """A file that came out of the job's workspace."""

    path: str
    sha256: str
    size: int
    mode: int = 0o644


STATUSES = (
    "ok",  # the leader exited with 0
    "failed",  # the leader exited with another code or by a signal
    "timeout",  # wall or CPU limit
    "oom",  # memory limit
    "disk_quota",  # too many bytes or files in the workspace
    "cancelled",  # somebody asked
    "caller_lost",  # attached, and the channel ended
    "no_gpu",  # the GPU locks were not to be had in time
    "refused",  # the host cannot give the sandbox level that was asked for
    "broken",  # hostd itself failed, or could not keep what the job wrote; `note` says how
)


class JobRecord(NamedTuple):
    """Record of a job; written once at the end, atomically."""

    id: str
    state: str
    purpose: str = "run"
    status: Optional[str] = None
    """One of `STATUSES` once the state is `finished`."""
    note: str = ""
    """What struck, what was weaker, what to do."""
    level: Optional[str] = None
    """Sandbox level reached."""
    weaker_because: str = ""
    """What is missing for level `full`, empty at `full`."""
    processes: Tuple[ProcessRecord, ...] = ()
    gpus: Tuple[str, ...] = ()
    submitted_at: float = 0.0
    """Seconds since the epoch, the host's clock; so are the next two."""
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    wall_s: Optional[float] = None
    """From the first process's start to the end."""
    gpu_s: Optional[float] = None
    """GPU seconds that a job with windows is charged: its part while others were there; None of others, or unknown."""
    stdout_bytes: int = 0
    """Written by the leader; what is kept may be less."""
    stderr_bytes: int = 0
    stdout_kept: int = 0
    stderr_kept: int = 0
    outputs: Tuple[OutputFile, ...] = ()
    outputs_left_out: Tuple[str, ...] = ()
    """`PATH: why` for each output that was not taken."""

    @property
    def leader(self) -> Optional[ProcessRecord]:
        """The first process, if it was started."""
        return self.processes[0] if self.processes else None


def has_memory(gpu: Mapping[str, Any], wanted_bytes: int) -> bool:
    """Say whether a GPU may have so much memory; who does not say how much it has is not refused."""
    total = gpu.get("memory_total_bytes")
    return total is None or int(total) >= wanted_bytes


def to_json(value: Any) -> Any:
    """Return one of these types as JSON types."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in cast("Mapping[str, Any]", value).items()}
    named = cast("Tuple[str, ...]", getattr(value, "_fields", ()))
    return dict(zip(named, map(to_json, value))) if named else [to_json(each) for each in value]


def _build(cls: Type[Any], data: Mapping[str, Any], nested: Mapping[str, Any]) -> Any:
    extra = set(data).difference(cls._fields)
    if extra:
        raise ProtocolError("unknown fields in %s: %s" % (cls.__name__, ", ".join(sorted(extra))))
    out: Dict[str, Any] = {}
    for key, value in data.items():
        if key in nested:
            value = nested[key](value)
        elif isinstance(value, list):
            value = _as_tuple(cast("List[Any]", value))
        out[key] = value
    try:
        return cls(**out)
    except TypeError as error:
        raise ProtocolError("%s: %s" % (cls.__name__, error)) from None


def _as_tuple(values: List[Any]) -> Tuple[Any, ...]:
    return tuple(tuple(cast("List[Any]", v)) if isinstance(v, list) else v for v in values)


def _one(cls: Type[T]) -> Callable[[Mapping[str, Any]], Any]:
    def build(data: Mapping[str, Any]) -> Any:
        return _build(cls, data, {})

    return build


def _each(cls: Type[T]) -> Callable[[List[Mapping[str, Any]]], Tuple[Any, ...]]:
    def build(items: List[Mapping[str, Any]]) -> Tuple[Any, ...]:
        return tuple(_build(cls, item, {}) for item in items)

    return build


def _by_name(files: Mapping[str, List[Mapping[str, Any]]]) -> Dict[str, Tuple[Any, ...]]:
    return {name: _each(FileRef)(refs) for name, refs in files.items()}


def job_spec_from_json(data: Mapping[str, Any]) -> JobSpec:
    """Rebuild a job specification; unknown fields are refused, so that no limit is lost unnoticed."""
    spec = _build(
        JobSpec,
        data,
        {
            "processes": _each(ProcessSpec),
            "files": _by_name,
            "trees": _by_name,
            "gpus": _one(GpuRequest),
            "limits": _one(Limits),
        },
    )
    return spec  # type: ignore[no-any-return]


def job_record_from_json(data: Mapping[str, Any]) -> JobRecord:
    """Rebuild a record."""
    record = _build(JobRecord, data, {"processes": _each(ProcessRecord), "outputs": _each(OutputFile)})
    return record  # type: ignore[no-any-return]


def pack(header: Mapping[str, Any], attachment: bytes = b"") -> bytes:
    """Return one frame."""
    # ASCII alone: undecodable bytes of file names are lone surrogates, which no UTF-8 encoder takes.
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(text), len(attachment)) + text + attachment


def frame_sizes(prefix: bytes) -> Tuple[int, int]:
    """Return the sizes of header and attachment that `prefix` announces.

    Raises:
        ProtocolError: If they are beyond the limits, as when a banner was printed onto the channel.
    """
    header, attachment = HEADER.unpack(prefix)
    if header > MAX_HEADER_BYTES or attachment > MAX_ATTACHMENT_BYTES:
        raise ProtocolError("not a frame: starts with %r" % prefix[:12])
    return header, attachment


def read_frame(stream: BinaryIO) -> Optional[Tuple[Dict[str, Any], bytes]]:
    """Read one frame from a blocking stream; `None` at its end."""
    prefix = stream.read(HEADER.size)
    if len(prefix) < HEADER.size:
        return None
    header_size, attachment_size = frame_sizes(prefix)
    text = stream.read(header_size)
    attachment = stream.read(attachment_size) if attachment_size else b""
    # A line that is cut within a frame has ended as one between frames has.
    if len(text) < header_size or len(attachment) < attachment_size:
        return None
    return json.loads(text.decode("ascii")), attachment


def split_attachment(blobs: List[List[Any]], attachment: memoryview) -> Dict[str, memoryview]:
    """Cut an attachment into its files by sha256."""
    found: Dict[str, memoryview] = {}
    at = 0
    for sha256, size in blobs:
        found[sha256] = attachment[at : at + size]  # a view: an attachment may have a gigabyte
        at += size
    if at != len(attachment):
        raise ProtocolError("attachment of %d bytes, announced %d" % (len(attachment), at))
    return found
