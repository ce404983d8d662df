"""The addresses of the dashboard, and what each answers."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound
from gpu_mcp_server.models.user import User
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.text_safety import visible_data
from gpu_mcp_server.web.dashboard import actions, attempts, jobs, problems, runs
from gpu_mcp_server.web.dashboard.comparison import comparison_page
from gpu_mcp_server.web.dashboard.list_pages import ListView, list_request_of
from gpu_mcp_server.web.dashboard.login import Forbidden, check_own_page, login, logout, note, user_of_request
from gpu_mcp_server.web.dashboard.pages import HEADERS, STATIC, is_live, page, safe_svg
from gpu_mcp_server.web.dashboard.pool import PoolView
from gpu_mcp_server.web.dashboard.processors import processor_hosts

View = Callable[[Request, Lab, User], Awaitable[Response]]
_log = structlog.get_logger()

DONE = {"released": "The reservation is ended."}
"""What an action leads to is said on the page after it, by a word that only chooses among ours."""


def routes() -> list[BaseRoute]:
    """Return the routes; handlers find `lab()`, `team` and `authenticated` as `request.app.state.site`."""
    pool = PoolView()

    async def pool_page(request: Request, lab: Lab, visitor: User) -> Response:
        about = {"pool": await pool.snapshot(lab), "done": DONE.get(request.query_params.get("done", ""), "")}
        return page(request, "pool.html", about, visitor=visitor, section="/")

    async def hosts_page(request: Request, lab: Lab, visitor: User) -> Response:
        return page(request, "hosts.html", {"hosts": await pool.hosts(lab)}, visitor=visitor, section="/hosts")

    async def processors(request: Request, lab: Lab, visitor: User) -> Response:
        about = {"hosts": await processor_hosts(lab, await pool.hosts(lab))}
        return page(request, "processors.html", about, visitor=visitor, section="/processors")

    return [
        Route("/", _guarded(pool_page)),
        Route("/hosts", _guarded(hosts_page)),
        Route("/processors", _guarded(processors)),
        Route("/users", _guarded(_users)),
        Route("/attempts", _guarded(_attempts)),
        Route("/compare", _guarded(_compare)),
        Route("/problems", _guarded(_problems)),
        Route("/problems/{problem_id}", _guarded(_problem)),
        Route("/problems/{problem_id}/course.json", _guarded(_course)),
        Route("/problems/{problem_id}/lineage", _guarded(_lineage)),
        Route("/attempts/{attempt_id}", _guarded(_attempt)),
        Route("/attempts/{attempt_id}/source", _guarded(_source)),
        Route("/attempts/{attempt_id}/roofline.json", _guarded(_roofline)),
        Route("/runs", _guarded(_runs)),
        Route("/runs/{run_id}", _guarded(_run)),
        Route("/jobs", _guarded(_jobs)),
        Route("/jobs/{job_id}", _guarded(_job)),
        Route("/jobs/{job_id}/cancel", _guarded(_cancel), methods=["POST"]),
        Route("/reservations/{lease_id}/release", _guarded(_release), methods=["POST"]),
        Route("/usage", _guarded(_usage)),
        Route("/login", _at_the_door(login), methods=["GET", "POST"]),
        Route("/logout", _at_the_door(logout), methods=["POST"]),
        Mount("/static", _Static(directory=STATIC), name="static"),
    ]


class _Static(StaticFiles):
    """Our own files, which are asked for again when they may have changed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update({**HEADERS, "cache-control": "no-cache"})
        return response


def _guarded(view: View) -> Callable[[Request], Awaitable[Response]]:
    """Let a view have its laboratory and its visitor, and say what went wrong as a page."""

    async def answer(request: Request) -> Response:
        visitor = user_of_request(request)
        if visitor is None:
            return RedirectResponse("/login", 303, HEADERS)
        try:
            if request.method == "POST":
                check_own_page(request)
            return await view(request, await request.app.state.site.lab(), visitor)
        except GpuMcpError as error:
            about = {"said": str(error), "incident": ""}
            return page(request, "error.html", about, visitor=visitor, status=_status(error))
        except Exception:
            incident = secrets.token_hex(4)
            _log.exception("a page broke", incident=incident, path=request.url.path)
            about = {"said": "This page broke inside the server.", "incident": incident}
            return page(request, "error.html", about, visitor=visitor, status=500)

    return answer


def _at_the_door(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Say as a page that another site's request is refused."""

    async def said(request: Request) -> Response:
        try:
            return await answer(request)
        except Forbidden as error:
            about = {"said": str(error), "incident": ""}
            return page(request, "error.html", about, visitor=user_of_request(request), status=403)

    return said


def _status(error: GpuMcpError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Forbidden):
        return 403
    return 400 if isinstance(error, BadRequest) else 503


def _board(request: Request) -> int:
    number = request.query_params.get("board", "0")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 5 else 0


async def _problems(request: Request, lab: Lab, visitor: User) -> Response:
    asked = list_request_of(request, "problems")
    found, matching = await lab.status.lists.problems(asked)
    view = ListView("problems", asked, await lab.status.lists.choices("problems"), matching)
    return page(request, "problems.html", {"problems": found, "view": view}, visitor=visitor, section="/problems")


async def _problem(request: Request, lab: Lab, visitor: User) -> Response:
    found = await problems.problem_page(lab, request.path_params["problem_id"], _board(request))
    return page(request, "problem.html", {"p": found}, visitor=visitor, section="/problems")


async def _course(request: Request, lab: Lab, _: User) -> Response:
    return _json(await problems.course(lab, request.path_params["problem_id"], _board(request)))


async def _lineage(request: Request, lab: Lab, visitor: User) -> Response:
    history, tree = await problems.lineage(lab, request.path_params["problem_id"], _board(request))
    about = {"history": history, "tree": safe_svg(tree), "number": _board(request)}
    return page(request, "lineage.html", about, visitor=visitor, section="/problems")


async def _attempts(request: Request, lab: Lab, visitor: User) -> Response:
    asked = list_request_of(request, "attempts")
    found, matching = await lab.status.lists.attempts(asked)
    view = ListView("attempts", asked, await lab.status.lists.choices("attempts"), matching)
    return page(request, "attempts.html", {"attempts": found, "view": view}, visitor=visitor, section="/attempts")


async def _compare(request: Request, lab: Lab, visitor: User) -> Response:
    chosen = [each.strip() for each in request.query_params.getlist("attempt") if each.strip()]
    found = await comparison_page(lab, chosen) if len(set(chosen)) > 1 else None
    about = {"p": found, "chosen": chosen[0] if chosen else ""}
    return page(request, "compare.html", about, visitor=visitor, section="/attempts")


async def _attempt(request: Request, lab: Lab, visitor: User) -> Response:
    found = await attempts.attempt_page(lab, request.path_params["attempt_id"])
    about = {"p": found, "a": found.attempt, "picture": safe_svg(found.where.picture) if found.where else ""}
    return page(request, "attempt.html", about, visitor=visitor, section="/attempts")


async def _source(request: Request, lab: Lab, _: User) -> Response:
    attempt_id = request.path_params["attempt_id"]
    text, why = await attempts.source_of(lab, await lab.store.experience.get(attempt_id))
    if text is None:
        raise NotFound("source of attempt", attempt_id, hint=why)
    name = {"content-disposition": f'attachment; filename="{attempt_id}.txt"'}
    return PlainTextResponse(text, headers={**HEADERS, **name})


async def _roofline(request: Request, lab: Lab, _: User) -> Response:
    return _json(await attempts.rooflines(lab, request.path_params["attempt_id"]))


async def _runs(request: Request, lab: Lab, visitor: User) -> Response:
    return page(request, "runs.html", {"runs": await runs.run_list(lab)}, visitor=visitor, section="/runs")


async def _run(request: Request, lab: Lab, visitor: User) -> Response:
    found = await runs.run_page(lab, request.path_params["run_id"])
    about = {"p": found, "s": found.state, "picture": safe_svg(found.picture)}
    return page(request, "run.html", about, visitor=visitor, section="/runs")


async def _jobs(request: Request, lab: Lab, visitor: User) -> Response:
    asked = list_request_of(request, "jobs")
    found, matching = await jobs.job_list(lab, asked)
    choices: Mapping[str, Sequence[str]] = {} if is_live(request) else await lab.status.lists.choices("jobs")
    view = ListView("jobs", asked, choices, matching)
    return page(request, "jobs.html", {"jobs": found, "view": view}, visitor=visitor, section="/jobs")


async def _job(request: Request, lab: Lab, visitor: User) -> Response:
    found = await jobs.job_page(lab, request.path_params["job_id"])
    return page(request, "job.html", {"p": found, "job": found.line.job}, visitor=visitor, section="/jobs")


async def _cancel(request: Request, lab: Lab, visitor: User) -> Response:
    job_id = request.path_params["job_id"]
    await actions.cancel_job(lab, visitor, job_id)
    note(request, visitor, "cancel", job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303, HEADERS)


async def _release(request: Request, lab: Lab, visitor: User) -> Response:
    lease_id = request.path_params["lease_id"]
    await actions.release(lab, visitor, lease_id)
    note(request, visitor, "release", lease_id)
    return RedirectResponse("/?done=released", 303, HEADERS)


async def _users(request: Request, lab: Lab, visitor: User) -> Response:
    team = request.app.state.site.team
    found = [
        (line, await team.users.get(line.name), await team.allowances.usage_of(line.name))
        for line in await lab.status.lists.users()
    ]
    return page(request, "users.html", {"users": found}, visitor=visitor, section="/users")


async def _usage(request: Request, lab: Lab, visitor: User) -> Response:
    days = await lab.status.overview.daily_usage()
    taken = await request.app.state.site.team.allowances.usage_of(visitor.name)
    about = {"days": days, "quotas": visitor.quotas, "taken": taken, "most": max((d.gpu_s for d in days), default=0.0)}
    return page(request, "usage.html", about, visitor=visitor, section="/usage")


def _json(data: dict[str, Any]) -> Response:
    return JSONResponse(visible_data(data), headers=HEADERS)
