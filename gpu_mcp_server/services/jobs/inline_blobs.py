"""Contents on their way: sent along with a job, or come along with its end and kept until somebody fetches them."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

ALONG_BYTES = 256 << 10
"""Of a job's outputs, the first that fit travel with its end: at a distance they cost no round trip of their own."""
KEPT_BYTES = 8 << 20
UNASKED_BYTES = 256 << 10
"""Sent along without knowing whether the host lacks them; before more the host is asked, which costs one round trip."""


class InlineBlobs:
    """Contents by hash; the oldest make room."""

    def __init__(self) -> None:
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, listed: Sequence[tuple[str, int]], data: bytes) -> None:
        """Keep what an answer brought: hash and size of each content, and all of them behind each other."""
        at = 0
        for sha256, size in listed:
            if sha256 not in self._contents:
                self._contents[sha256] = data[at : at + size]
                self._bytes += size
            at += size
        while self._bytes > KEPT_BYTES:
            _, oldest = self._contents.popitem(last=False)
            self._bytes -= len(oldest)

    def get(self, sha256: str) -> bytes | None:
        """Return a content that is kept."""
        return self._contents.get(sha256)


async def read_blob(blob: bytes | Path) -> bytes:
    """Return a content that is at hand or in a file."""
    return blob if isinstance(blob, bytes) else await asyncio.to_thread(blob.read_bytes)


async def blobs_to_send(blobs: Mapping[str, bytes | Path], wanted: Collection[str]) -> dict[str, bytes]:
    """Return the contents to send along with a job to a host that was not seen to have them; none if they are large."""
    unknown = {sha256: blobs[sha256] for sha256 in wanted if sha256 in blobs}
    sizes = [len(blob) if isinstance(blob, bytes) else blob.stat().st_size for blob in unknown.values()]
    return {s: await read_blob(blob) for s, blob in unknown.items()} if sum(sizes) <= UNASKED_BYTES else {}
