"""Builds one extension for torch from a request, in a process that runs nothing of the candidate's.

So what comes out depends on the request alone, and may be given to whoever asks for the same.
"""
# torch is the judge's Python's: pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import importlib
import json
import os
import shutil
import sys
from typing import Any, List

STEP = "_write_ninja_file_and_build_library"


def prepare() -> None:
    """Import torch before there is a job; IMPORTS is put before this source."""
    for name in globals().get("IMPORTS", ()):
        importlib.import_module(name)


def main(arguments: List[str]) -> None:
    """Build `request.json` into the file named first."""
    with open("request.json", encoding="utf-8") as file:
        request = json.load(file)
    torch: Any = importlib.import_module("torch")
    if request["arguments"].get("with_cuda") and not (torch.version.cuda or torch.version.hip):
        # torch's own words; its builder would end with an IndexError in its list of architectures.
        raise SystemExit("Torch not compiled with CUDA enabled")
    extensions: Any = importlib.import_module("torch.utils.cpp_extension")
    extensions.CUDA_HOME = os.environ.get("CUDA_HOME", extensions.CUDA_HOME)  # it may have been imported before this
    if "CUDA_HOME" in os.environ and torch.version.cuda:
        os.environ["TORCH_NVCC"] = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
        os.environ["PYTORCH_NVCC"] = "%s %s" % (sys.executable, os.path.abspath("nvcc_shim.py"))
    os.environ.update(request["environment"])
    folder = os.path.abspath("build")
    os.makedirs(folder)
    sources: List[str] = []
    for name, text in request["sources"]:
        sources.append(os.path.join(folder, os.path.basename(name)))
        with open(sources[-1], "w", encoding="utf-8") as file:
            file.write(text)
    name = str(request["arguments"]["name"])
    try:
        getattr(extensions, STEP)(sources=sources, build_directory=folder, verbose=False, **request["arguments"])
        shutil.copyfile(os.path.join(folder, name + ".so"), arguments[0])
    except (RuntimeError, OSError, AssertionError) as error:
        sys.stderr.write("%s\n" % str(error).replace(folder + os.sep, ""))
        raise SystemExit(1) from None
