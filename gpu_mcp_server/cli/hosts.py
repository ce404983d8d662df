"""`hosts`: the machines that jobs run on."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import session
from gpu_mcp_server.cli.output import Json, emit, fail, table
from gpu_mcp_server.cli.tables import with_host, without_host, write_private
from gpu_mcp_server.errors import ConfigError

app = typer.Typer(help="Add, list, check and remove the machines that jobs run on.", no_args_is_help=True)

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


def read_config(path: Path) -> str:
    """Return the user's settings file, empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What tools call it.")],
    target: Annotated[str, typer.Argument(help="[user@]host[:port]; host may be a name from ~/.ssh/config.")],
    identity_file: Annotated[Path | None, typer.Option(help="Private key.")] = None,
    python: Annotated[str | None, typer.Option(help="Python 3.8+ there that runs hostd.")] = None,
    judge_python: Annotated[str | None, typer.Option(help="Python there with NumPy or torch, for judging.")] = None,
    cuda: Annotated[str | None, typer.Option(help="CUDA toolkit's folder there.")] = None,
    check_it: Annotated[bool, typer.Option("--check/--no-check", help="See whether it answers.")] = True,
    as_json: Json = False,
) -> None:
    """Write an SSH host into the settings, and see whether it answers."""
    from gpu_mcp_server.settings import load_settings, user_config_file

    options = {
        "identity_file": str(identity_file.expanduser()) if identity_file else None,
        "python": python,
        "judge_python": judge_python,
        "cuda": cuda,
    }
    values = parsed_target(target) | {key: value for key, value in options.items() if value is not None}
    path = user_config_file()
    before = read_config(path)
    write_private(path, with_host(before, name, values))
    try:
        load_settings()
    except ConfigError:
        write_private(path, before)
        raise
    status = _status(name, as_json=as_json) if check_it else None
    said = f"host {name} is in {path}"
    if status is not None:
        said += "\n" + _line(status)
    emit({"host": name, "settings": values, "config_file": str(path), "status": status}, said, as_json=as_json)
    if status is not None and not status.get("reachable"):
        raise typer.Exit(1)


@app.command("list")
def list_hosts(as_json: Json = False) -> None:
    """List the hosts in the settings."""
    from gpu_mcp_server.settings import load_settings

    settings = load_settings()
    hosts = {name: host.model_dump(mode="json", exclude_none=True) for name, host in settings.hosts.items()}
    rows = [
        [name, str(h["kind"]), "@".join(filter(None, [h.get("user"), h.get("host")])) or "-"]
        for name, h in hosts.items()
    ]
    emit({"hosts": hosts}, table(["HOST", "KIND", "TARGET"], rows) if rows else "no hosts", as_json=as_json)


@app.command()
def check(name: Annotated[str | None, typer.Argument(help="Only this one.")] = None, as_json: Json = False) -> None:
    """Connect to the hosts and say what they offer; exit code 1 if one does not answer."""
    answer = session.answer_of("gpu_status", {"host": name}, as_json=as_json)
    hosts: list[dict[str, Any]] = answer.data.get("hosts", [])
    emit(answer.data, "\n".join(_line(host) for host in hosts), as_json=as_json)
    if not all(host.get("reachable") for host in hosts):
        raise typer.Exit(1)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Host to take out.")], as_json: Json = False) -> None:
    """Take a host out of the settings; nothing on the host is touched."""
    from gpu_mcp_server.settings import user_config_file

    path = user_config_file()
    write_private(path, without_host(read_config(path), name))
    emit({"removed": name, "config_file": str(path)}, f"host {name} is no longer in {path}", as_json=as_json)


def _status(name: str, *, as_json: bool) -> dict[str, Any] | None:
    answer = session.call("gpu_status", {"host": name})
    if answer.failed:
        raise fail(answer.text, as_json=as_json)
    return next(iter(answer.data.get("hosts", [])), None)


def _line(host: dict[str, Any]) -> str:
    if not host.get("reachable"):
        return f"{host['host']}: does not answer: {host.get('problem', 'no reason given')}"
    gpus = ", ".join(gpu["name"] for gpu in host.get("gpus", [])) or "no GPU"
    devices = ", ".join(host.get("devices", [])) or "nothing"
    return f"{host['host']}: answers; {gpus}; sandbox {host.get('level')}; judges {devices}"
