"""Headless runs of a laptop: begun, attended and read at /recipes; the laptop calls the agent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server.errors import GpuMcpError, NotFound
from gpu_mcp_server.mcp_api.lab_lifetime import LabHolder
from gpu_mcp_server.recipes.attended_runs import AttendedRuns
from gpu_mcp_server.recipes.headless_runs import Runs
from gpu_mcp_server.recipes.run_exchange import Heard, HeardCall, SentAnswer, SentRun
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.runs import run_list
from gpu_mcp_server.web.upload_routes import refusal_of, require_work

Handler = Callable[[Request], Awaitable[Response]]


class RecipeRoutes:
    """The routes, and the runs that go on."""

    def __init__(self, app: LabHolder) -> None:
        self._app, self._runs = app, AttendedRuns(app.lab)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one, call = "/recipes/{run_id}", "/{job_id}"
        found: list[tuple[str, str, Handler]] = [
            ("GET", "/recipes", self._list),
            ("GET", one, self._state),
            ("PUT", one, self._begin),
            ("POST", f"{one}/attend", self._attend),
            ("DELETE", f"{one}/attend", self._leave),
            ("POST", f"{one}/answers{call}", self._answer),
            ("POST", f"{one}/calls{call}", self._heard),
            ("GET", f"{one}/journal", self._journal),
            ("GET", f"{one}/report", self._report),
        ]
        return [Route(path, _guarded(work, changes=method != "GET"), methods=[method]) for method, path, work in found]

    async def close(self) -> None:
        """Stop the runs that go on."""
        await self._runs.close()

    async def _begin(self, request: Request) -> Response:
        run_id = request.path_params["run_id"]
        team = request.app.state.site.team
        await team.allowances.check_disk(len(await request.body()))
        await self._runs.begin(run_id, await _read(request, SentRun))
        address = request.client.host if request.client else None
        team.audit.note(request.state.user, "recipe begin", run_id[:80], "ok", address)
        return JSONResponse({"run_id": run_id})

    async def _attend(self, request: Request) -> Response:
        return _as_json(await self._runs.attend(request.path_params["run_id"], await _read(request, Heard)))

    async def _leave(self, request: Request) -> Response:
        await self._runs.leave(request.path_params["run_id"])
        return JSONResponse({})

    async def _answer(self, request: Request) -> Response:
        at = request.path_params
        return JSONResponse(
            {"taken": await self._runs.answer(at["run_id"], at["job_id"], await _read(request, SentAnswer))}
        )

    async def _heard(self, request: Request) -> Response:
        at = request.path_params
        return JSONResponse(
            {"taken": await self._runs.hear_call(at["run_id"], at["job_id"], await _read(request, HeardCall))}
        )

    async def _list(self, request: Request) -> Response:
        states = await run_list(await self._app.lab())
        return JSONResponse({"runs": [state.model_dump(mode="json") for state in states]})

    async def _state(self, request: Request) -> Response:
        lab, run_id = await self._seen(request)
        runs = Runs(lab)
        state = await asyncio.to_thread(runs.state, run_id)
        return JSONResponse(
            {
                "state": state.model_dump(mode="json"),
                "begun": await asyncio.to_thread(runs.begun, run_id),
                "gpu_s": await runs.gpu_seconds(run_id),
            }
        )

    async def _journal(self, request: Request) -> Response:
        lab, run_id = await self._seen(request)
        return JSONResponse({"journal": await asyncio.to_thread(Runs(lab).journal, run_id)})

    async def _report(self, request: Request) -> Response:
        from gpu_mcp_server.recipes.reports.run_report import report

        lab, run_id = await self._seen(request)
        return JSONResponse({"html": await report(lab, run_id)})

    async def _seen(self, request: Request) -> tuple[Lab, str]:
        lab, run_id = await self._app.lab(), request.path_params["run_id"]
        seen = await lab.status.overview.seen_runs()
        if seen is not None and run_id not in seen:
            raise NotFound("run", run_id[:100], hint="`gpu-mcp-server recipe list` shows those you may see.")
        return lab, run_id


def _guarded(work: Handler, *, changes: bool) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            if changes:
                require_work(request)
            return await work(request)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            return JSONResponse({"error": f"{'.'.join(map(str, first['loc']))}: {first['msg']}."}, 400)
        except GpuMcpError as error:
            return refusal_of(error)

    return handle


async def _read(request: Request, kind: type[Any]) -> Any:
    return kind.model_validate_json(await request.body())


def _as_json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
