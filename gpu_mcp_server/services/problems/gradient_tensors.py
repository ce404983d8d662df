"""Tensors of a problem whose gradients are answers too."""

from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.problem import TensorSpec

FLOATING = ("float16", "bfloat16", "float32", "float64")
MAX_NAME = 26
"""Letters of a name that gets a prefix."""


def with_gradients(
    framework: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return inputs with a cotangent for each output of floats, and outputs with a gradient for each input of floats.

    Raises:
        BadRequest: If the reference is not torch, or nothing can be differentiated.
    """
    given, answers = ([t for t in side if t.dtype in FLOATING] for side in (inputs, outputs))
    if framework != "torch" or not given or not answers:
        raise BadRequest("backward needs a torch reference with inputs and outputs of floats.", hint="Leave it out.")
    if any(len(t.name) > MAX_NAME for t in (*given, *answers)):
        raise BadRequest(f"backward needs names of at most {MAX_NAME} letters.", hint="Shorten them.")
    cotangents = [t.model_copy(update={"name": f"d_{t.name}", "distribution": "normal"}) for t in answers]
    gradients = [t.model_copy(update={"name": f"grad_{t.name}"}) for t in given]
    return [*inputs, *cotangents], [*outputs, *gradients]
