"""`push` and `pull`: a folder here to a workspace, and back."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, fail, print_result


def push(
    path: Annotated[Path, typer.Argument(help="File or folder.", exists=True)],
    workspace: Annotated[str | None, typer.Option(help="workspace_id to add to; otherwise a new one.")] = None,
    as_json: Json = False,
) -> None:
    """Copy a file or folder into a workspace and print its workspace_id."""
    arguments = {"local_path": str(path.absolute()), "workspace_id": workspace}
    answer = in_process_client.answer_of("write_files", arguments, as_json=as_json)
    print_result(answer.data, answer.text, as_json=as_json)


def pull(
    workspace: Annotated[str, typer.Argument(help="workspace_id.")],
    folder: Annotated[Path, typer.Argument(help="Where to put the files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Copy the files of a workspace into a folder."""

    async def work() -> dict[str, tuple[Path, int]]:
        async with in_process_client.laboratory() as lab:
            manifest = await lab.store.workspaces.manifest(workspace)
            return {ref.path: (lab.store.artifacts.blob_path(ref.sha256), ref.mode) for ref in manifest}

    announce(f"copying files of {workspace} to {folder}")
    files = in_process_client.run(work)
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise fail(
            f"{folder / there[0]} and {len(there) - 1} more are there already; --force replaces them.",
            as_json=as_json,
        )
    for name, (blob, mode) in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # never through a symlink, nor into a hard link
        shutil.copyfile(blob, target)
        target.chmod(mode & 0o777)
    print_result(
        {"workspace_id": workspace, "folder": str(folder.absolute()), "files": list(files)},
        f"{len(files)} files of {workspace} are in {folder}",
        as_json=as_json,
    )
