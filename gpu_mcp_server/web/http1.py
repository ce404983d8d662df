"""Reads HTTP/1.1 as its standard has it: what two readers could take for two different requests is refused.

h11 by itself takes lines that end with a bare LF, folded lines, control characters in values, and Content-Length beside
Transfer-Encoding. A proxy that reads one of these otherwise lets one client's request pass for another's.
Source: RFC 9112, sections 2.2, 5.2, 6.1, 6.3, 7.1; RFC 9110, sections 5.5, 8.6.
"""

import re

import h11
from h11._receivebuffer import ReceiveBuffer

HEAD_BYTES = 64 << 10
"""Of a request line with its header fields, and of a body's trailer fields."""
FIELD_BYTES = 16 << 10
"""Of one line of these, and of the line before a chunk."""

UNCLEAR = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""A bare LF, a bare CR, and control characters other than the tab."""
TOO_LARGE = 431


class LineBuffer(ReceiveBuffer):
    """Buffer of bytes received and not read yet; its lines end with CR LF and hold no control characters."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Take the lines up to an empty one, once that has come.

        Raises:
            h11.LocalProtocolError: If a line is unclear, folded or too long, or all together are too long.
        """
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        start = max(0, self._multiple_lines_search - 3)
        found = self._data.find(b"\r\n\r\n", start)
        end = len(self._data) if found < 0 else found + 4
        self._check_clear(start, end)
        if end > HEAD_BYTES:
            raise h11.LocalProtocolError("request head too large", error_status_hint=TOO_LARGE)
        if found < 0:
            self._multiple_lines_search = end
            return None
        lines = self._extract(end)[:-4].split(b"\r\n")
        for line in lines:
            if len(line) > FIELD_BYTES:
                raise h11.LocalProtocolError("line of the request head too long", error_status_hint=TOO_LARGE)
            if line.startswith((b" ", b"\t")):
                raise h11.LocalProtocolError("folded or empty line in the request head")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Take the line before a chunk with its end, once that has come.

        Raises:
            h11.LocalProtocolError: If it is unclear or too long.
        """
        start = max(0, self._next_line_search - 1)
        found = self._data.find(b"\r\n", start)
        end = len(self._data) if found < 0 else found + 2
        self._check_clear(start, end)
        if end > FIELD_BYTES:
            raise h11.LocalProtocolError("line before a chunk too long", error_status_hint=TOO_LARGE)
        if found < 0:
            self._next_line_search = end
            return None
        return self._extract(end)

    def _check_clear(self, start: int, end: int) -> None:
        unclear = UNCLEAR.search(self._data, start, end)
        if unclear is not None:
            raise h11.LocalProtocolError(f"bare line end or control character {bytes(unclear[0])!r}")


class StrictConnection(h11.Connection):
    """A server's side of a connection that refuses what is unclear.

    Attributes:
        refusal: Status of the answer to what could not be read.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self._receive_buffer = LineBuffer()
        self.refusal = 400

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what came next.

        Raises:
            h11.RemoteProtocolError: If it cannot be read, or its length could be read in two ways.
        """
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = error.error_status_hint if error.error_status_hint < 500 else 400
            raise
        if isinstance(event, h11.Request):
            _check_length(event)
        return event


def _check_length(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    coded = b"transfer-encoding" in names
    if coded and b"content-length" in names:
        raise h11.RemoteProtocolError("Content-Length beside Transfer-Encoding")
    if coded and request.http_version < b"1.1":
        raise h11.RemoteProtocolError("Transfer-Encoding before HTTP/1.1")
