"""Calls that are kept apart by copies on the stream that they are given."""

import ctypes

import pytest
from gpu_mcp_judge.candidate import call_loop, stream_copies

from tests.judge.harness import loops
from tests.judge_package import JUDGE

US = 1e-6


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_each_call_is_followed_by_a_copy_of_its_answer(monkeypatch, compiled):
    monkeypatch.setattr(call_loop, "LOOP", str(loops("calls.c") if compiled else JUDGE / "none.so"))
    answers, copies = (ctypes.c_int64 * 12)(), (ctypes.c_int32 * 6)()
    order = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    def launch(at, value):
        order.append(value)
        ctypes.c_int64.from_address(at).value = value
        return 0

    def copy(to, at, size, stream):
        order.append("copy")
        assert stream is None
        ctypes.memmove(to, at, size)
        return 4 if len(order) == 2 else 0

    start = ctypes.addressof(answers)
    values = [0x0807060504030201 + 0x1000000000000 * number for number in range(6)]
    rows = [[start + 16 * number, value] for number, value in enumerate(values)]
    numbers = {"outputs": 2, "first": 1, "stride": 16, "slot": 4, "offset": 3, "step": 2, "count": 5, "code": 0}
    of_each = ((ctypes.c_int64 * 2)(*each) for each in ([start + 1, start], [2, 4], [4, 5]))
    behind = stream_copies.Separators(stream_copies.Copy(copy), ctypes.addressof(copies), *of_each, *numbers.values())
    made = call_loop.Calls(call_loop.loop_or_why(), launch, rows)

    assert (made.loop is not None) == compiled
    assert made.make(6, 0, behind) == {}
    shifts, sizes = [3, 1 + 1, 2, 1 + 1, 1], [4, 2, 4, 2, 4]
    taken = [
        value >> 8 * shift & (1 << 8 * size) - 1 for value, shift, size in zip(values, shifts, sizes, strict=False)
    ]
    assert list(copies) == [*taken, 0]
    assert order == [each for value in values for each in (value, "copy")][:-1]
    assert behind.code == 4
    assert made.make(6) == {} and len(order) == 17
