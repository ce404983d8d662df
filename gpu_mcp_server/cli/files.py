"""`push`, `pull`, `artifact save`: a folder here to a workspace and back, and one file of a job to a file here."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.in_process_client import ToolAnswer
from gpu_mcp_server.cli.output import Json, announce, fail, print_result

artifact_app = typer.Typer(help="Files that jobs made, by their artifact_id.", no_args_is_help=True)


def push(
    path: Annotated[Path, typer.Argument(help="File or folder.", exists=True)],
    workspace: Annotated[str | None, typer.Option(help="workspace_id to add to; otherwise a new one.")] = None,
    as_json: Json = False,
) -> None:
    """Copy a file or folder into a workspace and print its workspace_id."""
    answer = copied_in(path, workspace, as_json=as_json)
    print_result(answer.data, answer.text, as_json=as_json)


def copied_in(path: Path, workspace: str | None, *, as_json: bool) -> ToolAnswer:
    """Copy a file or folder into a workspace, here or at the team's server; without what git ignores if there."""
    address = in_process_client.remote_address()
    if address is None:
        announce(f"copying {path}")
        given = {"local_path": str(path.absolute()), "workspace_id": workspace}
        return in_process_client.answer_of("write_files", given, as_json=as_json)

    async def work() -> ToolAnswer:
        async with in_process_client.remote_session(address) as there:
            pushed = await there.server.push(path, workspace, _shown)
        data: dict[str, Any] = {
            "workspace_id": pushed.workspace_id, "server": address, "files": pushed.files,
            "total_bytes": pushed.total_bytes, "sent_bytes": pushed.sent_bytes, "note": pushed.note or None,
        }  # fmt: skip
        text = (
            f"workspace {pushed.workspace_id} at {address}: {pushed.files} files, {pushed.total_bytes / 1e6:.1f} MB; "
            f"{pushed.sent_bytes / 1e6:.1f} MB were new there"
        )
        return ToolAnswer(data, "; ".join(filter(None, (text, pushed.note))), failed=False)

    announce(f"sending {path} to {address}")
    return in_process_client.run(work)


def pull(
    workspace: Annotated[str, typer.Argument(help="workspace_id.")],
    folder: Annotated[Path, typer.Argument(help="Where to put the files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Copy the files of a workspace into a folder; from a team's server, resume an earlier pull."""
    address = in_process_client.remote_address()
    if address is None:
        names = _pull_here(workspace, folder, force, as_json)
    else:
        names = in_process_client.run(lambda: _pull_from(address, workspace, folder, force, as_json))
    print_result(
        {"workspace_id": workspace, "folder": str(folder.absolute()), "files": names},
        f"{len(names)} files of {workspace} are in {folder}",
        as_json=as_json,
    )


def _pull_here(workspace: str, folder: Path, force: bool, as_json: bool) -> list[str]:
    from gpu_mcp_server.bridge.command_session import target_in

    async def work() -> dict[str, tuple[Path, int]]:
        async with in_process_client.laboratory() as lab:
            manifest = await lab.store.workspaces.manifest(workspace)
            return {ref.path: (lab.store.artifacts.blob_path(ref.sha256), ref.mode) for ref in manifest}

    announce(f"copying files of {workspace} to {folder}")
    files = in_process_client.run(work)
    _refuse_those_there([name for name in files if (folder / name).exists()], folder, force, as_json)
    for name, (blob, mode) in files.items():
        target = target_in(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # never through a symlink, nor into a hard link
        shutil.copyfile(blob, target)
        target.chmod(mode & 0o777)
    return list(files)


async def _pull_from(address: str, workspace: str, folder: Path, force: bool, as_json: bool) -> list[str]:
    """Bring the files from a server; those that are there with the same content stay."""
    from gpu_mcp_server.bridge.command_session import target_in

    announce(f"bringing files of {workspace} from {address} to {folder}")
    async with in_process_client.remote_session(address) as there:
        files = await there.server.files_of(workspace)
        targets = {file["path"]: target_in(folder, file["path"]) for file in files}
        new = [file for file in files if not _is_content(targets[file["path"]], file)]
        _refuse_those_there([f["path"] for f in new if targets[f["path"]].exists()], folder, force, as_json)
        for file in new:
            target = targets[file["path"]]
            target.parent.mkdir(parents=True, exist_ok=True)
            await there.server.pull(workspace, file["path"], target, _shown)
            target.chmod(0o755 if file["executable"] else 0o644)
    return list(targets)


def _is_content(target: Path, file: dict[str, Any]) -> bool:
    import hashlib

    if target.is_symlink() or not target.is_file() or target.stat().st_size != file["size"]:
        return False
    with target.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file["sha256"]


def _refuse_those_there(there: list[str], folder: Path, force: bool, as_json: bool) -> None:
    if there and not force:
        more = f" and {len(there) - 1} more are" if len(there) > 1 else " is"
        raise fail(f"{folder / there[0]}{more} there already; --force replaces them.", as_json=as_json)


async def _shown(text: str) -> None:
    announce(text)


@artifact_app.command()
def save(
    artifact_id: Annotated[str, typer.Argument(help="artifact_id of a result.")],
    file: Annotated[Path, typer.Argument(help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write an artifact to a file: a profiler's report, a job's output; resume a partial download."""
    if file.exists() and not force:
        raise fail(f"{file} is there already; --force replaces it.", as_json=as_json)
    address = in_process_client.remote_address()

    async def work() -> int:
        if address is not None:
            async with in_process_client.remote_session(address) as there:
                return await there.server.save(artifact_id, file, _shown)
        async with in_process_client.laboratory() as lab:
            file.unlink(missing_ok=True)
            shutil.copyfile(await lab.store.artifacts.path(artifact_id), file)
            return file.stat().st_size

    announce(f"writing {artifact_id} of {address or 'this machine'} to {file}")
    size = in_process_client.run(work)
    print_result(
        {"artifact_id": artifact_id, "file": str(file.absolute()), "size_bytes": size},
        f"{file}: {size} bytes",
        as_json=as_json,
    )
