"""Words of host memory for which a stream of the GPU waits, and which it writes: the owner's side of gates."""

import time
from typing import Optional

from .memory_cpu import Region

PAGE_BYTES = 4096
FIRST, ENTERED, TIMED, END = 0, 64, 128, 192
"""Offsets, each on a cache line of its own. The stream waits for FIRST, writes ENTERED, waits for TIMED, runs the
calls, and writes END."""
WORDS = 1 << 32


class GateWords:
    """A page that the owner shares with one player.

    Each pass has a value of its own, larger than those before it. A gate is closed until its word has reached that
    value, as signed 32-bit difference. Source: CUDA driver API, CU_STREAM_WAIT_VALUE_GEQ. The player can write to the
    page too: if it opens a gate itself its calls see old inputs, and an early END is contradicted by the fence.
    """

    def __init__(self) -> None:
        self.page = Region(PAGE_BYTES, writable_by_others=True)
        # A memoryview of "I" stores an aligned 32-bit word at once; the GPU never sees half of one.
        self.words = memoryview(self.page.map).cast("I")
        self.first = self.last = 0

    @property
    def descriptor(self) -> int:
        """The page's memory file."""
        return self.page.fd

    def begin(self, gates: int) -> int:
        """Choose the values of a pass with so many timed gates; return the first one."""
        # Values wrap as the GPU's 32-bit comparison does, so words never need a reset between passes.
        self.first = (self.last + 1) % WORDS
        self.last = (self.last + gates) % WORDS
        return self.first

    def open(self, offset: int, number: int = 0) -> None:
        """Open the gate at a word for timed gate `number` of the pass and all before it."""
        self.words[offset // 4] = (self.first + number) % WORDS

    def open_all(self) -> None:
        """Let everything of the pass run."""
        for offset in (FIRST, TIMED):
            self.words[offset // 4] = self.last

    def wait(self, offset: int, number: int, limit_s: float) -> Optional[float]:
        """Wait for a word; return when it was there, on the clock of `time.perf_counter`, or None at the limit."""
        words, place = self.words, offset // 4
        wanted, half = (self.first + number) % WORDS, WORDS // 2
        deadline = time.perf_counter() + limit_s
        # Without a pause, so that the word is seen within a microsecond of its writing.
        while (words[place] - wanted) % WORDS >= half:
            # The deadline is checked only after a miss, so it delays no word that is there.
            if time.perf_counter() > deadline:
                return None
        return time.perf_counter()

    def close(self) -> None:
        """Give the page back."""
        self.words.release()
        self.page.close()
