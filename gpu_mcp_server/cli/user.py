"""`user`: what was settled for each user of a shared server, what they took, what they did."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.cli.output import Json, print_result, table
from gpu_mcp_server.cli.token import with_team

if TYPE_CHECKING:
    from gpu_mcp_server.team.audit import AuditEntry

app = typer.Typer(help="Users of a team's server: shares, quotas, log of actions.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the user.")]
NONE = "none"
"""Takes a limit away."""


def _limit(text: str | None) -> tuple[bool, float | None]:
    """Return whether a limit is given, and it."""
    from gpu_mcp_server.errors import BadRequest

    if text is None or text == NONE:
        return text is not None, None
    try:
        return True, float(text)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no limit.", hint="Give a number, or none.") from error


@app.command(name="set")
def set_(
    name: Name,
    weight: Annotated[float | None, typer.Option(help="Share of the pool relative to other users; usually 1.")] = None,
    project: Annotated[
        str | None, typer.Option(help="Project of the user; its members see its shared handles.")
    ] = None,
    sharing: Annotated[bool | None, typer.Option(help="Share all that the user makes with the project.")] = None,
    toolsets: Annotated[str | None, typer.Option(help="Toolsets that may be used, by commas.")] = None,
    webhook: Annotated[str | None, typer.Option(help="http(s) address that the server calls after each job.")] = None,
    gpu_s_per_day: Annotated[str | None, typer.Option(help="GPU seconds between two midnights, UTC; or none.")] = None,
    concurrent_jobs: Annotated[str | None, typer.Option(help="Jobs at once; or none.")] = None,
    disk_bytes: Annotated[str | None, typer.Option(help="Bytes in the store; or none.")] = None,
    requests_per_minute: Annotated[str | None, typer.Option(help="HTTP requests; or none.")] = None,
    as_json: Json = False,
) -> None:
    """Create a user, or change the given settings of one."""
    given = {
        "gpu_s_per_day": _limit(gpu_s_per_day),
        "concurrent_jobs": _limit(concurrent_jobs),
        "disk_bytes": _limit(disk_bytes),
        "requests_per_minute": _limit(requests_per_minute),
    }
    quotas = {key: value for key, (said, value) in given.items() if said}
    chosen = [part.strip() for part in toolsets.split(",")] if toolsets is not None else None

    async def work(team: Any) -> Any:
        known = name in await team.users.names()
        before: dict[str, Any] = (await team.users.get(name)).quotas.model_dump() if known else {}
        await team.users.put(
            name, weight=weight, project=project, sharing=sharing, toolsets=chosen, webhook=webhook,
            quotas={**before, **quotas} if quotas else None,
        )  # fmt: skip
        return await team.users.get(name)

    user = with_team(work)
    print_result(user.model_dump(mode="json"), f"user {name}: {_settled(user)}", as_json=as_json)


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """List users with their quotas and use."""

    async def work(team: Any) -> list[tuple[Any, Any]]:
        users = [await team.users.get(name) for name in await team.users.names()]
        return [(user, await team.allowances.usage_of(user.name)) for user in users]

    found = with_team(work)
    rows = [
        [user.name, _settled(user), f"{t.gpu_s_today:.0f}", str(t.unfinished_jobs), str(t.disk_bytes)]
        for user, t in found
    ]
    said = [{**user.model_dump(mode="json", exclude={"scopes", "token_id"}), **asdict(taken)} for user, taken in found]
    headings = ["user", "settled", "GPU s today", "jobs", "bytes"]
    print_result(said, table(headings, rows) if rows else "There are no users.", as_json=as_json)


@app.command()
def log(
    name: Annotated[str | None, typer.Argument(help="Name of the user; all if absent.")] = None,
    limit: Annotated[int, typer.Option(help="Newest entries.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """Print the log of actions: user, tool, handle, address and outcome."""

    async def work(team: Any) -> Any:
        return await team.audit.recent(name, limit)

    entries: list[AuditEntry] = list(with_team(work))
    rows = [[e.at[:19], e.user, e.action, e.handle or "", e.outcome, e.address or ""] for e in reversed(entries)]
    text = table(["when (UTC)", "user", "did", "to", "outcome", "from"], rows) if rows else "Nothing was done."
    print_result([asdict(entry) for entry in entries], text, as_json=as_json)


def _settled(user: Any) -> str:
    quotas = user.quotas.model_dump(exclude_none=True)
    parts = [f"weight {user.weight:g}"]
    parts += [f"project {user.project}"] if user.project else []
    parts += [f"toolsets {','.join(user.toolsets)}"] if user.toolsets is not None else []
    return ", ".join([*parts, *(f"{key} {value:g}" for key, value in quotas.items())])
