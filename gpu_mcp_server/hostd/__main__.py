"""Entry of hostd: `serve STATE` speaks frames over stdio; `probe STATE` prints what the host has.

`gate=IDLE_S STATE` holds an allocation of a batch system until it is idle, and `relay STATE` is the way into it.
`once FOLDER` runs the job of a folder as a batch job of its own. `broker FOLDER FD` is started by hostd itself.
"""

import json
import os
import sys
from typing import List, Optional


def _ignore(**handlers: object) -> None:
    """Register nothing."""


if "threading" not in sys.modules:
    # What threading and logging do after a fork is for children of processes with threads, and what random does for
    # who draws from it: neither is so here. They take half of the 0.8 ms of each of three forks before a job's start.
    os.register_at_fork = _ignore

from .gpus import broker_client  # noqa: E402

NO_STATE = 4


def default_state() -> str:
    """Return where jobs and blobs of this host lie."""
    if os.geteuid() == 0:
        return "/var/lib/gpu-mcp-server/hostd"
    return os.path.join(
        os.path.expanduser(os.environ.get("XDG_STATE_HOME", "~/.local/state")), "gpu-mcp-server", "hostd"
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one verb."""
    words = sys.argv[1:] if arguments is None else arguments
    verb = words[0] if words else "serve"
    state = words[1] if len(words) > 1 and words[1] else default_state()
    os.umask(0o022)
    if verb == broker_client.NAME:
        from .gpus import broker

        return broker.serve(words[1], int(words[2]))
    # Only now: a broker needs little of what hostd is, and hostd nothing of what a broker is.
    from .channel import allocation_server
    from .channel.channel_server import ChannelServer
    from .jobs import batch_task
    from .jobs.host_resources import Host
    from .probe import host_state
    from .sandbox import systemd_scope

    if verb == "relay" or verb.startswith("gate="):
        given = os.path.abspath(os.path.expanduser(words[1])) if len(words) > 1 and words[1] else ""
        return (
            allocation_server.relay_stdio(given)
            if verb == "relay"
            else allocation_server.serve_allocation(given, float(verb.partition("=")[2]))
        )
    if verb == "once":
        return batch_task.run_task(os.path.abspath(words[1]))
    if verb == "serve":
        systemd_scope.reexec_in_scope(systemd_scope.own_command())
    try:
        host = Host(os.path.abspath(os.path.expanduser(state)))
    except OSError as error:
        sys.stderr.write("the folder for jobs cannot be used: %s; set state_dir of this host to another\n" % error)
        return NO_STATE
    if verb == "probe":
        sys.stdout.write(
            json.dumps({**host_state.look_around(host, {}), **host_state.describe_gpus(host)}, indent=1) + "\n"
        )
        return 0
    if verb != "serve":
        sys.stderr.write("hostd: unknown verb %r; known: serve, probe\n" % verb)
        return 2
    return ChannelServer(host).run()


if __name__ == "__main__":
    sys.exit(main())
