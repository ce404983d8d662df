"""`init`: from a fresh installation to a registered server."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.clients import CLIENTS, own_command, plugin_installed, register
from gpu_mcp_server.cli.hosts import read_config
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.settings.config_edit import with_host, write_private

_HOST_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")


def ssh_host_names(config: Path) -> list[str]:
    """Return the names in an ssh_config that stand for one host each; `Include` is followed once."""
    names: dict[str, None] = {}
    for line in _lines(config):
        words = line.replace("=", " ", 1).split()
        if words and words[0].lower() == "include":
            for pattern in words[1:]:
                for path in sorted(config.parent.glob(pattern.removeprefix("~/.ssh/"))):
                    names |= dict.fromkeys(_names(_lines(path)))
    return list(names | dict.fromkeys(_names(_lines(config))))


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return []


def _names(lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        words = line.replace("=", " ", 1).split()
        if words and words[0].lower() == "host":
            found += [w for w in words[1:] if _HOST_NAME.match(w) and w not in ("github.com", "gitlab.com")]
    return found


def probe_hosts(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the status of each name as an SSH host, and of the hosts in the settings."""
    announce(f"asking this machine and {len(names)} hosts of the SSH settings whether they answer")

    async def work() -> dict[str, dict[str, Any]]:
        from gpu_mcp_server.settings.server_settings import SshHost, load_settings

        settings = load_settings()
        added = {name: SshHost(host=name) for name in names if name not in settings.hosts}
        widened = settings.model_copy(update={"hosts": settings.hosts | added})
        async with in_process_client.session(widened) as lab:
            answer = await lab.call("gpu_status", {})
            return {host["host"]: host for host in answer.data.get("hosts", [])}

    return in_process_client.run(work)


def init(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; add every host that answers.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be done.")] = False,
    ssh_config: Annotated[Path, typer.Option(help="Where SSH hosts are listed.")] = Path("~/.ssh/config"),
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Connect to the hosts found.")] = True,
    as_json: Json = False,
) -> None:
    """Find hosts, write the settings, register the server with the clients that are installed."""
    from gpu_mcp_server.settings.server_settings import user_config_file

    names = ssh_host_names(ssh_config.expanduser())
    status = probe_hosts(names) if probe else {}
    ask = not (yes or dry_run or as_json)
    path = user_config_file()
    text = before = read_config(path)
    hosts: list[str] = []
    for name in names:
        known = status.get(name, {})
        if f"hosts.{name}" in before or not known.get("reachable"):
            continue
        gpus = ", ".join(gpu["name"] for gpu in known.get("gpus", [])) or "no GPU"
        if not ask or typer.confirm(f"Use {name} ({gpus})?", default=True, err=True):
            text = with_host(text, name, {"kind": "ssh", "host": name})
            hosts.append(name)
    if text != before and not dry_run:
        write_private(path, text)
    clients = _register_all(ask=ask, dry_run=dry_run)
    result = {
        "config_file": str(path),
        "config": text,
        "hosts_added": hosts,
        "hosts_silent": [n for n in names if probe and not status.get(n, {}).get("reachable")],
        "clients": clients,
        "dry_run": dry_run,
    }
    print_result(result, _told(result), as_json=as_json)


def _register_all(*, ask: bool, dry_run: bool) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    command = own_command()
    for client in CLIENTS:
        if client.path is None:
            continue
        line = shlex.join(client.registration(command))
        entry: dict[str, Any] = {"client": client.name, "command": line, "registered": False}
        if client.program == "claude" and plugin_installed(Path.home()):
            done.append(entry | {"problem": "has the plugin, which brings the server"})
            continue
        if not dry_run and (not ask or typer.confirm(f"Register with {client.name}?", default=True, err=True)):
            problem = register(client, command)
            entry |= {"registered": problem is None, **({"problem": problem} if problem else {})}
        done.append(entry)
    return done


def _told(result: dict[str, Any]) -> str:
    would = "would be" if result["dry_run"] else "is"
    lines = [f"settings: {result['config_file']}"]
    lines += [f"  host {name} {would} added" for name in result["hosts_added"]] or ["  no new hosts"]
    if result["hosts_silent"]:
        lines.append(f"  no answer from: {', '.join(result['hosts_silent'])}")
    if result["dry_run"] and result["config"]:
        lines += ["", result["config"].rstrip(), ""]
    for entry in result["clients"]:
        state = "registered" if entry["registered"] else entry.get("problem") or "not registered"
        would_run = result["dry_run"] and "problem" not in entry
        lines.append(f"{entry['client']}: {'would run' if would_run else state}: {entry['command']}")
    if not result["clients"]:
        lines.append("no MCP client found; `gpu-mcp-server client-config` shows how to register by hand")
    lines.append("next: gpu-mcp-server doctor")
    return "\n".join(lines)
