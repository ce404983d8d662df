"""The process that holds sandboxes from their making to their job, whose supervisor it becomes, or to hostd's end."""

import json
import marshal
import os
import select
import socket
from typing import Any, Dict, List, Optional, Tuple

from ..files import file_trees
from ..files.read_only_trees import Shown
from ..jobs import launch, orphan_cleanup
from ..jobs.host_resources import Host
from ..jobs.job_folder import JobFolder
from ..jobs.job_workdir import JobWorkdir, PrewarmedParts
from ..jobs.owner_control import ControlLink
from ..jobs.role_process import RoleProcess, identities
from ..jobs.supervisor import Supervisor
from ..protocol import JobSpec, Limits, ProcessSpec
from ..sandbox import confinement, descriptors, keeper, sandbox_stub
from ..sandbox.confinement import SandboxSpec
from ..sandbox.mounts import Mounts
from .sandbox_template import SandboxTemplate, TemplateProcess, rehearse_claim, rehearse_record

MAX_MESSAGE_BYTES = 64 << 10
UNLIMITED = Limits(file_bytes=1 << 60, processes=1 << 20)
"""What a sandbox starts with; the launcher lowers it to the job's own."""

SPARE_UIDS = 8
"""With fewer free ones none is prewarmed: two evaluations and two other jobs take so many."""
UID_POLL_S = 1.0


def adoption_message(job_id: str, gpus: List[Dict[str, Any]]) -> bytes:
    """Return the message that goes with a job's lock: its id, and the host's GPUs if it wants any."""
    return json.dumps([job_id, gpus]).encode("ascii")


class PrewarmedSupervisor(PrewarmedParts):
    """One shape made real: a place, and for each part a role, a group and a sandbox whose inside only waits."""

    def __init__(self, host: Host, shape: SandboxTemplate, gpus: List[Dict[str, Any]], channel: socket.socket) -> None:
        self._host, self._shape, self._channel = host, shape, channel
        self._gpus = [g for g in gpus if g["uuid"] in shape.gpus]
        self.place = JobWorkdir(host, {name: name for name in shape.names()})
        self.roles = [RoleProcess(name) for name in shape.names()]
        token = os.urandom(8).hex()
        self.group_names = ["%s%s.%s" % (orphan_cleanup.WARM, token, name) for name in shape.names()]
        self.held = descriptors.DescriptorHolder()
        self._trees = Shown([], {}, [])
        self._nest: Optional[JobFolder] = None
        self._ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in shape.parts]
        self._preparing = {ours.fileno(): ours for ours, _ in self._ends}
        self._told = False

    def main(self) -> None:
        """Make the sandboxes, wait for a job, run it."""
        keeper.set_subreaper()
        self._nest = self._host.folders.create_prewarmed(self.cleanup_record())
        adopted = False
        try:
            self._make()
            self._rehearse()
            job = self._wait()
            if job is not None:
                adopted = True
                self._run(*job)
        finally:
            if not adopted:
                self._channel.close()  # first, so that no job is sent to one that only clears away by now
                self._remove()
            self._drop_nest()

    def _drop_nest(self) -> None:
        """Forget what must be cleared away: it is gone. A job's folder has said the same since it was adopted.

        Not before its end: a disk may take as long over a folder as the job runs.
        """
        if self._nest is not None:
            self._host.folders.drop_prewarmed(self._nest)
            self._nest = None

    def _make(self) -> None:
        host, shape = self._host, self._shape
        for role, name in zip(self.roles, self.group_names):
            role.group = host.group(name)
            role.keep([self.held.fileno()])
        self.place.make()
        self._wait_for_spare_uids()
        self.place.wait_for_uids({}, self._is_forsaken, lambda: (), lambda words: None)
        self.held.add(self.place.locks)
        mounts = Mounts(host.state)
        some_uid = self.place.uid_of(shape.names()[0])
        reached, roots = self.place.reach(mounts), mounts.visible_paths(shape.roots, some_uid)
        self._trees = host.trees.show(dict(shape.trees), mounts, some_uid, boxed=True)
        self.held.add(self._trees.locks)
        devices, gpu_env = host.gpu_view(self._gpus) if self._gpus else ([], {})
        for number, (part, role) in enumerate(zip(shape.parts, self.roles)):
            uid = self.place.uid_of(part.workspace)
            if role.group is not None:
                host.limit(role.group, Limits())  # what most jobs ask for; what differs is set when one comes
            if uid is not None:
                role.allow_uid(uid)
            shown = devices if part.gpu else []
            box = SandboxSpec(
                workdir=reached[part.workspace],
                roots=[*roots, *self._trees.pairs],
                devices=shown,
                limits=UNLIMITED._replace(tmp_bytes=shape.sizes[0], shm_bytes=shape.sizes[1]),
                uid=uid,
                groups=host.groups(shown),
                pids_by_cgroup=self._pids_by_group(role),
                mark=os.path.basename(self.place.workdirs[part.workspace]),
                mounts=mounts.namespace,
                info_fd=role.info_write,
            )
            self._spawn(part, role, box, {**dict(part.env), **self._trees.env, **(gpu_env if shown else {})}, number)

    def _wait_for_spare_uids(self) -> None:
        """Leave the last uids to jobs: wait until more are free, or hostd speaks or ends: a job may have come."""
        pause_s = 0.0
        while not select.select([self._channel], [], [], pause_s)[0]:
            free, pause_s = self._host.free_uids(), UID_POLL_S
            if free is None or free[0] >= SPARE_UIDS:
                return

    def _is_forsaken(self) -> bool:
        """Say whether hostd has gone, or wants it no more."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _spawn(
        self, part: TemplateProcess, role: RoleProcess, box: SandboxSpec, env: Dict[str, str], number: int
    ) -> None:
        host, inside = self._host, self._ends[number][1]
        argv = [*launch.interpreter(part.python, host), "-c", sandbox_stub.SOURCE, str(inside.fileno())]
        argv += [part.program] if part.program else []
        fds = (host.null, role.out_write, role.err_write)
        host.sandbox().spawn(argv, env, box, fds, [inside.fileno()], role.keeper)
        role.close_child_ends()
        inside.close()

    def _pids_by_group(self, role: RoleProcess) -> bool:
        return role.group is not None and "pids" in self._host.limits_by_cgroup

    def _wait(self) -> "Optional[Tuple[str, List[Dict[str, Any]], int]]":
        """Return the job's id, the host's GPUs and the descriptor of its lock; None when hostd or a sandbox has ended.

        A job may come before all is ready: it waits for the rest then, which is under way.
        """
        poll = select.poll()
        links = {ours.fileno(): ours for ours, _ in self._ends}
        for fd in (self._channel.fileno(), *links):
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd in links:
                    if not links[fd].recv(8):
                        return None
                    self._preparing.pop(fd, None)
                    if not self._preparing:
                        for each in self.roles:
                            each.read_info()
                        if self._nest is not None:
                            self._nest.update_notes(identities(self.roles))
                        self._channel.send(json.dumps(self.cleanup_record()).encode())
                        self._told = True
                    continue
                message, fds = descriptors.receive_with(self._channel, MAX_MESSAGE_BYTES, 1)
                if not message or not fds:
                    return None
                job_id, gpus = json.loads(message.decode("ascii"))
                return job_id, gpus, fds[0]

    def cleanup_record(self) -> Dict[str, Any]:
        """Return what must be cleared away should this process be killed."""
        return dict(self.place.cleanup_record(self._host, self.group_names), **identities(self.roles))

    def _run(self, job_id: str, gpus: List[Dict[str, Any]], life: int) -> None:
        folder = JobFolder(os.path.join(self._host.folders.root, job_id))
        folder.life = life
        spec = folder.spec()
        assert spec is not None
        if not self._told:
            folder.update_notes(dict(self.cleanup_record(), leader=spec.processes[0].role))
        Supervisor(self._host, folder, spec, self._channel, gpus, self).main()

    def _rehearse(self) -> None:
        """Do once for nothing what a job will wait for."""
        assert self._nest is not None
        self._nest.write_spec(rehearse_claim([part.program for part in self._shape.parts]))
        spec = self._nest.spec()
        assert spec is not None
        rehearse_record(spec)
        for process, part, role in zip(spec.processes, self._shape.parts, self.roles):
            for fd in self._command(spec, process._replace(workspace=part.workspace), role, []):
                os.close(fd)
            if role.group is not None:
                role.group.stats()

    def preparing(self) -> List[int]:
        """Hear which are ready by now, or have ended; return the descriptors of the rest."""
        for fd in select.select(list(self._preparing), [], [], 0.0)[0] if self._preparing else ():
            self._preparing.pop(fd).recv(8)
        return list(self._preparing)

    def start(self, spec: JobSpec) -> List[ControlLink]:
        """Give each of those that wait its command; return our ends of the trusted ones' links."""
        ends, controls = launch.make_links(spec, self.roles)
        for process, role, (ours, _) in zip(spec.processes, self.roles, self._ends):
            own = ends.get(process.role, [])
            fds = self._command(spec, process, role, [name for name, _ in own])
            descriptors.send_with(ours, b"go", [*fds, *(end.fileno() for _, end in own)])
            for fd in fds:
                os.close(fd)
            if self._told:
                ours.close()  # before that it has yet to say that it is ready
        launch.close_links(ends)
        return controls

    def _command(self, spec: JobSpec, process: ProcessSpec, role: RoleProcess, links: List[str]) -> List[int]:
        """Return descriptors of a command and of its stdin, which the job's uid can read."""
        uid = self.place.uid_of(process.workspace)
        box = SandboxSpec("", limits=spec.limits, uid=uid, pids_by_cgroup=self._pids_by_group(role))
        env = dict(confinement.environment(process.env), PWD="/job", **self._trees.env)
        env.update(self._host.gpu_view(self._gpus)[1] if self._gpus and process.gpu else {"CUDA_VISIBLE_DEVICES": ""})
        argv = list(process.argv) if process.program else launch.argv_of(process, self._host)
        command = {"argv": argv, "env": env, "rlimits": confinement.rlimits(box), "links": links}
        leads = process is spec.processes[0]
        stdin = launch.open_stdin(spec) if leads else os.dup(self._host.null)
        fds = [descriptors.memory_file("command", marshal.dumps(command, sandbox_stub.FORMAT)), stdin]
        for fd in fds[: 1 + leads] if uid is not None else ():
            os.fchown(fd, uid, uid)  # type: ignore[arg-type]
        return fds

    def _remove(self) -> None:
        for role in self.roles:
            role.kill()
        keeper.kill_descendants()  # bubblewrap's inner half outlives an outer one that is killed right after its fork
        for role in self.roles:
            role.close(UNLIMITED)
            role.clear()
        for workdir in self.place.paths():
            file_trees.remove(workdir)
