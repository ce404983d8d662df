"""Starts the processes of a job, each in its sandbox, joined by the sockets that the job asks for."""

import os
import socket
from typing import Dict, List, Sequence, Tuple

from ..protocol import JobSpec, ProcessSpec
from ..sandbox import descriptors, sandbox_stub
from ..sandbox.confinement import BY_BUBBLEWRAP, SandboxSpec
from ..sandbox.mounts import Mounts
from .host_resources import Host
from .job_workdir import JobWorkdir
from .owner_control import ControlLink
from .role_process import RoleProcess

Ends = Dict[str, List[Tuple[str, socket.socket]]]


def roots_of(spec: JobSpec) -> List[str]:
    """Return the folders that must be shown besides the system's own."""
    return [r for r in spec.roots if os.path.isdir(r) and not (r + "/").startswith("/usr/")]


def interpreter(python: str, host: Host) -> List[str]:
    """Return what runs a program: an interpreter with what is installed for it, or ours with nothing but itself."""
    return [python, "-I", "-B"] if python else [host.python, "-I", "-S", "-E"]


def argv_of(process: ProcessSpec, host: Host) -> List[str]:
    """Return the arguments with our interpreter put in."""
    if process.program:
        # The source travels as an argument, so no file of ours must be reachable inside the sandbox.
        source = process.program + "\nimport sys\nmain(sys.argv[1:])\n"
        return [*interpreter(process.python, host), "-c", source, *process.argv[1:]]
    return [host.python if a == "{python}" else a for a in process.argv]


def open_stdin(spec: JobSpec) -> int:
    """Return a descriptor that gives a job's stdin."""
    return descriptors.memory_file("stdin", spec.stdin.encode("utf-8", "surrogateescape"))


def start(
    host: Host,
    spec: JobSpec,
    place: JobWorkdir,
    view: Tuple[List[str], Dict[str, str]],
    roles: List[RoleProcess],
    held: descriptors.DescriptorHolder,
) -> List[ControlLink]:
    """Start all processes and return the supervisor's ends of the trusted roles' links.

    Args:
        host: Where.
        spec: What.
        place: Made and laid.
        view: Device nodes and environment of the job's GPUs.
        roles: One for each process, in order, each with its keeper.
        held: What the keepers hold open as long as anything of their sandboxes lives.
    """
    devices, gpu_env = view
    mounts = Mounts(host.state)
    sandbox = host.sandbox()
    roots = roots_of(spec)
    some_uid = place.uid_of(spec.processes[0].workspace)
    pairs = mounts.visible_paths(roots, some_uid) if sandbox.is_isolated() else [(r, r) for r in roots]
    reached = place.reach(mounts)
    trees = host.trees.show(spec.trees, mounts, some_uid, sandbox.is_isolated())
    pairs += trees.pairs
    held.add(trees.locks)
    ends, links = make_links(spec, roles)
    stdin = open_stdin(spec)
    if some_uid is not None:
        # A program that opens /dev/stdin again goes through the file's permissions, not the descriptor's.
        os.fchown(stdin, some_uid, some_uid)
    for process, role in zip(spec.processes, roles):
        uid = place.uid_of(process.workspace)
        env = dict(process.env)
        # An empty value hides all GPUs; an unset one would show them.
        env.update(gpu_env if process.gpu else {"CUDA_VISIBLE_DEVICES": ""})
        own = ends.get(process.role, [])
        env.update({name: str(end.fileno()) for name, end in own})
        env.update(trees.env)
        box = SandboxSpec(
            workdir=reached[process.workspace],
            roots=pairs,
            devices=devices if process.gpu else [],
            limits=spec.limits,
            network=spec.network,
            uid=uid,
            groups=host.groups(devices if process.gpu else []),
            pids_by_cgroup=role.group is not None and "pids" in host.limits_by_cgroup,
            mark=os.path.basename(place.workdirs[process.workspace]),
            mounts=mounts.namespace,
            info_fd=role.info_write,
            alone=len(roles) == 1,
            profiler=process.profiled,
            counted=process.counted,
        )
        if uid is not None:
            role.allow_uid(uid)
        fds = (stdin if role is roles[0] else host.null, role.out_write, role.err_write)
        argv = argv_of(process, host)
        if box.writes_proc and sandbox.level in BY_BUBBLEWRAP:
            argv = [*interpreter("", host), "-c", sandbox_stub.WALLED, *argv]
        sandbox.spawn(argv, env, box, fds, [end.fileno() for _, end in own], role.keeper)
        role.close_child_ends()
    close_links(ends)
    os.close(stdin)
    return links


def make_links(spec: JobSpec, roles: Sequence[RoleProcess]) -> Tuple[Ends, List[ControlLink]]:
    """Return the ends of the links that each role gets, by the name of its variable, and our own ends."""
    ends: Ends = {}
    links: List[ControlLink] = []
    for one, other in spec.links:
        # SEQPACKET keeps message boundaries and still reports the peer's end, which datagrams do not.
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends.setdefault(one, []).append(("LINK_" + other.upper(), a))
        ends.setdefault(other, []).append(("LINK_" + one.upper(), b))
    for process in spec.processes:
        if process.trusted:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends.setdefault(process.role, []).append(("LINK_SUPERVISOR", theirs))
            # A trusted role gets requests served, not the right to signal: the supervisor alone holds pids.
            links.append(ControlLink(ours, list(roles), spec.limits.memory_bytes))
    return ends, links


def close_links(ends: Ends) -> None:
    """Close what the processes have got."""
    for own in ends.values():
        for _, end in own:
            end.close()
