"""Choose the host's header trees that a source reads, and the options that name them to its compiler."""

import re
from collections.abc import Iterable, Sequence

from gpu_mcp_server.models.toolchains import HeaderTree
from gpu_mcp_server.toolchains.torch_extension import NO_UNDEFINED

NAMED = "include_paths"
_STARTS = {
    "cutlass": ("cutlass/", "cute/"),
    "flashinfer": ("flashinfer/",),
    "thunderkittens": ("kittens.cuh", "prototype.cuh"),
    "tvm-ffi": ("tvm/ffi/", "dlpack/"),
}
_NEEDS = {"flashinfer": ("cutlass",)}
"""What a tree's own headers include."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]{1,300})[">]', re.MULTILINE)


def trees_of(texts: Iterable[str], known: Sequence[HeaderTree], beside: Iterable[str] = ()) -> list[HeaderTree]:
    """Return the trees that texts include from, with what those need, and all that the settings name.

    Args:
        texts: The source and what goes with it.
        known: The host's trees.
        beside: Paths of what goes with the source; what is included from there is not the host's.
    """
    own = tuple("/" + path for path in beside)
    included = {name for text in texts for name in _INCLUDE.findall(text)}
    names = [name for name in included if not any(path.endswith("/" + name) for path in own)]
    wanted = {tree for tree, starts in _STARTS.items() if any(name.startswith(starts) for name in names)}
    wanted |= {more for tree in wanted for more in _NEEDS.get(tree, ())}
    return [tree for tree in known if tree.name == NAMED or tree.name in wanted]


def include_options(trees: Sequence[HeaderTree], compiler: str) -> tuple[str, ...]:
    """Return a compiler's options for trees: their headers are system headers, behind the source's own."""
    folders = [folder for tree in trees for folder in tree.folders]
    if compiler == "nvrtc":
        return tuple(f"-I{folder}" for folder in folders)
    if compiler == "nvcc":
        return tuple(f"-isystem={folder}" for folder in folders)
    return tuple(word for folder in folders for word in ("-isystem", folder))


def linking_arguments(argv: Sequence[str], trees: Sequence[HeaderTree]) -> tuple[str, ...]:
    """Return a compiler's arguments; with tvm-ffi's headers its package's symbols may stay undefined."""
    refused = NO_UNDEFINED if any(tree.name == "tvm-ffi" for tree in trees) else ()
    return tuple(word for word in argv if word not in refused)
