"""Tensors that a workload stores in safetensors files: small ones travel with the problem, as text.

Source: https://github.com/huggingface/safetensors, README.md, "Format": the length of a JSON header in eight bytes, the
header with type, shape and place of each tensor, then their bytes.
"""

import asyncio
import base64
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from gpu_mcp_server.errors import BadRequest, GpuMcpError, PathRefused
from gpu_mcp_server.services.workspaces.local_files import checked_path, read_local

MAX_STORED_BYTES = 64 << 20
"""Largest safetensors file to read."""
MAX_TENSORS_BYTES = 2 << 20
"""Most bytes of a problem\'s stored tensors: enough for indices and lengths, not for weights."""
MAX_SIZE = 1 << 40
"""Of a dimension, and of a place in a file."""
DEFINITIONS, BLOB = "definitions", "blob"
"""Folders of a data set of flashinfer-trace: definitions/OP_TYPE/NAME.json, and the tensors that workloads name.

Source: https://github.com/flashinfer-ai/flashinfer-bench, flashinfer_bench/data/trace_set.py.
"""
SHARED_BLOB = f"data/flashinfer-trace/{BLOB}"
"""Folder below SOL-ExecBench's checkout in which its tasks share tensors, and as their workloads begin.

Source: https://github.com/NVIDIA/SOL-ExecBench, scripts/download_data.sh (at 8d2237d).
"""
MOST_ABOVE = 6
"""Folders above a task to look in: its own lies in data/SOL-ExecBench/benchmark/SUBSET of that checkout."""
TYPES = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2), "I64": ("int64", 8),
    "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
}  # fmt: skip
"""Name and bytes of an element, by safetensors' name."""
Size = Annotated[int, Field(ge=0, le=MAX_SIZE, strict=True)]


class TensorHeader(BaseModel):
    """Entry of a tensor in a safetensors file's header."""

    dtype: Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"]
    shape: list[Size] = Field(max_length=16)
    data_offsets: list[Size] = Field(min_length=2, max_length=2)
    """Where its bytes begin and end, behind the header."""


def read_tensor(data: bytes, key: str) -> tuple[str, list[int], bytes]:
    """Return type, shape and bytes of a tensor of a safetensors file.

    Raises:
        BadRequest: If the file is none, has no such tensor, or says of it what its bytes are not.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise BadRequest(
            f"A safetensors file of {len(data)} bytes says that its header ends at byte {start}.",
            hint="Store it again.",
        )
    try:
        header: Any = json.loads(data[8:start].decode())
        found = TensorHeader.model_validate(header[key])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadRequest(
            f"The header of the tensor {key[:60]!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}.",
            hint="It has dtype, shape and data_offsets, as safetensors writes them.",
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise BadRequest(
            f"No tensor {key[:60]!r} is in the safetensors file: {str(error)[:100]}.",
            hint="Correct the workload's tensor_key or path.",
        ) from error
    begin, end = found.data_offsets
    if not begin <= end <= len(data) - start:
        raise BadRequest(f"The tensor {key[:60]!r} lies outside its safetensors file.", hint="Store it again.")
    kind, element = TYPES[found.dtype]
    if math.prod(found.shape) * element != end - begin:
        raise BadRequest(
            f"The tensor {key[:60]!r} of shape {found.shape} and type {kind} has {end - begin} bytes.",
            hint=f"{math.prod(found.shape) * element} bytes are needed; store it again.",
        )
    return kind, found.shape, data[start + begin : start + end]


class StoredTensors:
    """Stored tensors of a problem's workloads, each text once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = MAX_TENSORS_BYTES
        self.files: dict[str, str] = {}
        """base64, by name."""
        self.lacking: list[str] = []
        """Why a tensor was not kept, once for each."""

    async def keep(self, how: Mapping[str, Any], dtype: str) -> dict[str, Any] | None:
        """Return what a case says of a stored input, `None` where the file is not there or too large.

        Raises:
            BadRequest: If the tensor is not what the definition declares.
        """
        path = str(how.get("path"))
        data = await self._data(path)
        if data is None:
            return None
        key = str(how.get("tensor_key"))
        kind, shape, content = read_tensor(data, key)
        if kind != dtype:
            raise BadRequest(
                f"The stored tensor {key[:60]!r} is {kind}, declared as {dtype}.",
                hint="Correct the workload or the definition.",
            )
        name = f"stored/{hashlib.sha256(content).hexdigest()[:16]}"
        if name not in self.files:
            if len(content) > self._left or math.prod(shape) < 1:
                self.lacking.append(f"{key[:60]!r} in {path[:160]!r} has {len(content)} bytes")
                return None
            self._left -= len(content)
            self.files[name] = base64.b64encode(content).decode()
        return {"type": "safetensors", "file": name, "shape": shape}

    async def _data(self, path: str) -> bytes | None:
        near = await asyncio.to_thread(stored_file, self._folder, path)
        if near is None:
            self.lacking.append(f"{path[:160]!r} is not there")
            return None
        try:
            return await asyncio.to_thread(read_local, near, MAX_STORED_BYTES)
        except GpuMcpError as error:
            self.lacking.append(f"{path[:160]!r}: {str(error.args[0])[:200].removesuffix('.')}")
            return None


def stored_file(folder: Path, path: str) -> Path | None:
    """Return the file that a workload names, `None` where there is none.

    It lies in the definition's folder, in `blob` of its data set, which is the folder of `definitions`, or in the
    `data/flashinfer-trace/blob` that the path names, below one of the folders above.

    Raises:
        PathRefused: If the path is absolute or holds `..`, or a link leaves these folders.
    """
    try:
        plain = checked_path(path)
    except PathRefused as error:
        error.hint = "Workloads name files inside their data set, such as blob/workloads/NAME.safetensors."
        raise error.prefix_with("A stored tensor's file") from None
    folder = folder.resolve()
    places = [(folder, plain)]
    above = next((each for each in (folder, *list(folder.parents)[:2]) if each.name == DEFINITIONS), None)
    if above is not None and plain.startswith(f"{BLOB}/"):
        places.append((above.parent / BLOB, plain.removeprefix(f"{BLOB}/")))
    if plain.startswith(f"{SHARED_BLOB}/"):
        shared = plain.removeprefix(f"{SHARED_BLOB}/")
        places += [(each / SHARED_BLOB, shared) for each in list(folder.parents)[:MOST_ABOVE]]
    for top, below in places:
        try:
            near = (top / below).resolve()
            there = near.suffix == ".safetensors" and near.is_file()
        except (OSError, RuntimeError):  # not to be read, or a circle of links
            continue
        if there and not near.is_relative_to(top):
            raise PathRefused(
                f"The stored tensor's file {path[:200]!r} is a link that leaves its folder.",
                hint="Replace it by the file itself.",
            )
        if there:
            return near
    return None
