"""`status`: hosts and GPUs as a table, once or again and again."""

import asyncio
import json
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, fail, print_result, terminal_width, withdraw, wrap_lines

GIB = 1 << 30
EVERY_S = 2.0


def status(
    host: Annotated[str | None, typer.Argument(help="Only this host.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeat every two seconds until Ctrl-C; with --json one line each.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show hosts, GPUs and their users, compilers, and tested capabilities."""
    if watch:
        announce(in_process_client.describe_call("gpu_status", {"host": host}))
        in_process_client.run(lambda: _told_again(host) if as_json else _watched(host))
        return
    answer = in_process_client.answer_of("gpu_status", {"host": host}, as_json=as_json)
    if as_json:
        print_result(answer.data, "", as_json=True)
    else:
        withdraw()
        _console().print(render_status(answer.data))


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)  # colour on a terminal only, and not where NO_COLOR is set
    return console if console.is_terminal else Console(highlight=False, width=terminal_width())


async def _watched(host: str | None) -> None:
    from rich.live import Live

    async with in_process_client.chosen_session() as lab:
        with Live(console=_console(), auto_refresh=False) as live:
            while True:
                answer = await lab.call("gpu_status", {"host": host}, quiet=True)
                if answer.failed:
                    raise fail(answer.text, as_json=False)
                withdraw()
                live.update(render_status(answer.data), refresh=True)
                if not _console().is_terminal:
                    return
                await asyncio.sleep(EVERY_S)


async def _told_again(host: str | None) -> None:
    """Print one line of JSON for each look, for a program that reads along."""
    async with in_process_client.chosen_session() as lab:
        while True:
            answer = await lab.call("gpu_status", {"host": host}, quiet=True)
            if answer.failed:
                raise fail(answer.text, as_json=True)
            typer.echo(json.dumps(answer.data, ensure_ascii=False))
            await asyncio.sleep(EVERY_S)


def render_status(data: dict[str, Any]) -> Any:
    """Return what gpu_status found, for rich to print: each host, and under it two lines a GPU."""
    from rich.console import Group
    from rich.text import Text

    notes = [Text(f"note: {data['note']}", style="yellow")] if data.get("note") else []
    return Group(*notes, *(part for host in data.get("hosts", []) for part in _host(host)))


def _host(host: dict[str, Any]) -> list[Any]:
    from rich.text import Text

    if not host.get("reachable"):
        return [Text(f"{host['host']}: not reachable: {host.get('problem')}", style="red")]
    head = f"{host['host']}  {host.get('cpu')}, {host.get('cores')} cores, sandbox {host.get('level')}"
    head += f", driver {host['driver']}" if host.get("driver") else ""
    parts: list[Any] = [Text(head, style="bold")]
    tools = ", ".join(f"{k} {v}" for k, v in host.get("toolchains", {}).items())
    said = f"  {tools or 'no compilers'}; jobs running: {host.get('jobs_running', 0)}"
    parts.append(Text(wrap_lines(said), style="dim"))
    if host.get("problem"):
        parts.append(Text(wrap_lines(f"  {host['problem']}"), style="yellow"))
    parts += [line for g in host.get("gpus", []) for line in _gpu(g)] or [Text("  no GPU")]
    able = [c for c in host.get("capabilities", []) if c["able"]]
    if able:
        parts.append(Text("  works: " + ", ".join(" ".join(filter(None, [c["name"], c.get("found")])) for c in able)))
    parts += [
        Text(f"  does not work: {c['name']}: {c.get('found')} {c.get('todo', '')}", style="yellow")
        for c in host.get("capabilities", [])
        if not c["able"]
    ]
    return parts


def _gpu(g: dict[str, Any]) -> list[Any]:
    """Return who has a GPU, and how busy it is."""
    from rich.text import Text

    name = f"{g['name']} {g.get('arch') or ''}".rstrip() + (" MIG" if g.get("mig") else "") + _links(g)
    load = g.get("utilization_percent")
    measured = (
        f"load {_bar(load / 100)} {load}%" if load is not None else "load -",
        f"memory {_memory(g)}",
        _of(g.get("sm_clock_mhz"), g.get("sm_clock_max_mhz"), "MHz"),
        _of(g.get("power_w"), g.get("power_limit_w"), "W"),
        f"{g['temperature_c']} C" if g.get("temperature_c") is not None else "-",
    )
    lines = [Text(f"  GPU {g['index']} {name}: {_users(g)}"), Text.from_markup(f"    {'  '.join(measured)}")]
    held = ", ".join(g.get("throttle") or [])
    return [*lines, Text(f"    throttled: {held}", style="yellow")] if held else lines


def _memory(g: dict[str, Any]) -> str:
    used, total = g.get("memory_used_bytes"), g.get("memory_total_bytes")
    if not total:
        return "unknown"
    if used is None:
        return f"?/{total / GIB:.0f} GiB"
    return f"{_bar(used / total)} {used / GIB:.1f}/{total / GIB:.0f} GiB"


def _links(g: dict[str, Any]) -> str:
    return f" NVLink to {len(g['nvlink'])}" if g.get("nvlink") else ""


def _users(g: dict[str, Any]) -> str:
    found = [g["locked_by"]] if g.get("locked_by") else []
    found += [f"{p.get('name') or p['pid']} of {p.get('user') or '?'}" for p in g.get("processes", [])[:3]]
    return ", ".join(found) or ("nobody" if g.get("shown_only") else "free")


def _bar(part: float) -> str:
    filled = round(4 * min(max(part, 0.0), 1.0))
    colour = "green" if part < 0.5 else ("yellow" if part < 0.9 else "red")
    return f"[{colour}]{'█' * filled}[/][dim]{'░' * (4 - filled)}[/]"


def _of(value: float | None, most: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" + (f"/{most:.0f}" if most else "") + f" {unit}"
