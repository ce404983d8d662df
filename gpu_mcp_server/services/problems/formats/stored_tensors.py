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
from typing import Any

from gpu_mcp_server.errors import BadRequest, GpuMcpError
from gpu_mcp_server.services.workspaces.local_files import read_local

MAX_STORED_BYTES = 64 << 20
"""Largest safetensors file to read."""
MAX_TENSORS_BYTES = 2 << 20
"""Most bytes of a problem's stored tensors: enough for indices and lengths, not for weights."""
MAX_PARENTS = 5
"""Folders above a definition that a path may begin at: those of its data set."""
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


def read_tensor(data: bytes, key: str) -> tuple[str, list[int], bytes]:
    """Return type, shape and bytes of a tensor of a safetensors file.

    Raises:
        BadRequest: If the file is none, or has no such tensor.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        header: Any = json.loads(data[8 : 8 + length])
        found = header[key]
        begin, end = (8 + length + int(each) for each in found["data_offsets"])
        shape = [int(each) for each in found["shape"]]
        kind = TYPES[found["dtype"]]
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise BadRequest(
            f"No tensor {key[:60]!r} is in the safetensors file: {str(error)[:100]}.",
            hint="Correct the workload's tensor_key or path.",
        ) from error
    if not 8 + length <= begin <= end <= len(data) or any(size < 0 for size in shape):
        raise BadRequest(f"The tensor {key[:60]!r} lies outside its safetensors file.", hint="Store it again.")
    return kind, shape, data[begin:end]


class StoredTensors:
    """Stored tensors of a problem's workloads, each text once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = MAX_TENSORS_BYTES
        self.files: dict[str, str] = {}
        """base64, by name."""

    async def keep(self, how: Mapping[str, Any], dtype: str) -> dict[str, Any] | None:
        """Return what a case says of a stored input, `None` where the file is not there or too large.

        Raises:
            BadRequest: If the tensor is not what the definition declares.
        """
        data = await self._data(str(how.get("path")))
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
                return None
            self._left -= len(content)
            self.files[name] = base64.b64encode(content).decode()
        return {"type": "safetensors", "file": name, "shape": shape}

    async def _data(self, path: str) -> bytes | None:
        folder = self._folder.resolve()
        for base in [folder, *list(folder.parents)[:MAX_PARENTS]]:
            near = (base / path).resolve()
            if near.suffix == ".safetensors" and near.is_relative_to(base) and near.is_file():
                try:
                    return await asyncio.to_thread(read_local, near, MAX_STORED_BYTES)
                except GpuMcpError:
                    return None
        return None
