"""The files behind the GPUs' locks: whose the folder is, who may remove them, and what a lock is worth without its file."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_mcp_server.cli.doctor import host_checks
from gpu_mcp_server.hostd.gpus.drain import DrainFiles
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.hostd.gpus.lock_folder import MODES, find_folder
from gpu_mcp_server.hostd.protocol import GpuRequest
from tests.hostd.conftest import Opener, needs_root
from tests.hostd.laboratory import Laboratory

ONE = "GPU-00000000-1111"
STRANGER = 61500
HOSTD = Path(__file__).parents[3] / "gpu_mcp_server"
TAKE = "locks.acquire(['GPU-00000000-1111'], 1, 'exclusive', {'job': 'other'}, 0, lambda: False)"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return where the folder of locks will be, in one that is everybody's, as /run/lock is."""
    shared = Path(tempfile.mkdtemp(prefix="gpu-mcp-locks-", dir="/tmp"))
    shared.chmod(0o1777)
    yield shared / "locks"
    shutil.rmtree(shared)


def taken(locks: GpuLocks, mode: str = "exclusive") -> list[tuple[str, int]]:
    return locks.acquire([ONE], 1, mode, {"job": "j-1"}, 0.0, lambda: False)


def let_go(held: list[tuple[str, int]]) -> None:
    for _, fd in held:
        os.close(fd)


def as_stranger(folder: Path, script: str) -> str:
    """Run Python under another uid, with `locks` of the folder; return what it prints."""
    code = f"import os, sys; sys.path.insert(0, {str(HOSTD)!r})\nfrom hostd.gpus.gpu_locks import GpuLocks\n"
    code += f"locks = GpuLocks({str(folder)!r})\n{script}"
    user = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups"]
    done = subprocess.run([*user, sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def first_hostd(folder: Path, mode: str) -> Generator[str]:
    """Let a hostd of the first version ask for the lock, and hold it until the block ends; yield what it says."""
    program = [sys.executable, str(Path(__file__).with_name("first_locks.py")), str(folder), ONE, mode]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def by_stranger(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    os.chown(folder, STRANGER, STRANGER)


def by_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere").chmod(0o1777)
    folder.symlink_to(folder.parent / "elsewhere")


def without_sticky_bit(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def as_file(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize(("make", "words"), [(by_link, "is a link"), (as_file, "is no folder")])
def test_what_is_no_folder_is_refused_and_the_command_that_the_error_names_mends_it(
    folder: Path, make: Callable[[Path], None], words: str
):
    make(folder)
    locks = GpuLocks(str(folder))
    assert words in locks.fault() and locks.note() == ""
    with pytest.raises(OSError, match=words):
        taken(locks)
    if os.geteuid() != 0:
        return
    command = locks.fault().partition("while no job runs: ")[2]
    subprocess.run(["/bin/sh", "-c", command], check=True)
    assert locks.fault() == ""
    held = taken(locks)
    assert held
    let_go(held)


@needs_root
@pytest.mark.parametrize("make", [by_stranger, without_sticky_bit])
def test_root_takes_over_a_folder_that_an_ordinary_user_made(folder: Path, make: Callable[[Path], None]):
    make(folder)
    held = taken(GpuLocks(str(folder)))
    info = folder.stat()
    assert held and (info.st_uid, info.st_mode & 0o7777) == (0, MODES)
    as_stranger(folder, f"assert {TAKE} == []")
    let_go(held)


@needs_root
def test_root_takes_a_folder_over_while_its_maker_holds_a_lock(folder: Path):
    by_stranger(folder)
    locks = GpuLocks(str(folder))
    script = f"held = {TAKE}\nprint('held', flush=True)\nsys.stdin.read()"
    code = f"import os, sys; sys.path.insert(0, {str(HOSTD)!r})\nfrom hostd.gpus.gpu_locks import GpuLocks\n"
    code += f"locks = GpuLocks({str(folder)!r})\n{script}"
    user = ["setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*user, sys.executable, "-I", "-B", "-c", code], stdin=pipe, stdout=pipe, text=True) as maker:
        assert maker.stdout and maker.stdout.readline() == "held\n"
        assert taken(locks) == [] and folder.stat().st_uid == 0
    held = taken(locks)
    assert held
    let_go(held)


@needs_root
async def test_a_job_of_root_runs_in_a_folder_that_an_ordinary_user_made(open_lab: Opener, state: Path):
    own = state.parent
    by_stranger(own / "locks")
    (own / "gpus.json").write_text(json.dumps([{"uuid": ONE}]))
    env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
    lab: Laboratory = await open_lab("full", **env)
    done = await lab.run("true", gpus=GpuRequest(1, "exclusive", wait_s=5.0))
    assert (done.record.status, done.record.note) == ("ok", "")
    assert (own / "locks").stat().st_uid == 0
    (own / "locks").rename(own / "elsewhere")
    (own / "locks").symlink_to(own / "elsewhere")
    done = await lab.run("true", gpus=GpuRequest(1, "exclusive", wait_s=5.0))
    assert done.record.status == "refused" and "install -d -m 1777 -o root" in done.record.note
    assert (await lab.run("true")).record.status == "ok"
    answer, _ = await lab.link.call("gpus")
    assert "is a link" in answer["locks"]["fault"]


@needs_root
def test_an_ordinary_user_uses_root_s_folder_and_cannot_remove_its_locks(folder: Path):
    locks = GpuLocks(str(folder))
    held = taken(locks)
    script = f"print(locks.note() or 'no note', {TAKE})\n"
    script += f"""
for change in (os.unlink, lambda path: os.rename(path, path + "x")):
    try:
        change({str(folder)!r} + "/{ONE}.lock")
    except PermissionError:
        print("refused")"""
    assert as_stranger(folder, script).split("\n") == ["no note []", "refused", "refused"]
    assert locks.is_in_place(*held[0])
    let_go(held)
    assert as_stranger(folder, f"print(len({TAKE}))") == "1"


@needs_root
def test_a_lock_that_an_ordinary_user_made_is_root_s_once_root_has_opened_it(folder: Path):
    locks = GpuLocks(str(folder))
    let_go(taken(locks))
    (folder / f"{ONE}.lock").unlink()
    assert as_stranger(folder, f"print(len({TAKE}))") == "1"
    assert (folder / f"{ONE}.lock").stat().st_uid == STRANGER
    held = taken(locks)
    assert (folder / f"{ONE}.lock").stat().st_uid == 0
    assert "Operation not permitted" in as_stranger(
        folder, f"try: os.unlink({str(folder / (ONE + '.lock'))!r})\nexcept OSError as e: print(e)"
    )
    let_go(held)


@needs_root
def test_an_ordinary_user_makes_a_folder_where_there_is_none_and_doctor_says_who_else_s_it_is(folder: Path):
    said = as_stranger(folder, f"assert len({TAKE}) == 1\nprint(locks.fault() + '|' + locks.note())")
    assert folder.stat().st_uid == STRANGER and folder.stat().st_mode & 0o7777 == MODES
    assert said == "|"
    os.chown(folder, STRANGER + 1, STRANGER + 1)
    note = as_stranger(folder, f"assert len({TAKE}) == 1\nprint(locks.note())")
    assert f"belongs to uid {STRANGER + 1}" in note and "as root, run: chown root" in note
    host = {"host": "a", "reachable": True, "locks_note": note, "level": "full", "toolchains": {"gcc": "12"}}
    assert [c.found for c in host_checks([host]) if "can remove the locks" in c.found]


def test_a_lock_whose_file_was_replaced_before_it_was_had_is_taken_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    locks, file = GpuLocks(str(folder)), folder / f"{ONE}.lock"
    opened, replaced = GpuLocks._open, list[int]()

    def replaced_behind(self: GpuLocks, uuid: str, kind: str) -> int:
        fd = opened(self, uuid, kind)
        if kind == "lock" and not replaced:
            replaced.append(os.fstat(fd).st_ino)
            file.rename(folder / "old")
            file.touch(0o666)
        return fd

    monkeypatch.setattr(GpuLocks, "_open", replaced_behind)
    held = taken(locks)
    assert replaced and held and os.fstat(held[0][1]).st_ino == file.stat().st_ino
    assert locks.is_in_place(*held[0]) and taken(locks) == []
    let_go(held)


def test_a_lock_that_is_no_plain_file_of_one_name_is_an_error(folder: Path):
    locks, file = GpuLocks(str(folder)), folder / f"{ONE}.lock"
    let_go(taken(locks))
    os.link(file, folder / "other")
    with pytest.raises(OSError, match="no plain file; as root: rm "):
        taken(locks)
    (folder / "other").unlink()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="no plain file"):
        taken(locks)


async def test_a_job_whose_lock_is_replaced_says_so_in_its_record(open_lab: Opener, state: Path):
    own = state.parent
    (own / "gpus.json").write_text(json.dumps([{"uuid": ONE}]))
    env = {"GPU_MCP_HOSTD_GPUS": str(own / "gpus.json"), "GPU_MCP_HOSTD_LOCKS": str(own / "locks")}
    lab: Laboratory = await open_lab("full", **env)
    for change in ("rename", "unlink", None):
        job = await lab.start("/bin/sh", "-c", "echo on; sleep 60", until=b"on", gpus=GpuRequest(1, "exclusive"))
        file = own / "locks" / f"{ONE}.lock"
        if change == "rename":
            (own / "locks" / "new").touch()
            (own / "locks" / "new").rename(file)
        elif change:
            file.unlink()
        await lab.link.call("cancel", job=job)
        note = (await lab.wait(job)).record.note
        assert (f"another process replaced the lock of {ONE} while the job held it" in note) is bool(change)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_the_first_hostd_and_today_s_exclude_each_other(folder: Path, mode: str):
    locks = GpuLocks(str(folder))
    with first_hostd(folder, mode) as said:
        assert said == "held" and locks.fault() == ""
        assert taken(locks) == [] and locks.holder(ONE) == f"j-first ({mode})"
        shared = taken(locks, "shared")
        assert bool(shared) is (mode == "shared")
        let_go(shared)
    held = taken(locks, mode)
    assert held
    with first_hostd(folder, "exclusive") as said:
        assert said == "taken"
    with first_hostd(folder, "shared") as said:
        assert said == ("held" if mode == "shared" else "taken")
    let_go(held)


def test_a_folder_is_never_seen_without_its_modes(folder: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    rename = os.rename

    def watched(source: str, target: str) -> None:
        assert not Path(target).exists()
        rename(source, target)
        seen.append(Path(target).stat().st_mode & 0o7777)

    monkeypatch.setattr(os, "rename", watched)
    DrainFiles(str(folder)).begin("why", "who")
    assert seen == [0o1777] and [p.name for p in folder.parent.iterdir()] == ["locks"]


def test_locks_are_where_every_user_can_write(folder: Path):
    """/run/lock is root's alone on Fedora and RHEL, and where nothing but a container's set-up made it."""
    parents = [folder.parent / name for name in ("run", "shm")]
    for path in parents:
        path.mkdir()
    run, shm = map(str, parents)
    parents[0].chmod(0o755)
    parents[1].chmod(0o1777)

    assert find_folder((run, shm)) == f"{shm}/gpu-mcp-server"
    (parents[0] / "gpu-mcp-server").mkdir(mode=0o755)
    assert find_folder((run, shm)) == f"{shm}/gpu-mcp-server"
    (parents[0] / "gpu-mcp-server").chmod(0o1777)
    assert find_folder((run, shm)) == f"{run}/gpu-mcp-server"
    assert find_folder((f"{run}/none", run, shm)) == f"{run}/gpu-mcp-server"


@needs_root
def test_a_folder_that_a_user_cannot_make_is_said_with_its_command(folder: Path):
    folder.parent.chmod(0o755)
    said = as_stranger(folder, "print(locks.fault())")

    assert f"this user cannot make {folder}" in said and said.endswith(f"install -d -m 1777 -o root -g root {folder}")
    folder.mkdir()
    assert as_stranger(folder, "print(locks.fault())") == ""
