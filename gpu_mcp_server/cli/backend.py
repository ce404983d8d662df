"""`backend`: whether a host behaves as every host must."""

from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, fail, print_result, say

app = typer.Typer(help="Check that a host behaves as every host must.", no_args_is_help=True)

_MARKS = {"met": "ok", "unmet": "FAILED", "skipped": "skipped"}


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Host in the settings.")],
    only: Annotated[str, typer.Option(help="Only this room, or behaviours whose name contains this.")] = "",
    as_json: Json = False,
) -> None:
    """Prove every behaviour of the contract on a host: table, and exit code 1 if one is not met."""
    from gpu_mcp_server.backends.contract import check as findings_of
    from gpu_mcp_server.services.hosts.host_connections import Hosts
    from gpu_mcp_server.settings.server_settings import load_settings

    hosts = Hosts(load_settings())
    rows: list[dict[str, Any]] = []

    async def work() -> None:
        try:
            async for found in findings_of(hosts.backend(hosts.choose(name)), only):
                behaviour = found.behaviour
                rows.append({
                    "room": behaviour.room, "name": behaviour.name, "sentence": behaviour.sentence,
                    "result": found.result, "why": found.why, "took_s": round(found.took_s, 3),
                })  # fmt: skip
                if not as_json:
                    say(_line(rows[-1]))
        finally:
            await hosts.close()

    announce(f"trying what every host must do on {in_process_client.describe_host(name)}; it takes minutes")
    in_process_client.run(work)
    if not rows:
        raise fail(f"no behaviour has {only!r} in its name", as_json=as_json, code=2)
    counts = {result: sum(row["result"] == result for row in rows) for result in _MARKS}
    said = f"host {name}: {counts['met']} met, {counts['unmet']} not met, {counts['skipped']} skipped"
    print_result({"host": name, "counts": counts, "behaviours": rows}, said, as_json=as_json)
    if counts["unmet"]:
        raise typer.Exit(1)


def _line(row: dict[str, Any]) -> str:
    why = f"\n{'':22}{row['why']}" if row["why"] else ""
    return f"{_MARKS[row['result']]:8}{row['took_s']:6.2f} s  {row['room']:13} {row['sentence']}{why}"
