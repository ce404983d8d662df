"""Tensors that a workload stores: only its data set's files are read, and only what their headers say truly."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, PathRefused
from gpu_mcp_server.services.problems.formats.stored_tensors import read_tensor, stored_file


def stored(about: Any, content: bytes = bytes(8), length: int | None = None) -> bytes:
    header = json.dumps({"w": about}).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + content


RIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_a_tensor_is_read_as_its_header_says():
    assert read_tensor(stored(RIGHT, bytes(range(8))), "w") == ("float32", [2], bytes(range(8)))
    assert read_tensor(stored({"dtype": "BOOL", "shape": [], "data_offsets": [7, 8]}), "w") == ("bool", [], b"\0")


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"data_offsets": [float("inf"), 4]}, r"data_offsets\.0: "),
        ({"data_offsets": [-4, 4]}, r"data_offsets\.0: "),
        ({"data_offsets": [0, 8, 8]}, "data_offsets: "),
        ({"data_offsets": [True, 8]}, r"data_offsets\.0: "),
        ({"data_offsets": [0, 12], "shape": [3]}, "lies outside"),
        ({"data_offsets": [8, 0]}, "lies outside"),
        ({"shape": [3]}, r"shape \[3\] and type float32 has 8 bytes.* 12 bytes are needed"),
        ({"dtype": "F64"}, "has 8 bytes.* 16 bytes"),
        ({"dtype": "C128"}, "dtype: "),
        ({"shape": ["2"]}, r"shape\.0: "),
        ({"shape": [1 << 70] * 3}, r"shape\.0: "),
        ({"shape": [1] * 17}, "shape: "),
        ({"shape": None}, "shape: "),
    ],
)
def test_a_header_that_is_not_true_is_refused_in_words(about: dict[str, Any], says: str):
    with pytest.raises(BadRequest, match=says):
        read_tensor(stored({**RIGHT, **about}), "w")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "header ends at byte 8"),
        (stored(RIGHT, length=1 << 63), "header ends at byte"),
        (stored(RIGHT)[:20], "header ends at byte"),
        (stored(RIGHT, length=9), "No tensor 'w'"),
        (stored([1]), "header of the tensor 'w'"),
        ((2).to_bytes(8, "little") + b"[]", "No tensor 'w'"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "No tensor 'w'"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(data: bytes, says: str):
    with pytest.raises(BadRequest, match=says):
        read_tensor(data, "w")


def test_only_files_of_the_data_set_are_read(tmp_path: Path):
    task = tmp_path / "set" / "definitions" / "scale"
    for path in (
        "blob/w",
        "definitions/scale/own",
        "definitions/scale/blob/own",
        "private/model",
        "definitions/x/model",
    ):
        (tmp_path / "set" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / f"{path}.safetensors").write_bytes(b"")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "model.safetensors").write_bytes(b"")

    def found(path: str, folder: Path = task) -> str | None:
        file = stored_file(folder, path)
        return file and file.relative_to(tmp_path / "set").as_posix()

    assert found("./blob/w.safetensors") == "blob/w.safetensors"
    assert found("own.safetensors") == "definitions/scale/own.safetensors"
    assert found("blob/own.safetensors") == "definitions/scale/blob/own.safetensors"
    assert found("blob/w.safetensors", task.parent) == "blob/w.safetensors"
    for path in ("private/model.safetensors", "x/model.safetensors", "set/blob/w.safetensors", "blob/none.safetensors"):
        assert found(path) is None
    assert stored_file(tmp_path / "set" / "private", "blob/w.safetensors") is None  # no data set's folder


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/etc/model.safetensors", "is absolute"),
        ("../x/model.safetensors", r"holds `\.\.`"),
        ("blob/../../model.safetensors", r"holds `\.\.`"),
        ("linked.safetensors", "link that leaves"),
        ("blob/linked/model.safetensors", "link that leaves"),
    ],
)
def test_a_path_that_leaves_the_data_set_is_refused(tmp_path: Path, path: str, says: str):
    task, private = tmp_path / "definitions" / "scale", tmp_path / "private"
    for each in (task, private, tmp_path / "blob"):
        each.mkdir(parents=True)
    (private / "model.safetensors").write_bytes(b"")
    (task / "linked.safetensors").symlink_to(private / "model.safetensors")
    (tmp_path / "blob" / "linked").symlink_to(private)
    with pytest.raises(PathRefused, match=says):
        stored_file(task, path)


def test_tensors_that_tasks_share_are_found_where_the_suite_downloads_them(tmp_path: Path):
    checkout = tmp_path / "checkout"
    task = checkout / "data" / "SOL-ExecBench" / "benchmark" / "FlashInfer-Bench" / "decode"
    sample = checkout / "tests" / "samples" / "decode"
    blob = checkout / "data" / "flashinfer-trace" / "blob"
    for each in (task, sample, blob / "workloads", checkout / "data" / "other"):
        each.mkdir(parents=True)
    (blob / "workloads" / "w.safetensors").write_bytes(b"")
    (checkout / "data" / "other" / "w.safetensors").write_bytes(b"")
    named = "data/flashinfer-trace/blob/workloads/w.safetensors"
    assert stored_file(task, named) == stored_file(sample, f"./{named}") == blob / "workloads" / "w.safetensors"
    assert stored_file(task, "data/other/w.safetensors") is None
    assert stored_file(task / "1" / "2", named) is None  # too far above
    (blob / "out.safetensors").symlink_to(checkout / "data" / "other" / "w.safetensors")
    with pytest.raises(PathRefused, match="link that leaves"):
        stored_file(task, "data/flashinfer-trace/blob/out.safetensors")
