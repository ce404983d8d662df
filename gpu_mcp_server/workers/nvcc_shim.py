"""Stands for nvcc while an extension of torch is built: the same compile in a third of its time.

nvcc over torch's headers takes a minute, of which host and device side could go side by side. `nvcc --dryrun` says
which commands it would run; they are run here, both sides at once. torch/extension.h, most of the text, is taken as
torch/types.h, which is what load_inline itself puts before a CUDA source, where that is enough to compile. Whatever
does not look as known, or may lack one of the headers, is compiled by nvcc itself as it was asked.

Environment: TORCH_NVCC, path of nvcc.
"""

import concurrent.futures
import functools
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from typing import List, NamedTuple, Optional, Sequence

WHOLE = "torch/extension.h"
WANTS_MORE = re.compile(
    r"pybind11|PYBIND11|\bpy::|torch::nn|torch::autograd|torch::jit|torch::optim|torch::data"
    r"|^[ \t]*#[ \t]*(?:el)?if(?:\\\n|.)*\b(?:TORCH|AT|C10|PY|Py|HAVE)_",
    re.MULTILINE,
)
"""Names for which a source needs the whole torch/extension.h.

A condition on a macro that only the whole has, as on the version of torch, would be false without a word.
"""
DEPENDENCIES = {"--generate-dependencies-with-compile": 0, "-MD": 0, "-MMD": 0, "--dependency-output": 1, "-MF": 1}
"""Options for a list of headers, which a build that is made once has no use for, and how many values each takes."""
MAY_BE_MISSED = re.compile(
    r"undefined|undeclared|not declared|no member|incomplete|not a (?:template|type|class|namespace)|no instance"
    r"|no operator|cannot open|followed by|explicit type is missing|no storage class|no suitable|no matching"
    r"|not been declared|does not name|static assertion"
)
"""In what a compiler says of a source that was given fewer headers: they may be the reason."""


class Steps(NamedTuple):
    """Commands that nvcc would run for one source and one architecture."""

    variables: Sequence[str]
    host: Sequence[str]
    """Preprocess, split off the device's code."""
    device: Sequence[str]
    """Preprocess, compile, assemble, embed."""
    last: str
    """Compile the host's code, with the device's embedded."""
    module: str
    """Path of the file with the module's name, which both sides read."""


def without_dependencies(arguments: Sequence[str]) -> List[str]:
    """Return the arguments without those for a list of headers."""
    kept: List[str] = []
    skip = 0
    for argument in arguments:
        if skip:
            skip -= 1
        elif argument in DEPENDENCIES:
            skip = DEPENDENCIES[argument]
        else:
            kept.append(argument)
    return kept


def steps_in(told: str) -> Optional[Steps]:
    """Return the steps of a dry run, `None` if it is not of the kind that is known here."""
    lines = [line[3:] for line in told.splitlines() if line.startswith("#$ ")]
    variables = [line for line in lines if re.match(r"\w+=", line)]
    commands = [line for line in lines if not re.match(r"\w+=|--|rm ", line)]
    front = [line for line in commands if line.startswith("cudafe++ ")]
    if len(front) != 1 or sum("/cicc" in line for line in commands) != 1 or "-c -x c++" not in commands[-1]:
        return None
    module = re.search(r'--gen_module_id_file --module_id_file_name "([^"]+)"', front[0])
    text = re.search(r'"([^"]+\.ii)" *$', front[0])
    if not module or not text:
        return None
    host = [line for line in commands[:-1] if text[1] in line]
    device = [line for line in commands[:-1] if line not in host]
    if len(host) != 2 or any(module[1] in line for line in [*device, commands[-1]] if "/cicc" not in line):
        return None
    return Steps(
        variables, [line.replace("--gen_module_id_file ", "") for line in host], device, commands[-1], module[1]
    )


def chain(variables: Sequence[str], commands: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run commands one after the other, with nvcc's variables, as nvcc does: by the shell."""
    exported = ["export %s=%s" % (name, shlex.quote(value)) for name, _, value in (v.partition("=") for v in variables)]
    script = "\n".join(["set -e", *exported, *commands])
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, errors="replace")


def side_by_side(
    nvcc: str, arguments: Sequence[str], text: str, folder: str
) -> "Optional[subprocess.CompletedProcess[str]]":
    """Compile with host and device side at once, temporary files in `folder`.

    Returns:
        The last step, or the one that failed, with all that was said until then; `None` if the dry run is not of the
        kind that is known here.
    """
    told = dict(os.environ, TMPDIR=folder)
    dry = subprocess.run([nvcc, "--dryrun", *arguments], capture_output=True, text=True, errors="replace", env=told)
    steps = steps_in(dry.stderr) if dry.returncode == 0 else None
    if steps is None:
        return None
    decides = "\0".join([os.getcwd(), *arguments, text])
    name = hashlib.sha256(decides.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    with open(steps.module, "w", encoding="utf-8") as file:
        file.write("_%s_extension_%s" % (name[:8], name[8:]))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(functools.partial(chain, steps.variables), (steps.host, steps.device)))
    ended = next((side for side in sides if side.returncode), None)
    warnings = [line for line in dry.stderr.splitlines(keepends=True) if not line.startswith("#$ ")]
    said = [*warnings, *(side.stderr for side in (sides if ended is None else sides[: sides.index(ended)]))]
    ended = ended or chain(steps.variables, [steps.last])
    ended.stderr = "".join([*said, ended.stderr])
    return ended


def source_of(arguments: Sequence[str]) -> str:
    """Return the text of the source that is compiled, empty if it cannot be told."""
    try:
        with open(arguments[arguments.index("-c") + 1], encoding="utf-8", errors="replace") as file:
            return file.read() if "-o" in arguments else ""
    except (ValueError, IndexError, OSError):
        return ""


def compile_fast(nvcc: str, arguments: Sequence[str], text: str, folder: str) -> bool:
    """Compile the quick way, with fewer headers where they are enough; return whether there is no more to be done.

    Raises:
        SystemExit: If the source is wrong whatever the headers.
    """
    less: List[str] = []
    if WHOLE in text and not WANTS_MORE.search(text):
        os.makedirs(os.path.join(folder, os.path.dirname(WHOLE)))
        with open(os.path.join(folder, WHOLE), "w", encoding="utf-8") as file:
            file.write("#include <torch/types.h>\n")
        less = ["-I" + folder]
    last = side_by_side(nvcc, [*less, *arguments], text, folder)
    if last is None or (last.returncode and less and MAY_BE_MISSED.search(last.stderr)):
        return False
    sys.stderr.write(last.stderr)
    if last.returncode:
        raise SystemExit(last.returncode)
    return True


def main(arguments: List[str]) -> None:
    """Compile as nvcc would."""
    nvcc, text = os.environ["TORCH_NVCC"], source_of(arguments)
    if text:
        with tempfile.TemporaryDirectory() as folder:
            if compile_fast(nvcc, without_dependencies(arguments), text, folder):
                return
    os.execv(nvcc, [nvcc, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
