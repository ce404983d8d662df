"""Edits of the user's config.toml that keep every other line as it is."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import ConfigError

_HEADER = re.compile(r"^\s*\[")


def toml_table(name: str, values: dict[str, Any]) -> str:
    """Return `[name]` with its values; texts, numbers, booleans, lists of texts, and tables of these."""
    lines = [f"{key} = {_literal(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines]) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{ " + ", ".join(f"{key} = {_literal(one)}" for key, one in pairs) + " }"
    return json.dumps(value, ensure_ascii=False)


def host_table(host: str, values: dict[str, Any]) -> str:
    """Return the table of one host."""
    return toml_table(f"hosts.{json.dumps(host) if '.' in host else host}", values)


def with_host(text: str, host: str, values: dict[str, Any]) -> str:
    """Return `text` with a table for `host` at its end.

    Raises:
        ConfigError: If there is one already, or if the text cannot be edited safely.
    """
    if host in given_hosts(text):
        raise ConfigError(
            f"There is a host {host!r} already.", hint="--replace takes its place; `hosts set` changes a setting."
        )
    gap = "" if not text or text.endswith("\n\n") else ("\n" if text.endswith("\n") else "\n\n")
    edited = text + gap + host_table(host, values)
    _check(edited, text, hosts=given_hosts(text) | {host: values})
    return edited


def without_host(text: str, host: str) -> str:
    """Return `text` without the table of `host`.

    Raises:
        ConfigError: If there is none, or if it is written in a way that cannot be taken out safely.
    """
    if host not in given_hosts(text):
        raise ConfigError(f"There is no host {host!r} in the file.", hint="`gpu-mcp-server hosts list` shows all.")
    names = {f"hosts.{host}", f'hosts."{host}"', f"hosts.'{host}'"}
    kept: list[str] = []
    dropping = False
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            dropping = line.split("]")[0].strip().lstrip("[").strip() in names
        if not dropping:
            kept.append(line)
    edited = "".join(kept).rstrip("\n") + "\n" if kept else ""
    _check(edited, text, hosts={name: values for name, values in given_hosts(text).items() if name != host})
    return edited


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The settings file is not TOML: {error}.", hint="Correct it first.") from error


def given_hosts(text: str) -> dict[str, Any]:
    """Return the hosts that the settings file names, with their settings."""
    return _parsed(text).get("hosts", {})


def _check(edited: str, before: str, *, hosts: dict[str, Any]) -> None:
    wanted = _parsed(before) | {"hosts": hosts}
    found = _parsed(edited)
    found.setdefault("hosts", {})
    if found != wanted:
        raise ConfigError(
            "The settings file is written in a way that cannot be edited safely.", hint="Edit it by hand."
        )
