"""Inputs that the problem's own code makes travel through a file: in pieces, since a job's files are limited."""

import mmap
import os
import resource
from typing import Any

import numpy as np
import pytest
from gpu_mcp_judge.devices.device import Device
from gpu_mcp_judge.inputs import input_transfer
from gpu_mcp_judge.numerics.tensors import Tensor
from gpu_mcp_judge.verdicts import TooLarge

COUNT = 128


class Buffers:
    """Takes inputs over as the real ones do."""

    stores_later = False

    def __init__(self, sets: int, distribution: str) -> None:
        self.sets, self.weights_written = sets, False
        self.inputs = [Tensor("w", "float32", (COUNT,), ("n",), distribution)]
        self.taken = np.zeros((sets, COUNT), dtype=np.float32)

    def fill(self) -> None:
        pass

    def put_input(self, number: int, values: Any, first: int = 0) -> None:
        self.taken[first : first + len(values)] = values


class Reference:
    """Writes into each set what `module_problem.make` is told to make it from: the seed and the set's number."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.largest = 0
        self.error = ""

    def thaw(self) -> None:
        pass

    def ask(self, do: str, timeout_s: float, descriptors: Any, **task: Any) -> dict[str, Any]:
        assert do == "make"
        self.asked.append(task)
        size = os.fstat(descriptors[0]).st_size
        self.largest = max(self.largest, size)
        with mmap.mmap(descriptors[0], size) as memory:
            for number in range(task["where"]["sets"]):
                at = number * task["where"]["stride"] + task["where"]["offsets"][0]
                memory[at : at + 4 * COUNT] = np.full(COUNT, task["seed"] + number, dtype=np.float32).tobytes()
        return {"error": self.error}


def test_each_set_is_made_from_a_seed_of_its_own_and_no_file_grows_with_the_round(monkeypatch):
    monkeypatch.setattr(input_transfer, "AT_ONCE_BYTES", 3 * 512)
    buffers, reference = Buffers(7, "made"), Reference()

    assert input_transfer.draw(Device(), buffers, reference, 100, 1.0) == ""

    assert buffers.taken[:, 0].tolist() == [100 + call for call in range(7)]
    assert [task["where"]["sets"] for task in reference.asked] == [3, 3, 1]
    assert reference.largest == 3 * 512


def test_weights_are_made_once_for_all_shapes_and_alike_in_every_set():
    device, reference = Device(), Reference()
    for sets in (5, 2):
        buffers = Buffers(sets, "weights")
        buffers.taken[:] = np.nan
        for _ in range(2):
            assert input_transfer.draw(device, buffers, reference, 9, 1.0) == ""

        assert (buffers.taken == 0).all(), "from seed 0, as the model's own are"
    assert len(reference.asked) == 1
    assert reference.largest == 512


def test_weights_that_could_not_be_made_are_asked_for_again():
    device, reference = Device(), Reference()
    reference.error = "no such layer"
    assert input_transfer.draw(device, Buffers(1, "weights"), reference, 9, 1.0) == "no such layer"
    reference.error = ""
    assert input_transfer.draw(device, Buffers(1, "weights"), reference, 9, 1.0) == ""


def test_what_no_file_can_hold_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500, 500))
    with pytest.raises(TooLarge, match=r"5\.12e-07 GB a call, the limit is 5e-07 GB"):
        input_transfer.draw(Device(), Buffers(2, "made"), Reference(), 1, 1.0)
