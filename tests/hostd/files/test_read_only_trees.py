"""Read-only trees: made once, seen at every level, never written by a job, mended when they were, swept when unused."""

import hashlib
import os
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.files.job_files import BlobStore, FilesError
from gpu_mcp_server.hostd.files.read_only_trees import KEEP_S, ReadOnlyTrees
from gpu_mcp_server.hostd.jobs.spec_validation import validate_spec
from gpu_mcp_server.hostd.protocol import BOXED, FileRef, JobSpec, ProcessSpec, ProtocolError, to_json
from tests.hostd.conftest import Opener
from tests.hostd.laboratory import Done, Laboratory
from tests.hostd.test_ordinary_user import user

__all__ = ["user"]

FILES = {"f": b"content", "package/deep/g": b"another"}
LOOK = """
import os
top = os.environ["TREE_KIT"]
print(top, open(top + "/f").read(), open(top + "/package/deep/g").read(), sorted(os.listdir(top)))
"""
SPOIL = """
import os, shutil, sys
top = os.environ["TREE_KIT"]
def overwrite():
    with open(top + "/f", "r+b") as file:
        file.write(b"forged!")
def replace():
    with open("other", "wb") as file:
        file.write(b"forged!")
    os.replace("other", top + "/f")
def unlock():
    os.chmod(top + "/f", 0o666)
    overwrite()
def unlock_folder():
    os.chmod(top, 0o777)
    os.rename(top + "/f", top + "/g")
def mount():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", top.encode(), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
attempts = [
    overwrite, replace, unlock, unlock_folder, mount,
    lambda: open(top + "/new", "w"), lambda: os.unlink(top + "/f"), lambda: os.mkdir(top + "/d"),
    lambda: os.rename(top, top + "-away"), lambda: os.truncate(top + "/f", 0), lambda: os.link(top + "/f", "linked"),
    lambda: os.symlink("x", top + "/package/x"),
]
for number, attempt in enumerate(attempts):
    try:
        attempt()
        print("done", number)
    except OSError:
        pass
print(open(top + "/f").read())
"""


def refs_of(files: dict[str, bytes]) -> tuple[FileRef, ...]:
    return tuple(FileRef(path, hashlib.sha256(data).hexdigest(), len(data), 0o777) for path, data in files.items())


async def ran(lab: Laboratory, *argv: str, files: dict[str, bytes] = FILES) -> Done:
    spec: JobSpec = lab.spec(
        processes=(ProcessSpec(("{python}", "-I", "-S", "-c", *argv)),), trees={"kit": refs_of(files)}
    )
    listed = [[hashlib.sha256(data).hexdigest(), len(data)] for data in files.values()]
    await lab.link.call("submit", b"".join(files.values()), spec=to_json(spec), blobs=listed)
    return await lab.wait(spec.id)


def trees_of(state: Path) -> list[Path]:
    return sorted(path for path in (state / "trees").iterdir() if not path.name.startswith("."))


async def test_a_job_sees_its_tree_at_every_level_and_the_next_one_the_same(lab):
    for _ in range(2):
        done = await ran(lab, LOOK)
        assert done.record.status == "ok", done
        where, rest = done.text.split(" ", 1)
        assert rest == "content another ['f', 'package']\n"
        assert where == ("/trees/kit" if lab.level in BOXED else f"{trees_of(lab.state)[0]}/tree")
    (home,) = trees_of(lab.state)
    made = [home / "tree", *(home / "tree").rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in made} == {"0o555", "0o444"}
    assert {path.stat().st_uid for path in made} == {os.geteuid()}


async def test_no_job_of_roots_hostd_can_change_a_tree(lab):
    done = await ran(lab, SPOIL)
    assert (done.record.status, done.text) == ("ok", "content\n"), done


async def test_no_job_of_an_ordinary_users_hostd_can_change_a_tree(user):
    done = await ran(user, SPOIL)
    assert (done.record.status, done.text) == ("ok", "content\n"), done
    assert (await ran(user, LOOK)).text.endswith("content another ['f', 'package']\n")


async def test_jobs_of_a_host_whose_state_is_closed_to_them_see_it(open_lab, state):
    state.mkdir(mode=0o700)
    closed = state / "closed"
    closed.mkdir(mode=0o700)
    for level in ("full", "landlock"):
        lab = await Laboratory.open(closed / level, level)
        try:
            assert (await ran(lab, LOOK)).text.endswith("content another ['f', 'package']\n")
        finally:
            await lab.close()


async def test_a_job_whose_tree_has_not_its_contents_here_is_not_begun(open_lab: Opener):
    lab = await open_lab("full")
    spec = lab.spec("true", trees={"kit": refs_of(FILES)})
    answer, _ = await lab.link.call("submit", b"", spec=to_json(spec), blobs=[])
    assert sorted(answer["missing"]) == sorted(ref.sha256 for ref in refs_of(FILES))


@pytest.fixture
def store(tmp_path: Path) -> ReadOnlyTrees:
    blobs = BlobStore(str(tmp_path / "blobs"))
    for data in FILES.values():
        blobs.put(data)
    return ReadOnlyTrees(str(tmp_path / "trees"), blobs)


def taken(store: ReadOnlyTrees) -> Path:
    path, lock = store.take(refs_of(FILES))
    os.close(lock)
    return Path(path)


def test_what_is_there_as_it_was_made_is_taken_again(store):
    assert (taken(store) / "f").stat().st_ino == (taken(store) / "f").stat().st_ino


def write(tree: Path) -> None:
    (tree / "f").chmod(0o600)
    (tree / "f").write_bytes(b"forged!")
    (tree / "f").chmod(0o444)


def add(tree: Path) -> None:
    tree.chmod(0o755)
    (tree / "new").write_bytes(b"")
    tree.chmod(0o555)


def remove(tree: Path) -> None:
    (tree / "package" / "deep").chmod(0o755)
    (tree / "package" / "deep" / "g").unlink()


@pytest.mark.parametrize("change", [write, add, remove])
def test_one_that_was_changed_is_made_anew_and_who_has_the_old_one_keeps_it(store, change):
    first = taken(store)
    inode = first.stat().st_ino
    change(first)
    second = taken(store)
    assert second.stat().st_ino != inode
    assert {p: (second / p).read_bytes() for p in FILES} == FILES
    assert sorted(str(p.relative_to(second)) for p in second.rglob("*") if p.is_file()) == sorted(FILES)
    assert inode in {(p / "tree").stat().st_ino for p in second.parents[1].iterdir()}


def test_a_content_that_was_changed_on_the_host_makes_no_tree(store, tmp_path):
    Path(BlobStore(str(tmp_path / "blobs")).path(refs_of(FILES)[0].sha256)).write_bytes(b"forged!")
    with pytest.raises(FilesError, match=r"content .* of f is another on this host"):
        store.take(refs_of(FILES))
    assert list((tmp_path / "trees").iterdir()) == []


def test_one_that_nobody_wants_is_swept_and_one_that_a_job_holds_is_not(store):
    path, lock = store.take(refs_of(FILES))
    store.sweep(KEEP_S + 60)
    assert Path(path, "f").read_bytes() == b"content"
    os.close(lock)
    store.sweep(KEEP_S - 60)
    assert Path(path, "f").exists()
    store.sweep(KEEP_S + 60)
    assert not Path(path).parent.exists()
    assert (taken(store) / "f").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        ({"../kit": refs_of(FILES)}, "bad name of a tree"),
        ({"kit": ()}, "0 files in a tree"),
        ({"kit": refs_of({"../f": b""})}, "is not inside the workspace"),
        ({"kit": refs_of({"f": b"", "f/g": b""})}, "a path is a file and a folder"),
        ({f"kit{number}": refs_of(FILES) for number in range(9)}, "9 trees; the limit is 8"),
    ],
    ids=["name", "empty", "path", "both", "many"],
)
def test_a_specification_of_other_trees_is_refused(trees, words):
    spec = JobSpec("j-12345", (ProcessSpec(("true",)),), trees=trees)
    with pytest.raises(ProtocolError, match=words):
        validate_spec(spec)
