"""A program's own text as a reference, and records of its calls: what would differ or is forged is refused in words."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.services.programs.capture_content import CallRecording, chosen_sets, parse_calls
from gpu_mcp_server.services.programs.program_text import decode_source, definitions_of, overlay_line
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.workers.program_hooks import hooked_script
from tests.laboratory import laboratory


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with laboratory() as lab:
        yield lab


@pytest.mark.parametrize("odd", ["\x0c", "\x85", "\u2028", "\x1c", "\x0b"])
def test_lines_are_those_of_python_alone(odd: str):
    text = f"A = 'a{odd if odd != chr(11) else ''}b'\n{chr(12)}\ndef f():\r\n    return A\r\nprint(f())\n"
    names: dict[str, Any] = {}
    exec(definitions_of(text), names)
    assert names["f"]() == (f"a{odd}b" if odd != chr(11) else "ab") and "print" not in definitions_of(text)
    hooked = hooked_script(text, "f", "f = f")
    assert hooked is not None and hooked == text.replace("    return A\r\n", "    return A\nf = f\n")


def test_a_source_that_is_no_utf_8_is_refused():
    with pytest.raises(BadRequest, match=r"a\.py is no UTF-8: byte 1 is 0xe9"):
        decode_source(b"#\xe9", "a.py")


KEPT = "cuda = False\nS = 2\nL = [1]\nC = {}\ndef f(x):\n    return x * S * L[0] * len(C)\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("S *= 2", "S"),
        ("if cuda: S = 3", "S"),
        ("for S in range(3): pass", "S"),
        ("with open('a') as S: pass", "S"),
        ("S = max(int('3'), g())", "S"),
        ("L[0] += 1", "L"),
        ("L.append(3)", "L"),
        ("if cuda: C.update(a=1)", "C"),
        ("del S", "S"),
        ("if cuda:\n    def f(x): return x", "f"),
        ("f = g(f)", "f"),
        ("if cuda: import torch as S", "S"),
        ("if cuda: len = 3", "len"),
    ],
)
def test_a_statement_that_is_left_out_and_changes_what_is_kept_is_refused(line: str, name: str):
    with pytest.raises(BadRequest, match=f"^Line 7 of the script changes {name}, "):
        definitions_of(KEPT + line)


def test_statements_that_change_nothing_kept_are_left_out():
    more = (
        "f = torch.compile(f, dynamic=True)\nmodel = g()\nx = g(S)\nprint(S, L.index(1))\nfor i in L:\n    y = f(i)\n"
    )
    more += "if __name__ == '__main__':\n    S = 3\n    print(f(1))\n"
    assert definitions_of(KEPT + more) == KEPT


USUAL = """import sys
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision('high')
device = 'cuda' if torch.cuda.is_available() else 'cpu'
def f(x):
    return F.relu(torch.sin(x.to(device))) + np.pi + len(sys.path) + len(nn.__name__)
"""


def test_what_scripts_do_with_libraries_is_left_out_and_how_torch_computes_is_kept():
    """As a script of some lines has it: seeds, files, threads, arguments."""
    more = "torch.manual_seed(0)\nnp.random.seed(0)\nsys.path.insert(0, '.')\nSTEPS = int(sys.argv[1])\n"
    more += "torch.save(f(torch.ones(STEPS)), 'a.pt')\nif device == 'cuda':\n    torch.cuda.synchronize()\n"
    assert definitions_of(USUAL + more) == USUAL
    for line in ("torch.set_default_dtype(torch.float64)", "torch.backends.cudnn.benchmark = f(1)"):
        with pytest.raises(BadRequest, match=r"^Line 11 of the script changes torch, "):
            definitions_of(USUAL + line)


def record(**changed: Any) -> bytes:
    tensor = {"dtype": "float32", "shape": [4], "strides": [1]}
    one: dict[str, Any] = {
        "skeleton": {}, "leaves": [], "tensors": [tensor], "names": ["x"], "calls": 3, "bytes": 16, **changed,
    }  # fmt: skip
    plain: Mapping[str, Any] = dict.fromkeys(("others", "graphs", "compiled", "differing"), 0)
    words = dict.fromkeys(("wrong", "overload", "device", "torch"), "")
    return json.dumps({"sets": [one, {**one, "leaves": []}], "seen": {}, "loaded": {}, **plain, **words}).encode()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"names": ["x", "y"]}, "2 names, 1 tensors"),
        ({"calls": 0}, "without a call"),
        ({"calls": -1}, "greater than or equal to 0"),
        ({"tensors": [{"dtype": "float32", "shape": [4], "strides": []}]}, "1 sizes, 0 steps"),
    ],
)
def test_a_forged_record_of_calls_is_refused_in_words(changed: dict[str, Any], why: str):
    found = parse_calls(record(**changed))
    assert isinstance(found, str) and why in found and "no problem is made" in found


def test_sets_with_other_numbers_of_plain_values_are_not_alike():
    found = parse_calls(record(leaves=[1, 2]))
    assert isinstance(found, CallRecording) and [s.leaves for s in chosen_sets(found, 8)[0]] == [[1, 2]]
    assert parse_calls(b"") == ""
    without = parse_calls(record(tensors=[], names=[]))
    assert isinstance(without, CallRecording)
    assert chosen_sets(without, 8) == ([], ["3 calls are left out: it takes no tensor"] * 2)
    forged = parse_calls(record(module=1))
    assert isinstance(forged, str) and "names a module that is not there" in forged


async def test_a_module_is_read_once_and_reading_ends_at_the_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """20,000 names of one file are one read; more text than a problem may have is never put together."""
    workspace = (await lab.store.workspaces.write(None, {"a.py": "x" * 100})).workspace_id
    wide = (await lab.store.workspaces.write(None, {f"m{n}.py": "y" * 1000_000 for n in range(8)})).workspace_id
    reads: list[str] = []
    read = Workspaces.read_bytes

    async def counted(self: Workspaces, workspace_id: str, path: str, limit_bytes: int | None = None) -> bytes:
        reads.append(path)
        return await read(self, workspace_id, path, limit_bytes)

    monkeypatch.setattr(Workspaces, "read_bytes", counted)
    found = parse_calls(record())
    assert isinstance(found, CallRecording)
    many = found.model_copy(update={"loaded": {f"n{n}": "a.py" for n in range(20_000)}})
    assert len(await lab.programs.capture.program_files(workspace, many)) == 20_000 and reads == ["a.py"]
    large = found.model_copy(update={"loaded": {f"n{n}": f"m{n}.py" for n in range(8)}})
    with pytest.raises(LimitExceeded, match="modules that the program loaded"):
        await lab.programs.capture.program_files(wide, large)
    assert len(reads) == 1 + 5


def test_what_a_flat_script_computes_from_its_data_is_left_out():
    text = """import torch
size = 8
def add(x, y):
    return x + y
x = torch.rand(size)
total = x + x
half: float = total[0]
names = ['total', size]
total = 3
"""
    assert (
        definitions_of(text)
        == """import torch
size = 8
def add(x, y):
    return x + y
names = ['total', size]
total = 3
"""
    )


def test_the_line_of_an_overlay_is_no_part_of_the_reference():
    text = f"def f(x):\n    return x\n{overlay_line('f')}\n"
    assert definitions_of(text) == "def f(x):\n    return x\n"
    with pytest.raises(BadRequest, match="Line 3 of the script changes f"):
        definitions_of(text.replace("MAIN", "OTHER"))
