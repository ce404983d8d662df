"""`store`: what the laboratory remembers, on this machine's disk."""

from pathlib import Path
from typing import Any

import typer

from gpu_mcp_server.cli import session
from gpu_mcp_server.cli.output import Json, emit

app = typer.Typer(help="Where the data is, how large, and how to tidy it.", no_args_is_help=True)


def _data_dir() -> Path:
    from gpu_mcp_server.settings import load_settings

    return load_settings().data_dir


@app.command()
def path(as_json: Json = False) -> None:
    """Print the data folder."""
    folder = _data_dir()
    emit({"data_dir": str(folder)}, str(folder), as_json=as_json)


@app.command()
def size(as_json: Json = False) -> None:
    """Print the bytes and files of each part of the data folder."""
    folder = _data_dir()
    parts: dict[str, dict[str, int]] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        files = [f for f in entry.rglob("*") if f.is_file() and not f.is_symlink()] if entry.is_dir() else [entry]
        parts[entry.name] = {"files": len(files), "bytes": sum(f.stat().st_size for f in files)}
    total = sum(part["bytes"] for part in parts.values())
    lines = [f"{p['bytes']:>14} {p['files']:>7} files  {name}" for name, p in parts.items()]
    emit(
        {"data_dir": str(folder), "bytes": total, "parts": parts},
        "\n".join([*lines, f"{total:>14} bytes in {folder}"]),
        as_json=as_json,
    )


@app.command()
def gc(as_json: Json = False) -> None:
    """Delete what nothing names any more: files that dead processes left half-written."""

    async def work() -> dict[str, Any]:
        async with session.laboratory() as lab:
            return {"deleted_files": await lab.artifacts.clean()}

    done = session.run(work)
    emit(done, f"{done['deleted_files']} files deleted", as_json=as_json)
