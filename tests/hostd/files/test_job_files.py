"""Files put into a workspace and taken out of it, whatever a job plants there."""

import os
import secrets
import threading
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.files import file_trees
from gpu_mcp_server.hostd.files.job_files import (
    BlobStore,
    Collector,
    FilesError,
    checked_path,
    materialize_files,
    open_beneath,
)
from gpu_mcp_server.hostd.protocol import FileRef
from tests.hostd.laboratory import eventually, workspaces


async def test_new_and_changed_files_come_out_and_untouched_ones_do_not(lab):
    contents = {"same": b"s", "touched": b"t", "sub/changed": b"c", "gone": b"g"}
    script = "touch touched; echo more >> sub/changed; rm gone; mkdir -p a/b; echo new > a/b/new; : > empty; chmod +x a/b/new"
    done = await lab.sh(script, contents=contents, outputs=("*",))
    assert {o.path: (o.size, o.mode) for o in done.record.outputs} == {
        "sub/changed": (6, 0o644), "a/b/new": (4, 0o755), "empty": (0, 0o644),
    }  # fmt: skip
    changed = next(o for o in done.record.outputs if o.path == "sub/changed")
    _, data = await lab.link.call("fetch", sha256=changed.sha256)
    assert data == b"cmore\n"


async def test_links_out_of_the_workspace_are_never_followed(lab):
    script = "ln -s /etc/shadow leak; ln -s / r; ln -s ../../.. up; mkfifo f; mkdir d; echo x > d/x"
    wanted = ("leak", "r/etc/hostname", "up/etc/hostname", "f", "d", "d/x", "missing")
    done = await lab.sh(script, outputs=wanted)
    assert [o.path for o in done.record.outputs] == ["d/x"]
    left = {line.partition(":")[0] for line in done.record.outputs_left_out}
    assert left == {"leak", "r/etc/hostname", "up/etc/hostname", "f", "d"}
    everything = await lab.sh(script, outputs=("*",))
    assert [o.path for o in everything.record.outputs] == ["d/x"]
    assert "f: not a regular file" in everything.record.outputs_left_out
    assert "leak: a link" in everything.record.outputs_left_out


async def test_odd_names_are_taken_or_named_in_plain_text(lab):
    script = "touch -- -rf 'a b' 'ü' \"$(printf 'a\\nb')\" \"$(printf '\\377')\" \"$(printf 'e\\033[2J')\"; mkdir -- -d; touch -- -d/x"
    done = await lab.sh(script, outputs=("*",))
    assert sorted(o.path for o in done.record.outputs) == sorted(["-rf", "a b", "ü", "-d/x"])
    left = [line.partition(":")[0] for line in done.record.outputs_left_out]
    assert sorted(left) == ["\\xff", "a\\nb", "e\\x1b[2J"]


async def test_setuid_bits_do_not_come_out(lab):
    done = await lab.sh("cp /usr/bin/id s; chmod 6755 s; stat -c %u s", outputs=("*",))
    assert [(o.path, o.mode) for o in done.record.outputs] == [("s", 0o755)]
    blob = lab.state / "blobs" / done.record.outputs[0].sha256[:2] / done.record.outputs[0].sha256
    assert blob.stat().st_mode & 0o7000 == 0


@pytest.mark.parametrize(
    "script",
    [
        "python3 -c \"import os\nfor _ in range(4000):\n  os.mkdir('d'); os.chdir('d')\"",
        "mkdir -p a/b/c; touch a/b/c/f; chmod 000 a/b/c a/b a; chmod 000 .",
        "mkdir x; touch x/f; chmod 555 x",
    ],
    ids=["4000 folders deep", "closed folders", "read-only folders"],
)
async def test_any_tree_is_removed_after_the_job(lab, script):
    done = await lab.sh(script)
    assert done.record.state == "finished"
    assert eventually(lambda: workspaces(lab.state, done.record.id) == [])


async def test_a_swarm_of_files_is_cut_and_the_rest_counted(full):
    done = await full.python("[open('f%d' % i, 'w').close() for i in range(700)]", outputs=("*",))
    assert len(done.record.outputs) == 500
    assert "200 more files: only 500 are taken" in done.record.outputs_left_out[0]


async def test_many_laid_files_do_not_push_new_ones_out(full):
    contents = {f"laid/{i:04}": b"%d" % i for i in range(800)}
    done = await full.sh("echo new > zz", contents=contents, outputs=("*",))
    assert [o.path for o in done.record.outputs] == ["zz"]


async def test_a_file_over_64_mib_stays(full):
    done = await full.sh("truncate -s 70000000 big; echo x > small", outputs=("*",))
    assert [o.path for o in done.record.outputs] == ["small"]
    assert done.record.outputs_left_out == ("big: 70000000 bytes, more than 64 MiB",)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a//b", "./a", "a\0b", "x" * 300, "a/" * 40 + "b"])
async def test_paths_that_leave_or_are_none_are_refused(full, path):
    with pytest.raises(BadRequest):
        await full.submit(full.spec("true"), {path: b"x"})


def test_a_race_of_links_never_leads_outside(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside, inside / "real"):
        folder.mkdir()
    (outside / "x").write_text("outside")
    (inside / "real" / "x").write_text("inside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (str(outside), "real"):
                (inside / "new").symlink_to(target)
                (inside / "new").rename(inside / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    fd = os.open(inside, os.O_RDONLY)
    try:
        for _ in range(5000):
            try:
                file = open_beneath(fd, "d/x")
            except OSError:
                continue
            with os.fdopen(file) as text:
                assert text.read() == "inside"
        for _ in range(300):
            for relative, _, entries in file_trees.walk(str(inside), 5):
                assert not (relative == "d/" and entries)
    finally:
        over.set()
        thread.join()
        os.close(fd)


def test_a_content_that_is_not_here_is_named(tmp_path):
    work = tmp_path / "w"
    work.mkdir()
    with pytest.raises(FilesError, match="is not on this host"):
        materialize_files(str(work), [FileRef("a", "0" * 64, 1)], BlobStore(str(tmp_path / "blobs")), None)


def test_a_change_in_the_same_clock_tick_is_seen_by_its_content(tmp_path):
    work = tmp_path / "w"
    work.mkdir()
    blobs = BlobStore(str(tmp_path / "blobs"))
    sha256 = blobs.put(b"laid")
    stamps = materialize_files(str(work), [FileRef("f", sha256, 4)], blobs, None)
    ino, ctime = stamps["f"]
    (work / "f").write_bytes(b"made")
    info = (work / "f").stat()
    forged = {"f": (info.st_ino, info.st_ctime_ns)}
    taken, _ = Collector(str(work), {"f": sha256}, forged, ctime + 1_000_000, blobs).collect(["*"])
    assert [o.path for o in taken] == ["f"]
    assert ino == info.st_ino


def test_blobs_that_nobody_asks_for_are_dropped_after_a_week(tmp_path):
    blobs = BlobStore(str(tmp_path))
    old, new = blobs.put(b"old"), blobs.put(b"new")
    long_ago = Path(blobs.path(old)).stat().st_mtime - 8 * 86400
    os.utime(blobs.path(old), (long_ago, long_ago))
    blobs.sweep()
    assert (Path(blobs.path(old)).exists(), blobs.has(new)) == (False, True)


def test_path_parts_are_given_back():
    name = secrets.token_hex(4)
    assert checked_path(f"a/{name}") == ["a", name]
