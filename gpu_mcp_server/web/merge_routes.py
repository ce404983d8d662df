"""Takes parts of private stores: POST /store/merge, PUT /store/artifacts/ID."""

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server.errors import BadRequest, GpuMcpError, QuotaExceeded
from gpu_mcp_server.models.store_merge import StoreExport
from gpu_mcp_server.models.user import User


def merging_routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/store/merge", _merge, methods=["POST"]),
        Route("/store/artifacts/{artifact_id}", _artifact, methods=["PUT"]),
    ]


async def _merge(request: Request) -> Response:
    site, body = request.app.state.site, await request.body()
    try:
        await _check(request, len(body))
        merged = await (await site.lab()).merging.take(StoreExport.model_validate_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return JSONResponse({"error": f"This is no part of a store: {where}: {first['msg']}."}, 400)
    except GpuMcpError as error:
        return _refused(error)
    site.team.audit.note(request.state.user, "store merge", None, "ok", _address(request))
    return JSONResponse(merged.model_dump(mode="json"))


async def _artifact(request: Request) -> Response:
    site, body = request.app.state.site, await request.body()
    name = request.query_params.get("name", "artifact")
    try:
        await _check(request, len(body))
        await (await site.lab()).merging.take_artifact(request.path_params["artifact_id"], body, name)
    except GpuMcpError as error:
        return _refused(error)
    return JSONResponse({"kept": request.path_params["artifact_id"]})


async def _check(request: Request, size: int) -> None:
    user: User = request.state.user
    if not user.may("run"):
        raise BadRequest("It takes the scope 'run'.", hint="Ask for another token.")
    await request.app.state.site.team.allowances.check_disk(size)


def _refused(error: GpuMcpError) -> Response:
    status = 429 if isinstance(error, QuotaExceeded) else 400 if isinstance(error, BadRequest) else 503
    return JSONResponse({"error": str(error)}, status)


def _address(request: Request) -> str | None:
    return request.client.host if request.client else None
