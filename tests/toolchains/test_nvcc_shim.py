"""The stand-in for nvcc in builds of torch extensions makes what nvcc makes, and says what nvcc says."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_mcp_server.package_files import WORKERS

pytestmark = pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
KERNEL = """
#include <cstdio>
#include <cuda_runtime.h>
HEADERS
namespace { __device__ int counter; }
__global__ void count(int *to) { atomicAdd(&counter, 1); *to = counter + LEAST; }
extern "C" int launch(int *to) { count<<<1, 1>>>(to); return cudaGetLastError(); }
"""
WHOLE = "#pragma once\n#include <torch/types.h>\n#define LEAST BOTH\n#define BOTH 3\n"
OPTIONS = ["-gencode=arch=compute_90,code=sm_90", "--compiler-options", "-fPIC", "-std=c++17"]
DEPENDENCIES = ["--generate-dependencies-with-compile", "--dependency-output", "kernel.o.d"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with torch's two headers; only the larger one has the constant."""
    (tmp_path / "include" / "torch").mkdir(parents=True)
    (tmp_path / "include" / "torch" / "types.h").write_text("#pragma once\n")
    (tmp_path / "include" / "torch" / "extension.h").write_text(WHOLE)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def compiled(folder: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "kernel.cu").write_text(text)
    argv = [sys.executable, str(WORKERS / "nvcc_shim.py"), *DEPENDENCIES, "-isystem", "include", *(options or OPTIONS)]
    told = {**os.environ, "TORCH_NVCC": str(shutil.which("nvcc")), "TMPDIR": str(folder / "tmp")}
    return subprocess.run(
        [*argv, "-c", "kernel.cu", "-o", "kernel.o"], cwd=folder, env=told, capture_output=True, text=True, check=False
    )


def symbols(folder: Path) -> list[str]:
    said = subprocess.run(["nm", "kernel.o"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[-1] for line in said.splitlines() if "extension" not in line and "cu_" not in line)


def test_what_it_makes_is_what_nvcc_makes_and_nothing_is_left_behind(folder):
    text = KERNEL.replace("HEADERS", "").replace("LEAST", "1")
    done = compiled(folder, text)
    assert (done.returncode, done.stderr) == (0, "")
    found = symbols(folder)
    modules = set(re.findall(rb"_GLOBAL__N__([0-9a-f]{8}_\w{9})", (folder / "kernel.o").read_bytes()))
    assert len(modules) == 1, "host and device side give the module one name"
    assert list((folder / "tmp").iterdir()) == []
    assert not (folder / "kernel.o.d").exists(), "nvcc itself would have written it: the quick way was not gone"

    subprocess.run(["nvcc", *OPTIONS, "-c", "kernel.cu", "-o", "kernel.o"], cwd=folder, check=True)
    assert found == symbols(folder)


def test_a_source_that_needs_the_larger_header_gets_it(folder):
    done = compiled(folder, KERNEL.replace("HEADERS", "#include <torch/extension.h>"))

    assert done.returncode == 0, done.stderr
    assert "launch" in symbols(folder)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("nothing", 'identifier "nothing" is undefined'),
        ("1; }", "expected a declaration"),
        ("1; int twice, twice", "has already been declared"),
    ],
)
def test_an_error_is_told_once_as_nvcc_tells_it(folder, wrong, words):
    done = compiled(folder, KERNEL.replace("HEADERS", "").replace("LEAST", wrong))

    assert done.returncode != 0
    assert done.stderr.count(words) == 1, done.stderr
    assert not (folder / "kernel.o").exists()
    asked = ["nvcc", *OPTIONS, "-c", "kernel.cu", "-o", "by_nvcc.o"]
    assert done.stderr.split() == subprocess.run(asked, cwd=folder, capture_output=True, text=True).stderr.split()
    assert not (folder / "kernel.o.d").exists(), "nvcc itself would have written it: the source was compiled twice"


def test_warnings_are_told_once_where_an_error_may_be_for_want_of_headers(folder):
    wrong = "1; }\n#warning look\n#ifdef __CUDA_ARCH__\nint device = nothing;\n#endif\nvoid f() {"
    done = compiled(folder, KERNEL.replace("HEADERS", "#include <torch/extension.h>").replace("LEAST", wrong))

    assert (folder / "kernel.o.d").exists(), "nvcc had the last word"
    assert 'identifier "nothing" is undefined' in done.stderr
    asked = ["nvcc", "-isystem", "include", *OPTIONS, "-c", "kernel.cu", "-o", "by_nvcc.o"]
    by_nvcc = subprocess.run(asked, cwd=folder, capture_output=True, text=True).stderr
    assert "#warning look" in by_nvcc
    assert done.stderr.split() == by_nvcc.split()


def test_what_nvcc_itself_warns_of_is_told_too(folder):
    options = [*OPTIONS, "-O2", "-O3"]
    done = compiled(folder, KERNEL.replace("HEADERS", "").replace("LEAST", "1"), *options)

    assert not (folder / "kernel.o.d").exists(), "the quick way"
    asked = ["nvcc", *options, "-c", "kernel.cu", "-o", "by_nvcc.o"]
    by_nvcc = subprocess.run(asked, cwd=folder, capture_output=True, text=True).stderr
    assert "incompatible redefinition for option 'optimize'" in by_nvcc
    assert (done.returncode, done.stderr) == (0, by_nvcc)


def test_a_condition_on_what_only_the_larger_header_says_is_met(folder):
    condition = (
        '\n#if defined(__CUDACC__) && \\\n    TORCH_VERSION_MAJOR >= 2\nextern "C" int newer() { return 1; }\n#endif'
    )
    with (folder / "include" / "torch" / "extension.h").open("a") as header:
        header.write("#define TORCH_VERSION_MAJOR 2\n")
    done = compiled(folder, KERNEL.replace("HEADERS", "#include <torch/extension.h>" + condition).replace("LEAST", "1"))

    assert done.returncode == 0, done.stderr
    assert "newer" in symbols(folder)
    assert not (folder / "kernel.o.d").exists(), "with all headers it is quick, too"


@pytest.mark.parametrize(
    "options",
    [
        ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"],
        ["-gencode=arch=compute_90,code=sm_90", "-rdc=true"],
        ["-gencode=arch=compute_90,code=sm_90", "-DTWO WORDS", '-DQUOTED="\'$(touch x)`touch y`"'],
    ],
)
def test_other_ways_to_compile_end_as_with_nvcc(folder, options):
    done = compiled(folder, KERNEL.replace("HEADERS", "").replace("LEAST", "1"), *options)

    asked = ["nvcc", *options, "-c", "kernel.cu", "-o", "by_nvcc.o"]
    assert done.returncode == subprocess.run(asked, cwd=folder, capture_output=True, check=False).returncode
    assert (folder / "kernel.o").exists() == (folder / "by_nvcc.o").exists()


def test_the_steps_of_a_dry_run_that_is_not_known_are_not_guessed():
    spec = importlib.util.spec_from_file_location("nvcc_shim", WORKERS / "nvcc_shim.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    for told in ("", "#$ gcc -c -x c++ a.cpp\n", "#$ cudafe++ a\n#$ cudafe++ b\n", "nvcc fatal   : no"):
        assert module.steps_in(told) is None
