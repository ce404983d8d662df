"""Behaviours of the sandbox: files, sockets, devices and calls it must refuse. `sandbox check` tries more ways out."""

import secrets

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, DoesNotApply, expect, expect_equal
from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.hostd.protocol import LEVELS, GpuRequest, ProcessSpec

ROOM = BehaviourGroup("confinement")


@ROOM.behaviour("Every record says its sandbox level, and what a weaker one lacks")
async def level_in_record(host: ContractHost) -> None:
    """Look at a record."""
    record = (await host.run("true")).record
    expect_equal((record.level, record.weaker_because), (host.level, host.weaker_because), "level and reason")


@ROOM.behaviour("A job that demands a stronger sandbox than there is does not run, and the reason is said")
async def level_demanded(host: ContractHost) -> None:
    """Demand more, or what does not exist."""
    higher = LEVELS[LEVELS.index(host.level) + 1 :] or ("perfect",)
    done = await host.run("true", min_level=higher[-1])
    expect_equal(done.record.status, "refused", "status")
    expect(higher[-1] in done.record.note, "the note says what was demanded", done.record.note)


@ROOM.behaviour("There is no network: neither out nor to the host's loopback")
async def no_network(host: ContractHost) -> None:
    """Try to connect."""
    script = (
        "import socket\n"
        "def tried(kind, address):\n"
        "  s = socket.socket(socket.AF_INET, kind)\n  s.settimeout(3)\n"
        "  try: s.connect(address); s.send(b'x'); return 'sent'\n"
        "  except OSError as error: return type(error).__name__\n"
        "print(tried(socket.SOCK_STREAM, ('192.0.2.2', 80)), tried(socket.SOCK_STREAM, ('127.0.0.1', 22)))"
    )
    done = await host.python(script)
    expect("sent" not in done.text and "Timeout" not in done.text and done.record.status == "ok", "refusals", done)


@ROOM.behaviour("Network is refused to any job but a fetch without a GPU")
async def network_refused(host: ContractHost) -> None:
    """Ask for it."""
    done = await host.run("true", network=True)
    expect_equal(done.record.status, "refused", "status")


@ROOM.behaviour("No home folder, no secrets, no other job can be seen", at_least="apptainer")
async def nothing_to_see(host: ContractHost) -> None:
    """List and read."""
    script = (
        "ls -A /root /home /var /mnt /srv /opt/gpu-mcp-server 2>/dev/null; cat /etc/shadow /etc/passwd 2>/dev/null; "
        "ls -d /proc/[0-9]* | wc -l; tr '\\0' '\\n' </proc/1/environ | grep -vcE '^(PATH|PWD|SANDBOX)='; "
        "pwd; echo $HOME"
    )
    done = await host.sh(script)
    lines = done.text.split()
    expect(len(lines) == 4, "nothing but the counts and the workspace", done.text)
    expect(int(lines[0]) < 8, "processes that are seen", lines[0])
    expect_equal(lines[1:], ["0", "/job", "/job"], "variables of process 1, folder and home")


@ROOM.behaviour("The job is nobody of importance: not root, no capability, no new privileges")
async def no_privileges(host: ContractHost) -> None:
    """Look at the process."""
    script = "id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs|Seccomp):' /proc/self/status"
    words = (await host.sh(script)).text.split()
    expect(words and words[0] != "0", "a uid that is not root's", words)
    expect_equal(
        words[1:], ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"], "privileges"
    )


@ROOM.behaviour("The system is read-only, /proc/sys too")
async def read_only_system(host: ContractHost) -> None:
    """Try to write."""
    name = secrets.token_hex(4)
    script = (
        f"for f in /{name} /etc/{name} /usr/{name} /usr/bin/{name} /dev/{name} /proc/sys/kernel/core_pattern "
        "/proc/sys/vm/drop_caches /proc/sysrq-trigger; do (echo x >$f) 2>/dev/null && echo $f; done; true"
    )
    written = (await host.sh(script)).text
    if host.level == "apptainer" and written == f"/dev/{name}\n" and "no Landlock" in host.weaker_because:
        raise DoesNotApply("without Landlock /dev, a folder in memory, can be written, and nothing else")
    expect_equal(written, "", "what could be written")


@ROOM.behaviour("A job is handed three descriptors, no more")
async def descriptors(host: ContractHost) -> None:
    """List them."""
    done = await host.python("import os; print(*sorted(os.listdir('/proc/self/fd')))")
    expect_equal(done.text.split(), ["0", "1", "2", "3"], "descriptors, 3 being the listing's")


LIST_DESCRIPTORS = """
import os, re, time
PLAIN = re.compile(r"pipe:.*|/dev/null|/memfd:stdin \\(deleted\\)")
def odd():
    found = []
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        try: names = os.listdir("/proc/%s/fd" % pid)
        except OSError: continue
        for name in names:
            path = "/proc/%s/fd/%s" % (pid, name)
            try: shown = os.readlink(path)
            except OSError: continue
            listing = pid == str(os.getpid()) and shown.startswith("/proc/")
            reapers = pid == "1" and shown in ("anon_inode:[eventfd]", "anon_inode:[signalfd]")
            if not (listing or reapers or int(name) < 3 and PLAIN.fullmatch(shown)):
                found.append("%s:%s=%s" % (pid, name, shown))
    return found
first = odd()
time.sleep(0.3)
print(*first, *odd())
"""


@ROOM.behaviour(
    "No process of a sandbox holds anything of the host: neither at its start nor at rest", at_least="apptainer"
)
async def nothing_held_inside(host: ContractHost) -> None:
    """List what all processes inside hold, in a sandbox of the job's own and in one that waited for it."""
    profiled = ProcessSpec(argv=("{python}", "-I", "-S", "-c", LIST_DESCRIPTORS), profiled=True)
    done = await host.run(processes=(profiled,))
    expect_equal((done.record.status, done.text.strip()), ("ok", ""), "descriptors in a sandbox made for the job")
    for _ in range(2):
        done = await host.python(LIST_DESCRIPTORS)
        expect_equal((done.record.status, done.text.strip()), ("ok", ""), "descriptors in a sandbox made ahead")


@ROOM.behaviour("Deep system calls are denied: mount, unshare, ptrace, bpf, keyctl, io_uring")
async def system_calls(host: ContractHost) -> None:
    """Call them."""
    script = (
        "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "numbers = {'x86_64': (165, 272, 101, 321, 250, 425, 298), 'aarch64': (40, 97, 117, 280, 219, 425, 241)}\n"
        "for n in numbers[os.uname().machine]:\n"
        "  libc.syscall(n, 0x10000000, 0, 0, 0, 0)\n  print(errno.errorcode.get(ctypes.get_errno()))"
    )
    expect_equal(set((await host.run("{python}", "-I", "-c", script)).text.split()), {"EPERM"}, "errors")


@ROOM.behaviour("A job cannot signal what is not its own", at_least="apptainer")
async def signals(host: ContractHost) -> None:
    """Kill all there is, and the server's hostd."""
    pid = int(host.link.greeting["pid"])
    done = await host.sh(f"kill -9 {pid} 2>/dev/null; kill -9 -1; echo still here")
    expect(done.record.state == "finished", "the job ended", done.record)
    expect_equal((await host.run("true")).record.status, "ok", "a job afterwards")


@ROOM.behaviour("A job without a GPU sees none")
async def no_device(host: ContractHost) -> None:
    """List devices."""
    done = await host.sh("ls /dev | grep -c -E '^(nvidia|kfd|dri)'; echo \"[$CUDA_VISIBLE_DEVICES]\"")
    seen, visible = done.text.split()
    expect(visible == "[]", "CUDA_VISIBLE_DEVICES", visible)
    if not host.is_isolated and int(seen):
        raise DoesNotApply("without namespaces the nodes are seen; opening them is what is denied")
    expect_equal(seen, "0", "device nodes")


@ROOM.behaviour("GPUs that the host does not have are said to be missing, at once")
async def no_such_gpu(host: ContractHost) -> None:
    """Ask for a GPU of no host."""
    wanted = GpuRequest(count=1, mode="exclusive", uuids=("GPU-00000000-0000-0000-0000-000000000000",), wait_s=1.0)
    done = await host.run("true", gpus=wanted)
    expect_equal(done.record.status, "no_gpu", "status")
    expect("1 GPUs wanted, 0 fit" in done.record.note, "the note says how many fit", done.record.note)


@ROOM.behaviour("The state of every GPU can be asked, or why there is none")
async def gpus_listed(host: ContractHost) -> None:
    """Ask for them."""
    answer, _ = await host.link.call("gpus")
    expect(answer["gpus"] or answer["why_none"], "GPUs, or a reason", answer)
    for gpu in answer["gpus"]:
        expect(str(gpu["uuid"]).startswith(("GPU-", "MIG-")), "a UUID", gpu)


@ROOM.behaviour("The host says what it has: processor, compilers, interpreter")
async def probe(host: ContractHost) -> None:
    """Probe it."""
    answer, _ = await host.link.call("probe", judge_pythons=[])
    expect(answer["cores"] > 0 and answer["memory_bytes"] > 0, "cores and memory", answer)
    expect_equal(answer["level"], host.level, "level")
    expect(answer["judge"] is None or answer["judge"]["path"], "an interpreter, or none", answer["judge"])
