"""Records how get_inputs makes its tensors, without data, to find those for the owner to draw itself."""

import importlib
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..adapters.call_records import tensors_in
from ..numerics.tensors import FLOATS

torch: Any = importlib.import_module("torch")
modes: Any = importlib.import_module("torch.overrides")
dispatch: Any = importlib.import_module("torch.utils._python_dispatch")

REFUSE_ADDRESS: Any = getattr(torch._C, "_set_throw_on_mutable_data_ptr", None)
"""Has a tensor's memory refuse its address, as that of torch's own fake tensors does; None in an older torch."""
DRAWN = {"rand": "uniform", "randn": "normal", "zeros": "zeros"}
"""Functions whose tensors the owner draws itself, and from which distribution."""
ONLY_TYPE = ("to", "half", "bfloat16", "float", "double", "cuda", "cpu", "contiguous", "requires_grad_")
"""Methods that leave the distribution as it is."""
UNSEEN = ("__setitem__", "__set__", "__iter__")
"""Functions that change a tensor and do not return it, or give parts of it out of sight."""
BYTES = ("int8", "uint8")
"""Types that the owner draws over all their values, as no function of these does."""


def dtype_of(value: Any) -> str:
    """Return a tensor's dtype by our name."""
    return str(value.dtype).replace("torch.", "")


class Made(NamedTuple):
    """Origin of a tensor: its distribution, and the drawn tensors that it depends on."""

    tensor: Any
    """Kept, so that no other gets its id."""
    distribution: str
    """Which one it was drawn from; empty if it was computed."""
    roots: FrozenSet[int]
    """Drawn tensors that it depends on; itself, if it is one."""


def roots_of(known: Sequence[Made]) -> FrozenSet[int]:
    """Return the drawn tensors that some tensors depend on."""
    return frozenset(root for one in known for root in one.roots)


class MetaAddresses(dispatch.TorchDispatchMode):
    """Has torch refuse the address of a tensor without data, which is 0: a kernel that reads there ends the context.

    The mode marks the tensor's memory, which then refuses everybody. So the mark also holds where the mode is not seen:
    in an operator of the problem's own, in a backward pass, on another thread.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Call an operator of torch."""
        result = func(*args, **(kwargs or {}))
        for each in tensors_in([*args, result]):
            if each.is_meta and REFUSE_ADDRESS is not None:
                REFUSE_ADDRESS(each)
        return result


class Recorder(modes.TorchFunctionMode):
    """Makes every new tensor a meta tensor, and remembers from which distribution it was to be drawn."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - torch is untyped here
        constructors: Any = importlib.import_module("torch.utils._device")
        self.constructors = constructors._device_constructors()
        self.made: Dict[int, Made] = {}
        self.changed: Set[int] = set()
        """Drawn tensors that were written to."""

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Call a function of torch."""
        given = dict(kwargs or {})
        if func in self.constructors:
            # Meta tensors have shapes and no storage, so huge inputs are described without being made.
            given["device"] = "meta"
            given.pop("generator", None)
        name = str(getattr(func, "__name__", ""))
        if name in ("cuda", "cpu") and args:
            return args[0]
        result = func(*args, **given)
        self._remember(func, name, args, given, result)
        return result

    def _remember(self, func: Any, name: str, args: Tuple[Any, ...], given: Dict[str, Any], result: Any) -> None:
        before = tensors_in([*args, *given.values()])
        roots = roots_of([self._of(x) for x in before])
        written = name not in ONLY_TYPE and any(x is y for x in before for y in tensors_in(result))
        if written or name in UNSEEN:
            self.changed |= roots
            for each in before[:1]:
                self.made[id(each)] = Made(each, "", roots)
            return
        drawn = ""
        if func in self.constructors:
            drawn = DRAWN.get(name, "integers" if name == "randint" and self._hundred(args, given) else "")
            roots = frozenset([id(result)]) if drawn else roots
        elif before and (name in ONLY_TYPE or self._is_view(before[0], result)):
            drawn = self._of(before[0]).distribution
        elif name.endswith("_like"):
            roots = roots_of([])
        for each in tensors_in(result):
            self.made[id(each)] = Made(each, drawn if self._keeps(drawn, each) else "", roots)

    def _is_view(self, whole: Any, result: Any) -> bool:
        """Say whether a result is one view of a tensor, whose memory the owner draws as a whole; parts may overlap."""
        if not torch.is_tensor(result) or result.dtype != whole.dtype:
            return False
        # Shared storage tells a view; a copy has new storage, whatever method made it.
        return bool(torch._C._is_alias_of(whole, result))

    def _of(self, value: Any) -> Made:
        return self.made.get(id(value)) or Made(value, "", frozenset())

    def _keeps(self, drawn: str, value: Any) -> bool:
        """Say whether the owner draws a type so: whole numbers by their type alone."""
        kind = dtype_of(value)
        if drawn == "integers":
            return kind != "bool" and kind not in BYTES
        return drawn == "zeros" or kind in FLOATS

    def _hundred(self, args: Tuple[Any, ...], given: Dict[str, Any]) -> bool:
        bounds = [a for a in args if isinstance(a, int)]
        low = given.get("low", bounds[0] if len(bounds) > 1 else 0)
        high = given.get("high", bounds[-1] if bounds else None)
        # The owner draws integers from 0 to 99; other bounds must come from the problem's own code.
        return (low, high) == (0, 100)

    def distributions(self, values: Sequence[Any]) -> List[str]:
        """Return how the owner can draw each of some tensors: `made` if only the problem's own code can.

        What another one is computed of is made too: drawn apart from it, they would not fit each other.
        """
        known = [self._of(value) for value in values]
        found: List[str] = []
        for number, one in enumerate(known):
            others = roots_of([each for at, each in enumerate(known) if at != number])
            free = one.distribution and not one.roots & (others | self.changed)
            found.append(one.distribution if free else "made")
        return found
