"""An error that is the machine's is told from one that is the candidate's: the owner must miss the same."""

import subprocess
from pathlib import Path

import pytest
from gpu_mcp_judge.machine_limits import has_module, lack_in  # pyright: ignore[reportMissingImports]

from tests.judge.harness import EXAMPLES, judge


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        ("ModuleNotFoundError: No module named 'nonexistent_abc' (candidate.py line 3)", "module nonexistent_abc"),
        ("ModuleNotFoundError: No module named 'numpy.nothing'", "module numpy.nothing"),
        ("ModuleNotFoundError: No module named 'numpy.linalg'", None),
        ("ModuleNotFoundError: No module named 'os.path.nothing'", None),
        ("ModuleNotFoundError: No module named '../evil'", None),
        ("OSError: libgone.so.7: cannot open shared object file: No such file or directory", "library libgone.so.7"),
        (
            "OSError: /job/libgone.so.7: cannot open shared object file: No such file or directory",
            "library libgone.so.7",
        ),
        ("OSError: libc.so.6: cannot open shared object file: No such file or directory", None),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", "gpu "),
        ("RuntimeError: Found no NVIDIA driver on your system.", "gpu "),
        ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "gpu "),
        ("RuntimeError: x must be a CUDA tensor", "gpu "),
        ("ValueError: input must be on CUDA", "gpu "),
        ("AssertionError: wrong place of `assert x.is_cuda, 'wrong place'` (candidate.py line 3)", "gpu "),
        ("AssertionError: of `assert x.device.type == 'cuda'` (candidate.py line 3)", "gpu "),
        ("AssertionError: of `assert len(x) == 3` (candidate.py line 3)", None),
        ("/work/candidate.so: undefined symbol: cublasCreate_v2", None),
        ("/lib/x.so: undefined symbol: mine, version libc.so.6", "symbol mine of libc.so.6"),
        ("/lib/x.so: undefined symbol: malloc, version libc.so.6", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'gcc'", None),
        ("no luck", None),
    ],
)
def test_a_claim_is_believed_where_it_is_true(text: str, lack: str | None):
    found = lack_in(text, "cpu", "/work")

    assert (f"{found['kind']} {found['name']}" if found else None) == lack


def test_on_a_gpu_none_is_missing():
    assert lack_in("RuntimeError: 0 active drivers ([]). There should only be one.", "cuda", "/work") is None


def test_programs_are_missing_where_no_path_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert lack_in("Failed to find C compiler.", "cpu", "/work") == {"kind": "program", "name": "cc"}
    assert lack_in("[Errno 2] No such file or directory: 'nvcc'", "cpu", "/work") == {"kind": "program", "name": "nvcc"}
    cutile = "FileNotFoundError: 'tileiras' compiler not found, make sure it is available"
    assert lack_in(cutile, "cuda", "/work") == {"kind": "program", "name": "tileiras"}
    (tmp_path / "clang").write_text("")
    (tmp_path / "clang").chmod(0o755)
    assert lack_in("Failed to find C compiler.", "cpu", "/work") is None


def test_a_package_is_looked_for_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "loud_package").mkdir()
    (tmp_path / "loud_package/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "loud_package/part.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert has_module("loud_package.part") and not has_module("loud_package.other")


def test_a_library_that_was_linked_against_one_that_is_not_here_is_not_judged(tmp_path: Path):
    (tmp_path / "gone.c").write_text("int helped(void) { return 0; }\n")
    gcc = ["gcc", "-shared", "-fPIC", "-o"]
    subprocess.run([*gcc, "libgone.so", "gone.c", "-Wl,-soname,libgone.so.7"], cwd=tmp_path, check=True)
    naive = (EXAMPLES / "naive.c").read_text()
    (tmp_path / "candidate.c").write_text("int helped(void);\nint (*use)(void) = helped;\n" + naive)
    subprocess.run([*gcc, "c.so", "candidate.c", "-L.", "-lgone", "-lm"], cwd=tmp_path, check=True)
    outcome = judge(tmp_path, EXAMPLES / "reference.py", tmp_path / "c.so")

    assert outcome.exit_code == 0, outcome.stderr
    lack = {"kind": "library", "name": "libgone.so.7", "role": "candidate", "early": True}
    assert "verdict" not in outcome.verdict and "libgone.so.7: cannot open" in outcome.verdict["lacks"].pop("said")
    assert outcome.verdict["lacks"] == lack
