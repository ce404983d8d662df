"""Stands for nvcc while an extension of torch is built: the same compile in a third of its time.

nvcc over torch's headers takes a minute, of which host and device side could go side by side. `nvcc --dryrun` says
which commands it would run; they are run here, both sides at once. torch/extension.h, most of the text, is taken as
torch/types.h, which is what load_inline itself puts before a CUDA source, where that is enough to compile. Whatever
does not look as known, or does not compile so, is compiled by nvcc itself as it was asked, and its words count.

Environment: TORCH_NVCC, path of nvcc.
"""

import concurrent.futures
import functools
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import List, NamedTuple, Optional, Sequence

WANTS_MORE = re.compile(r"pybind11|PYBIND11|\bpy::|torch::nn|torch::autograd|torch::jit|torch::optim|torch::data")
"""Names for which a source needs the whole torch/extension.h."""
DEPENDENCIES = {"--generate-dependencies-with-compile": 0, "-MD": 0, "-MMD": 0, "--dependency-output": 1, "-MF": 1}
"""Options for a list of headers, which a build that is made once has no use for, and how many values each takes."""


CORES = 8
"""From how many on nvcc itself runs beside the quick way, in case that fails; each of them keeps up to two busy."""


class Steps(NamedTuple):
    """What nvcc would run for one source and one architecture."""

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


def side_by_side(nvcc: str, arguments: Sequence[str], folder: str) -> bool:
    """Compile with host and device side at once, temporary files in `folder`; return whether that went well."""
    told = dict(os.environ, TMPDIR=folder)
    dry = subprocess.run([nvcc, "--dryrun", *arguments], capture_output=True, text=True, errors="replace", env=told)
    steps = steps_in(dry.stderr) if dry.returncode == 0 else None
    if steps is None:
        return False
    name = hashlib.sha256("\0".join([os.getcwd(), *arguments]).encode()).hexdigest()[:16]
    with open(steps.module, "w", encoding="utf-8") as file:
        file.write("_%s_extension_%s" % (name[:8], name[8:]))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(functools.partial(chain, steps.variables), (steps.host, steps.device)))
    if all(side.returncode == 0 for side in sides):
        sides.append(chain(steps.variables, [steps.last]))
    good = all(side.returncode == 0 for side in sides)
    if good:
        sys.stderr.write("".join(side.stderr for side in sides))
    return good


class Whole:
    """nvcc itself, begun at the same time: where the quick way fails it has nearly done, and its words count."""

    def __init__(self, nvcc: str, arguments: Sequence[str], folder: str) -> None:
        self.to = arguments[list(arguments).index("-o") + 1]
        self.made = os.path.join(folder, "whole.o")
        argv = [nvcc, *(self.made if argument == self.to else argument for argument in arguments)]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, start_new_session=True)

    def give_up(self) -> None:
        """End it with all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def end(self) -> int:
        """Wait for it; put what it made where it belongs."""
        _, said = self.process.communicate()
        sys.stderr.buffer.write(said)
        if self.process.returncode == 0:
            shutil.move(self.made, self.to)
        return self.process.returncode


def source_of(arguments: Sequence[str]) -> str:
    """Return the text of the source that is compiled, empty if it cannot be told."""
    try:
        with open(arguments[arguments.index("-c") + 1], encoding="utf-8", errors="replace") as file:
            return file.read() if "-o" in arguments else ""
    except (ValueError, IndexError, OSError):
        return ""


def quick(nvcc: str, arguments: Sequence[str], text: str, folder: str) -> bool:
    """Compile the quick way, with fewer headers where they are enough; return whether that went well."""
    less: List[str] = []
    if not WANTS_MORE.search(text):
        os.makedirs(os.path.join(folder, "torch"))
        with open(os.path.join(folder, "torch", "extension.h"), "w", encoding="utf-8") as file:
            file.write("#include <torch/types.h>\n")
        less = ["-I" + folder]
    return side_by_side(nvcc, [*less, *arguments], folder)


def main(arguments: List[str]) -> int:
    """Compile as nvcc would; return its exit status."""
    nvcc, text, plain = os.environ["TORCH_NVCC"], source_of(arguments), without_dependencies(arguments)
    if text:
        with tempfile.TemporaryDirectory() as folder:
            whole = Whole(nvcc, plain, folder) if len(os.sched_getaffinity(0)) >= CORES else None
            good = quick(nvcc, plain, text, folder)
            if whole and not good:
                return whole.end()
            if whole:
                whole.give_up()
            if good:
                return 0
    os.execv(nvcc, [nvcc, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
