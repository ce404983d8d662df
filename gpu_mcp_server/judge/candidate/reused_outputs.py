"""Gives each call of a model memory of its own for outputs that the model keeps and overwrites.

Many models allocate their result once. The owner reads the answers of all calls behind a round, so these would have to
be copied behind each call, within the clock: a product that writes a gigabyte would seem to take twice its time. A
tensor whose `data` is replaced before a call is written elsewhere, and what the call before wrote stays where it is.
"""

from typing import Any, List, NamedTuple, Sequence

NEAR = {"rtol": 1e-2, "atol": 1e-3, "equal_nan": True}
"""Within which two answers to the same inputs are alike: what is not written holds NaN, so this need not be close."""
SAMPLES = 1 << 16
"""Elements that are looked at, of which some lie in every part."""

PART = 1 << 22
"""Elements of which NaNs are counted at a time."""


class OutputSample(NamedTuple):
    """Some of an answer."""

    nans: int
    samples: Any

    @classmethod
    def from_result(cls, result: Any) -> "OutputSample":
        """Return the number of an answer's NaNs, and samples of it; its elements lie close together."""
        flat = result.as_strided((result.numel(),), (1,))
        # In parts: torch keeps what a sum needs besides, which may be large enough to put the next output there.
        parts = flat.split(PART) if result.is_floating_point() else ()
        nans = sum(int(part.isnan().sum()) for part in parts)
        return cls(nans, flat[:: max(1, result.numel() // SAMPLES)].cpu())


class ReusedOutputs:
    """The tensors that one call returns as the call before did."""

    def __init__(self, torch: Any, first: Sequence[Any], second: Sequence[Any]) -> None:
        """Take the results of two calls; there are none unless all of them are the same objects."""
        same = len({id(one) for one in first}) == len(first) and all(a is b for a, b in zip(first, second))
        plain = all(type(one) is torch.Tensor and not one.requires_grad for one in first)
        self.torch = torch
        self.tensors: List[Any] = list(first) if same and plain else []

    def renew(self, *, junk: bool = False) -> None:
        """Give each tensor memory of its own, of torch's current allocator; with junk in it where that is asked."""
        for tensor in self.tensors:
            new = self.torch.empty_like(tensor)
            if junk:
                new.fill_(float("nan") if new.is_floating_point() else 1)
            tensor.data = new

    def take(self, results: Sequence[Any]) -> List[Any]:
        """Return the results of a call as tensors that stay what they are when these are renewed."""
        return [result.detach() for result in results]

    def sample(self) -> List[OutputSample]:
        """Sample what the tensors hold."""
        return [OutputSample.from_result(tensor) for tensor in self.tensors]

    def are_written(self, results: Sequence[Any], before: Sequence[OutputSample]) -> bool:
        """Say whether a call that found junk wrote all of it, by samples of an answer to the same inputs."""
        if any(result is not tensor for result, tensor in zip(results, self.tensors)):
            return False
        pairs = zip(before, self.sample())
        return all(
            a.nans == b.nans
            and (
                self.torch.allclose(a.samples.float(), b.samples.float(), **NEAR)
                if a.samples.is_floating_point()
                else self.torch.equal(a.samples, b.samples)
            )
            for a, b in pairs
        )
