"""One behaviour of the contract, and how it says that it was not met."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_mcp_server.backends.contract.host import ContractHost
from gpu_mcp_server.hostd.protocol import LEVELS

Check = Callable[[ContractHost], Awaitable[None]]

SHOWN = 300


class BehaviourFailed(AssertionError):
    """The host does not behave so; the text says what was found instead."""


class DoesNotApply(Exception):
    """The behaviour cannot be asked of this host; the text says why."""


@dataclass(frozen=True)
class Behaviour:
    """One sentence about every host, and how to see whether it is true."""

    room: str
    """What it is about."""
    name: str
    sentence: str
    at_least: str
    """Sandbox level below which it is not asked for."""
    prove: Check

    async def check(self, host: ContractHost) -> None:
        """Prove it.

        Raises:
            BehaviourFailed: If it is not true.
            DoesNotApply: If the host's sandbox level is too low for it.
        """
        if LEVELS.index(host.level) < LEVELS.index(self.at_least):
            raise DoesNotApply(f"level {self.at_least} is needed, the host gives {host.level}: {host.weaker_because}")
        await self.prove(host)


@dataclass
class BehaviourGroup:
    """Behaviours that belong together."""

    name: str
    behaviours: list[Behaviour] = field(default_factory=list[Behaviour])

    def behaviour(self, sentence: str, *, at_least: str = "landlock") -> Callable[[Check], Check]:
        """Enter a function as the proof of a sentence."""

        def enter(prove: Check) -> Check:
            name = getattr(prove, "__name__", "")
            self.behaviours.append(Behaviour(self.name, name, sentence, at_least, prove))
            return prove

        return enter


def expect(met: object, what: str, found: object = None) -> None:
    """Demand that something is true.

    Raises:
        BehaviourFailed: If it is not.
    """
    if not met:
        raise BehaviourFailed(what if found is None else f"{what}; found {_shown(found)}")


def expect_equal(found: Any, wanted: Any, what: str) -> None:
    """Demand that two values are equal.

    Raises:
        BehaviourFailed: If they are not.
    """
    if found != wanted:
        raise BehaviourFailed(f"{what}: expected {_shown(wanted)}, found {_shown(found)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"
