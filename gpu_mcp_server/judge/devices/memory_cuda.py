"""Buffers on a GPU: the owner's allocations, exported as descriptors; its own kernels fill, poison, check and fence."""

from ctypes import c_double, c_int, c_int64, c_uint64
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..channel.supervisor_client import Player
from ..numerics.compare import STORAGE, relative_to
from ..numerics.random_inputs import LONG
from ..numerics.tensors import ALIGNMENT_BYTES, ITEM_BYTES, MADE, Array, Layout, Tensor
from .cuda_driver import Shared
from .device import Buffers, RoundCheck
from .memory_cpu import Region, poison_word
from .memory_cpu import share as share_file
from .owner_kernels import TYPES, Fence

DISTRIBUTIONS = {
    name: number
    for number, name in enumerate(["normal", "uniform", "offset", "outliers", "zeros", "large", "integers"])
}
DRAWN_HERE = ("bool", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")
"""Types that the GPU's kernel does not draw: they are made on the processor, as small numbers of any type are."""
COPIED_BYTES = 64
"""Of an output, behind each call that is kept apart from the next one."""


def share(where: Layout, memory: Shared) -> Dict[str, Any]:
    """Return a layout as a message."""
    return dict(share_file(where), bytes=memory.size)


class CudaBuffers(Buffers):
    """Inputs twice (the reference's, and the candidate's, filled at the last moment), outputs, expected outputs."""

    def __init__(self, device: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> None:
        super().__init__(device, inputs, outputs, sets)
        self.device, self.tools = device, device.tools
        self.stores_later = device.framework == "torch"
        driver = self.tools.driver
        self.staged = Shared.create(driver, self.input_layout.total)
        self.given = Shared.create(driver, self.input_layout.total)
        self.room = -(-self.output_layout.total // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        """Where, behind the outputs, bytes of answers are copied to."""
        self.copied_bytes: Dict[str, Any] = {}
        """What `separators` said in a round with copies behind its calls; in other rounds no call writes there."""
        self.got = Shared.create(driver, self.room + COPIED_BYTES * sets)
        self.expected = Shared.create(driver, self.expected_layout.total)
        self.files: List[Region] = []
        if device.framework == "numpy":
            self.files.append(Region(self.input_layout.total, writable_by_others=False))
            self.files.append(Region(self.expected_layout.total, writable_by_others=True))
        self.wrong = driver.allocate(8 * sets * len(outputs))
        rows = [
            [self._have(number), self.output_layout.stride, item.count, ITEM_BYTES[item.dtype], 0]
            for number, item in enumerate(self.outputs)
        ]
        self.fence = Fence(self.tools, rows, sets)
        self.guard_key = 0

    def _want(self, number: int) -> int:
        return self.expected.address + self.expected_layout.offsets[number]

    def _have(self, number: int) -> int:
        return self.got.address + self.output_layout.offsets[number]

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return layouts and descriptors for `role`: the candidate never gets the expected outputs."""
        if role == "candidate":
            fields = {"inputs": share(self.input_layout, self.given), "outputs": share(self.output_layout, self.got)}
            return fields, [self.given.descriptor, self.got.descriptor]
        if self.files:
            fields = {"inputs": share_file(self.input_layout), "outputs": share_file(self.expected_layout)}
            return fields, [self.files[0].fd, self.files[1].fd]
        fields = {
            "inputs": share(self.input_layout, self.staged),
            "outputs": share(self.expected_layout, self.expected),
        }
        return fields, [self.staged.descriptor, self.expected.descriptor]

    def _span(self, address: int, where: Layout, item: Tensor) -> List[Any]:
        return [c_uint64(address), c_int64(where.stride), c_int64(item.count), c_int64(self.sets)]

    def fill(self) -> None:
        """Draw fresh inputs where the candidate does not see them."""
        for number, item in enumerate(self.inputs):
            if item.distribution in MADE:
                continue
            if item.dtype in DRAWN_HERE or item.distribution == "small":
                drawn = np.empty((self.sets, item.count), dtype=STORAGE[item.dtype])
                self.well.fill(drawn, item.dtype, item.distribution)
                self.put_input(number, drawn)
                continue
            if item.distribution == "full" and item.dtype in LONG:
                item = replace(item, dtype="uint8", shape=(item.nbytes,))
            span = self._span(self.staged.address + self.input_layout.offsets[number], self.input_layout, item)
            kind = DISTRIBUTIONS.get(item.distribution, DISTRIBUTIONS["integers"])
            if item.dtype.startswith(("int", "uint")) and kind != DISTRIBUTIONS["zeros"]:
                kind = DISTRIBUTIONS["integers"]
            arguments = [*span, c_int(TYPES[item.dtype]), c_int(kind), c_uint64(self.well.word())]
            self.tools.kernels.launch("fill", item.count * self.sets // 4, arguments)
        self.tools.driver.synchronize()
        if not self.behind_gate:
            self.device.idleness.between()
        self._hand_over()

    def put_input(self, number: int, values: Array, first: int = 0) -> None:
        """Take over an input that was made elsewhere; rows that are one in memory travel once."""
        start, stride = self.staged.address + self.input_layout.offsets[number], self.input_layout.stride
        for call, one in enumerate(map(np.ascontiguousarray, values[: None if values.strides[0] else 1]), first):
            self.tools.driver.upload(start + call * stride, one.ctypes.data, one.nbytes)
        for call in range(first + 1, first + len(values)) if not values.strides[0] else ():
            self.tools.driver.copy(start + call * stride, start + first * stride, values[0].nbytes)
        self._hand_over()

    def _hand_over(self) -> None:
        """Take the inputs to a reference that runs on the CPU."""
        if self.files and not self.decoys:
            self.tools.driver.download(self.files[0].bytes.ctypes.data, self.staged.address, self.input_layout.total)

    def collect_expected(self) -> None:
        """Take the answers of a reference that runs on the CPU to the GPU."""
        if self.files:
            self.tools.driver.upload(self.expected.address, self.files[1].bytes.ctypes.data, self.expected_layout.total)

    def poison(self, words: Optional[Sequence[int]] = None) -> None:
        """Overwrite outputs and guards."""
        self.guard_key = self.well.word()
        for number, item in enumerate(self.outputs):
            size = ITEM_BYTES[item.dtype]
            drawn = poison_word(item.dtype, size, self.well.word())
            self.words[number] = drawn if words is None else words[number]
            span = self._span(self._have(number), self.output_layout, item)
            work = item.count * self.sets
            self.tools.kernels.launch("set_words", work, [*span, c_int(size), c_uint64(self.words[number])])
            for _, arguments, amount in self._guards(number, item):
                self.tools.kernels.launch("set_guard", amount, arguments)
        room, amount = self._room()
        self.tools.kernels.launch("set_guard", amount, room)
        self.tools.driver.synchronize()

    def _room(self) -> Tuple[List[Any], int]:
        size, start = COPIED_BYTES * self.sets, self.got.address + self.room
        return [c_uint64(start), c_int64(0), c_int64(size), c_int64(1), c_uint64(self.guard_key)], size

    def _guards(self, number: int, item: Tensor) -> List[Tuple[str, List[Any], int]]:
        size = self.output_layout.guard_bytes[number]
        found: List[Tuple[str, List[Any], int]] = []
        for side, start in (("before", self._have(number) - size), ("behind", self._have(number) + item.nbytes)):
            arguments = [c_uint64(start), c_int64(self.output_layout.stride), c_int64(size), c_int64(self.sets)]
            found.append((side, [*arguments, c_uint64(self.guard_key)], size * self.sets))
        return found

    def publish(self) -> None:
        """Copy the inputs to the candidate's, as the last thing before its clock starts."""
        # Positions are drawn per round and before the clock: a candidate that knew them could answer only those.
        self.fence.arm(self.well.word())
        self.tools.driver.copy(self.given.address, self.staged.address, self.input_layout.total)

    def stop(self, player: Player) -> None:
        """Stop the candidate's clock by the fence; the reference has waited for its own work."""
        if player.role == "candidate":
            self.fence.look()

    def check(self) -> RoundCheck:
        """Compare all outputs in full."""
        counters = self.sets * len(self.outputs)
        # Counters stay on the GPU: one download at the end replaces a wait for every output.
        self.tools.driver.call("cuMemsetD8_v2", self.wrong, 0, 8 * counters)
        self.tools.set_counters(self.tools.results, [0, 0])
        for number, item in enumerate(self.outputs):
            arguments = [c_uint64(self._want(number)), c_int64(self.expected_layout.stride)]
            arguments += self._span(self._have(number), self.output_layout, item)
            rtol = relative_to(item.dtype, self.device.rtol)
            arguments += [c_int(TYPES[item.dtype]), c_double(rtol), c_double(self.device.atol)]
            arguments += [c_uint64(self.wrong + 8 * self.sets * number), c_uint64(self.tools.results)]
            self.tools.kernels.launch("compare", item.count * self.sets, arguments)
        worst = np.array(self.tools.counters(self.tools.results, 2), dtype=np.uint64).view(np.float64)
        wrong = np.array(self.tools.counters(self.wrong, counters), dtype=np.int64)
        return RoundCheck(wrong.reshape(len(self.outputs), self.sets).T, float(worst[0]), float(worst[1]))

    def untouched(self) -> bool:
        """Say whether every output still holds this round's poison."""
        for number, item in enumerate(self.outputs):
            span = self._span(self._have(number), self.output_layout, item)
            arguments = [*span, c_int(ITEM_BYTES[item.dtype]), c_uint64(self.words[number])]
            if self.tools.count("count_touched", item.count * self.sets, arguments)[0]:
                return False
        return True

    def trespass(self) -> str:
        """Say what was written into the inputs or the guards."""
        words = self.input_layout.total // 8
        arguments = [c_uint64(self.staged.address), c_uint64(self.given.address), c_int64(words)]
        # Not every driver maps the inputs read-only for the candidate (`Shared.adopt`).
        changed = self.tools.count("count_differing", words, arguments)[0]
        if changed:
            return "changed its inputs: %d words of 8 bytes" % changed
        for number, item in enumerate(self.outputs):
            for side, guard, amount in self._guards(number, item):
                bad, call = self.tools.count("check_guard", amount, guard, (0, (1 << 64) - 1))
                if bad:
                    where = (bad, side, item.name, call + 1)
                    return "wrote outside its outputs: %d bytes %s output %s, first in call %d" % where
        room, amount = self._room()
        bad = 0 if self.copied_bytes else self.tools.count("check_guard", amount, room, (0, (1 << 64) - 1))[0]
        return "wrote outside its outputs: %d bytes behind all of them" % bad if bad else ""

    def pair(self, call: int, output: int) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output."""
        item = self.outputs[output]
        want, have = self._pair_at(call, output)
        return self.tools.elements(want, item), self.tools.elements(have, item)

    def elements_at(self, call: int, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output at `positions`."""
        dtype, (want, have) = self.outputs[output].dtype, self._pair_at(call, output)
        of_one = self.expected_layout._replace(sets=1)
        both = (self.tools.gather(address, of_one, dtype, positions)[0] for address in (want, have))
        return next(both), next(both)

    def wrong_places(
        self, call: int, output: int, tolerances: Tuple[float, float], part: float, most: int
    ) -> Tuple[int, Array]:
        """Count elements of one output that are beyond the tolerances, each with a chance; return positions as well."""
        item, (want, have) = self.outputs[output], self._pair_at(call, output)
        arguments = [c_uint64(want), c_uint64(have), c_int64(item.count), c_int(TYPES[item.dtype])]
        arguments += [c_double(relative_to(item.dtype, tolerances[0])), c_double(tolerances[1])]
        arguments += [c_uint64(self.well.word()), c_uint64(int(part * 2.0**32))]
        return self.tools.places("wrong_places", item.count, arguments, most)

    def _pair_at(self, call: int, output: int) -> Tuple[int, int]:
        """Return where what is expected of an output begins, and what is there."""
        want = self._want(output) + call * self.expected_layout.stride
        return want, self._have(output) + call * self.output_layout.stride

    def input_elements(self, number: int) -> Array:
        """Return an input of the first call."""
        return self.tools.elements(self.staged.address + self.input_layout.offsets[number], self.inputs[number])

    def pieces(self, number: int, calls: Array, first: int, count: int) -> Array:
        """Return elements of an input of the reference's."""
        at, dtype = self.staged.address + self.input_layout.offsets[number], self.inputs[number].dtype
        every = self.tools.gather(at, self.input_layout, dtype, np.arange(first, first + count, dtype=np.int64))
        some: Array = every[calls]
        return some

    def put_pieces(self, number: int, calls: Array, first: int, values: Array) -> None:
        """Give the reference other elements, where it runs on the CPU in its file too."""
        self._scatter(self.staged, number, calls, first, values)
        if self.files:
            every = self.files[0].tensor(self.input_layout, self.inputs[number], number)
            every[calls, first : first + values.shape[1]] = values

    def show_pieces(self, number: int, calls: Array, first: int, values: Array) -> None:
        """Give the candidate other elements, whether or not it runs."""
        self._scatter(self.given, number, calls, first, values)

    def _scatter(self, memory: Shared, number: int, calls: Array, first: int, values: Array) -> None:
        offset = self.input_layout.offsets[number] + first * ITEM_BYTES[self.inputs[number].dtype]
        self.tools.scatter(memory.address + offset, self.input_layout.stride, calls, values)

    def samples(self, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements at `positions`."""
        dtype = self.outputs[output].dtype
        want = self.tools.gather(self._want(output), self.expected_layout, dtype, positions)
        return want, self.tools.gather(self._have(output), self.output_layout, dtype, positions)

    def input_samples(self, number: int, positions: Array) -> Array:
        """Return elements at `positions` of an input of the first call."""
        at = self.staged.address + self.input_layout.offsets[number]
        return self.tools.gather(at, self.input_layout._replace(sets=1), self.inputs[number].dtype, positions)[0]

    def sound(self, call: int = 0) -> bool:
        """Say whether all that the reference expects of a call is finite."""
        for number, item in enumerate(self.outputs):
            want, _ = self._pair_at(call, number)
            one = [c_uint64(want), c_int64(0), c_int64(item.count), c_int64(1), c_int(TYPES[item.dtype])]
            if self.tools.count("count_unbounded", item.count, one)[0]:
                return False
        return True

    def separators(self, *, ahead: bool) -> Dict[str, Any]:
        """Choose bytes of each output; by turns they are copied behind calls."""
        sizes = [min(COPIED_BYTES, item.nbytes) for item in self.outputs]
        spans = [item.nbytes - size + 1 for item, size in zip(self.outputs, sizes)]
        # Offset and step are drawn, so a candidate cannot serve only the bytes that are copied.
        offset, step = (self.well.word() % max(spans) for _ in range(2))
        self.copied_bytes = {
            "ahead": ahead, "first": self.well.word() % len(self.outputs), "bytes": sizes, "spans": spans,
            "offset": offset, "step": step, "calls": self.sets - ahead, "slot": COPIED_BYTES, "room": self.room,
        }  # fmt: skip
        return self.copied_bytes

    def misplaced(self) -> List[Tuple[int, int]]:
        """Return call and output wherever something else was copied than is there, or than the poison of the next."""
        asked, self.copied_bytes = self.copied_bytes, {}
        count, first, offset, step = (int(asked[name]) for name in ("calls", "first", "offset", "step"))
        copied = np.empty((count, COPIED_BYTES), dtype=np.uint8)
        self.tools.driver.download(copied.ctypes.data, self.got.address + self.room, copied.nbytes)
        found: List[Tuple[int, int]] = []
        for output, (size, span) in enumerate(zip(asked["bytes"], asked["spans"])):
            calls = np.arange((output - first) % len(self.outputs), count, len(self.outputs))
            if not calls.size:
                continue
            places = ((offset + calls * step) % int(span))[:, None] + np.arange(int(size))[None, :]
            right = self._poisoned(output, places) if asked["ahead"] else self._there(output, calls, places)
            wrong = calls[(copied[calls, :size] != right).any(axis=1)]
            found += [(call, output) for call in wrong.tolist()]
        return sorted(found)

    def _poisoned(self, output: int, places: Array) -> Array:
        """Return the poison at bytes of an output."""
        width = ITEM_BYTES[self.outputs[output].dtype]
        word = (self.words[output] % (1 << 8 * width)).to_bytes(width, "little")
        return np.frombuffer(word, dtype=np.uint8)[places % width]

    def _there(self, output: int, calls: Array, places: Array) -> Array:
        """Return what is at bytes of an output, of each call at its own."""
        flat = np.ravel(calls[:, None] * self.output_layout.stride + places)
        of_one = self.output_layout._replace(sets=1)
        return self.tools.gather(self._have(output), of_one, "uint8", flat).reshape(places.shape)

    def close(self) -> None:
        """Free everything."""
        self.tools.driver.synchronize()
        for memory in (self.staged, self.given, self.got, self.expected):
            memory.close()
        for file in self.files:
            file.close()
        self.tools.driver.free(self.wrong)
        self.fence.close()
