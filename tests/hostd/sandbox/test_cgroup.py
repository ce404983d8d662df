"""Groups: version 1 and the unified tree of this machine for real, version 2 with controllers on an imitation."""

import errno
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mcp_server.hostd.jobs.host_resources import Host, JobRefused
from gpu_mcp_server.hostd.protocol import JobSpec
from gpu_mcp_server.hostd.sandbox import cgroup

HIERARCHY = cgroup.own_hierarchy()
real = pytest.mark.skipif(
    HIERARCHY is None or not HIERARCHY.limits, reason=f"no groups with limits here: {cgroup.why_not()}"
)

JOIN = "import os,sys\nfor p in sys.argv[1:]: open(p,'w').write('0')\n"


@pytest.fixture
def group():
    assert HIERARCHY is not None
    made = HIERARCHY.group(f"test-{uuid.uuid4().hex[:12]}")
    yield made
    made.kill()
    assert made.wait_empty(5)
    assert made.remove()


@pytest.fixture
def start(group):
    started = []

    def run(script: str, *, wait_for_line: bool = False) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-S", "-c", JOIN + script, *group.procs_paths()],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        started.append(process)
        if wait_for_line:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return process

    yield run
    group.kill()
    for process in started:
        process.wait()
        process.stdout.close()


@real
def test_a_process_that_joins_is_listed_with_its_children(group, start):
    process = start(
        "import subprocess\nc=subprocess.Popen(['sleep','1000'])\nprint('ready')\nc.wait()", wait_for_line=True
    )
    assert process.pid in group.pids()
    assert len(group.pids()) == 2


@real
def test_a_process_can_be_moved_in_from_outside(group):
    process = subprocess.Popen(["sleep", "1000"])
    group.add(process.pid)
    assert group.pids() == [process.pid]
    group.kill()
    assert process.wait() == -9


@real
def test_kill_reaches_daemons_that_ignore_signals_and_left_their_session(group, start):
    start(
        "import os,signal,time\n"
        "for s in (1,2,15): signal.signal(s, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    print('ready'); time.sleep(1000)\n  os._exit(0)\n"
        "time.sleep(1000)\n",
        wait_for_line=True,
    )
    group.kill()
    assert group.wait_empty(5)
    assert group.pids() == []


@real
def test_kill_works_without_the_kill_file(group, start):
    group._features = group._features - {"kill"}
    process = start("import os,time\nprint('ready')\nos.fork(); os.fork()\ntime.sleep(1000)", wait_for_line=True)
    group.kill()
    assert group.wait_empty(5)
    assert process.wait() == -9


@real
def test_kill_reaches_a_frozen_group(group, start):
    process = start("import time\nprint('ready')\ntime.sleep(1000)", wait_for_line=True)
    assert group.freeze()
    group.kill()
    assert group.wait_empty(5)
    assert process.wait() == -9


@real
def test_a_frozen_process_does_not_advance_until_it_is_thawed(group, start, tmp_path):
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))
    start(
        f"import os\nf=os.open({str(counter)!r}, os.O_WRONLY)\nprint('ready')\n"
        "n=0\nwhile True:\n  n+=1; os.pwrite(f,n.to_bytes(8,'little'),0)\n",
        wait_for_line=True,
    )
    assert group.freeze()
    first = counter.read_bytes()
    assert all(counter.read_bytes() == first for _ in range(200))
    group.thaw()
    while counter.read_bytes() == first:
        pass


@real
def test_memory_beyond_the_limit_is_an_oom_kill_that_is_counted(group, start):
    assert "memory" in group.limit(memory_bytes=64 << 20)
    process = start("held=[]\nwhile True: held.append(bytearray(b'x')*(4<<20))")
    assert process.wait() == -9
    stats = group.stats()
    assert stats["oom_kills"] >= 1
    assert stats["peak_memory_bytes"] in range(32 << 20, (64 << 20) + 1)


@real
def test_the_memory_limit_can_be_raised_and_lowered(group):
    for size in (64 << 20, 256 << 20, 32 << 20):
        assert group.limit(memory_bytes=size) == {"memory"}


@real
def test_forks_beyond_the_limit_fail_and_are_counted(group, start):
    assert group.limit(processes=8) == {"pids"}
    process = start(
        "import os,time\nn=0\ntry:\n  while True:\n    if os.fork()==0: time.sleep(1000)\n    n+=1\n"
        "except BlockingIOError: print(n)\nos._exit(0)"
    )
    assert process.stdout.readline() == "7\n"
    assert group.stats()["pids_max_hits"] >= 1


@real
def test_cpu_time_is_counted_and_a_share_can_be_set(group, start):
    assert group.limit(cpus=0.5) == {"cpu"}
    process = start("import time\nwhile time.process_time() < 0.2: pass")
    assert process.wait() == 0
    assert group.stats()["cpu_s"] >= 0.15


@real
def test_waiting_ends_when_the_last_process_ends_and_not_before(group, start):
    assert group.wait_empty(0)
    process = start("import time\nprint('ready')\ntime.sleep(1000)", wait_for_line=True)
    assert not group.wait_empty(0.01)
    process.kill()
    assert group.wait_empty(5)


@real
def test_a_group_with_processes_is_not_removed(group, start):
    start("import time\nprint('ready')\ntime.sleep(1000)", wait_for_line=True)
    assert not group.remove()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "-x", "_hostd", "memory.max", "cgroup.procs", "tasks", "a" * 200]
)
def test_names_that_are_no_plain_words_are_refused(name):
    hierarchy = cgroup.Hierarchy("v2", frozenset(), {"unified": "/nowhere"}, cgroup.CgroupFiles())
    with pytest.raises(ValueError, match="not a group's name"):
        hierarchy.group(name)


class Imitation(cgroup.CgroupFiles):
    """Version 2 on a plain folder: what the kernel does on mkdir, subtree_control, procs, freeze and kill."""

    def __init__(
        self, top: Path, controllers: str = "cpuset cpu io memory pids", read_only: tuple[str, ...] = ()
    ) -> None:
        self.top = top
        self.read_only = read_only
        top.mkdir()
        self._furnish(top, controllers)

    def _furnish(self, folder: Path, controllers: str) -> None:
        files = {
            "cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": "", "cgroup.freeze": "0",
            "cgroup.kill": "", "cgroup.events": "populated 0\nfrozen 0\n", "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        }  # fmt: skip
        if "memory" in controllers.split():
            files |= {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.peak": "4096",
                      "memory.events": "low 0\noom 1\noom_kill 3\n"}  # fmt: skip
        if "pids" in controllers.split():
            files |= {"pids.max": "max", "pids.events": "max 5\n"}
        if "cpu" in controllers.split():
            files |= {"cpu.max": "max 100000"}
        for name, text in files.items():
            (folder / name).write_text(text + "\n" if text else "")

    def make(self, path: str) -> None:
        if Path(path).is_dir():
            return
        parent = Path(path).parent
        if not self.writable(str(parent / "cgroup.procs")):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        Path(path).mkdir()
        self._furnish(Path(path), (parent / "cgroup.subtree_control").read_text().strip())

    def remove(self, path: str) -> None:
        folder = Path(path)
        if (folder / "cgroup.procs").read_text().strip() or any(child.is_dir() for child in folder.iterdir()):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        for child in folder.iterdir():
            child.unlink()
        folder.rmdir()

    def writable(self, path: str) -> bool:
        return Path(path).exists() and str(Path(path).parent) not in self.read_only

    def write(self, path: str, text: str) -> None:
        folder, name = Path(path).parent, Path(path).name
        if not self.writable(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if name == "cgroup.subtree_control":
            wanted = [word[1:] for word in text.split()]
            if not set(wanted) <= set((folder / "cgroup.controllers").read_text().split()):
                raise OSError(errno.ENOENT, "No such file or directory", path)
            if folder != self.top and (folder / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, "Device or resource busy", path)
            text = " ".join({*(folder / name).read_text().split(), *wanted})
            for child in folder.iterdir():
                if child.is_dir():
                    self._furnish_again(child, text)
        elif name == "cgroup.procs":
            for other in self.top.rglob("cgroup.procs"):
                other.write_text("\n".join(w for w in other.read_text().split() if w != text))
            text = "\n".join([*(folder / name).read_text().split(), text])
        elif name == "cgroup.freeze":
            (folder / "cgroup.events").write_text(f"populated 1\nfrozen {text}\n")
        elif name == "cgroup.kill":
            (folder / "cgroup.procs").write_text("")
        Path(path).write_text(text + "\n")

    def _furnish_again(self, child: Path, controllers: str) -> None:
        procs = (child / "cgroup.procs").read_text()
        enabled = (child / "cgroup.subtree_control").read_text()
        self._furnish(child, controllers)
        (child / "cgroup.procs").write_text(procs)
        (child / "cgroup.subtree_control").write_text(enabled)


def search(files: Imitation, own: str) -> tuple[cgroup.Hierarchy | None, str]:
    mountinfo = f"25 30 0:26 / {files.top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    return cgroup.find_hierarchy(mountinfo, f"0::{own}\n", files)


def test_root_divides_the_top_of_version_2(tmp_path):
    files = Imitation(tmp_path / "cg")
    (files.top / "cgroup.procs").write_text("1\n2\n")
    hierarchy, why = search(files, "/")
    assert why == ""
    assert hierarchy.kind == "v2"
    assert hierarchy.features == {"memory", "pids", "cpu", "freeze", "kill"}
    assert hierarchy.parents == {"unified": str(files.top / "gpu-mcp-server")}
    assert (files.top / "cgroup.procs").read_text() == "1\n2\n"


def test_limits_of_version_2_are_written_as_the_kernel_wants_them(tmp_path):
    hierarchy, _ = search(Imitation(tmp_path / "cg"), "/")
    group = hierarchy.group("job.main")
    assert group.limit(memory_bytes=1 << 30, processes=64, cpus=1.5) == {"memory", "pids", "cpu"}
    folder = tmp_path / "cg/gpu-mcp-server/job.main"
    assert {name: (folder / name).read_text().strip() for name in ("memory.max", "memory.swap.max", "memory.oom.group",
            "pids.max", "cpu.max")} == {
        "memory.max": str(1 << 30), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "64",
        "cpu.max": "150000 100000",
    }  # fmt: skip
    assert group.stats() == {"peak_memory_bytes": 4096, "oom_kills": 3, "pids_max_hits": 5, "cpu_s": 2.5}


def test_freeze_kill_and_remove_on_version_2(tmp_path):
    hierarchy, _ = search(Imitation(tmp_path / "cg"), "/")
    group = hierarchy.group("job")
    assert group.procs_paths() == [str(tmp_path / "cg/gpu-mcp-server/job/cgroup.procs")]
    group.add(4242)
    assert group.pids() == [4242]
    assert group.freeze()
    assert not group.remove()
    group.kill()
    assert (tmp_path / "cg/gpu-mcp-server/job/cgroup.freeze").read_text() == "0\n"
    assert group.wait_empty(1)
    assert group.remove()


def delegated(tmp_path: Path, procs: str) -> tuple[Imitation, Path]:
    files = Imitation(tmp_path / "cg")
    files.write(str(files.top / "cgroup.subtree_control"), "+memory +pids +cpu")
    scope = files.top / "scope"
    files.make(str(scope))
    (scope / "cgroup.procs").write_text(procs)
    files.read_only = (str(files.top),)
    return files, scope


def test_a_delegated_group_that_holds_only_us_is_left_and_divided(tmp_path):
    files, scope = delegated(tmp_path, f"{os.getpid()}\n")
    hierarchy, why = search(files, "/scope")
    assert why == ""
    assert hierarchy.limits
    assert hierarchy.parents == {"unified": str(scope / "gpu-mcp-server")}
    assert (scope / "gpu-mcp-server/_hostd/cgroup.procs").read_text().split() == [str(os.getpid())]


def test_a_second_server_in_the_same_delegated_group_shares_it(tmp_path):
    files, scope = delegated(tmp_path, f"{os.getpid()}\n")
    search(files, "/scope")
    hierarchy, why = search(files, "/scope/gpu-mcp-server/_hostd")
    assert why == ""
    assert hierarchy.parents == {"unified": str(scope / "gpu-mcp-server")}


def test_processes_of_others_are_not_moved_and_what_is_missing_is_said(tmp_path):
    files, scope = delegated(tmp_path, f"{os.getpid()}\n4242\n")
    hierarchy, why = search(files, "/scope")
    assert hierarchy.features == {"freeze", "kill"}
    assert not hierarchy.limits
    assert "processes that are not ours" in why
    assert (scope / "cgroup.procs").read_text().split() == [str(os.getpid()), "4242"]


def test_a_host_that_delegates_nothing_gives_no_hierarchy_and_a_reason(tmp_path):
    files = Imitation(tmp_path / "cg")
    files.read_only = (str(files.top),)
    hierarchy, why = search(files, "/")
    assert hierarchy is None
    assert "Permission denied" in why


def test_a_host_without_cgroups_gives_no_hierarchy_and_a_reason(tmp_path):
    assert cgroup.find_hierarchy("22 1 0:5 / /proc rw - proc proc rw\n", "", cgroup.CgroupFiles()) == (
        None,
        "no cgroup file system is mounted",
    )


def test_controllers_of_version_1_that_share_a_mount_share_a_folder(tmp_path):
    for name, file in (("memory", "memory.limit_in_bytes"), ("cpu,cpuacct", "cpu.cfs_quota_us"), ("pids", "pids.max")):
        folder = tmp_path / name / "gpu-mcp-server"
        folder.mkdir(parents=True)
        for made in (file, "cgroup.procs", *(["cpuacct.usage"] if "cpu" in name else [])):
            (folder / made).write_text("0")
    mountinfo = "".join(
        f"3{i} 30 0:2{i} / {tmp_path}/{name} rw - cgroup cgroup rw,{name}\n"
        for i, name in enumerate(("memory", "cpu,cpuacct", "pids"))
    )
    hierarchy, why = cgroup.find_hierarchy(mountinfo, "4:memory:/\n3:cpu,cpuacct:/\n2:pids:/\n", cgroup.CgroupFiles())
    assert why == ""
    assert hierarchy.kind == "v1"
    assert hierarchy.features == {"memory", "pids", "cpu"}
    assert len(hierarchy.group("job").procs_paths()) == 3
    assert not hierarchy.group("job").freeze()


@real
@pytest.mark.skipif(HIERARCHY is None or HIERARCHY.kind != "v1", reason="only a hybrid host has both")
def test_version_2_freezes_and_kills_for_real_without_controllers():
    unified = HIERARCHY.parents.get("unified")
    if unified is None:
        pytest.skip("no unified mount")
    hierarchy = cgroup.Hierarchy("v2", frozenset({"freeze", "kill"}), {"unified": unified}, cgroup.CgroupFiles())
    group = hierarchy.group(f"test-{uuid.uuid4().hex[:12]}")
    process = subprocess.Popen(["sleep", "1000"])
    group.add(process.pid)
    assert group.freeze()
    assert not group.wait_empty(0.01)
    group.kill()
    assert process.wait() == -9
    assert group.wait_empty(5)
    assert group.remove()


def test_what_is_missing_is_said_in_one_short_line():
    denied = "; ".join(f"/sys/fs/cgroup/{n}/user.slice/user-1000.slice: Permission denied" for n in "abcdefgh")
    assert (
        cgroup.short_reason(f"cgroup v2: no limits on memory ({denied})")
        == "this account cannot create groups (cgroup v2)"
    )
    theirs = "; ".join(f"/sys/fs/cgroup/{n} is not ours" for n in "abcdefgh")
    assert (
        cgroup.short_reason(f"cgroup v1: no group can be made ({theirs})")
        == "this account cannot create groups (cgroup v1)"
    )
    busy = "cgroup v2: no limits on pids (/a: it holds processes that are not ours)"
    assert cgroup.short_reason(busy) == "other processes are in the server's group (cgroup v2)"
    assert len(cgroup.short_reason("something else " * 40)) <= 100
    assert cgroup.short_reason("") == "cgroups are not delegated"


def test_systemd_is_recommended_only_where_it_could_help():
    has_systemd = Path("/run/systemd/system").is_dir()
    assert ("systemd-run" in cgroup.fix_hint("cgroup v2: no limits on memory ()")) == has_systemd
    assert "systemd-run" not in cgroup.fix_hint("cgroup v1: no limits on memory ()")


@pytest.mark.parametrize("why", ["cgroup v1: none", "cgroup v2: none", "no cgroup file system is mounted"])
def test_where_no_group_can_be_made_an_action_of_one_line_is_told(why):
    assert re.match("Ask the administrator |Start the server ", cgroup.fix_hint(why)) and len(cgroup.fix_hint(why)) < 80


def test_a_job_that_is_refused_is_told_what_to_do():
    host: Any = SimpleNamespace(level="namespaces", weaker_because="no limits", hint=cgroup.fix_hint("cgroup v1: none"))
    with pytest.raises(JobRefused) as refused:
        Host.require(host, JobSpec(id="j-1", purpose="judge", processes=(), min_level="full"))

    assert f"no limits. {host.hint} Or accept less" in str(refused.value)
    assert "GPU_MCP_MIN_LEVEL, to namespaces." in str(refused.value)
