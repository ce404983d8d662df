"""all-MiniLM-L6-v2 as an ONNX file, written from its safetensors without torch and without the `onnx` package.

The graph is what Chroma's own download computes: token, position and type embeddings, six layers, last hidden state.
The embeddings of words, half of all weights, lie in a file beside it, which the runtime maps: a question touches a few
rows of them, so they take 46 MB less of a process's memory.

Source: ONNX IR specification (onnx.proto, field numbers in the comments), opset 17; the model's config.json.
"""

import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

LAYERS, HEADS, WIDTH = 6, 12, 384
OPSET, IR_VERSION = 17, 8
FLOAT, INT64 = 1, 7
EXTERNAL = 1
EPSILON = 1e-12
WORDS = "model.words"
"""File of the words' embeddings, beside the graph's."""

WORD_KEY = "embeddings.word_embeddings.weight"

Array = NDArray[Any]


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the float32 tensors of a file, mapped, not copied.

    Source: the safetensors format: 8 bytes of length, a JSON header, the data.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = cast("dict[str, Any]", json.loads(file.read(size)))
    data = np.memmap(path, dtype=np.uint8, mode="r")
    found: dict[str, Array] = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] == "F32":
            first, last = about["data_offsets"]
            found[name] = data[8 + size + first : 8 + size + last].view(np.float32).reshape(about["shape"])
    return found


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


class _Graph:
    """Collects nodes and weights in the wire format."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.weights: list[bytes] = []

    def weight(self, name: str, value: Array) -> str:
        array = np.array(value, order="C")
        kind = INT64 if array.dtype == np.int64 else FLOAT
        parts = [_number(1, size) for size in array.shape]  # TensorProto.dims
        parts += [_number(2, kind), _block(8, name), _block(9, array.tobytes())]  # data_type, name, raw_data
        self.weights.append(b"".join(parts))
        return name

    def mapped(self, name: str, value: Array, file: str) -> str:
        """Name a weight whose float32 data is the whole of a file beside the graph's."""
        parts = [_number(1, size) for size in value.shape]
        parts += [_number(2, FLOAT), _block(8, name), _block(13, _block(1, "location") + _block(2, file))]
        self.weights.append(b"".join([*parts, _number(14, EXTERNAL)]))  # external_data, data_location
        return name

    def integers(self, name: str, values: list[int] | int) -> str:
        return self.weight(name, np.array(values, np.int64).reshape(() if isinstance(values, int) else len(values)))

    def node(self, kind: str, inputs: Iterable[str], output: str, **attributes: int | float | list[int]) -> str:
        parts = [_block(1, each) for each in inputs]  # NodeProto.input
        parts += [_block(2, output), _block(4, kind)]  # output, op_type
        parts += [_block(5, _attribute(name, value)) for name, value in attributes.items()]
        self.nodes.append(b"".join(parts))
        return output

    def model(self, inputs: Iterable[str], output: str) -> bytes:
        graph = b"".join(_block(1, node) for node in self.nodes) + _block(2, "minilm")
        graph += b"".join(_block(5, weight) for weight in self.weights)
        graph += b"".join(_block(11, _value(name, INT64, ["batch", "tokens"])) for name in inputs)
        graph += _block(12, _value(output, FLOAT, ["batch", "tokens", WIDTH]))
        return _number(1, IR_VERSION) + _block(7, graph) + _block(8, _block(1, "") + _number(2, OPSET))


def _attribute(name: str, value: int | float | list[int]) -> bytes:
    head = _block(1, name)
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)  # f, type FLOAT
    if isinstance(value, int):
        return head + _number(3, value) + _number(20, 2)  # i, type INT
    return head + b"".join(_number(8, each) for each in value) + _number(20, 7)  # ints, type INTS


def _value(name: str, kind: int, shape: list[str | int]) -> bytes:
    sizes = b"".join(_block(1, _number(1, s) if isinstance(s, int) else _block(2, s)) for s in shape)
    return _block(1, name) + _block(2, _block(1, _number(1, kind) + _block(2, sizes)))


def write_onnx(weights: Path, target: Path) -> None:
    """Convert the model's safetensors to ONNX, with `WORDS` beside it."""
    tensors, graph = read_safetensors(weights), _Graph()
    hidden = _embedded(graph, tensors)
    for layer in range(LAYERS):
        hidden = _layer(graph, tensors, layer, hidden)
    target.with_name(WORDS).write_bytes(tensors[WORD_KEY].tobytes())
    target.write_bytes(graph.model(["input_ids", "attention_mask", "token_type_ids"], hidden))


def _embedded(graph: _Graph, tensors: dict[str, Array]) -> str:
    graph.mapped("word", tensors[WORD_KEY], WORDS)
    for kind in ("position", "token_type"):
        graph.weight(kind, tensors[f"embeddings.{kind}_embeddings.weight"])
    graph.integers("zero", 0)
    graph.integers("one", 1)
    graph.integers("zeros", [0])
    graph.integers("ones", [1])
    graph.integers("twos", [2])
    graph.node("Shape", ["input_ids"], "shape")
    graph.node("Slice", ["shape", "ones", "twos"], "length")
    graph.node("Squeeze", ["length", "zeros"], "tokens")
    graph.node("Range", ["zero", "tokens", "one"], "positions")
    graph.node("Gather", ["word", "input_ids"], "words")
    graph.node("Gather", ["position", "positions"], "places")
    graph.node("Gather", ["token_type", "token_type_ids"], "types")
    graph.node("Add", ["words", "places"], "placed")
    graph.node("Add", ["placed", "types"], "embedded")
    graph.node("Cast", ["attention_mask"], "mask", to=FLOAT)
    graph.weight("unit", np.array(1, np.float32))
    graph.weight("far", np.array(-1e9, np.float32))
    graph.node("Sub", ["unit", "mask"], "hidden_tokens")
    graph.node("Mul", ["hidden_tokens", "far"], "penalty")
    graph.integers("between", [1, 2])
    graph.node("Unsqueeze", ["penalty", "between"], "additive_mask")
    graph.integers("by_head", [0, 0, HEADS, WIDTH // HEADS])
    graph.integers("whole", [0, 0, WIDTH])
    graph.weight("scale", np.array(1 / math.sqrt(WIDTH // HEADS), np.float32))
    graph.weight("half", np.array(0.5, np.float32))
    graph.weight("root", np.array(1 / math.sqrt(2), np.float32))
    return _normalized(graph, tensors, "embeddings.LayerNorm", "embedded", "layer0")


def _normalized(graph: _Graph, tensors: dict[str, Array], key: str, source: str, target: str) -> str:
    gain = graph.weight(f"{target}_gain", tensors[f"{key}.weight"])
    bias = graph.weight(f"{target}_bias", tensors[f"{key}.bias"])
    return graph.node("LayerNormalization", [source, gain, bias], target, axis=-1, epsilon=EPSILON)


def _layer(graph: _Graph, tensors: dict[str, Array], layer: int, hidden: str) -> str:
    key, name = f"encoder.layer.{layer}.", f"l{layer}_"

    def linear(source: str, part: str, output: str) -> str:
        matrix = graph.weight(f"{name}{output}_w", tensors[f"{key}{part}.weight"].T)
        bias = graph.weight(f"{name}{output}_b", tensors[f"{key}{part}.bias"])
        graph.node("MatMul", [source, matrix], f"{name}{output}_product")
        return graph.node("Add", [f"{name}{output}_product", bias], f"{name}{output}")

    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        linear(hidden, f"attention.self.{part}", part)
        graph.node("Reshape", [f"{name}{part}", "by_head"], f"{name}{part}_heads")
        graph.node("Transpose", [f"{name}{part}_heads"], f"{name}{part}_turned", perm=order)
    graph.node("MatMul", [f"{name}query_turned", f"{name}key_turned"], f"{name}scores")
    graph.node("Mul", [f"{name}scores", "scale"], f"{name}scaled")
    graph.node("Add", [f"{name}scaled", "additive_mask"], f"{name}masked")
    graph.node("Softmax", [f"{name}masked"], f"{name}shares", axis=-1)
    graph.node("MatMul", [f"{name}shares", f"{name}value_turned"], f"{name}context")
    graph.node("Transpose", [f"{name}context"], f"{name}context_turned", perm=[0, 2, 1, 3])
    graph.node("Reshape", [f"{name}context_turned", "whole"], f"{name}context_whole")
    linear(f"{name}context_whole", "attention.output.dense", "attended")
    graph.node("Add", [f"{name}attended", hidden], f"{name}first_sum")
    first = _normalized(graph, tensors, f"{key}attention.output.LayerNorm", f"{name}first_sum", f"{name}first")
    linear(first, "intermediate.dense", "inner")
    graph.node("Mul", [f"{name}inner", "root"], f"{name}inner_scaled")
    graph.node("Erf", [f"{name}inner_scaled"], f"{name}erf")
    graph.node("Add", [f"{name}erf", "unit"], f"{name}erf_one")
    graph.node("Mul", [f"{name}inner", f"{name}erf_one"], f"{name}gelu_double")
    graph.node("Mul", [f"{name}gelu_double", "half"], f"{name}gelu")
    linear(f"{name}gelu", "output.dense", "outer")
    graph.node("Add", [f"{name}outer", first], f"{name}second_sum")
    last = "last_hidden_state" if layer == LAYERS - 1 else f"layer{layer + 1}"
    return _normalized(graph, tensors, f"{key}output.LayerNorm", f"{name}second_sum", last)
