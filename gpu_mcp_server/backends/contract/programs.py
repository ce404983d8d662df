"""Programs start as asked and their ends come back."""

import asyncio
import json
import signal

from gpu_mcp_server.backends.contract.behaviour import BehaviourGroup, expect, expect_equal
from gpu_mcp_server.backends.contract.host import PATH, ContractHost
from gpu_mcp_server.hostd import protocol
from gpu_mcp_server.hostd.protocol import ProcessSpec

ROOM = BehaviourGroup("programs")

AT_ONCE = 50


@ROOM.behaviour("A channel opens and hostd says its version, its Python and its sandbox level")
async def greets(host: ContractHost) -> None:
    """Look at the greeting."""
    greeting = host.link.greeting
    expect_equal(greeting["protocol"], protocol.PROTOCOL_VERSION, "version of the protocol")
    expect(greeting["level"] in protocol.LEVELS, "a level that is none", greeting["level"])
    expect(int(str(greeting["python"]).split(".")[1]) >= 8, "Python 3.8 or newer", greeting["python"])
    expect(greeting["level"] == "full" or greeting["weaker_because"], "a weaker level gives its reason")


@ROOM.behaviour("A program that exits with 0 is ok")
async def true_is_ok(host: ContractHost) -> None:
    """Run true."""
    done = await host.run("true")
    expect_equal((done.record.status, done.stdout, done.stderr), ("ok", b"", b""), "status and output")
    expect_equal(done.record.leader and done.record.leader.signal, None, "signal")
    expect_equal(done.exit_code, 0, "exit code")


@ROOM.behaviour("Another exit code is failed, and comes back")
async def exit_code(host: ContractHost) -> None:
    """Exit with 77."""
    done = await host.sh("exit 77")
    expect_equal((done.record.status, done.exit_code), ("failed", 77), "status and exit code")


@ROOM.behaviour("A signal comes back as its number, and no core file is left")
async def a_signal(host: ContractHost) -> None:
    """Die by SIGSEGV."""
    done = await host.sh("kill -SEGV $$", outputs=("*",))
    expect_equal(done.record.status, "failed", "status")
    expect_equal(done.record.leader and done.record.leader.signal, int(signal.SIGSEGV), "signal")
    expect_equal(done.record.outputs, (), "files left")


@ROOM.behaviour("A program that is not there fails and its name is said")
async def no_such_program(host: ContractHost) -> None:
    """Start what does not exist."""
    done = await host.run("/usr/bin/no-such-program-here")
    expect_equal(done.record.status, "failed", "status")
    expect(b"no-such-program-here" in done.stderr, "stderr names the program", done.stderr)


@ROOM.behaviour("Text on stdin reaches the program")
async def stdin(host: ContractHost) -> None:
    """Copy stdin."""
    text = "first\nsecond, without a newline: ü 漢"
    expect_equal((await host.run("cat", stdin=text)).stdout, text.encode(), "stdout of cat")


@ROOM.behaviour("A program without stdin finds its end at once")
async def empty_stdin(host: ContractHost) -> None:
    """Read stdin to its end."""
    done = await host.run("cat", wall_s=20.0)
    expect_equal((done.record.status, done.stdout), ("ok", b""), "status and stdout of cat")


@ROOM.behaviour("Environment arrives as it was given, with quotes and newlines")
async def environment(host: ContractHost) -> None:
    """Print a variable."""
    value = "a 'quoted' \"word\"\nand a line, $HOME, ü"
    script = "import os; os.write(1, os.fsencode(os.environ['GREETING']))"
    expect_equal((await host.python(script, env={"GREETING": value})).stdout, value.encode(), "the variable")


@ROOM.behaviour("Nothing of the host's own environment leaks in")
async def no_leaked_environment(host: ContractHost) -> None:
    """List the variables' names."""
    done = await host.python("import os; print(*os.environ)")
    known = {"_", "CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LC_CTYPE", "LOGNAME", "PATH", "PWD", "TMPDIR", "USER"}
    expect_equal(set(done.text.split()) - known, set(), "variables besides the fixed ones")


@ROOM.behaviour("Arguments arrive as they are: quotes, newlines, wildcards, nothing")
async def arguments(host: ContractHost) -> None:
    """Print the arguments as JSON."""
    given = ["$(id)", "`id`", "a'b", 'c"d', "e\nf", "; exit 3", "\\", "*", "~", "", "ü", "%s", "-rf", "--"]
    done = await host.python("import json, sys; print(json.dumps(sys.argv[1:]))", *given)
    expect_equal(json.loads(done.stdout or b"null"), given, "the arguments")


@ROOM.behaviour("A script of 200 kB runs")
async def long_script(host: ContractHost) -> None:
    """Run a script that no command line could hold."""
    script = b"n=0\n" + b"n=$((n + 1)); : 'padding'\n" * 8000 + b"echo $n\n"
    expect_equal((await host.run("sh", "long.sh", files={"long.sh": script})).stdout, b"8000\n", "its count")


@ROOM.behaviour("Two roles of one job speak over their link")
async def linked_roles(host: ContractHost) -> None:
    """Send a word from one role to the other, which answers."""
    link = "import os, socket; s = socket.socket(fileno=int(os.environ['LINK_%s'])); "
    ask = link % "HELPER" + "s.send(b'ping'); print(s.recv(9))"
    answer = link % "MAIN" + "s.recv(9); s.send(b'pong'); s.recv(9)"
    run = ("{python}", "-I", "-S", "-c")
    processes = (
        ProcessSpec(argv=(*run, ask), env=PATH),
        ProcessSpec(argv=(*run, answer), env=PATH, role="helper"),
    )
    done = await host.run(processes=processes, links=(("main", "helper"),))
    expect_equal((done.record.status, done.stdout), ("ok", b"b'pong'\n"), "status and answer")


@ROOM.behaviour("Fifty jobs at once share one channel")
async def fifty_at_once(host: ContractHost) -> None:
    """Run fifty jobs."""
    done = await asyncio.gather(*(host.sh(f"sleep 0.1; echo {n}") for n in range(AT_ONCE)))
    expect_equal([one.text for one in done], [f"{n}\n" for n in range(AT_ONCE)], "their output")
