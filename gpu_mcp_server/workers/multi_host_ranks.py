"""Starts the ranks of this host as one group of several, each on a host of its own, once all groups have met.

Laid into each host's job beside `rank_launcher.py`: `multi_host_ranks.py PLAN`. The group of rank 0 listens, the others
look for it at every address that its host has, so what works is found and not configured. Both ends prove that they
know the job's token. The line stays open: the first group that fails ends all, and so does a host that is lost.
Launcher `mpirun` runs once, with rank 0, and starts its daemons on the other hosts over our line: `multi_host_ranks.py
agent` stands for ssh.

Source: environment variables of NCCL and Gloo that name an interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), from
their documentation; netdevice(7) for SIOCGIFADDR; parameters plm_rsh_agent, oob_tcp_if_include, btl_tcp_if_include of
Open MPI 4.1 (ompi_info).
"""

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

NOT_MET = 75
"""Exit code when the groups did not meet. Source: EX_TEMPFAIL of sysexits.h."""
LOST = 76
GRACE_S = 1.0
"""For the other groups to end by themselves when one has failed, after the grace that it gave its own ranks."""
TRY_S = 1.0
LINE_BYTES = 4096
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
AGENT = ".gpu-mcp/agent"
"""Socket of the first group, for mpirun's agents."""
PYTHON = ".gpu-mcp/python"
"""A link to each host's own interpreter, so that one command fits all."""


def say(text: str) -> None:
    """Tell who started the job."""
    sys.stderr.write("ranks: %s\n" % text)
    sys.stderr.flush()


def mac(token: str, *words: object) -> str:
    """Return the proof that one knows the token."""
    return hmac.new(token.encode(), json.dumps(words).encode(), hashlib.sha256).hexdigest()


class JsonSocket:
    """One JSON object a line over a socket."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self._buffer = link, b""
        link.settimeout(TRY_S * 5)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        """Return what to wait on."""
        return self.link.fileno()

    def send(self, **message: Any) -> None:
        """Send one message."""
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Optional[Dict[str, Any]]:
        """Return the next message; None at the end of the line, or when it is none of ours."""
        while b"\n" not in self._buffer:
            try:
                chunk = self.link.recv(LINE_BYTES)
            except OSError:
                return None
            self._buffer += chunk
            if not chunk or len(self._buffer) > LINE_BYTES:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message: Any = json.loads(line.decode("ascii"))
        except ValueError:
            return None
        return message if isinstance(message, dict) else None  # pyright: ignore[reportUnknownVariableType]


def listener(ports: List[int]) -> socket.socket:
    """Listen on the first port that is free.

    Raises:
        SystemExit: If none is.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    for port in ports:
        with contextlib.suppress(OSError):
            both = family == socket.AF_INET6
            return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=64)
    say("none of the ports %s is free on the host of rank 0" % ports)
    raise SystemExit(NOT_MET)


def connect_groups(plan: Dict[str, Any], door: socket.socket, until: float) -> Dict[int, JsonSocket]:
    """Return the lines to all other groups.

    Raises:
        SystemExit: If one never comes.
    """
    lines: Dict[int, JsonSocket] = {}
    while len(lines) < plan["groups"] - 1:
        door.settimeout(max(0.01, until - time.monotonic()))
        try:
            link, _ = door.accept()
        except OSError:
            absent = [n for g, n in enumerate(plan["hosts"]) if g and g not in lines]
            say("never came within %g s: %s" % (plan["patience_s"], ", ".join(absent)))
            raise SystemExit(NOT_MET) from None
        line, nonce = JsonSocket(link), os.urandom(16).hex()
        with contextlib.suppress(OSError, ValueError, TypeError):
            line.send(nonce=nonce)
            answer = line.receive() or {}
            group, proof = int(answer.get("group") or 0), str(answer.get("mac"))
            known = 0 < group < plan["groups"] and group not in lines
            if known and hmac.compare_digest(proof, mac(plan["token"], "member", nonce, group)):
                line.send(mac=mac(plan["token"], "head", nonce, group))
                lines[group] = line
                continue
        link.close()
    return lines


def connect_to_head(plan: Dict[str, Any], until: float) -> JsonSocket:
    """Return the line to the group of rank 0.

    Raises:
        SystemExit: If it cannot be found.
    """
    while time.monotonic() < until:
        for address in plan["addresses"]:
            for port in plan["ports"]:
                try:
                    line = _tried(plan, address, port)
                except socket.timeout:
                    break  # nobody is there at all
                if line is not None:
                    return line
        time.sleep(0.1)
    say(
        "the host of rank 0, %s, was not found within %g s at %s, ports %s: set ranks_address of that host"
        % (plan["hosts"][0], plan["patience_s"], ", ".join(plan["addresses"]), plan["ports"])
    )
    raise SystemExit(NOT_MET)


def _tried(plan: Dict[str, Any], address: str, port: int) -> Optional[JsonSocket]:
    try:
        line = JsonSocket(socket.create_connection((address, port), timeout=TRY_S))
        nonce = str((line.receive() or {}).get("nonce"))
        line.send(group=plan["group"], mac=mac(plan["token"], "member", nonce, plan["group"]))
        proof = str((line.receive() or {}).get("mac"))
    except socket.timeout:
        raise
    except OSError:
        return None
    if hmac.compare_digest(proof, mac(plan["token"], "head", nonce, plan["group"])):
        return line
    line.link.close()
    return None


def own_address(line: JsonSocket) -> str:
    """Return the address of this end of a line."""
    return str(line.link.getsockname()[0]).replace("::ffff:", "")


def interface_of(address: str) -> str:
    """Return the interface that has an address; empty when it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    try:
        wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            return next((row.split()[5] for row in table if row.startswith(wanted)), "")
    except OSError:
        return ""


def environment(address: str, port: int, mine: str) -> Dict[str, str]:
    """Return the environment of this group's ranks.

    Args:
        address: Where rank 0 is reached from here.
        port: Its port for the rendezvous.
        mine: Address of this host on the same network.
    """
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    interface = interface_of(mine)
    if interface:
        found.update(NCCL_SOCKET_IFNAME="=" + interface, GLOO_SOCKET_IFNAME=interface)
    return {**found, **{name: os.environ[name] for name in found if name in os.environ}}


def start_ranks(plan: Dict[str, Any], env: Dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the ranks of this host."""
    command = [sys.executable, "-I", "-S", "-E", plan["program"], "start", json.dumps(plan["ranks"])]
    return subprocess.Popen(command, env=dict(os.environ, **env))


def network_of(interface: str) -> str:
    """Return an interface's IPv4 network, as 10.1.0.0/16."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        words = struct.pack("256s", interface.encode()[:15])
        address, mask = (
            struct.unpack("!I", fcntl.ioctl(asking.fileno(), what, words)[20:24])[0]
            for what in (SIOCGIFADDR, SIOCGIFNETMASK)
        )
    return "%s/%d" % (socket.inet_ntoa(struct.pack("!I", address & mask)), bin(mask).count("1"))


def for_mpi(plan: Dict[str, Any], mine: str) -> Dict[str, str]:
    """Prepare this host for mpirun's ranks; return mpirun's environment.

    Args:
        plan: Completed: mpirun's hosts by names of ours, which nobody resolves.
        mine: Address of this host on the network of all.
    """
    os.makedirs(plan["ranks"]["folder"], exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.symlink(sys.executable, PYTHON)
    ranks, names = plan["ranks"], [os.uname().nodename] + ["group%d" % g for g in range(1, plan["groups"])]
    ranks.update(python=os.path.abspath(PYTHON), places=",".join("%s:%d" % (n, ranks["count"]) for n in names))
    ranks["count"] *= plan["groups"]
    interface = interface_of(mine)
    found = {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": "%s %s agent" % (os.path.abspath(PYTHON), os.path.abspath(__file__)),
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PMIX_MCA_gds": "hash",  # as in rank_launcher.py, for the daemons on other hosts
        "HWLOC_HIDE_ERRORS": "2",
    }
    if interface:
        found.update(
            dict.fromkeys(("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include"), network_of(interface))
        )
    return found


def agent(arguments: List[str]) -> int:
    """Be mpirun's remote shell: have the first group pass the line on, and end as it has ended there."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(AGENT)
        line = JsonSocket(link)
        link.settimeout(None)
        line.send(group=int(arguments[0][len("group") :]), line=" ".join(arguments[1:]))
        return int((line.receive() or {}).get("ended", LOST))


class MpirunAgents:
    """The first group's end of mpirun's agents."""

    def __init__(self) -> None:
        self.door = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(AGENT)
        self.door.bind(AGENT)
        self.door.listen(64)
        self._waiting: Dict[int, JsonSocket] = {}

    def fileno(self) -> int:
        """Return what to wait on."""
        return self.door.fileno()

    def pass_on(self, lines: Dict[int, JsonSocket]) -> None:
        """Take what an agent asks for to its group."""
        line = JsonSocket(self.door.accept()[0])
        asked = line.receive() or {}
        self._waiting[asked["group"]] = line
        lines[asked["group"]].send(spawn=asked["line"])

    def answer(self, group: int, code: int) -> None:
        """Tell an agent how its line ended."""
        self._waiting.pop(group).send(ended=code)


def free_port() -> int:
    """Return a TCP port that nobody listens on now, at any address."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def head(plan: Dict[str, Any]) -> int:
    """Be the group of rank 0: bring all together, and end all when one fails."""
    until = time.monotonic() + plan["patience_s"]
    with listener(plan["ports"]) as door:
        lines = connect_groups(plan, door, until)
    port = free_port()
    for line in lines.values():
        line.send(port=port)
    first = own_address(next(iter(lines.values())))
    env = environment(first, port, first)
    agents = MpirunAgents() if plan["ranks"]["launcher"] == "mpirun" else None
    process = start_ranks(plan, {**env, **for_mpi(plan, first)} if agents else env)
    codes: Dict[int, int] = {}
    until = time.monotonic() + plan["limit_s"]
    failed_at = 0.0
    while len(codes) <= len(lines) and time.monotonic() < until:
        code, heard = _looked(process, {g: line for g, line in lines.items() if g not in codes}, 0 not in codes, agents)
        codes.update({0: code} if code is not None else {})
        if agents and code is not None:
            break  # the others only wait for mpirun
        for group, message in heard:
            if agents and message and "spawned" in message:
                agents.answer(group, int(message["spawned"]))
                continue
            codes[group] = LOST if message is None else int(message.get("ended", LOST))
            if message is None:
                say("host %s was lost" % plan["hosts"][group])
        failed_at = failed_at or (time.monotonic() if any(codes.values()) else 0.0)
        if failed_at and time.monotonic() > failed_at + GRACE_S:
            break
    bad = next((c for _, c in sorted(codes.items()) if c), 0)
    for line in lines.values():
        with contextlib.suppress(OSError):
            line.send(over=bad)
    if process.poll() is None:
        process.terminate()
    return bad if bad or 0 in codes else 124


def member(plan: Dict[str, Any]) -> int:
    """Be another group: find the one of rank 0, and end when it says so or is lost."""
    line = connect_to_head(plan, time.monotonic() + plan["patience_s"])
    line.link.settimeout(plan["patience_s"])  # others may still be on their way
    go = line.receive()
    if go is None:
        say("the other hosts did not come together")
        return NOT_MET
    env = environment(str(line.link.getpeername()[0]), int(go["port"]), own_address(line))
    if plan["ranks"]["launcher"] == "mpirun":
        return _spawning(plan, line, env)
    process = start_ranks(plan, env)
    ended: Optional[int] = None
    while True:
        code, heard = _looked(process, {0: line}, ended is None)
        if code is not None:
            ended = code
            with contextlib.suppress(OSError):
                line.send(ended=code)
        if heard:
            break
    if ended is None:
        process.terminate()
        say("ended with the others" if heard[0][1] is not None else "the host of rank 0 was lost")
    return LOST if ended is None else ended


def _spawning(plan: Dict[str, Any], line: JsonSocket, env: Dict[str, str]) -> int:
    """Start what mpirun asks for, until it is over."""
    env = {**env, **for_mpi(plan, own_address(line))}
    line.link.settimeout(None)
    while True:
        message = line.receive()
        if message is None or "over" in message:
            return int(message["over"]) if message else LOST
        command = ["/bin/sh", "-c", message["spawn"]]
        done = subprocess.run(command, env=dict(os.environ, **env), stdin=subprocess.DEVNULL, check=False)
        line.send(spawned=done.returncode)


def _looked(
    process: "subprocess.Popen[bytes]", lines: Dict[int, JsonSocket], runs: bool, agents: Optional[MpirunAgents] = None
) -> Tuple[Optional[int], List[Tuple[int, Optional[Dict[str, Any]]]]]:
    """Wait a moment; return how the process has ended since, and what came over which line."""
    watched: List[Any] = [*lines.values(), *([agents] if agents else [])]
    ready, _, _ = select.select(watched, [], [], 0.05)
    if agents is not None and agents in ready:
        agents.pass_on(lines)
    heard = [(group, line.receive()) for group, line in lines.items() if line in ready]
    code = process.poll() if runs else None
    return (None if code is None else code if code >= 0 else 128 - code), heard


def main(arguments: List[str]) -> None:
    """Be the group that the plan says, or mpirun's agent."""
    if arguments[0] == "agent":
        sys.exit(agent(arguments[1:]))
    plan: Dict[str, Any] = json.loads(arguments[0])
    sys.exit(member(plan) if plan["group"] else head(plan))


if __name__ == "__main__":
    main(sys.argv[1:])
