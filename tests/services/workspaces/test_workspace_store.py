import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest, LimitExceeded, NotFound, PathRefused
from gpu_mcp_server.hostd.protocol import FileRef, OutputFile
from gpu_mcp_server.services.problems.formats.detect import source_at
from gpu_mcp_server.services.workspaces import workspace_store as module
from gpu_mcp_server.services.workspaces.local_files import MAX_LOCAL_FILES, checked_path
from gpu_mcp_server.services.workspaces.workspace_store import MAX_TEXT_BYTES, Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database

SHA = "ab" * 32


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(tmp_path / "store" / "lab.sqlite3") as database:
        yield database


@pytest.fixture
async def workspaces(tmp_path: Path, db: Database) -> Workspaces:
    return Workspaces(db, Artifacts(tmp_path / "store", db))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


async def workspace_count(db: Database) -> int:
    return len(await db.fetch_all("SELECT * FROM workspaces"))


async def test_written_files_make_a_new_workspace_and_come_back(workspaces: Workspaces):
    listing = await workspaces.write(
        None, {"src/a.cu": "line 1\nline 2\n", "./run.sh": "#!/bin/sh\n", "raw": b"\0\xff"}
    )
    assert listing.written == ["src/a.cu", "run.sh", "raw"]
    assert [(f.path, f.size_bytes, f.executable) for f in listing.files] == [
        ("raw", 2, False),
        ("run.sh", 10, True),
        ("src/a.cu", 14, False),
    ]
    content = await workspaces.read(listing.workspace_id, "src/a.cu")
    assert (content.text, content.total_lines, content.encoding) == ("line 1\nline 2", 2, "utf-8")
    raw = await workspaces.read(listing.workspace_id, "raw")
    assert (raw.encoding, raw.text) == ("hex", "00000000  00ff")


async def test_a_second_write_replaces_and_adds(workspaces: Workspaces):
    first = await workspaces.write(None, {"a": "1", "b": "2"})
    await workspaces.write(first.workspace_id, {"b": "3", "c": "4"})
    assert [ref.path for ref in await workspaces.manifest(first.workspace_id)] == ["a", "b", "c"]
    assert await workspaces.read_bytes(first.workspace_id, "b") == b"3"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a/..",
            "a/",
            "a/.",
            "a\0b",
            "a\nb",
            "a\x7fb",
            "\x85",
        ),
        *("a" * 256, "/".join(["abcdefgh"] * 60), "\ud800", "é" * 128),
    ],
)
async def test_a_path_out_of_the_workspace_is_refused_and_nothing_written(
    workspaces: Workspaces, db: Database, path: str
):
    with pytest.raises(PathRefused, match=r"relative|Rename"):
        await workspaces.write(None, {"good": "x", path: "y"})
    assert await workspace_count(db) == 0


@pytest.mark.parametrize(
    ("path", "plain"),
    [("a", "a"), ("./a//b", "a/b"), ("a/./b", "a/b"), ("..a/b..", "..a/b.."), ("ü x/🦀.cu", "ü x/🦀.cu")],
)
def test_an_odd_but_harmless_path_gets_its_plain_form(path: str, plain: str):
    assert checked_path(path) == plain


async def test_a_file_cannot_be_a_folder_as_well(workspaces: Workspaces):
    with pytest.raises(PathRefused, match="folder"):
        await workspaces.write(None, {"a": "x", "a/b": "y"})
    first = await workspaces.write(None, {"a/b": "x"})
    with pytest.raises(PathRefused, match="folder"):
        await workspaces.write(first.workspace_id, {"a": "y"})
    with pytest.raises(PathRefused, match="twice"):
        await workspaces.write(None, {"a": "x", "./a": "y"})


async def test_over_a_mebibyte_is_too_large_and_exactly_that_is_not(workspaces: Workspaces):
    with pytest.raises(LimitExceeded, match=str(MAX_TEXT_BYTES)):
        await workspaces.write(None, {"a": "x" * (MAX_TEXT_BYTES + 1)})
    assert (await workspaces.write(None, {"a": "x" * MAX_TEXT_BYTES})).files[0].size_bytes == MAX_TEXT_BYTES


async def test_too_many_files_are_refused_and_the_workspace_stays(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MAX_FILES", 3)
    first = await workspaces.write(None, {"a": "1", "b": "2"})
    with pytest.raises(LimitExceeded, match="4 files"):
        await workspaces.write(first.workspace_id, {"c": "3", "d": "4"})
    assert [ref.path for ref in await workspaces.manifest(first.workspace_id)] == ["a", "b"]


async def test_unknown_workspaces_and_files_are_not_found(workspaces: Workspaces):
    for call in (
        workspaces.write("w-none", {"a": "x"}),
        workspaces.listing("w-none"),
        workspaces.read("w-none", "a"),
        workspaces.manifest("w-none"),
        workspaces.adopt("w-none", []),
        workspaces.write_local("w-none", Path("/etc/hostname")),
    ):
        with pytest.raises(NotFound, match="w-none"):
            await call
    workspace_id = await workspaces.create()
    with pytest.raises(NotFound, match="list_files"):
        await workspaces.read(workspace_id, "a")
    with pytest.raises(BadRequest, match="at least one"):
        await workspaces.write(None, {})


async def test_a_listing_narrows_by_prefix_and_says_what_it_leaves_out(workspaces: Workspaces):
    first = await workspaces.write(None, {f"src/{i}": "x" for i in range(5)} | {"s%c": "y", "doc": "z"})
    listing = await workspaces.listing(first.workspace_id, "src/", limit=3)
    assert [f.path for f in listing.files] == ["src/0", "src/1", "src/2"]
    assert listing.files_left_out == 2
    assert [f.path for f in (await workspaces.listing(first.workspace_id, "s%")).files] == ["s%c"]


async def test_a_long_text_is_read_piece_by_piece(workspaces: Workspaces):
    text = "\n".join(f"line {i}" for i in range(1, 3001))
    workspace_id = (await workspaces.write(None, {"long": text})).workspace_id
    seen: list[str] = []
    line = 1
    while True:
        part = await workspaces.read(workspace_id, "long", line, 10_000)
        assert len(part.summary()) < 8000
        assert part.first_line == line
        seen += part.text.split("\n")
        if part.left_out_lines is None:
            break
        line = part.last_line + 1
    assert seen == text.split("\n")
    with pytest.raises(BadRequest, match="3000 lines"):
        await workspaces.read(workspace_id, "long", 3001)
    with pytest.raises(BadRequest, match="start at 1"):
        await workspaces.read(workspace_id, "long", 0)


async def test_one_endless_line_and_no_line_are_shown_too(workspaces: Workspaces):
    workspace_id = (await workspaces.write(None, {"line": "x" * 100_000, "empty": ""})).workspace_id
    content = await workspaces.read(workspace_id, "line")
    assert len(content.summary()) < 8000
    assert "94000 characters" in content.text
    empty = await workspaces.read(workspace_id, "empty")
    assert (empty.text, empty.first_line, empty.last_line, empty.total_lines) == ("", 0, 0, 0)


async def test_a_local_folder_is_copied_without_git_and_links_inside_are_followed(workspaces: Workspaces, folder: Path):
    (folder / "src").mkdir()
    (folder / "src" / "a.cu").write_text("a")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / "src" / "__pycache__").mkdir()
    (folder / "src" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    (folder / "link.cu").symlink_to("src/a.cu")
    (folder / "linked").symlink_to("src")
    listing = await workspaces.write_local(None, folder)
    assert [(f.path, f.executable) for f in listing.files] == [
        ("link.cu", False),
        ("linked/a.cu", False),
        ("run", True),
        ("src/a.cu", False),
    ]
    assert await workspaces.read_bytes(listing.workspace_id, "link.cu") == b"a"


async def test_a_local_file_takes_its_own_name(workspaces: Workspaces, folder: Path):
    (folder / "k.cu").write_text("x" * (2 << 20))
    listing = await workspaces.write_local(None, folder / "k.cu")
    assert listing.written == ["k.cu"]


async def test_links_that_leave_or_turn_in_circles_are_refused(workspaces: Workspaces, db: Database, folder: Path):
    for target in ("/etc/passwd", "../outside", "."):
        (folder.parent / "outside").write_text("secret")
        (folder / "link").symlink_to(target)
        with pytest.raises(PathRefused, match="link"):
            await workspaces.write_local(None, folder)
        (folder / "link").unlink()
    (folder / "link").symlink_to("link")
    with pytest.raises(PathRefused):
        await workspaces.write_local(None, folder)
    (folder / "link").unlink()
    (folder / "link").symlink_to("nothing")
    with pytest.raises(NotFound):
        await workspaces.write_local(None, folder)
    assert await workspace_count(db) == 0


async def test_pipes_and_names_that_are_no_text_are_refused(workspaces: Workspaces, folder: Path):
    os.mkfifo(folder / "pipe")
    for path in (folder, folder / "pipe"):
        with pytest.raises(PathRefused, match="neither file nor folder"):
            await workspaces.write_local(None, path)
    (folder / "pipe").unlink()
    (folder / os.fsdecode(b"\xff")).write_text("x")
    with pytest.raises(PathRefused, match="Unicode"):
        await workspaces.write_local(None, folder)


async def test_a_local_path_that_is_not_there_or_empty_is_not_found(workspaces: Workspaces, folder: Path):
    for path in (folder, folder / "gone"):
        with pytest.raises(NotFound, match="folder"):
            await workspaces.write_local(None, path)
    with pytest.raises(PathRefused):
        await workspaces.write_local(None, Path("~nobody-of-this-name/x"))


async def test_a_folder_over_its_limits_is_too_large(workspaces: Workspaces, folder: Path):
    for i in range(MAX_LOCAL_FILES + 1):
        (folder / str(i)).touch()
    with pytest.raises(LimitExceeded, match="2000 files"):
        await workspaces.write_local(None, folder)
    with (folder / "huge").open("wb") as huge:
        huge.truncate((64 << 20) + 1)
    with pytest.raises(LimitExceeded, match="64 MiB"):
        await workspaces.write_local(None, folder / "huge")


async def test_what_a_job_changed_becomes_the_manifest(workspaces: Workspaces):
    workspace_id = (await workspaces.write(None, {"a": "1", "b": "2", "old/x": "3", "old/y": "4"})).workspace_id
    refused = await workspaces.adopt(
        workspace_id,
        [
            OutputFile("a", SHA, 7, 0o600),
            OutputFile("b/deep", SHA, 8, 0o6755),
            OutputFile("old", SHA, 9),
            OutputFile("../../escape", SHA, 1),
            OutputFile("new\nline", SHA, 1),
        ],
    )
    assert await workspaces.manifest(workspace_id) == [
        FileRef("a", SHA, 7, 0o644),
        FileRef("b/deep", SHA, 8, 0o755),
        FileRef("old", SHA, 9, 0o644),
    ]
    assert [line.split(":")[0] for line in refused] == ["'../../escape'", "'new\\nline'"]


async def test_a_file_that_stayed_on_its_host_says_so(workspaces: Workspaces):
    workspace_id = await workspaces.create()
    await workspaces.adopt(workspace_id, [OutputFile("big", SHA, 1 << 30)])
    with pytest.raises(NotFound, match="run_command on its host"):
        await workspaces.read(workspace_id, "big")
    with pytest.raises(LimitExceeded):
        await workspaces.read_bytes(workspace_id, "big", 1 << 20)


async def test_a_task_in_a_workspace_shares_no_file_of_the_servers_machine(
    workspaces: Workspaces, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """A task may share files of two folders above its own; a workspace's are no folders of the user's."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (folder / "settings.py").write_text("PASSWORD = 1")
    (folder.parent / "settings.py").write_text("PASSWORD = 2")
    made = await workspaces.write(None, {"task.yml": "x: 1", "a/b/task.yml": "x: 1", "shared.py": "OK = 1"})
    async with workspaces.laid_out(made.workspace_id) as laid:
        for above in range(1, 7):
            with pytest.raises(BadRequest):
                await (await source_at(laid / "task.yml")).text_near("../" * above + "settings.py")
        assert await (await source_at(laid / "a" / "b" / "task.yml")).text_near("../../shared.py") == "OK = 1"
