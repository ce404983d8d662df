"""A candidate that is ready to be judged: its code, how it is called, and what its imports say of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpu_mcp_server.models.build import JudgedKind
from gpu_mcp_server.services.builds.python_siblings import texts_in
from gpu_mcp_server.toolchains.python_languages import Imports, imports_of

UNSEEN = re.compile(
    rb"\b(?:ctypes|cupy|numba|cutlass|tilelang|pycuda|cuda\.bindings|tvm_ffi|torch\.ops|CUDAGraph|torch\.compile)\b"
)
"""Ways to kernels other than Triton's launches and functions of torch's extension modules."""


@dataclass(frozen=True)
class BuiltCandidate:
    """Candidate that is ready to be loaded by the judge."""

    kind: JudgedKind
    content: bytes
    """A shared library, or a Python file."""
    symbol: str = "launch"
    """Its launcher; a model has none."""
    code: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Compiled code of the judge's own, by file (`judge_code`)."""
    built: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files of extensions that were built of what a Python file asks torch for."""

    @cached_property
    def imports(self) -> Imports:
        """Return a Python file's imports; a file that is not there yet counts as Triton's."""
        text = self.content.decode("utf-8", "replace") if self.content else "import triton"
        return imports_of("" if self.kind == "library" else text)

    @property
    def interpreter(self) -> str:
        """Return the simulator of a Python file's kernels on a CPU; empty if the CPU runs them itself.

        A language that needs a GPU may stand beside Triton for the GPUs that have it, as packages of kernels do.
        """
        found = self.imports.languages() if self.kind != "library" else []
        if self.kind == "model" and "torch.compile" in texts_in(self.content.decode("utf-8", "replace"))[0]:
            return ""  # Inductor would compile for the GPU that stands in
        return next((language.interpreter for language in found if language.interpreter), "")

    @property
    def file(self) -> str:
        """Its name in the workspace."""
        return "candidate.so" if self.kind == "library" else "candidate.py"

    def needs(self) -> dict[str, Any]:
        """Return which modules must be there before it is loaded, whose versions are evidence, and what wants a GPU."""
        found = self.imports.languages()
        own = found
        if self.interpreter:
            # Another file's may be for GPUs that have it: an error is the candidate's, while Triton is interpreted.
            own = imports_of(texts_in(self.content.decode("utf-8", "replace"))[0]).languages()
        return {
            "needs": self.imports.needed_modules(),
            "packages": sorted({language.package for language in found}),
            "wants_gpu": " and ".join(language.name for language in own if language.gpu_alone),
        }

    def blind_spots(self) -> list[str]:
        """Return what a Python file mentions whose kernels ghost replay does not see."""
        words = {word.decode() for word in UNSEEN.findall(self.content)}
        return sorted(words | {one.module for one in self.imports.languages() if one.package != "triton"})
