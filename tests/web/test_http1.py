"""Requests that two readers could read in two ways, over raw sockets: each is refused, and the connection ends."""

import asyncio
import json
from collections.abc import AsyncIterator

import h11
import pytest

from gpu_mcp_server.web.http1 import FIELD_BYTES, HEAD_BYTES, StrictConnection
from tests.web.site import PING, Served, served

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""What would be answered by itself if a request before it were taken for shorter than it is."""


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Served]:
    async with served(tokens=False) as site:
        yield site


async def answers(site: Served, *parts: bytes) -> bytes:
    """Send each part once the one before it has left, and return what comes until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(15):  # less than the server waits for a client that is silent
        got = await reader.read()
    writer.close()
    return got


REFUSED = {
    "both lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "both lengths, other order": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + NEXT,
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345" + NEXT,
    "two lengths in one": POST + b"Content-Length: 5, 6\r\n\r\n12345" + NEXT,
    "a signed length": POST + b"Content-Length: +5\r\n\r\n12345" + NEXT,
    "a length with a fraction": POST + b"Content-Length: 5.0\r\n\r\n12345" + NEXT,
    "an odd coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + NEXT,
    "codings in a row": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + NEXT,
    "a coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + NEXT,
    "a coding before HTTP/1.1": POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "bare LF in the request line": b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare LF in a field": GET + b"X-A: b\nX-B: c\r\n\r\n",
    "bare LF at the end": b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    "bare LF in the empty line": GET + b"\n",
    "bare LF before all": b"\n" + NEXT,
    "bare CR in a field": GET + b"X-A: b\rX-B: c\r\n\r\n",
    "bare CR in the request line": b"GET /healthz HTTP/1.1\r Host: localhost\r\n\r\n",
    "bare LF after a chunk's size": CHUNKED + b"5\n12345\r\n0\r\n\r\n",
    "bare LF after a chunk": CHUNKED + b"5\r\n12345\n0\r\n\r\n",
    "bare LF in a chunk's extension": CHUNKED + b"5;a\nb\r\n12345\r\n0\r\n\r\n",
    "bare CR in a chunk's extension": CHUNKED + b"5;a\rb\r\n12345\r\n0\r\n\r\n",
    "bare LF after the last chunk": CHUNKED + b"0\n\n" + NEXT,
    "bare LF in a trailer": CHUNKED + b"0\r\nX-A: b\n\r\n",
    "a folded trailer": CHUNKED + b"0\r\nX-A: b\r\n c\r\n\r\n",
    "a signed chunk size": CHUNKED + b"+5\r\n12345\r\n0\r\n\r\n",
    "a chunk size in 0x": CHUNKED + b"0x5\r\n12345\r\n0\r\n\r\n",
    "a folded field": GET + b"X-A: b\r\n c\r\n\r\n",
    "a field folded with a tab": GET + b"X-A: b\r\n\tc\r\n\r\n",
    "a fold at the start": b"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: elsewhere\r\n\r\n",
}
CONTROLS = [*(n for n in range(32) if n != 9), 127]


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused_and_hung_up_on(site: Served, request_bytes: bytes):
    got = await answers(site, request_bytes)

    assert got.startswith(b"HTTP/1.1 400 "), got
    assert b"connection: close\r\n" in got.lower() and got.count(b"HTTP/1.1 ") == 1, got


@pytest.mark.parametrize("number", CONTROLS)
async def test_control_characters_in_a_value_are_refused(site: Served, number: int):
    got = await answers(site, GET + b"X-A: b" + bytes([number]) + b"c\r\n\r\n")

    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1, got


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
def test_it_makes_no_difference_how_a_request_is_cut(request_bytes: bytes):
    connection = StrictConnection()
    with pytest.raises(h11.RemoteProtocolError):
        for at in range(len(request_bytes)):
            connection.receive_data(request_bytes[at : at + 1])
            while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                pass


def fields(count: int, size: int) -> bytes:
    """Return header fields of that many bytes each, with their line ends."""
    return b"".join(b"X-%02d: " % n + b"v" * (size - 8) + b"\r\n" for n in range(count))


async def test_a_field_of_16_kib_is_the_longest(site: Served):
    end = b"Connection: close\r\n\r\n"
    taken = await answers(site, GET + fields(1, FIELD_BYTES + 2) + end)
    refused = await answers(site, GET + fields(1, FIELD_BYTES + 3) + end)
    target = await answers(site, b"GET /" + b"a" * FIELD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n" + end)

    assert taken.startswith(b"HTTP/1.1 200 "), taken
    assert refused.startswith(b"HTTP/1.1 431 ") and b"connection: close" in refused.lower(), refused
    assert target.startswith(b"HTTP/1.1 431 "), target


async def test_a_head_of_64_kib_is_the_longest_whether_or_not_it_comes_at_once(site: Served):
    close = b"Connection: close\r\n"
    room = HEAD_BYTES - len(GET) - len(close) - 2
    just = GET + close + fields(4, room // 4 - 1) + b"X-Y: " + b"v" * (room - 4 * (room // 4 - 1) - 7) + b"\r\n\r\n"
    assert len(just) == HEAD_BYTES
    taken = await answers(site, just)
    refused = await answers(site, just[:-2], b"X: y\r\n\r\n")

    assert taken.startswith(b"HTTP/1.1 200 "), taken
    assert refused.startswith(b"HTTP/1.1 431 "), refused


async def test_trailers_and_extensions_of_chunks_have_the_same_limits(site: Served):
    extension = await answers(site, CHUNKED + b"1;" + b"a" * FIELD_BYTES)
    trailer = await answers(site, CHUNKED + b"0\r\n" + fields(1, FIELD_BYTES + 3) + b"\r\n")

    assert extension.startswith(b"HTTP/1.1 431 ") and trailer.startswith(b"HTTP/1.1 431 "), (extension, trailer)


async def test_what_is_clear_is_served_as_before(site: Served):
    close = b"Connection: close\r\n\r\n"
    tabbed = await answers(site, NEXT + GET + "X-A: a\tb é\r\n".encode("latin-1") + close)
    body = json.dumps(PING).encode()
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:]))
    session = (await site.session())["Mcp-Session-Id"].encode()
    accept = b"Mcp-Session-Id: %b\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\n" % session
    chunked = await answers(site, CHUNKED[:-2] + accept + b"\r\n" + chunks + b"0\r\nX-Trailer: c\r\n\r\n")
    upgrade = await answers(site, GET + b"Connection: close, upgrade\r\nUpgrade: websocket\r\n\r\n")

    assert tabbed.count(b"HTTP/1.1 200 ") == 2, tabbed
    assert chunked.startswith(b"HTTP/1.1 200 ") and b"evaluate_kernel" in chunked, chunked
    assert upgrade.startswith(b"HTTP/1.1 200 "), upgrade
