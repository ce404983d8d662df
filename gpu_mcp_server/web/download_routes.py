"""Gives a laptop's commands what no tool answers: files by range, jobs, output as it comes, histories."""

import asyncio
import base64
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpu_mcp_server.errors import BadRequest, GpuMcpError, NotFound
from gpu_mcp_server.services.commands.job_listing import list_jobs
from gpu_mcp_server.web.upload_routes import number_of, refusal_of

WAIT_S = 20.0
"""The longest wait for a job's output in one request."""
SHOWN_JOBS = 1000
HASH_HEADER = "X-Content-SHA256"


def download_routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/data/artifacts/{artifact_id}", _artifact),
        Route("/data/workspaces/{workspace_id}", _workspace),
        Route("/data/workspaces/{workspace_id}/files/{path:path}", _file),
        Route("/data/jobs", _jobs),
        Route("/data/jobs/{job_id}/output", _output),
        Route("/data/problems/{problem_id}/history", _history),
    ]


async def _artifact(request: Request) -> Response:
    try:
        artifacts = (await request.app.state.site.lab()).store.artifacts
        info = await artifacts.info(request.path_params["artifact_id"])
        return _given(await artifacts.path(info.artifact_id), info.sha256, info.name)
    except GpuMcpError as error:
        return refusal_of(error)


async def _workspace(request: Request) -> Response:
    try:
        refs = await (await request.app.state.site.lab()).store.workspaces.manifest(request.path_params["workspace_id"])
    except GpuMcpError as error:
        return refusal_of(error)
    rows = [{"path": r.path, "sha256": r.sha256, "size": r.size, "executable": bool(r.mode & 0o111)} for r in refs]
    return JSONResponse({"files": rows})


async def _file(request: Request) -> Response:
    path = request.path_params["path"]
    try:
        store = (await request.app.state.site.lab()).store
        ref = await store.workspaces.file_ref(request.path_params["workspace_id"], path)
        blob = store.artifacts.blob_path(ref.sha256)
        if not await asyncio.to_thread(blob.is_file):
            raise NotFound("content here of", path, hint="It was too large to bring back from its host.")
        return _given(blob, ref.sha256, path)
    except GpuMcpError as error:
        return refusal_of(error)


def _given(blob: Path, sha256: str, name: str) -> Response:
    """Return a file, or the range of it that was asked for: never as a page that a browser would show."""
    headers = {HASH_HEADER: sha256, "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
    return FileResponse(blob, headers=headers, media_type="application/octet-stream", filename=Path(name).name)


async def _jobs(request: Request) -> Response:
    try:
        limit = min(number_of(request, "limit"), SHOWN_JOBS)
        lab = await request.app.state.site.lab()
        states = await lab.commands.refresh_running_jobs()
        internal = request.query_params.get("internal") == "1"
        rows = await list_jobs(lab.store.db, limit, internal=internal, states=states)
    except GpuMcpError as error:
        return refusal_of(error)
    return JSONResponse({"jobs": [asdict(row) for row in rows]})


async def _output(request: Request) -> Response:
    """Return what a job has written from the offsets on; waits a while where it goes on and has written nothing."""
    job_id = request.path_params["job_id"]
    try:
        at = {f"{name}_at": number_of(request, name) for name in ("stdout", "stderr")}
        lab = await request.app.state.site.lab()
        row = await lab.jobs.table.get(job_id)
        seen = await lab.jobs.runner.poll(
            job_id, row.host, timeout_s=WAIT_S, on_output=True, note_seen=request.query_params.get("note", ""), **at
        )
        if seen.record.state == "finished":
            await lab.commands.status(job_id)  # keeps outputs, as job_status does
    except GpuMcpError as error:
        return refusal_of(error)
    record: dict[str, Any] = {"state": seen.record.state, "status": seen.record.status, "note": seen.record.note}
    leader = seen.record.leader
    return JSONResponse(
        {
            **record,
            "exit_code": leader.exit_code if leader else None,
            "stdout": base64.b64encode(seen.stdout).decode(),
            "stderr": base64.b64encode(seen.stderr).decode(),
            "stdout_kept": seen.record.stdout_kept,
            "stderr_kept": seen.record.stderr_kept,
        }
    )


async def _history(request: Request) -> Response:
    try:
        lab = await request.app.state.site.lab()
        await lab.commands.refresh_running_jobs()
        device = request.query_params.get("device") or None
        found = await lab.store.experience.history(request.path_params["problem_id"], device)
    except BadRequest as error:
        return refusal_of(error)
    return Response(found.model_dump_json(), media_type="application/json")
