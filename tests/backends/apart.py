"""Two hosts of a network of their own: an sshd in each of two network namespaces, which a bridge connects."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from tests.backends.sshd import SSHD, Sshd
from tests.laboratory import Folder


def ip(*words: str) -> None:
    """Run iproute2's ip."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_apart(tag: str, net: str) -> Generator[list[Sshd]]:
    """Yield the two; their interfaces are `TAG-in0` and `TAG-in1`, their ends of the bridge `TAG-out0` and `TAG-out1`.

    Args:
        tag: Short, and of this test alone: namespaces have names that all of the machine sees.
        net: The first three numbers of a network that is nobody's.
    """
    if os.geteuid() or not SSHD or shutil.which("ip") is None:
        pytest.skip("needs root, sshd and iproute2")
    with ExitStack() as stack:
        addresses = [f"{net}.{number}" for number in (2, 3)]
        try:
            ip("link", "add", f"{tag}-bridge", "type", "bridge")
            stack.callback(ip, "link", "del", f"{tag}-bridge")
            ip("addr", "add", f"{net}.1/24", "dev", f"{tag}-bridge")
            ip("link", "set", f"{tag}-bridge", "up")
            for number, address in enumerate(addresses):
                space, ours, theirs = f"{tag}-{number}", f"{tag}-out{number}", f"{tag}-in{number}"
                ip("netns", "add", space)
                stack.callback(ip, "netns", "del", space)
                ip(
                    "link",
                    "add",
                    ours,
                    "master",
                    f"{tag}-bridge",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    theirs,
                    "netns",
                    space,
                )
                ip("link", "set", ours, "up")
                for words in (["addr", "add", f"{address}/24", "dev", theirs], ["link", "set", theirs, "up"]):
                    ip("-n", space, *words)
                ip("-n", space, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr!r}")
        found: list[Sshd] = []
        for number, address in enumerate(addresses):
            folder = stack.enter_context(Folder())
            found.append(Sshd(folder, address=address, namespace=f"{tag}-{number}"))
            stack.callback(found[-1].stop)
        yield found


def lose(tag: str, number: int, share: float) -> bool:
    """Let a host lose some of what it is sent, at random; False where iptables cannot."""
    rule = ["iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"]
    done = subprocess.run(["ip", "netns", "exec", f"{tag}-{number}", *rule], capture_output=True, check=False)
    return done.returncode == 0
