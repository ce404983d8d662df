"""Gates by words that a stream of the GPU waits for: what the players keep for them."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_mcp_judge.candidate.candidate_process import Candidate
from gpu_mcp_judge.devices.gate_words import GateWords
from gpu_mcp_judge.reference.reference_process import Reference
from gpu_mcp_judge.timing.gated_pass import OFFSETS
from gpu_mcp_judge.timing.stream_gate import SWEPT_BYTES


class CountingDriver:
    """A driver that takes every call, and counts what is allocated."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.call = lambda name, *arguments: None

    def allocate(self, size: int) -> int:
        address = 1 + max(self.held, default=0)
        self.held[address] = size
        return address

    def free(self, address: int) -> None:
        del self.held[address]


@pytest.mark.parametrize(("kind", "holder"), [(Candidate, "memory"), (Reference, "arrays")])
@pytest.mark.parametrize(("sweeps", "held"), [(True, [SWEPT_BYTES]), (False, [])])
def test_what_is_swept_before_calls_is_kept_once_whatever_the_number_of_shapes(
    kind: Any, holder: str, sweeps: bool, held: list[int]
):
    driver, player, words = CountingDriver(), kind(None), [GateWords() for _ in range(3)]

    setattr(player, holder, SimpleNamespace(driver=driver, turns=SimpleNamespace()))
    for each in words:  # the owner shares a new page of words at each shape
        assert player.take_gate({"offsets": OFFSETS, "sweeps": sweeps}, [os.dup(each.descriptor)]) == {}
        each.close()

    assert list(driver.held.values()) == held
