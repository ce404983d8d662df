"""A packet link between two of the judge's processes: JSON objects over `SOCK_SEQPACKET`, with descriptors."""

import array
import json
import os
import select
import socket
import time
import zlib
from typing import Any, Dict, Generator, List, Optional, Sequence, Tuple, cast

MAX_PACKET_BYTES = 64 << 10
PACKED_FROM_BYTES = 16 << 10
MAX_MESSAGE_BYTES = 2 << 20
"""Unpacked. A model with a thousand weights is told of in 150 kB, which pack to 10."""
PACKED = b"z"
"""Before what is packed; a JSON object begins with a brace."""
MAX_DESCRIPTORS = 8
SPIN_S = 0.1


class LinkClosed(Exception):
    """The other end is gone."""


class LinkGarbage(Exception):
    """The other end sent something that is not a message."""


class LinkTimeout(Exception):
    """No packet came in time."""


def unpacked(data: bytes) -> bytes:
    """Return a packet's text.

    Raises:
        LinkGarbage: If it is packed and cannot be unpacked into `MAX_MESSAGE_BYTES`.
    """
    if not data.startswith(PACKED):
        return data
    opener = zlib.decompressobj()
    try:
        # With a limit: the sender may be the candidate, and a small packet can unpack to gigabytes.
        text = opener.decompress(data[1:], MAX_MESSAGE_BYTES)
    except zlib.error:
        raise LinkGarbage("a packet that cannot be unpacked: %r" % data[:40]) from None
    if not opener.eof:
        raise LinkGarbage("a packet of more than %d bytes, unpacked" % MAX_MESSAGE_BYTES)
    return text


class Link:
    """One end of a link."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.spins = False
        """Whether to wait without sleeping: a core that has to be woken answers a tenth of a millisecond later."""

    @classmethod
    def from_environment(cls, other: str) -> "Link":
        """Return the link to role `other` of this job."""
        return cls(socket.socket(fileno=int(os.environ["LINK_" + other.upper()])))

    def send(self, message: Dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message.

        Raises:
            LinkClosed: If the other end is gone.
        """
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        data = json.dumps(message).encode()
        if len(data) > PACKED_FROM_BYTES:
            # Sockets limit a packet by their send buffer, so long messages are packed instead of split.
            data = PACKED + zlib.compress(data)
        try:
            self.socket.sendmsg([data], ancillary)
        except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError, OSError) as error:
            raise LinkClosed(str(error)) from None

    def pending(self, timeout_s: float = 0.0) -> bool:
        """Say whether a packet, or the end, is waiting to be read, or is before so much time has passed."""
        return bool(select.select([self.socket], [], [], timeout_s)[0])

    def receive(self, timeout_s: Optional[float]) -> Dict[str, Any]:
        """Return the next message; descriptors that came with it are dropped.

        Raises:
            LinkClosed: At the end of the link.
            LinkGarbage: If the packet is no JSON object, or too long.
            LinkTimeout: If nothing came in `timeout_s` seconds.
        """
        return self._receive(timeout_s, 0)[0]

    def receive_with_descriptors(self, timeout_s: Optional[float]) -> Tuple[Dict[str, Any], List[int]]:
        """Return the next message and its descriptors; raises as `receive` does."""
        return self._receive(timeout_s, MAX_DESCRIPTORS)

    def requests(self) -> Generator[Tuple[Dict[str, Any], List[int]], None, None]:
        """Yield messages and their descriptors until the other end is gone."""
        while True:
            try:
                found = self.receive_with_descriptors(None)
            except LinkClosed:
                return
            yield found

    def _wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + min(timeout_s, SPIN_S) if self.spins else 0.0
        while self.spins and time.monotonic() < deadline:
            if self.pending():
                return True
        return self.pending(timeout_s)

    def _receive(self, timeout_s: Optional[float], descriptors: int) -> Tuple[Dict[str, Any], List[int]]:
        if timeout_s is not None and not self._wait(max(0.0, timeout_s)):
            raise LinkTimeout("nothing in %.1f s" % timeout_s)
        room = socket.CMSG_SPACE(descriptors * 4) if descriptors else 0
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except (ConnectionResetError, OSError) as error:
            raise LinkClosed(str(error)) from None
        got = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                # Truncated ancillary data may end within a number.
                got.frombytes(payload[: len(payload) // 4 * 4])
        if not data:
            raise LinkClosed("end of the link")
        # SEQPACKET drops the rest of a packet that is too long, and this flag alone tells of it.
        if flags & socket.MSG_TRUNC:
            raise LinkGarbage("a packet of more than %d bytes" % MAX_PACKET_BYTES)
        try:
            message: Any = json.loads(unpacked(data).decode("utf-8"))
        except (ValueError, RecursionError):
            raise LinkGarbage("a packet that is no JSON: %r" % data[:40]) from None
        if not isinstance(message, dict):
            raise LinkGarbage("a packet that is no JSON object: %r" % data[:40])
        return cast("Dict[str, Any]", message), list(got)
