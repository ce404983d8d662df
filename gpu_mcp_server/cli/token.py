"""`token`: who may use a shared server, and for how long."""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, table
from gpu_mcp_server.errors import BadRequest

if TYPE_CHECKING:
    from gpu_mcp_server.models.user import Scope
    from gpu_mcp_server.team.tokens import Token

app = typer.Typer(help="Bearer tokens of a team's server (`serve --http`).", no_args_is_help=True)

T = TypeVar("T")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Expires = Annotated[str, typer.Option(help="From now: 12h, 30d, 52w; `never`.")]


def with_team(work: Callable[[Any], Awaitable[T]]) -> T:
    """Open the users of the team's server that an admin is logged in to, or of this machine's store."""
    from gpu_mcp_server.settings.server_settings import load_settings
    from gpu_mcp_server.team.team_services import Team

    async def opened() -> T:
        if address := in_process_client.remote_address():
            from gpu_mcp_server.bridge.remote_team import RemoteTeam

            announce(f"asking {address}")
            async with in_process_client.remote_session(address) as there:
                return await work(RemoteTeam(there.server.server))
        async with Team.open(load_settings()) as team:
            return await work(team)

    return in_process_client.run(opened)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the user; a new one is created.")],
    scope: Annotated[str, typer.Option(help="read, run or admin; each includes those before.")] = "run",
    expires: Expires = "90d",
    note: Annotated[str | None, typer.Option(help="What it is for, such as a machine's name.")] = None,
    weight: Annotated[float | None, typer.Option(help="The user's share of the pool; 1 is usual.")] = None,
    project: Annotated[
        str | None, typer.Option(help="Project of the user; its members see its shared handles.")
    ] = None,
    toolsets: Annotated[str | None, typer.Option(help="The user's toolsets, by commas; all if never given.")] = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it once; the server keeps only its hash."""
    lasts = seconds_of(expires)
    chosen = [part.strip() for part in toolsets.split(",")] if toolsets is not None else None

    async def work(team: Any) -> tuple[str, str]:
        await team.users.put(name, weight=weight, project=project, toolsets=chosen)
        return await team.tokens.create(name, (cast("Scope", scope),), expires_s=lasts, note=note)

    token_id, secret = with_team(work)
    said = {"token_id": token_id, "user": name, "scope": scope, "token": secret}
    typer.echo(f"token {token_id} of {name}, scope {scope}; it is shown only now:", err=True)
    print_result(said, secret, as_json=as_json)


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """List tokens: user, note, expiry; never the tokens themselves."""

    async def work(team: Any) -> Any:
        return await team.tokens.list()

    tokens: list[Token] = with_team(work)
    rows = [
        [
            *(t.token_id, t.user, " ".join(t.scopes), t.state, t.created_at[:10], (t.expires_at or "never")[:10]),
            *((t.last_used_at or "never")[:16], t.note or ""),
        ]
        for t in tokens
    ]
    said: list[dict[str, Any]] = [{**vars(t), "state": t.state} for t in tokens]
    headings = ["id", "user", "scope", "state", "made", "expires", "last used", "note"]
    print_result(said, table(headings, rows) if rows else "There are no tokens.", as_json=as_json)


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="As `token list` shows it.")], as_json: Json = False) -> None:
    """Revoke a token; the server refuses it from the next request on."""

    async def work(team: Any) -> Any:
        return await team.tokens.revoke(token_id)

    token = with_team(work)
    said = f"token {token.token_id} of {token.user} is revoked since {token.revoked_at}"
    print_result({**vars(token), "state": token.state}, said, as_json=as_json)


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as 90d; None for `never`.

    Raises:
        BadRequest: If it is no such thing.
    """
    if text == "never":
        return None
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if found is None:
        raise BadRequest(f"{text!r} is no duration.", hint="Say 12h, 30d, 52w or never.")
    return int(found[1]) * SECONDS[found[2]]
