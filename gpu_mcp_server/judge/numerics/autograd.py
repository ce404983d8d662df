"""A function with its gradients: what a problem that declares `backward` computes, on either side."""

from typing import Any, Callable, List, Sequence, Tuple, cast

FLOATING = ("float16", "bfloat16", "float32", "float64")


def with_gradients(
    torch: Any, function: Callable[..., Any], kinds: Sequence[str], given: Sequence[Any]
) -> Tuple[Any, ...]:
    """Return the outputs of a function, and the gradients of its inputs of floats.

    The gradient of an input is that of the sum over the outputs of floats of output times cotangent. A cotangent is
    drawn by the owner like an input, so a gradient that is wrong anywhere shows.

    `given` are tensors: inputs of the types `kinds`, and behind them a cotangent for each output of floats, in order.
    """
    inputs, cotangents = given[: len(kinds)], given[len(kinds) :]
    # Detached leaves: gradients stop at the inputs and never reach what the problem made them of.
    leaves: List[Any] = [
        value.detach().requires_grad_(True) if kind in FLOATING else value for value, kind in zip(inputs, kinds)
    ]
    # The caller may have switched gradients off, as timed forward calls do.
    with torch.enable_grad():
        found: Any = function(*leaves)
        outputs = tuple(cast("Sequence[Any]", found)) if isinstance(found, (tuple, list)) else (found,)
        floats = [each for each in outputs if each.is_floating_point()]
        if len(floats) != len(cotangents):
            raise ValueError("%d outputs of floats, the problem has %d" % (len(floats), len(cotangents)))
        bent = [(out, given) for out, given in zip(floats, cotangents) if out.requires_grad]
        wanted = [leaf for leaf, kind in zip(leaves, kinds) if kind in FLOATING]
        if not bent:
            raise ValueError("no output has a gradient: forward must be differentiable by torch's autograd")
        gradients = torch.autograd.grad(
            [out for out, _ in bent], wanted, [given.to(out.dtype) for out, given in bent], allow_unused=True
        )
    # An input that no output depends on has the gradient zero; torch says None for it.
    filled = [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(wanted, gradients)]
    return (*(out.detach() for out in outputs), *(each.detach() for each in filled))
