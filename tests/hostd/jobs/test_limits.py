"""Every limit strikes, says its name in the record, and leaves nothing behind."""

import re
import secrets
from pathlib import Path

import pytest

from tests.hostd.laboratory import Laboratory, eventually, processes_with

MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+)", text)
    assert match
    return int(match[1]) * 1024


@pytest.mark.parametrize(
    "script",
    [
        'trap "" TERM INT HUP; sleep 1000',
        "kill -STOP $$",
        "exec >&- 2>&-; sleep 1000",
        "while :; do :; done",
        "setsid sleep 1000 & setsid sleep 1000 & wait",
    ],
    ids=["ignores signals", "stops itself", "closes its output", "spins", "has daemons"],
)
async def test_a_job_that_does_not_end_is_killed_at_the_wall_limit(lab: Laboratory, script: str):
    marker = secrets.token_hex(8)
    done = await lab.sh(script, env={"MARKER": marker}, limits={"wall_s": 0.4})
    assert (done.record.status, done.record.note) == ("timeout", "wall limit of 0.4 s")
    assert processes_with(marker) == []


async def test_the_cpu_limit_is_named_also_when_its_signal_is_ignored(lab):
    done = await lab.sh("while :; do :; done", limits={"cpu_s": 1})
    assert done.record.status == "timeout"
    assert re.fullmatch(r"CPU limit of 1 s: role main used [1-9]\d*\.\d s", done.record.note), done.record.note


async def test_the_cpu_limit_holds_for_who_ignores_its_signal(full):
    spin = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    done = await full.python(spin, limits={"cpu_s": 1})
    assert done.record.status == "timeout"
    assert re.fullmatch(r"CPU limit of 1 s: role main used [1-9]\d*\.\d s", done.record.note), done.record.note


HOG = "held = []\nfor _ in range(300): held.append(bytearray(b'x') * (4 << 20))"


async def test_memory_without_end_is_named(lab):
    done = await lab.python(HOG + "\nimport time; time.sleep(10)", limits={"memory_bytes": 64 * MIB})
    assert done.record.status == "oom"
    assert str(64 * MIB) in done.record.note
    assert done.record.processes[0].oom_kills >= 1


async def test_memory_is_named_though_the_parent_of_who_took_it_survives(full):
    done = await full.sh(f'python3 -c "{HOG}"; echo survived', limits={"memory_bytes": 64 * MIB})
    assert done.record.status == "oom"
    assert done.record.processes[0].oom_kills >= 1
    peak = done.record.processes[0].peak_memory_bytes
    assert peak is None or peak <= 64 * MIB


async def test_shared_memory_counts_without_a_group_too(open_lab):
    lab = await open_lab("namespaces")
    grab = "import mmap, time\nm = mmap.mmap(-1, 128 << 20)\nm.write(bytes(128 << 20))\ntime.sleep(10)"
    done = await lab.python(grab, limits={"memory_bytes": 64 * MIB})
    assert done.record.status == "oom"


BOMB = """
import os, sys, time
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made)
time.sleep(0.5)
"""

THREADS = """
import threading, time
made = 0
try:
    while made < 2000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
print(made, flush=True)
time.sleep(0.5)
import os
os._exit(0)
"""


@pytest.mark.parametrize("script", [BOMB, THREADS], ids=["forks", "threads"])
async def test_processes_and_threads_without_end_are_stopped_and_named(lab, script):
    done = await lab.python(script, limits={"processes": 40})
    assert "limit of 40 processes and threads" in done.record.note
    assert done.record.status in ("ok", "failed")
    if done.record.status == "ok":
        assert int(done.text) < 40


STORM = """
import os
held = b"x" * (8 << 20)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


async def test_a_storm_of_forks_keeps_nobody_from_ending_it(lab):
    done = await lab.python(STORM, limits={"processes": 400, "wall_s": 1.5, "memory_bytes": 256 * MIB})
    assert done.record.status in ("timeout", "failed", "oom"), done


async def test_output_without_end_is_cut_counted_and_costs_no_memory(lab):
    job = await lab.start(
        "/bin/sh", "-c", "yes | head -c 400000000; sleep 0.3", limits={"output_bytes": MIB}, until=b"y"
    )
    supervisor = lab.supervisor(job)
    before = resident_bytes(supervisor)
    done = await lab.wait(job)
    assert eventually(lambda: not Path(f"/proc/{supervisor}").exists() or True)
    assert (done.record.stdout_bytes, done.record.stdout_kept) == (400_000_000, MIB)
    assert done.record.note == f"stdout: {MIB} of 400000000 bytes kept (limit {MIB})"
    assert done.record.status == "ok"
    assert before < 64 * MIB
    assert len(done.stdout) == MIB


async def test_a_supervisor_does_not_grow_with_the_output_that_it_counts(full):
    job = await full.start(
        "/bin/sh", "-c", "yes | head -c 300000000; echo >&2; sleep 1000", limits={"output_bytes": MIB}, until=b"y"
    )
    while (await full.record(job)).stderr_bytes == 0:
        pass
    assert resident_bytes(full.supervisor(job)) < 64 * MIB
    await full.link.call("cancel", job=job)
    assert (await full.wait(job)).record.stdout_bytes == 300_000_000


async def test_one_line_of_any_length_and_any_bytes_is_output(lab):
    done = await lab.sh(
        "head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033]52;c;ZXZp\\007\\377'", limits={"output_bytes": 4 * MIB}
    )
    assert done.record.stdout_bytes == 3_000_013
    rest, _ = await lab.link.call("read", job=done.record.id, stream="stdout", offset=2_999_999, size=100)
    assert rest == {"size": 14}


async def test_a_file_over_its_size_is_stopped_and_named(lab):
    done = await lab.sh("exec head -c 40000000 /dev/zero > big", limits={"file_bytes": 8 * MIB})
    assert (done.record.status, done.record.processes[0].signal) == ("failed", 25)
    assert f"limit of {8 * MIB} bytes" in done.record.note
    done = await lab.python("open('big', 'wb').truncate(10 << 40)", limits={"file_bytes": 8 * MIB})
    assert b"File too large" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > f$i; done",
        "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > f$i; done; sleep 1000",
        "mkdir d; for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > d/f$i; done; chmod 000 d",
    ],
    ids=["and ends at once", "and stays", "where nobody may look"],
)
async def test_too_many_bytes_in_the_workspace_are_named(lab, script):
    done = await lab.sh(script, limits={"disk_bytes": 16 * MIB})
    assert done.record.status == "disk_quota"
    assert done.record.note == f"workspace main holds more than the limit of {16 * MIB} bytes"


async def test_deleted_files_that_are_still_open_count(lab):
    hide = "import os, time\nf = open('f', 'wb')\nos.unlink('f')\nf.write(bytes(32 << 20))\nf.flush()\ntime.sleep(1000)"
    done = await lab.python(hide, limits={"disk_bytes": 16 * MIB})
    assert done.record.status == "disk_quota"


@pytest.mark.parametrize("ending", ["", "; import time; time.sleep(1000)"])
async def test_too_many_files_in_the_workspace_are_named(lab, ending):
    done = await lab.python(f"[open(str(i), 'w').close() for i in range(3000)]{ending}", limits={"disk_files": 500})
    assert done.record.status == "disk_quota"
    assert done.record.note == "workspace main holds more than the limit of 500 files"


async def test_tmp_and_shared_memory_have_their_sizes(boxed):
    script = (
        "head -c 40000000 /dev/zero > /tmp/a; head -c 40000000 /dev/zero > /dev/shm/a; stat -c %s /tmp/a /dev/shm/a"
    )
    done = await boxed.sh(script, limits={"tmp_bytes": 16 * MIB, "shm_bytes": 8 * MIB})
    assert [int(n) for n in done.text.split()] == [16 * MIB, 8 * MIB]
    assert done.stderr.count(b"No space left on device") == 2


MANY_SMALL = """
import os, time
at = 0
while True:
    os.close(os.open(FOLDER + "/%d" % at, os.O_CREAT | os.O_WRONLY))
    at += 1
"""


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
async def test_too_many_files_in_temporary_folders_are_named(boxed, folder):
    done = await boxed.python(MANY_SMALL.replace("FOLDER", repr(folder)), limits={"tmp_files": 2000})
    assert (done.record.status, done.record.note) == (
        "disk_quota",
        f"role main holds more than the limit of 2000 files in {folder}",
    )


async def test_who_hides_from_a_debugger_has_its_files_counted_too(boxed):
    hide = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"  # PR_SET_DUMPABLE
    done = await boxed.python(hide + MANY_SMALL.replace("FOLDER", "'/tmp'"), limits={"tmp_files": 2000})
    assert done.record.status == "disk_quota"


async def test_files_of_others_in_the_hosts_temporary_folder_do_not_count(open_lab):
    lab = await open_lab("landlock")
    done = await lab.sh("sleep 0.5; echo lived", limits={"tmp_files": 1})
    assert (done.record.status, done.text) == ("ok", "lived\n"), done


async def test_a_share_of_the_cpu_is_kept(full):
    spin = "import time\nt = time.monotonic()\nwhile time.monotonic() - t < 0.6: pass\nprint(time.process_time())"
    done = await full.python(spin, limits={"cpus": 0.25})
    if "cpu" not in str(await full.link.call("probe")) and float(done.text) > 0.4:
        pytest.skip("no CPU controller here")
    assert float(done.text) < 0.4


@pytest.mark.parametrize(
    "script",
    [
        "setsid sleep 1000 >/dev/null 2>&1 & echo done",
        "setsid sleep 1000 & echo done",
        "(trap '' TERM HUP INT; exec 0>&- 1>&- 2>&-; setsid sh -c '(sleep 1000 &)' ) & sleep 0.05; echo done",
    ],
    ids=["a daemon", "a daemon that holds stdout", "a daemon twice removed"],
)
async def test_a_job_ends_with_its_leader_and_daemons_end_with_it(lab, script):
    marker = secrets.token_hex(8)
    done = await lab.sh(script, env={"MARKER": marker})
    assert (done.record.status, done.text) == ("ok", "done\n")
    assert processes_with(marker) == []


async def test_a_job_that_spins_does_not_keep_another_from_its_turn(full):
    busy = await full.start("/bin/sh", "-c", "while :; do :; done", limits={"wall_s": 5})
    done = await full.sh("echo through")
    assert done.text == "through\n"
    await full.link.call("cancel", job=busy)
