"""The kinds of hosts that the settings know: one model each, chosen by `kind`."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_S = 86_400.0


_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.:/@+,-]*$")]


class CommonHostSettings(BaseModel):
    """Settings that every kind of host has."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: ClassVar[str] = "ssh"
    """What `hosts add` is told: `ssh` for [user@]host[:port], `login` for that of a login node, nothing, or a setting's
    name."""

    python: str | None = None
    """Python 3.8 or newer that runs hostd there."""
    judge_python: str | None = None
    """Python there that runs the judge and references; it needs NumPy, for torch problems torch. Unset: the first that
    has torch, else NumPy. This machine searches the active venv or conda environment, .venv of the working folder
    (unless git tracks it), the server's own Python and python3 on PATH. Another host searches the environment of its
    `setup` lines and python3 on PATH. `gpu-mcp-server hosts set NAME --with torch,triton` makes one in the state
    folder."""
    cuda: str | None = None
    """Root of the CUDA toolkit there, such as /usr/local/cuda-13."""
    state_dir: str | None = None
    """Folder there for jobs and cached files."""
    roots: list[str] = []
    """More folders there that jobs may read."""
    include_paths: list[Annotated[str, Field(pattern=r"^/[^\x00\n]*$")]] = []
    """Folders of headers there that every compile searches last, such as a clone of CUTLASS. Jobs cannot write to them;
    a build's evidence has the digest of their files. The server finds CUTLASS, FlashInfer and ThunderKittens without
    this setting in pip packages, /opt, /usr/local and the home folder."""
    setup: list[Annotated[str, Field(pattern=r"^[^\x00\n]+$")]] = []
    """Lines of shell, such as "module load cuda/13.0", or conda's hook and "conda activate kernels". hostd runs them
    once, when it first probes the host. Jobs get the variables that they set, and may read the folders in them."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str] = {}
    """Environment variables of every job there, such as NCCL_NVLS_ENABLE. A job's own variables override them; the
    judge's own processes do not get them."""
    foreign_processes: Literal["wait", "warn", "other"] = "other"
    """Action when a process outside the pool uses a GPU that a job needs exclusively. wait: until that process ends;
    warn: take the GPU and warn; other: take another GPU, or warn if there is none."""
    quiet_s: Annotated[float, Field(ge=1, le=LONGEST_S)] = 60.0
    """Seconds of silence after which client and host consider the connection lost."""
    grace_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 60.0
    """Seconds that an attached job keeps running after its connection was lost, so that a client can rejoin it."""
    ranks_network: bool = False
    """Whether ranks on several hosts or nodes may use the network; they need it to communicate."""
    ranks_address: Annotated[str, Field(pattern=r"^[\w.:%-]+$")] | None = None
    """Address at which ranks on other hosts reach this host; unset: one of its own addresses."""


class LocalHost(CommonHostSettings):
    """This machine."""

    target: ClassVar[str] = ""
    kind: Literal["local"] = "local"
    """This machine."""
    grace_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 0.0
    """Seconds that an attached job keeps running after the server was killed."""


class _Login(CommonHostSettings):
    """A machine that SSH reaches."""

    host: Annotated[str, Field(min_length=1, pattern=r"^[^-\s][^\s]*$")]
    """Host name, address, or a name from ~/.ssh/config."""
    user: Annotated[str, Field(pattern=r"^[^-\s][^\s]*$")] | None = None
    """Account there; unset: from ~/.ssh/config, else your own name."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of sshd; unset: from ~/.ssh/config, else 22."""
    identity_file: Path | None = None
    """Private key; unset: from ~/.ssh/config, the agent, or the usual files."""
    known_hosts: Path | None = None
    """File of known host keys, instead of ~/.ssh/known_hosts."""
    ssh_config: Path | None = None
    """Configuration file of ssh, instead of ~/.ssh/config."""

    @field_validator("identity_file", "known_hosts", "ssh_config")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value else None


class SshHost(_Login):
    """A machine over SSH, by a client of our own."""

    kind: Literal["ssh"] = "ssh"
    """A machine over SSH, by the server's own client."""


class OpenSshHost(_Login):
    """A machine over the ssh program, and over the connection that you opened with it: for one-time passwords."""

    kind: Literal["openssh"] = "openssh"
    """A machine over the ssh program and a connection that you opened, as one-time passwords need."""
    control_path: str | None = None
    """Socket of the ssh connection to share; unset: from ~/.ssh/config, else the one that `hosts login` opens."""


class DockerHost(CommonHostSettings):
    """A container of Docker, here or on another machine."""

    target: ClassVar[str] = "image"
    kind: Literal["docker"] = "docker"
    """A container, here or on another machine."""
    image: Annotated[str, Field(min_length=1)]
    """Image that has Python 3.8 or newer, and bubblewrap, compilers and CUDA as jobs need them. You pull it; the server
    never does."""
    docker_url: str | None = None
    """Address of Docker's daemon, such as unix:///run/docker.sock; unset: DOCKER_HOST, else the usual socket."""
    gpus: Annotated[str, Field(pattern=r"^(all|[\w.:-]+(\s*,\s*[\w.:-]+)*)?$")] = ""
    """GPUs of the container: all, or numbers or UUIDs by commas; empty: none."""
    mounts: list[Annotated[str, Field(pattern=r"^/[^:]*$")]] = []
    """Folders of Docker's machine that the container may read under the same paths."""
    memory_bytes: Annotated[int, Field(ge=64 << 20)] | None = None
    """Memory limit of the container, for all jobs together; unset: no limit."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    """Processor cores of the container, for all jobs together; unset: all."""
    idle_s: Annotated[float, Field(ge=1)] = 3600.0
    """Seconds without hostd or a job after which the container ends; files of jobs stay in its volume."""


class BatchHost(CommonHostSettings):
    """Nodes that a batch system lends: one allocation is held while there is work, with hostd inside."""

    target: ClassVar[str] = "login"
    kind: Literal["slurm", "pbs"] = "slurm"
    """Batch system; pbs has never run against a real PBS."""
    login: SshHost | OpenSshHost | None = None
    """Login node, as a host of kind ssh or openssh; unset: this machine has the scheduler's commands."""
    partition: _Word | None = None
    """Partition, or queue of PBS."""
    account: _Word | None = None
    """Account that the scheduler charges (--account)."""
    qos: _Word | None = None
    """Quality of service (--qos)."""
    constraint: str | None = None
    """Features that nodes must have (--constraint)."""
    reservation: _Word | None = None
    """Reservation to run in (--reservation)."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each node."""
    gpu_type: _Word | None = None
    """Type of GPU, as the scheduler names it: h100."""
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Nodes of an allocation."""
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Processor cores of each node; unset: as the scheduler gives."""
    memory: Annotated[str, Field(pattern=r"^\d+[KMGT]?$")] | None = None
    """Memory of each node, such as 64G."""
    time_s: Annotated[float, Field(ge=60)] = 3600.0
    """Seconds that an allocation lasts at most."""
    modules: list[_Word] = []
    """Environment modules to load before hostd starts."""
    lines: list[Annotated[str, Field(pattern=r"^--?[^\n]+$")]] = []
    """More options for the scheduler, such as --exclusive."""
    idle_s: Annotated[float, Field(ge=1)] = 600.0
    """Seconds without a job after which the allocation is given back."""
    queue_wait_s: Annotated[float, Field(ge=1)] = 300.0
    """Seconds that a call waits for the allocation; the request then stays in the scheduler's queue."""
    max_gpu_hours: Annotated[float, Field(ge=0)] = 16.0
    """GPU hours that one allocation, or one long job, may cost at most: GPUs x nodes x time (x array)."""

    @model_validator(mode="after")
    def _within_hours(self) -> Self:
        hours = self.gpus * self.nodes * self.time_s / 3600
        if hours > self.max_gpu_hours:
            raise ValueError(
                f"an allocation could cost {hours:g} GPU hours, max_gpu_hours is {self.max_gpu_hours:g}; "
                "ask for fewer GPUs or less time_s, or raise it"
            )
        return self


Login = SshHost | OpenSshHost
HostSettings = Annotated[LocalHost | SshHost | OpenSshHost | DockerHost | BatchHost, Field(discriminator="kind")]
HOST_KINDS: dict[str, type[CommonHostSettings]] = {
    kind: model
    for model in get_args(get_args(HostSettings)[0])
    for kind in get_args(model.model_fields["kind"].annotation)
}
"""The model of each kind."""
BATCH_KINDS = tuple(kind for kind, model in HOST_KINDS.items() if model is BatchHost)
"""Kinds of hosts whose machines are lent for a while."""
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
