"""Collects what is the same for all shapes of a job."""

from typing import Any, Dict, NamedTuple

from ..channel.supervisor_client import Player
from ..devices.device import Device
from ..numerics.random_inputs import Well
from .clock_overhead import Cost
from .time_accounting import Ledger


class JudgingSetup(NamedTuple):
    """Task, device, players and the rest with which every shape of a job is judged."""

    task: Dict[str, Any]
    device: Device
    candidate: Player
    reference: Player
    costs: Dict[str, Cost]
    """Of empty passes, by role."""
    well: Well
    ledger: Ledger
