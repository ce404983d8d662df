"""Takes files by content: PUT /workspaces/KEY, POST /files, PUT /files/SHA256."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server.errors import BadRequest, DiskFull, GpuMcpError, NotFound, QuotaExceeded
from gpu_mcp_server.hostd.protocol import FileRef
from gpu_mcp_server.models.user import User
from gpu_mcp_server.services.workspaces.uploads import MAX_UPLOAD_BYTES, PART_BYTES, SHA256
from gpu_mcp_server.services.workspaces.workspace_store import MAX_FILES
from gpu_mcp_server.web.limits import refuse_when_full

HEAD_BYTES = 128 << 10
"""Of a pack, beside its contents: a thousand hashes with their sizes."""


class PushedFile(BaseModel):
    """A file that shall stand in a workspace."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(max_length=512)
    sha256: str = Field(pattern=SHA256.pattern, min_length=64, max_length=64)
    size: int = Field(ge=0, le=MAX_UPLOAD_BYTES)
    executable: bool = False


class PushedFiles(BaseModel):
    """All files of a push."""

    model_config = ConfigDict(extra="forbid")

    workspace_id: str | None = Field(default=None, max_length=80)
    files: list[PushedFile] = Field(min_length=1, max_length=MAX_FILES)


def upload_routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/workspaces/{key}", _place, methods=["PUT"]),
        Route("/files", _take_pack, methods=["POST"]),
        Route("/files/{sha256}", _take_part, methods=["PUT"]),
    ]


async def _place(request: Request) -> Response:
    site, body = request.app.state.site, await request.body()
    try:
        require_work(request)
        asked = PushedFiles.model_validate_json(body)
        files = [FileRef(f.path, f.sha256, f.size, 0o755 if f.executable else 0o644) for f in asked.files]
        uploads = (await site.lab()).store.uploads
        placed = await uploads.place(request.path_params["key"][:80], asked.workspace_id, files)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return JSONResponse({"error": f"{'.'.join(map(str, first['loc']))}: {first['msg']}."}, 400)
    except GpuMcpError as error:
        return refusal_of(error)
    if placed.workspace_id is not None:
        site.team.audit.note(request.state.user, "files put", placed.workspace_id, "ok", _address(request))
    part_bytes = min(PART_BYTES, (site.settings.team.max_body_mib << 20) - HEAD_BYTES)
    return JSONResponse(
        {
            "workspace_id": placed.workspace_id,
            "missing": placed.missing,
            "begun": placed.begun,
            "part_bytes": part_bytes,
        }
    )


async def _take_pack(request: Request) -> Response:
    body = await request.body()
    try:
        require_work(request)
        kept = await (await request.app.state.site.lab()).store.uploads.take_pack(body)
    except GpuMcpError as error:
        return refusal_of(error)
    return JSONResponse({"kept": kept})


async def _take_part(request: Request) -> Response:
    body, sha256 = await request.body(), request.path_params["sha256"]
    try:
        require_work(request)
        size, offset = (number_of(request, name) for name in ("size", "offset"))
        received = await (await request.app.state.site.lab()).store.uploads.take_part(sha256, size, offset, body)
    except GpuMcpError as error:
        return refusal_of(error)
    return JSONResponse({"received": received})


def number_of(request: Request, name: str) -> int:
    """Return a whole number of a request's query.

    Raises:
        BadRequest: If it is none.
    """
    said = request.query_params.get(name, "")
    if not (said.isascii() and said.isdigit() and len(said) < 16):
        raise BadRequest(f"{name} is {said[:40]!r}.", hint="Say a whole number.")
    return int(said)


def require_work(request: Request) -> None:
    """Let users with the scope `run` go on, while there is room.

    Raises:
        BadRequest: If they have another scope.
        DiskFull: If there is none.
    """
    user: User = request.state.user
    if not user.may("run"):
        raise BadRequest("It takes the scope 'run'.", hint="Ask for another token.")
    if full := refuse_when_full(request.app.state.site.settings):
        raise DiskFull(full)


def refusal_of(error: GpuMcpError) -> Response:
    """Return an error as an answer."""
    kinds: tuple[tuple[type[GpuMcpError], int], ...] = (
        (QuotaExceeded, 403), (DiskFull, 507), (NotFound, 404), (BadRequest, 400),
    )  # fmt: skip
    status = next((code for kind, code in kinds if isinstance(error, kind)), 503)
    said: dict[str, Any] = {"error": str(error)}
    return JSONResponse(said, status)


def _address(request: Request) -> str | None:
    return request.client.host if request.client else None
