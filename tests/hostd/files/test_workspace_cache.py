"""Files that a job left as they were laid serve the next one; whatever else it did to its folder is gone."""

import asyncio
import hashlib
import json
import os
import shutil
from itertools import combinations
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.files.job_files import BlobStore, materialize_files
from gpu_mcp_server.hostd.files.workspace_cache import KEEP_S, MOST_COPIES, STALE_S, WorkspaceCache
from gpu_mcp_server.hostd.protocol import FileRef
from tests.hostd.laboratory import Laboratory, eventually, names

LOOK = """
import json, os
found = {}
for folder, _, files in os.walk("/job"):
    for name in [*files, "."]:
        path = os.path.normpath(os.path.join(folder, name))
        info = os.stat(path)
        text = "" if name == "." else open(path).read()
        mine = info.st_uid == os.getuid() and not os.listxattr(path) and info.st_nlink == 1 or name == "."
        found[os.path.relpath(path, "/job")] = [text, oct(info.st_mode & 0o7777), info.st_ino if text else 0, mine]
print(json.dumps(found))
"""
"""What a job finds in its workspace: content, mode, inode of files, and whether all is its own and has no attributes."""

Seen = dict[str, tuple[str, str, int, bool]]


def tree(files: int = 60, **more: str) -> dict[str, bytes]:
    named = {f"src/part{n % 3}/f{n}.txt": f"text {n}" for n in range(files)}
    return {name: text.encode() for name, text in {**named, "top.txt": "top", **more}.items()}


async def look(lab: Laboratory, contents: dict[str, bytes], before: str = "", **fields: object) -> Seen:
    """Run a job that looks around, after it did something; return once what it leaves is set aside or removed."""
    done = await lab.python(before + LOOK, contents=contents, **fields)
    assert done.record.status == "ok", (done.record, done.stderr)
    assert eventually(lambda: not (lab.state / "open" / done.record.id).exists())
    return {name: tuple(each) for name, each in json.loads(done.text).items()}


def texts(seen: Seen) -> dict[str, bytes]:
    return {name: text.encode() for name, (text, _, inode, _) in seen.items() if inode}


def inodes(seen: Seen) -> dict[str, int]:
    return {name: inode for name, (_, _, inode, _) in seen.items() if inode}


def copies(lab: Laboratory) -> list[Path]:
    return [path for path in (lab.state / "copies").iterdir() if not path.name.startswith(".")]


async def test_the_next_job_gets_the_files_of_the_last_one(boxed: Laboratory):
    first = await look(boxed, tree())
    assert len(copies(boxed)) == 1
    second = await look(boxed, tree())
    assert texts(second) == tree() == texts(first)
    assert inodes(second) == inodes(first)
    assert all(mine for *_, mine in second.values())
    assert {mode for name, (_, mode, inode, _) in second.items() if not inode and name != "."} == {"0o755"}


async def test_a_sandbox_that_waits_gets_them_as_well(boxed: Laboratory):
    first = await look(boxed, tree())
    await boxed.until_warm()
    second = await look(boxed, tree())
    assert inodes(second) == inodes(first)
    assert texts(second) == tree()


MEDDLING = {
    "content, with the old times": "i = os.stat('top.txt'); open('top.txt', 'w').write('bad'); os.utime('top.txt', ns=(i.st_atime_ns, i.st_mtime_ns))",
    "content, through memory": "f = open('top.txt', 'r+b'); mmap.mmap(f.fileno(), 0)[:3] = b'bad'",
    "mode": "os.chmod('top.txt', 0o777)",
    "attributes": "os.setxattr('top.txt', 'user.note', b'for the next one')",
    "a second name": "os.link('top.txt', 'other')",
    "another file of the same content": "os.unlink('top.txt'); open('top.txt', 'w').write('top')",
    "a link in its place": "os.unlink('top.txt'); os.symlink('/etc/hostname', 'top.txt')",
    "a pipe in its place": "os.unlink('top.txt'); os.mkfifo('top.txt')",
    "a folder in its place": "os.unlink('top.txt'); os.mkdir('top.txt')",
}


@pytest.mark.parametrize("meddling", MEDDLING.values(), ids=MEDDLING.keys())
async def test_a_file_that_was_touched_is_laid_anew(full: Laboratory, meddling: str):
    await look(full, tree())
    script = f"import mmap, os; {meddling}\nraise SystemExit"
    done = await full.python(script, contents=tree())
    assert done.record.status == "ok", done.stderr
    assert eventually(lambda: not (full.state / "open" / done.record.id).exists())
    after = await look(full, tree())
    assert texts(after) == tree()
    assert all(mine for *_, mine in after.values())
    assert after["top.txt"][1] == "0o644"


async def test_what_a_job_adds_or_writes_on_folders_is_gone(full: Laboratory):
    meddling = "import os; os.setxattr('src', 'user.note', b'for the next one'); os.chmod('src/part1', 0o777)\n"
    meddling += "open('src/part1/added', 'w').write('x'); os.mkdir('src/empty'); os.symlink('/', 'root')\n"
    first = await look(full, tree(), meddling.replace("os.symlink('/', 'root')", ""))
    assert "src/part1/added" in first
    second = await look(full, tree())
    assert texts(second) == tree()
    assert "src/empty" not in second
    assert second["src/part1"][1] == "0o755"
    assert second["src"][3]
    assert {n: i for n, i in inodes(first).items() if n != "src/part1/added"} == inodes(second)


async def test_what_changed_since_is_what_the_next_job_gets(boxed: Laboratory):
    first = await look(boxed, tree())
    changed = {**tree(), "src/part0/f0.txt": b"edited", "src/new/deep/one.txt": b"new", "again.txt": b"text 1"}
    for n in range(2, 60, 3):
        del changed[f"src/part2/f{n}.txt"]
    second = await look(boxed, changed)
    assert texts(second) == changed
    assert "src/part2" not in second
    old, new = inodes(first), inodes(second)
    untouched = [name for name, text in tree().items() if changed.get(name) == text]
    assert len(untouched) == 40, "the number of an inode that was given back may be had again by a new file"
    assert [new[name] for name in untouched] == [old[name] for name in untouched]
    assert all(mine for *_, mine in second.values())


async def test_other_modes_are_laid_anew(full: Laboratory):
    await look(full, tree())
    spec = full.spec("{python}", "-I", "-S", "-c", LOOK)
    await full.submit(spec, tree())
    done = await full.wait(spec.id)
    text = (full.state / "jobs" / spec.id / "spec.json").read_text()  # on a disk that is nearly full zeros follow
    refs = json.loads(text.rstrip("\0"))["files"]["main"]
    assert done.record.status == "ok"
    assert {r["mode"] for r in refs} == {0o644}
    assert eventually(lambda: not (full.state / "open" / spec.id).exists())
    again = full.spec("{python}", "-I", "-S", "-c", LOOK, files={"main": tuple({**r, "mode": 0o755} for r in refs)})
    answer = await full.submit(again)
    assert answer == {"claimed": True}
    seen = json.loads((await full.wait(again.id)).text)
    assert {mode for _, mode, inode, _ in seen.values() if inode} == {"0o755"}


async def test_of_two_jobs_at_once_each_has_all_its_files(boxed: Laboratory):
    await look(boxed, tree())
    done = await asyncio.gather(*(boxed.python(LOOK, contents=tree()) for _ in range(4)))
    seen = [{name: tuple(each) for name, each in json.loads(each.text).items()} for each in done]
    assert all(texts(each) == tree() for each in seen)
    held = [(d.record.started_at, d.record.ended_at, s["top.txt"][2]) for d, s in zip(done, seen, strict=True)]
    for (_, ended, inode), (began, _, other) in combinations(sorted(held), 2):
        assert began >= ended or inode != other, "a file of a job that had not ended"


async def test_outputs_are_what_a_job_made_of_them(boxed: Laboratory):
    await look(boxed, tree())
    done = await boxed.sh("echo more >> top.txt; echo x > made", contents=tree(), outputs=("*",))
    assert sorted(o.path for o in done.record.outputs) == ["made", "top.txt"]


async def test_few_files_and_jobs_without_namespaces_leave_none(open_lab):
    lab = await open_lab("full")
    await look(lab, {"one": b"1", "two": b"2"})
    assert not copies(lab)
    weak = await open_lab("landlock")
    await look(weak, tree())
    assert not copies(weak)


async def test_only_a_few_copies_are_kept(full: Laboratory):
    for n in range(MOST_COPIES + 2):
        await look(full, {f"{n}/{k}": f"{n} {k}".encode() for k in range(40)})
    assert len(copies(full)) == MOST_COPIES
    assert texts(await look(full, tree())) == tree()


async def test_a_copy_that_was_damaged_is_laid_anew(full: Laboratory):
    await look(full, tree())
    (copy,) = copies(full)
    (copy / "list.json").write_text("[[1")
    assert texts(await look(full, tree())) == tree()
    copy = max(copies(full), key=lambda path: path.stat().st_ctime)
    (copy / "tree/src/part1/f1.txt").unlink()
    assert texts(await look(full, tree())) == tree()


def test_a_copy_that_lacks_what_it_lists_gives_nothing_and_leaves_nothing(tmp_path: Path):
    kept, blobs = WorkspaceCache(str(tmp_path / "copies")), BlobStore(str(tmp_path / "blobs"))
    refs = [FileRef(f"{n % 2}/f{n}", hashlib.sha256(b"%d" % n).hexdigest(), len(b"%d" % n)) for n in range(60)]
    for n, ref in enumerate(refs):
        blobs.put(b"%d" % n, ref.sha256)
    for missing, wanted in (("0/f0", refs[1:]), ("1", refs)):
        old, new = (tmp_path / f"{side}{missing[0]}" for side in ("old", "new"))
        old.mkdir()
        new.mkdir()
        kept.keep(str(old), refs, materialize_files(str(old), refs, blobs, None))
        (copy,) = (tmp_path / "copies").iterdir()
        remove = shutil.rmtree if (copy / "tree" / missing).is_dir() else os.unlink
        remove(copy / "tree" / missing)
        assert kept.take(str(new), wanted, None) == ({}, set())
        assert names(new) == names(tmp_path / "copies") == []


def test_old_copies_and_half_done_ones_are_swept(tmp_path: Path):
    kept = WorkspaceCache(str(tmp_path / "copies"))
    for name in ("fresh", ".half"):
        (tmp_path / "copies" / name).mkdir()
    kept.sweep()
    assert names(tmp_path / "copies") == [".half", "fresh"]
    kept.sweep(STALE_S + 1)
    assert names(tmp_path / "copies") == ["fresh"]
    kept.sweep(KEEP_S + 1)
    assert names(tmp_path / "copies") == []
