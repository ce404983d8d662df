"""The kinds of hosts that the settings know: one model each, chosen by `kind`."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_S = 86_400.0


_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.:/@+,-]*$")]


class CommonHostSettings(BaseModel):
    """Settings that every kind of host has."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    target: ClassVar[str] = "ssh"
    """What `hosts add` is told: `ssh` for [user@]host[:port], `login` for that of a login node, nothing, or a setting's
    name."""

    python: str | None = None
    """Python 3.8 or newer that runs hostd there."""
    judge_python: str | None = None
    """Python with NumPy, and torch if wanted, that runs the judge and references there. Unset, the first with torch,
    else with NumPy, is taken: on this machine of the active venv or conda environment, .venv of the working folder
    (unless git brought it), the server's own Python and python3 on PATH; elsewhere of what setup lines activate and
    python3 on PATH. `gpu-mcp-server hosts set NAME --with torch,triton` makes one in the state folder."""
    cuda: str | None = None
    """Root of the CUDA toolkit there, such as /usr/local/cuda-13."""
    state_dir: str | None = None
    """Folder there for jobs and cached files."""
    roots: list[str] = []
    """More folders there that jobs may read."""
    include_paths: list[Annotated[str, Field(pattern=r"^/[^\x00\n]*$")]] = []
    """Folders of headers there that every compile searches behind its own, such as a clone of CUTLASS. Jobs read them
    and never write; a build's evidence has the digest of their files. CUTLASS, FlashInfer and ThunderKittens are also
    found by themselves: in pip packages of the Pythons that are known, below /opt, /usr/local and the home folder."""
    setup: list[Annotated[str, Field(pattern=r"^[^\x00\n]+$")]] = []
    """Lines of shell, such as "module load cuda/13.0", or conda's hook and "conda activate kernels". They run once,
    when the host is first asked what it has; jobs get the variables that came of them, and see the folders in these."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str] = {}
    """Variables of every job there, such as NCCL_NVLS_ENABLE, but for the judge's own processes; what a job sets itself
    comes before them."""
    foreign_processes: Literal["wait", "warn", "other"] = "other"
    """When a foreign process uses a GPU that a job wants alone: wait until it is free of others, take it and warn,
    or take another GPU, and warn if there is none."""
    quiet_s: Annotated[float, Field(ge=1, le=LONGEST_S)] = 60.0
    """Seconds of silence after which client and host consider the connection lost."""
    grace_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 60.0
    """Seconds that an attached job goes on after its line was lost, for a client to ask for it again."""
    ranks_network: bool = False
    """Whether ranks on several hosts or nodes may use the network, as they must to talk to each other."""
    ranks_address: Annotated[str, Field(pattern=r"^[\w.:%-]+$")] | None = None
    """Address of this host for ranks on other hosts, if its own addresses are not the ones to use."""


class LocalHost(CommonHostSettings):
    """This machine."""

    target: ClassVar[str] = ""
    kind: Literal["local"] = "local"
    grace_s: Annotated[float, Field(ge=0, le=LONGEST_S)] = 0.0
    """Seconds that an attached job goes on after the server was killed."""


class _Login(CommonHostSettings):
    """A machine that SSH reaches."""

    host: Annotated[str, Field(min_length=1, pattern=r"^[^-\s][^\s]*$")]
    """Host name, address, or a name from ~/.ssh/config."""
    user: Annotated[str, Field(pattern=r"^[^-\s][^\s]*$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: Path | None = None
    known_hosts: Path | None = None
    """Instead of ~/.ssh/known_hosts."""
    ssh_config: Path | None = None
    """Instead of ~/.ssh/config."""

    @field_validator("identity_file", "known_hosts", "ssh_config")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value else None


class SshHost(_Login):
    """A machine over SSH, by a client of our own."""

    kind: Literal["ssh"] = "ssh"


class OpenSshHost(_Login):
    """A machine over the ssh program, and over the connection that you opened with it: for one-time passwords."""

    kind: Literal["openssh"] = "openssh"
    control_path: str | None = None
    """Socket of the connection to share; unset means what ~/.ssh/config says, or one that `hosts login` opens."""


class DockerHost(CommonHostSettings):
    """A container of Docker, here or on another machine."""

    target: ClassVar[str] = "image"
    kind: Literal["docker"] = "docker"
    image: Annotated[str, Field(min_length=1)]
    """With Python 3.8; with bubblewrap, compilers and CUDA as jobs need them. Never pulled by itself."""
    docker_url: str | None = None
    """Such as unix:///run/docker.sock; unset means DOCKER_HOST, or the usual socket."""
    gpus: Annotated[str, Field(pattern=r"^(all|[\w.:-]+(\s*,\s*[\w.:-]+)*)?$")] = ""
    """GPUs of the container: all, or numbers or UUIDs by commas; unset means none."""
    mounts: list[Annotated[str, Field(pattern=r"^/[^:]*$")]] = []
    """Folders of Docker's machine that the container sees, read-only, under the same paths."""
    memory_bytes: Annotated[int, Field(ge=64 << 20)] | None = None
    """Memory of the container, all jobs together."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    idle_s: Annotated[float, Field(ge=1)] = 3600.0
    """Seconds without hostd or a job after which the container ends; what jobs left stays in its volume."""


class BatchHost(CommonHostSettings):
    """Nodes that a batch system lends: one allocation is held while there is work, with hostd inside."""

    target: ClassVar[str] = "login"
    kind: Literal["slurm", "pbs"] = "slurm"
    """pbs was never run against a real one."""
    login: SshHost | OpenSshHost | None = None
    """The login node, as a host of kind ssh or openssh; unset means that the scheduler's commands are here."""
    partition: _Word | None = None
    """Partition, or queue of PBS."""
    account: _Word | None = None
    qos: _Word | None = None
    constraint: str | None = None
    reservation: _Word | None = None
    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each node."""
    gpu_type: _Word | None = None
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Processors of each node."""
    memory: Annotated[str, Field(pattern=r"^\d+[KMGT]?$")] | None = None
    """Memory of each node, such as 64G."""
    time_s: Annotated[float, Field(ge=60)] = 3600.0
    """How long an allocation lasts at most."""
    modules: list[_Word] = []
    """Loaded before anything runs."""
    lines: list[Annotated[str, Field(pattern=r"^--?[^\n]+$")]] = []
    """More options for the scheduler, such as --exclusive."""
    idle_s: Annotated[float, Field(ge=1)] = 600.0
    """Seconds without a job after which the allocation is given back."""
    queue_wait_s: Annotated[float, Field(ge=1)] = 300.0
    """Seconds that a call waits for the allocation; it goes on waiting in the queue after that."""
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
