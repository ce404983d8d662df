"""`store push`: this machine's memory, given to a team's server."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.bridge.kept_tokens import address_of, kept_token
from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result
from gpu_mcp_server.errors import BadRequest, GpuMcpError, HostUnavailable, NotFound

if TYPE_CHECKING:
    from gpu_mcp_server.services.lab import Lab


COUNTED = ("problems", "attempts", "notes", "left_out", "artifacts", "artifacts_left_out")


def push(
    url: Annotated[str, typer.Argument(help="Address of the team's server; `login` has its token.")],
    as_json: Json = False,
) -> None:
    """Give a team's server the problems, judged attempts and notes of this machine's store; they stay yours there."""
    address = address_of(url)
    secret = kept_token(address)
    announce(f"sending problems, attempts and notes to {address}")
    done = in_process_client.run(lambda: _pushed(address, secret))
    text = (
        f"{done['problems']} problems, {done['attempts']} attempts, {done['notes']} notes and {done['artifacts']} "
        f"files are new there; {done['left_out']} were there already. "
        "Verdicts of this store count there once they are judged again, unless an admin pushes."
    )
    print_result(done, text, as_json=as_json)


async def _pushed(address: str, secret: str) -> dict[str, int]:
    import httpx2

    done: dict[str, int] = {name: 0 for name in COUNTED}  # noqa: C420 - the names are any strings
    headers = {"Authorization": f"Bearer {secret}"}
    async with in_process_client.laboratory() as lab, httpx2.AsyncClient(timeout=120, headers=headers) as http:
        try:
            async for part in lab.merging.parts():
                body = part.model_dump_json().encode()
                answer = _accepted(await http.post(f"{address}/store/merge", content=body))
                for name in ("problems", "attempts", "notes", "left_out"):
                    done[name] += answer[name]
                for artifact_id in answer["wanted"]:
                    done[await _sent(http, address, lab, artifact_id)] += 1
        except httpx2.HTTPError as error:
            raise HostUnavailable(
                f"{address} cannot be reached: {error}.", hint="Push again: nothing is doubled."
            ) from error
    return done


async def _sent(http: Any, address: str, lab: "Lab", artifact_id: str) -> str:
    """Send an artifact; returns what it counts as."""
    try:
        info, content = await lab.store.artifacts.info(artifact_id), await lab.store.artifacts.read(artifact_id)
    except NotFound:
        return "artifacts_left_out"
    answer = await http.put(f"{address}/store/artifacts/{artifact_id}", content=content, params={"name": info.name})
    if answer.status_code == 413:
        return "artifacts_left_out"
    _accepted(answer)
    return "artifacts"


def _accepted(answer: Any) -> Any:
    if answer.status_code == 200:
        return answer.json()
    try:
        said = answer.json()
        why = said.get("error_description") or said.get("error")
    except ValueError:
        why = answer.text[:200]
    known = BadRequest if answer.status_code < 500 else GpuMcpError
    raise known(f"The server refuses ({answer.status_code}): {why}")
