"""Arguments of the `hosts` commands, as settings of a host."""

import json
import re
from typing import Any

from gpu_mcp_server.errors import ConfigError

EXAMPLES = (
    "`hosts add box ada@gpu-box`, `hosts add box my/image:1 --kind docker`, `hosts add box ada@login --kind slurm`."
)

_TARGET = re.compile(
    r"^(?:(?P<user>[^@\s-][^@\s]*)@)?(?P<host>\[[0-9A-Fa-f:]+\]|[^@\s:-][^@\s:]*)(?::(?P<port>\d{1,5}))?$"
)


def parsed_target(target: str) -> dict[str, Any]:
    """Return the settings of an SSH host from `[user@]host[:port]`.

    Raises:
        ConfigError: If it is not of that form.
    """
    match = _TARGET.match(target)
    if match is None:
        raise ConfigError(f"{target!r} is no [user@]host[:port].", hint="Example: ada@gpu-box or gpu-box:2222.")
    values: dict[str, Any] = {"kind": "ssh", "host": match["host"].strip("[]")}
    if match["user"]:
        values["user"] = match["user"]
    if match["port"]:
        values["port"] = int(match["port"])
    return values


def connection_settings(kind: str, target: str | None, way: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that say how a host is reached.

    Args:
        kind: Of the host.
        target: What `add` was told.
        way: Settings of the way by SSH.

    Raises:
        ConfigError: If they do not go together.
    """
    from gpu_mcp_server.settings.host_settings import HOST_KINDS

    setting = HOST_KINDS[kind].target if kind in HOST_KINDS else "ssh"
    if not setting:
        if way or target:
            raise ConfigError(f"A host of kind {kind} is this machine, and has no address.", hint=EXAMPLES)
        return {"kind": kind}
    if setting not in ("ssh", "login"):
        if way or not target:
            raise ConfigError(f"A host of kind {kind} takes its {setting}, and nothing of SSH.", hint=EXAMPLES)
        return {"kind": kind, setting: target}
    if setting == "login":
        if target is None:
            if way:
                raise ConfigError("SSH options need the login node.", hint=EXAMPLES)
            return {"kind": kind}
        login = {"kind": "openssh"} if "control_path" in way else {}
        return {"kind": kind, "login": parsed_target(target) | login | way}
    if target is None:
        raise ConfigError("Where is it?", hint=EXAMPLES)
    return parsed_target(target) | {"kind": kind} | way


def given_settings(more: list[str]) -> dict[str, Any]:
    """Return what KEY=VALUE says; a value is JSON, or else a text.

    Raises:
        ConfigError: If it is not of that form.
    """
    found: dict[str, Any] = {}
    for one in more:
        key, sign, value = one.partition("=")
        if not sign or not key.isidentifier():
            raise ConfigError(f"{one!r} is no KEY=VALUE.", hint="docs/reference/settings.md has the keys of each kind.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
