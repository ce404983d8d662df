"""Each limit strikes, and is named in the record."""

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, expect, expect_equal
from gpu_mcp_server.backends.contract.host import ContractHost

ROOM = BehaviourGroup("limits")

MIB = 1 << 20


@ROOM.behaviour("Memory over the limit ends the job as oom")
async def memory(host: ContractHost) -> None:
    """Take memory without end."""
    hog = "held = []\nfor _ in range(300): held.append(bytearray(b'x') * (4 << 20))\nimport time; time.sleep(10)"
    done = await host.python(hog, limits={"memory_bytes": 64 * MIB})
    expect_equal(done.record.status, "oom", "status")
    expect(str(64 * MIB) in done.record.note, "the note says the limit", done.record.note)


@ROOM.behaviour("A fork bomb stays within its limit and the host goes on")
async def fork_bomb(host: ContractHost) -> None:
    """Fork without end."""
    bomb = (
        "import os, time\nn = 0\ntry:\n while n < 5000:\n  if os.fork() == 0: time.sleep(20); os._exit(0)\n"
        "  n += 1\nexcept OSError: pass\nprint(n)"
    )
    done = await host.python(bomb, limits={"processes": 64}, wall_s=10.0)
    if done.record.status == "ok":
        expect(int(done.text) < 5000, "forks that succeeded", done.text)
    expect_equal((await host.run("true")).record.status, "ok", "a job afterwards")


@ROOM.behaviour("One file stops at its limit")
async def file_size(host: ContractHost) -> None:
    """Write beyond it."""
    done = await host.sh("head -c 50000000 /dev/zero >big; wc -c <big", limits={"file_bytes": 4 * MIB})
    expect_equal(int(done.text or -1), 4 * MIB, "bytes written")


@ROOM.behaviour("More bytes than the disk quota end the job as disk_quota")
async def disk_bytes(host: ContractHost) -> None:
    """Write many files."""
    script = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero >f$i; done; sleep 5"
    done = await host.sh(script, limits={"disk_bytes": 8 * MIB})
    expect_equal(done.record.status, "disk_quota", "status")


@ROOM.behaviour("More files than the disk quota end the job as disk_quota")
async def disk_files(host: ContractHost) -> None:
    """Make many files."""
    script = "for i in range(3000): open('f%d' % i, 'w').close()\nimport time; time.sleep(5)"
    expect_equal((await host.python(script, limits={"disk_files": 500})).record.status, "disk_quota", "status")


@ROOM.behaviour("The temporary folders are as small as they were asked for", at_least="namespaces")
async def temporary_folders(host: ContractHost) -> None:
    """Fill both."""
    script = "for d in /tmp /dev/shm; do head -c 40000000 /dev/zero >$d/a; wc -c <$d/a; rm $d/a; done 2>/dev/null"
    done = await host.sh(script, limits={"tmp_bytes": 8 * MIB, "shm_bytes": 4 * MIB})
    expect_equal([int(n) for n in done.text.split()], [8 * MIB, 4 * MIB], "bytes written")


@ROOM.behaviour("CPU time over its limit ends the job as timeout, and says which limit")
async def cpu_time(host: ContractHost) -> None:
    """Spin."""
    done = await host.sh("while :; do :; done", limits={"cpu_s": 1})
    expect_equal(done.record.status, "timeout", "status")
    expect("CPU" in done.record.note, "the note says which limit", done.record.note)


SHORT_LIVES = """
import os, time
while True:
    if not os.fork():
        while time.process_time() < 0.2: pass
        os._exit(0)
    os.wait()
"""


@ROOM.behaviour("CPU time counts of all processes of a job together, and the note says what they used")
async def cpu_time_together(host: ContractHost) -> None:
    """Spin in one short-lived process after the other."""
    done = await host.python(SHORT_LIVES, limits={"cpu_s": 1, "wall_s": 50.0})
    expect_equal(done.record.status, "timeout", "status")
    expect("CPU limit of 1 s: role main used" in done.record.note, "the note says what was used", done.record.note)


@ROOM.behaviour("A job that fails as the CPU limit ended one of its processes is a timeout")
async def cpu_time_of_a_child(host: ContractHost) -> None:
    """Fail as a compiler's driver does whose compiler was ended."""
    done = await host.sh("sh -c 'while :; do :; done'; exit 1", limits={"cpu_s": 1, "wall_s": 50.0})
    expect_equal(done.record.status, "timeout", "status")
    expect("CPU limit of 1 s" in done.record.note, "the note says which limit", done.record.note)
