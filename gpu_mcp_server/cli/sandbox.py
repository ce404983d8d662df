"""`sandbox`: what confines jobs on a host, tried."""

from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, say

app = typer.Typer(help="Try the sandbox of a host.", no_args_is_help=True)


@app.command()
def check(
    host: Annotated[str | None, typer.Argument(help="Host in the settings; the default one if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Try every known way out of the sandbox; exit code 1 if one is open."""
    from gpu_mcp_server.backends.contract.escapes import try_escapes
    from gpu_mcp_server.services.hosts.host_connections import Hosts
    from gpu_mcp_server.settings.server_settings import load_settings

    hosts = Hosts(load_settings())
    rows: list[dict[str, Any]] = []

    async def work() -> str:
        name = hosts.choose(host)
        async for outcome in try_escapes(hosts.backend(name)):
            attempt = outcome.attempt
            rows.append({
                "row": attempt.row, "attempt": attempt.what, "sandbox": outcome.sandbox, "closed_by": attempt.closed_by,
                "result": outcome.result, "found": outcome.found,
            })  # fmt: skip
            if not as_json:
                say(_line(rows[-1]))
        return name

    announce(f"trying ways out of the sandbox on {in_process_client.describe_host(host)}")
    name = in_process_client.run(work)
    count = sum(row["result"] == "open" for row in rows)
    said = f"host {name}: {len({row['row'] for row in rows})} ways out tried, {count or 'none'} open"
    print_result({"host": name, "open": count, "attempts": rows}, said, as_json=as_json)
    if count:
        raise typer.Exit(1)


def _line(row: dict[str, Any]) -> str:
    mark = {"closed": "closed", "open": "OPEN", "not closed here": "weaker", "not tried": "untried"}[row["result"]]
    return f"{row['row']:>3}  {mark:7}  {row['attempt']}: {row['sandbox']}, {row['closed_by']}: {row['found']}"
