"""`doctor`: one line a check, and what to do."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.cli.tool_commands import name_commands
from gpu_mcp_server.errors import ConfigError, GpuMcpError

if TYPE_CHECKING:
    from gpu_mcp_server.services.lab import Lab
    from gpu_mcp_server.settings.server_settings import Settings

MIN_FREE_BYTES = 1 << 30
FEW_UIDS = 24
"""Fewer free ones are too few for a few judges, with what waits ahead of their jobs."""


@dataclass(frozen=True)
class Check:
    """Finding of one check."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""

    def line(self) -> str:
        """Say it on one line."""
        said = f"{self.found} -> {self.todo}" if self.todo else self.found
        return f"{self.state:<4} {self.name}: {name_commands(said)}"


def local_checks(settings: "Settings") -> list[Check]:
    """Check this machine, apart from what hosts can do."""
    from gpu_mcp_server.cli.clients import CLIENTS

    version = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("python", "ok", f"{version} at {sys.executable}")]
    if sys.platform == "linux":
        checks.append(Check("platform", "ok", "Linux; jobs can run here"))
    else:
        todo = "gpu-mcp-server hosts add NAME user@host"
        state = "warn" if settings.hosts else "fail"
        checks.append(Check("platform", state, f"{sys.platform}: no local jobs", "" if settings.hosts else todo))
    checks.append(_data_dir(settings.data_dir))
    checks += _store(settings.data_dir)
    found = [client.name for client in CLIENTS if client.path]
    checks.append(
        Check("clients", "ok", ", ".join(found))
        if found
        else Check("clients", "warn", "no Claude Code, Codex or Gemini CLI", "gpu-mcp-server client-config")
    )
    return checks


def _data_dir(path: Path) -> Check:
    there = next(p for p in [path, *path.parents] if p.exists())
    if not os.access(there, os.W_OK):
        return Check("data", "fail", f"{path} cannot be written", "set data_dir in config.toml")
    closed = [p for p in [there, *there.parents] if not p.stat().st_mode & 0o001]
    if os.geteuid() == 0 and closed:  # started by root, jobs run as a uid of their own
        return Check("data", "warn", f"{path}: jobs cannot reach it", f"chmod o+x {closed[0]}, or set data_dir")
    free = shutil.disk_usage(there).free
    if free < MIN_FREE_BYTES:
        return Check("data", "warn", f"{path}: {free >> 20} MiB free", "make room, or set data_dir")
    return Check("data", "ok", f"{path}: {free >> 30} GiB free")


def _store(data_dir: Path) -> list[Check]:
    from gpu_mcp_server.store import database
    from gpu_mcp_server.store.store_locks import USE, hold_lock

    path = data_dir / database.DATABASE
    if not path.exists():
        return []
    try:
        with hold_lock(data_dir, USE):
            size_bytes = database.check(path, quick=True)
    except GpuMcpError as error:
        return [Check("store", "fail", error.args[0], error.hint)]
    return [Check("store", "ok", f"{path}: {size_bytes >> 20} MiB, no damaged page")]


def host_checks(hosts: list[dict[str, Any]]) -> list[Check]:
    """Turn what gpu_status found into checks."""
    from gpu_mcp_server.hostd.protocol import BOXED

    checks: list[Check] = []
    for host in hosts:
        name = f"host {host['host']}"
        if not host.get("reachable"):
            checks.append(Check(name, "fail", "does not answer", str(host.get("problem") or "see the log")))
            continue
        checks.append(Check(name, "ok", f"{host.get('cpu')}, {host.get('cores')} cores"))
        weaker, level = host.get("weaker_because"), str(host.get("level"))
        state = "ok" if not weaker else "warn" if level in BOXED else "fail"
        found = f"{level}: {weaker}" if weaker else level
        checks.append(Check(f"{name} sandbox", state, found, str(host.get("fix_hint") or "")))
        checks += _uid_checks(name, host.get("job_uids"))
        tools: dict[str, str] = host.get("toolchains", {})
        found = ", ".join(f"{tool} {version}" for tool, version in tools.items())
        if not tools:
            checks.append(Check(f"{name} compilers", "fail", "none", "install gcc (Debian: apt install gcc g++)"))
        elif lacking := _lacking(host.get("gpus", []), tools):
            checks.append(Check(f"{name} compilers", "warn", f"{found}; {lacking[0]}", lacking[1]))
        else:
            checks.append(Check(f"{name} compilers", "ok", found))
        judge, devices = host.get("judge"), ", ".join(host.get("devices", []))
        set_it = f"gpu-mcp-server hosts set {host['host']}"
        todo = f"{set_it} --with numpy; or {set_it} judge_python=PATH names a Python that has it"
        checks.append(
            Check(f"{name} judge", "ok", f"{judge}; judges {devices}")
            if judge and devices and "(instead of " not in judge
            else Check(f"{name} judge", "warn", str(judge or "no Python with NumPy"), todo)
        )
        checks += _times_checks(name, str(host.get("times") or ""))
        gpus = ", ".join(f"{g['name']} ({g.get('arch') or '?'})" for g in host.get("gpus", []))
        checks.append(Check(f"{name} gpu", "ok", gpus or "none; the judge works on the processor (device cpu)"))
        checks += [Check(name, "warn", str(host[key])) for key in ("problem", "locks_note") if host.get(key)]
    return checks


def _times_checks(name: str, times: str) -> list[Check]:
    """Say how well times can be confirmed on a host."""
    found = re.match(r"(\d+) of the last (\d+) ", times)
    if times.startswith("never"):
        return [Check(f"{name} times", "warn", times, "judge on a host where the sandbox scopes signals (Linux 6.12)")]
    if found and 2 * int(found[1]) < int(found[2]):
        todo = "judge while the host is idle, or on one with more cores; a time that is not confirmed ranks last"
        return [Check(f"{name} times", "warn", times, todo)]
    return [Check(f"{name} times", "ok", times)] if times else []


def _uid_checks(name: str, uids: Sequence[int] | None) -> list[Check]:
    """Say how many uids are left for jobs; each role of a job takes one, and some wait ahead of their jobs."""
    if uids is None:
        return []
    free, total = uids
    more = 'give it more: "job_uids": [FIRST, LAST] in /etc/gpu-mcp-server/pool.json of that host'
    todo = "" if free >= FEW_UIDS else more
    return [Check(f"{name} uids", "warn" if todo else "ok", f"{free} of {total} uids for jobs are free", todo)]


def _lacking(gpus: list[dict[str, Any]], tools: dict[str, str]) -> tuple[str, str] | None:
    """Return which compiler a host's GPUs want and it has not, and how to get it."""
    vendors = {g.get("vendor", "nvidia") for g in gpus}
    if "nvidia" in vendors and "nvcc" not in tools:
        todo = "install the CUDA toolkit or pip install 'gpu-mcp-server[cuda]' there, or set cuda = for this host"
        return "a GPU but no nvcc", todo
    if "amd" in vendors and not any(t == "hipcc" or t.startswith("clang++-") for t in tools):
        return "an AMD GPU but no HIP compiler", "install ROCm's hipcc, or Debian's: apt-get install hipcc"
    return None


def run_checks() -> list[Check]:
    """Run all checks."""
    from gpu_mcp_server.settings.server_settings import load_settings

    try:
        settings = load_settings()
    except ConfigError as error:
        return [Check("settings", "fail", str(error))]
    checks = [Check("settings", "ok", f"hosts: {', '.join(settings.hosts) or 'none'}"), *local_checks(settings)]
    answer = in_process_client.call("gpu_status", {})
    if answer.failed:
        return [*checks, Check("laboratory", "fail", answer.text)]
    hosts = answer.data.get("hosts", [])
    return [
        *checks,
        *host_checks(hosts),
        *in_process_client.run(lambda: _judges([h["host"] for h in hosts if h["reachable"]])),
    ]


async def _judges(hosts: list[str]) -> list[Check]:
    """Start the judge's Python inside the sandbox of each host."""
    from gpu_mcp_server.services.evaluation.judge_preflight import judge_python

    checks: list[Check] = []
    async with in_process_client.laboratory() as lab:
        for host in hosts:
            announce(f"trying the judge's Python in the sandbox on {in_process_client.describe_host(host)}")
            name = f"host {host} judge in the sandbox"
            try:
                found = await judge_python(lab.jobs.runner, lab.settings, host)
            except GpuMcpError as error:
                checks.append(Check(name, "fail", str(error)))
                continue
            if found is None:
                continue
            set_it = f"gpu-mcp-server hosts set {host}"
            todo = f"{set_it} 'roots=[\"FOLDER\"]' shows a folder that it needs; or {set_it} judge_python=PATH"
            fit = found.numpy is not None
            checks.append(Check(name, "ok" if fit else "fail", found.text(), "" if fit else todo))
            checks += await _capabilities(lab, host)
    return checks


async def _capabilities(lab: "Lab", host: str) -> list[Check]:
    """Try what the host can do with a GPU, MPI, NCCL; remembered for gpu_status."""
    from gpu_mcp_server.services.profiles.tool_jobs import NEEDED

    try:
        listed = await lab.status.capabilities.try_all(host)
    except GpuMcpError as error:
        return [Check(f"host {host} capabilities", "warn", str(error))]
    checks = [Check(f"host {host} {c.name}", "ok" if c.able else "warn", c.found or "works", c.todo) for c in listed]
    status = await lab.status.gpus.status(host)
    tools = status.hosts[0].toolchains
    for tool, needed in NEEDED.items():
        if any(g.vendor == "nvidia" for g in status.hosts[0].gpus) and tool not in tools:
            checks.append(Check(f"host {host} {tool}", "warn", "not found", f"{needed.user} needs it. {needed.hint}"))
    return checks


def doctor(as_json: Json = False) -> None:
    """Check everything that the laboratory needs; exit code 1 if something must be fixed."""
    checks = run_checks()
    print_result({"checks": [asdict(c) for c in checks]}, "\n".join(c.line() for c in checks), as_json=as_json)
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)
