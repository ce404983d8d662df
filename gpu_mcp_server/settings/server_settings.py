"""Settings: the only reader of configuration files and environment."""

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from platformdirs import user_config_path, user_data_path
from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.settings.host_settings import (
    BatchHost,
    DockerHost,
    HostName,
    HostSettings,
    LocalHost,
    OpenSshHost,
    SshHost,
)
from gpu_mcp_server.settings.team_settings import TeamSettings

__all__ = [
    "BatchHost",
    "DockerHost",
    "HostSettings",
    "LocalHost",
    "OpenSshHost",
    "Settings",
    "SshHost",
    "load_settings",
    "user_config_file",
]

Level = Literal["full", "namespaces", "apptainer", "landlock", "unconfined"]

PREFIX = "GPU_MCP_"
PROJECT_FILE = Path("gpu-mcp.toml")

PERSONAL = frozenset({"accept_unconfined", "allow_fetch", "team"})
PERSONAL_OF_HOST = frozenset({
    *("python", "judge_python", "cuda", "setup", "state_dir", "ssh_config", "known_hosts", "control_path"),
    *("docker_url", "lines", "modules", "mounts", "roots"),
})  # fmt: skip
"""Settings that a project file may not make: to clone a project must not run its programs outside a sandbox (hostd asks
interpreters, compilers and setup lines what they are, and trusts what lies in its state), trust its host keys, or show
it more of the disk."""


def default_data_dir() -> Path:
    """Return where data lives unless the settings say otherwise."""
    if sys.platform == "linux" and os.geteuid() == 0:
        return Path("/var/lib/gpu-mcp-server")
    return user_data_path("gpu-mcp-server", appauthor=False)


def user_config_file() -> Path:
    """Return the user's settings file, whether or not it exists."""
    return user_config_path("gpu-mcp-server", appauthor=False) / "config.toml"


class Settings(BaseSettings):
    """All settings of the server.

    The user's config.toml < ./gpu-mcp.toml < GPU_MCP_* (`__` between the parts of a name) < flags.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    data_dir: Path = Field(default_factory=default_data_dir)
    """Database and files: /var/lib/gpu-mcp-server for root, otherwise the user's data folder."""
    min_level: Level | None = None
    """Weakest sandbox level that jobs may run at; unset: apptainer over stdio, full over HTTP."""
    accept_unconfined: bool = False
    """Your consent to min_level "unconfined": a job may then do whatever your account may do."""
    allow_fetch: bool = False
    """Whether jobs with `fetch` may use the network (pip, git); they get no GPU."""
    toolsets: Annotated[list[str] | None, NoDecode] = None
    """Toolsets to switch on; unset: the default ones. In the environment, separated by commas."""
    read_only: bool = False
    """Offer only tools that change nothing and start nothing."""
    exclude_tools: Annotated[list[str], NoDecode] = []
    """Tools to leave out. In the environment, separated by commas."""
    local_files: bool = True
    """Whether tools over stdio may read files of this machine; over HTTP they never may."""
    index_documentation: bool = True
    """Whether the server indexes documentation of installed software in the background."""
    compile_cpu_s: float = Field(default=30.0, gt=0)
    """Seconds of processor time that a compile of plain C or C++, or by NVRTC or HIPRTC, may take."""
    long_compile_cpu_s: float = Field(default=600.0, gt=0)
    """Seconds of processor time for any other compile: nvcc, clang for HIP, Triton, torch extensions, programs."""
    user: str | None = None
    """Team user whose rights the command line and a server over stdio have; unset: everything is visible. Over HTTP a
    token names the user."""
    default_host: str | None = None
    """Host of jobs that name none; unset: `local`, unless the settings list another host before it."""
    hosts: dict[HostName, HostSettings] = {}
    """Machines that jobs can run on. `local` is always among them on Linux."""

    team: TeamSettings = TeamSettings()
    """Settings of `serve --http` and its users."""

    _sources: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say what overrides what: flags, environment, project file, user's file."""
        toml = TomlConfigSettingsSource(settings_cls, [user_config_file(), PROJECT_FILE], deep_merge=True)
        return init_settings, env_settings, toml

    @field_validator("toolsets", "exclude_tools", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("hosts", mode="before")
    @classmethod
    def _name_kinds(cls, value: Any) -> Any:
        """Let `[hosts.local]` do without a kind."""
        if not isinstance(value, dict):
            return value
        hosts = dict(cast("dict[str, Any]", value))
        local: Any = hosts.get("local")
        if isinstance(local, dict):
            hosts["local"] = {"kind": "local", **local}
        return hosts

    @model_validator(mode="after")
    def _complete(self) -> Self:
        hosts = self.hosts
        if "local" not in hosts and sys.platform == "linux":
            others = dict(hosts)
            hosts.clear()
            hosts.update({"local": LocalHost(), **others})
        if "local" in hosts and hosts["local"].kind != "local":
            raise ValueError("hosts.local is this machine and is reached in no other way; give that host another name")
        if self.default_host is not None and self.default_host not in hosts:
            raise ValueError(f"default_host {self.default_host!r} is none of the hosts: {', '.join(hosts) or 'none'}")
        if self.min_level == "unconfined" and not self.accept_unconfined:
            raise ValueError(
                'min_level "unconfined" lets jobs do whatever your account may do; '
                "it needs accept_unconfined = true beside it"
            )
        return self

    def config_sources(self) -> dict[str, str]:
        """Return where each value comes from: dotted key to file, environment variable, flag or default."""
        return dict(self._sources)


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; a flag whose value is `None` counts as not given.

    Raises:
        ConfigError: If a file cannot be read, or a value is wrong; says which file, key and why.
    """
    flags = {key: value for key, value in overrides.items() if value is not None}
    layers = _layers(flags)
    try:
        settings = Settings(**flags)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, layers)), hint="Correct it and start again.") from error
    sources = dict.fromkeys(_flatten(settings.model_dump(mode="json")), "default")
    for label, values in layers:
        sources |= {key: label.format(key=_variable(key)) for key in values}
    settings._sources.update(sorted(sources.items()))
    return settings


def _layers(flags: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return what each source sets, by dotted key, weakest first."""
    user, project = _read_toml(user_config_file()), _read_toml(PROJECT_FILE)
    _check_project(project)
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX) and name[len(PREFIX) :].split("__")[0].lower() not in Settings.model_fields
    )
    if unknown:
        raise ConfigError(
            f"The environment sets {', '.join(unknown)}, which is no setting.",
            hint=f"Known are {', '.join(PREFIX + name.upper() for name in Settings.model_fields)}.",
        )
    try:
        environment = EnvSettingsSource(Settings)()
    except SettingsError as error:
        raise ConfigError(
            f"The environment has a {PREFIX}* variable that cannot be read: {error}.", hint="Lists in it are JSON."
        ) from error
    return [
        (str(user_config_file()), _flatten(user)),
        (str(PROJECT_FILE.absolute()), _flatten(project)),
        ("environment {key}", _flatten(environment)),
        ("flag", _flatten(flags)),
    ]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.absolute()} is not TOML: {error}.", hint="Correct it and start again.") from error
    except OSError as error:
        raise ConfigError(
            f"{path.absolute()} cannot be read: {error.strerror}.", hint="Correct its permissions, or remove it."
        ) from error


def _check_project(values: Mapping[str, Any]) -> None:
    """Refuse what a project may not decide for the person who cloned it."""
    for key in _flatten(values):
        parts = key.split(".")
        if parts[0] in PERSONAL or (parts[0] == "hosts" and parts[-1] in PERSONAL_OF_HOST):
            raise ConfigError(
                f"{PROJECT_FILE.absolute()} sets {key}, which a project's file may not.",
                hint=f"If you want it, set it in {user_config_file()} or as {_variable(key)}.",
            )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        if isinstance(value, Mapping):
            flat |= _flatten(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _variable(key: str) -> str:
    return PREFIX + key.replace(".", "__").upper()


def _complaints(error: ValidationError, layers: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Say file, key and reason of each wrong value."""
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        parts = [str(part) for part in problem["loc"]]
        if parts[:1] == ["hosts"] and len(parts) > 3:
            del parts[2]  # pydantic names the kind of host there
        key = ".".join(parts)
        label = ""
        for name, values in layers:
            if any(k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.") for k in values):
                label = name.format(key=_variable(key))
        if not label:
            siblings = ".".join(parts[:-1])
            label = next((n for n, v in layers if siblings and any(k.startswith(f"{siblings}.") for k in v)), "")
        reason = problem["msg"].removeprefix("Value error, ")
        lines.append(": ".join(filter(None, [label.removesuffix(" {key}"), key, reason + "."])))
    return lines
