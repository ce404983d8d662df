"""Defines the interface of a device: buffers that other processes can map, and a way to stop the clock."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..channel.supervisor_client import Player
from ..numerics.compare import compare, numbers
from ..numerics.tensors import Array, Tensor, layout


class RoundCheck(NamedTuple):
    """All outputs of a round against what is expected."""

    wrong: Array
    """Wrong elements, [sets, outputs]."""
    max_abs: float
    max_rel: float

    @property
    def passed(self) -> bool:
        """Return whether every element of every output is right."""
        return not self.wrong.any()


class Buffers:
    """Inputs, outputs and expected outputs of B calls at one shape."""

    stores_later = False
    """Whether the reference keeps its results until it is asked, outside the clock, to store them."""
    weights_written = False
    """Whether the inputs that are a model's weights are there; they do not change."""
    made_s = 0.0
    """Seconds that the problem's own code took to make the last round's inputs."""
    decoys = False
    """Whether the inputs that are drawn now are decoys, which no reference answers."""
    behind_gate = False
    """Whether the candidate's calls wait at their gate while inputs are drawn; `GatedRounds` looks for work then."""
    copied = False
    """Whether answers are seen as soon as they are there only where the candidate's loop copies each result at once."""
    fence: Any = None
    """What takes samples of the outputs when the clock stops, once there is one."""

    def __init__(self, device: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> None:
        self.inputs, self.outputs, self.sets, self.well = inputs, outputs, sets, device.well
        self.input_layout = layout(inputs, sets, guarded=False)
        self.output_layout = layout(outputs, sets, guarded=True)
        self.expected_layout = layout(outputs, sets, guarded=False)
        self.words: List[int] = [0] * len(outputs)
        """This round's poison, as an integer of an element's size, for each output."""

    def describe(self, role: str) -> Tuple[Dict[str, Any], List[int]]:
        """Return what `role` must know to map its share, and the descriptors that go with it."""
        raise NotImplementedError

    def take_strides(self, told: Any) -> None:
        """Take over the strides that the candidate says its results have, where they are not copied."""

    def fill(self) -> None:
        """Draw fresh inputs."""
        raise NotImplementedError

    def put_input(self, number: int, values: Array, first: int = 0) -> None:
        """Take over an input that was made elsewhere, [some sets, count] as stored, from set `first` on."""
        raise NotImplementedError

    def poison(self, words: Optional[Sequence[int]] = None) -> None:
        """Overwrite the candidate's outputs and their guards with a pattern of this round, or outputs with `words`."""
        raise NotImplementedError

    def collect_expected(self) -> None:
        """Take over what the reference has computed."""

    def publish(self) -> None:
        """Show the inputs to the candidate, where it does not share them with the reference."""

    def stop(self, player: Player) -> None:
        """End a timed pass, and take elements of the candidate's outputs at secret places."""
        raise NotImplementedError

    def have_changed(self) -> bool:
        """Say whether the outputs are others now, at those places, than when the pass was ended.

        False until it was.
        """
        return self.fence is not None and self.fence.has_changed()

    def check(self) -> RoundCheck:
        """Compare all outputs in full."""
        raise NotImplementedError

    def check_first(self, count: int) -> RoundCheck:
        """Compare the outputs of the first `count` calls in full."""
        check = self.check()
        return check._replace(wrong=check.wrong[:count])

    def untouched(self) -> bool:
        """Say whether every output still holds this round's poison."""
        raise NotImplementedError

    def returned(self) -> int:
        """Return how many calls of the round have returned, as the loop says that makes them; 0 where nobody says."""
        return 0

    def trespass(self) -> str:
        """Say what was written outside the outputs, or into the inputs; empty if nothing."""
        raise NotImplementedError

    def pair(self, call: int, output: int) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output, flat, as stored."""
        raise NotImplementedError

    def elements_at(self, call: int, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements of one output at `positions`, as stored."""
        want, have = self.pair(call, output)
        return want[positions], have[positions]

    def wrong_places(
        self, call: int, output: int, tolerances: Tuple[float, float], part: float, most: int
    ) -> Tuple[int, Array]:
        """Return how many elements of one output are beyond a relative and an absolute tolerance, and `most` positions.

        Each element is counted with the chance `part`. Positions are in ascending order.
        """
        mask = compare(*self.pair(call, output), self.outputs[output].dtype, *tolerances).mask
        places = np.flatnonzero(mask) if mask is not None else np.empty(0, dtype=np.int64)
        if part < 1:
            # A random share instead of the first ones: errors may cluster at one end of the tensor.
            places = places[np.random.default_rng(self.well.word()).random(places.size) < part]
        return int(places.size), places[:most]

    def input_elements(self, number: int) -> Array:
        """Return the elements of an input of the first call, flat, as stored."""
        raise NotImplementedError

    def input_samples(self, number: int, positions: Array) -> Array:
        """Return elements at `positions` of an input of the first call, as stored."""
        elements: Array = self.input_elements(number)[positions]
        return elements

    def samples(self, output: int, positions: Array) -> Tuple[Array, Array]:
        """Return expected and actual elements at `positions` of every call's output, [sets, positions]."""
        raise NotImplementedError

    def pieces(self, number: int, calls: Array, first: int, count: int) -> Array:
        """Return `count` elements of an input of some calls, from element `first` on, as stored: [calls, count]."""
        raise NotImplementedError

    def put_pieces(self, number: int, calls: Array, first: int, values: Array) -> None:
        """Give an input of some calls other elements, where the reference reads them."""
        raise NotImplementedError

    def show_pieces(self, number: int, calls: Array, first: int, values: Array) -> None:
        """Do so where the candidate reads them."""
        self.put_pieces(number, calls, first, values)

    def sound(self, call: int = 0) -> bool:
        """Say whether all that the reference expects of a call is finite."""
        pairs = ((self.pair(call, number)[0], item.dtype) for number, item in enumerate(self.outputs))
        return all(np.isfinite(numbers(expected, dtype)).all() for expected, dtype in pairs)

    def separators(self, *, ahead: bool) -> Dict[str, Any]:
        """Choose bytes of outputs that a candidate copies behind its calls, and return them as a message.

        They are of the call's own answer, or `ahead` of the next one's.
        """
        raise NotImplementedError

    def misplaced(self) -> List[Tuple[int, int]]:
        """Return call and output of answers that were others when they were copied, or whose next ones had begun."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the memory."""
        raise NotImplementedError


class Device:
    """Device on which the candidate runs."""

    kind: str
    label: str
    """CPU model, or name of the GPU."""
    memory: str
    """How memory is shared, for the evidence."""
    max_sets: int
    rehearsals = 9
    """Passes, at least, that give the clock's own cost."""
    pause_s = 0.001
    spin_s = 0.001
    spins = False
    """Whether the owner keeps a core awake while it waits for an answer, for which there must be a core to spare."""
    stops_calls = False
    """Whether freezing a player stops its work: then the candidate's own clock counts, held against the owner's."""
    empty_hint = ""
    """What to add when nothing was written."""
    room_bytes = 0
    """What was free before the candidate was loaded: how many calls make a round is not for it to say."""
    weights: Any = None
    """The file with a model's weights, once the reference has written it; they are the same at every shape."""
    own_check = False
    """True if the problem brings its own check of answers."""
    by_case = False
    """Whether a problem has cases: weights are each case's own then."""
    weights_bytes = 0

    def max_bytes(self) -> Tuple[int, int]:
        """Return how much memory the buffers of a round may take, and where it could not be timed otherwise."""
        raise NotImplementedError

    def set_bytes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        """Return what one more call in a round takes."""
        raise NotImplementedError

    def buffers(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sets: int) -> Buffers:
        """Allocate."""
        raise NotImplementedError

    def lead_in(self) -> None:
        """Do what the owner does on the device right before a player's turn."""

    def stop_idle(self, player: Player) -> None:
        """Stop the clock of an empty pass, as `Buffers.stop` does for a real one."""

    def snapshot(self) -> Dict[str, Any]:
        """Return what the machine reports now, for the evidence."""
        raise NotImplementedError

    def error_text(self, code: int, asked: Any) -> str:
        """Return what a launcher's return value means on this device, in brackets; empty where it means nothing.

        `asked` is what the candidate says of an allocation that failed.
        """
        return ""

    def aftermath(self) -> str:
        """Say whether the device still answers after a candidate that failed; empty where it cannot be lost."""
        return ""

    def free_bytes(self) -> int:
        """Return how much memory is free that the candidate could keep from the judge, 0 if it has its own."""
        return 0

    def allowance(self) -> int:
        """Return how much of that it may keep without being to blame where memory ends, 0 if it can take none away."""
        return 0

    def cache_bytes(self) -> int:
        """Return the size of the largest cache before the memory, 0 if unknown."""
        return 0

    def state(self) -> Dict[str, Any]:
        """Return what may change from round to round: clocks, power, throttling, other processes, stolen time."""
        return {}

    def alone(self) -> None:
        """Learn what the device is like while nobody else is at work, as it may not have been at first."""

    beside = False
    """Whether other jobs may have left something at work on the device."""

    def forget_looks(self, *, beside: bool) -> None:
        """Begin anew with looks at the device, which is the job's own from now on; others may idle `beside` it."""

    def remarks(self) -> List[str]:
        """Return what was seen on the device that makes its times doubtful."""
        return []

    def evidence(self) -> Dict[str, Any]:
        """Return what does not change."""
        raise NotImplementedError
