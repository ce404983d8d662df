"""`store`: what the laboratory remembers, on this machine's disk."""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client, store_push
from gpu_mcp_server.cli.output import Json, announce, print_result, say
from gpu_mcp_server.errors import BadRequest

if TYPE_CHECKING:
    from gpu_mcp_server.store.pruning import Plan

app = typer.Typer(help="Show, check, back up and tidy the data.", no_args_is_help=True)
app.command()(store_push.push)

_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _data_dir() -> Path:
    from gpu_mcp_server.settings.server_settings import load_settings

    return load_settings().data_dir


@app.command()
def path(as_json: Json = False) -> None:
    """Print the data folder."""
    folder = _data_dir()
    print_result({"data_dir": str(folder)}, str(folder), as_json=as_json)


@app.command()
def size(as_json: Json = False) -> None:
    """Print the bytes and files of each part of the data folder."""
    folder = _data_dir()
    announce(f"counting the files in {folder}")
    parts: dict[str, dict[str, int]] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        files = [f for f in entry.rglob("*") if f.is_file() and not f.is_symlink()] if entry.is_dir() else [entry]
        parts[entry.name] = {"files": len(files), "bytes": sum(f.stat().st_size for f in files)}
    total = sum(part["bytes"] for part in parts.values())
    lines = [f"{p['bytes']:>14} {p['files']:>7} files  {name}" for name, p in parts.items()]
    print_result(
        {"data_dir": str(folder), "bytes": total, "parts": parts},
        "\n".join([*lines, f"{total:>14} bytes in {folder}"]),
        as_json=as_json,
    )


@app.command()
def gc(as_json: Json = False) -> None:
    """Delete files that dead processes left half-written."""

    async def work() -> dict[str, Any]:
        async with in_process_client.laboratory() as lab:
            return {"deleted_files": await lab.store.artifacts.clean()}

    announce(f"looking for files that nothing names in {_data_dir()}")
    done = in_process_client.run(work)
    print_result(done, f"{done['deleted_files']} files deleted", as_json=as_json)


@app.command()
def check(as_json: Json = False) -> None:
    """Read the whole database and say whether it is damaged; servers may keep working.

    It finds damaged pages, missing tables and columns, and indexes that differ from their tables.
    It cannot find changed bytes inside a value, or lost rows: SQLite keeps no checksums.
    """
    from gpu_mcp_server.store import database
    from gpu_mcp_server.store.store_locks import USE, hold_lock

    path = _data_dir() / database.DATABASE
    if not path.exists():
        raise BadRequest(f"There is no store in {path.parent}.")
    announce(f"reading all of {path}")
    with hold_lock(path.parent, USE):
        size_bytes = database.check(path)
    print_result({"path": str(path), "bytes": size_bytes}, f"{path} is whole: {size_bytes} bytes.", as_json=as_json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; .tar, or .tar.gz for a smaller one.")],
    as_json: Json = False,
) -> None:
    """Write the whole store into one file; servers may keep working."""
    from gpu_mcp_server.store import backups

    announce(f"copying {_data_dir()} into {file}")
    made = backups.backup(_data_dir(), file.absolute())
    print_result(
        asdict(made),
        f"{made.files} files, {made.bytes} bytes, schema version {made.schema}: {made.path}\n"
        "It holds secrets (tokens' hashes, sources): keep it where only you can read it.",
        as_json=as_json,
    )


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="File that `store backup` wrote.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing store; its database is kept aside.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a backup, then put it in place; stop the servers first."""
    from gpu_mcp_server.store import backups

    announce(f"checking {file} and copying it to {_data_dir()}")
    made, old = backups.restore(_data_dir(), file.absolute(), replace=replace)
    kept = f"\nThe database that was there: {old}" if old is not None else ""
    print_result(
        {**asdict(made), "before": str(old) if old is not None else None},
        f"{made.files} files of {made.created_at} are in {_data_dir()}.{kept}",
        as_json=as_json,
    )


@app.command()
def prune(
    older_than: Annotated[str | None, typer.Option(help="Data last used longer ago than this: 30d, 12h, 8w.")] = None,
    max_size: Annotated[
        str | None, typer.Option(help="The least recently used data, until files take at most this: 20G.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Say what would be deleted, then delete it; problems, judged attempts and notes stay."""
    from gpu_mcp_server.store import pruning

    if older_than is None and max_size is None:
        raise BadRequest(
            "Neither --older-than nor --max-size is given.", hint="Give --older-than 30d, --max-size 20G, or both."
        )
    wish: dict[str, Any] = {
        "older_than_s": _amount(older_than, r"(\d+)([hdw])", _SECONDS, "--older-than 30d") if older_than else None,
        "max_bytes": _amount(max_size, r"(\d+)([KMGT]?)", _BYTES, "--max-size 20G") if max_size else None,
    }
    folder = _data_dir()
    if not folder.is_dir():
        raise BadRequest(f"There is no store in {folder}.")
    announce(f"looking for data to delete in {folder}")
    planned = pruning.plan(folder, **wish)
    if not as_json:
        say(_said(planned))
    going = bool(planned.items or planned.audit_lines)
    sure = yes or (going and not as_json and sys.stdin.isatty() and typer.confirm("Delete this?"))
    announce(f"deleting it in {folder}")
    done = pruning.prune(folder, **wish) if sure and going else None
    told = {
        "audit_lines": (done or planned).audit_lines,
        "kinds": (done or planned).by_kind(),
        "files": len((done or planned).blobs),
    }
    told |= {
        "freed_bytes": (done or planned).freed_bytes,
        "kept_bytes": planned.kept_bytes,
        "deleted": done is not None,
    }
    if done is not None:
        print_result(told, f"Deleted: {done.freed_bytes} bytes freed.", as_json=as_json)
    else:
        print_result(told, "Nothing was deleted." + (" Say --yes to delete it." if going else ""), as_json=as_json)


def _said(planned: "Plan") -> str:
    from gpu_mcp_server.store.pruning import KINDS

    lines = [
        f"{row['number']:>8} {KINDS[kind]}, last used {row['oldest']} to {row['newest']}"
        for kind, row in planned.by_kind().items()
    ]
    lines.append(f"{len(planned.blobs):>8} files go with them: {planned.freed_bytes} bytes; {planned.kept_bytes} stay")
    if planned.audit_lines:
        lines.append(f"{planned.audit_lines:>8} lines of the audit log")
    return "\n".join(
        ["To be deleted:", *lines]
        if planned.items or planned.audit_lines
        else ["There is nothing to delete.", lines[-1]]
    )


def _amount(text: str, form: str, units: dict[str, int], example: str) -> int:
    found = re.fullmatch(form, text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is no amount.", hint=f"Write it as in {example}.")
    return int(found[1]) * units[found[2]]
