"""Program problems: what was given is checked before anything of it is built or run."""

import re
import warnings
from collections.abc import Sequence

from gpu_mcp_server.errors import BadRequest, LimitExceeded
from gpu_mcp_server.models.program import OutputRule, ProgramInfo, ProgramProblem
from gpu_mcp_server.services.workspaces.local_files import checked_path

MAX_CASES = 5
"""Each run of a candidate has a sandbox of its own, and a job has 40 of them."""
MAX_OUTPUTS = 6
MAX_INPUTS = 8
"""A message between judge and sandbox carries 8 descriptors."""
MAX_PROJECT_FILES = 500
MAX_PROJECT_BYTES = 8 << 20
MAX_PATTERN_CHARACTERS = 500
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NEEDS = {"binary": "dtype", "csv": "columns", "regex": "pattern"}


def check_program(program: ProgramProblem) -> None:
    """Return if a program is sound.

    Raises:
        BadRequest: If anything does not fit together; says which.
        LimitExceeded: If the project has more than 500 files or 8 MiB.
    """
    _check_files(program)
    _check_commands(program)
    if len(program.outputs) > MAX_OUTPUTS or len({rule.name for rule in program.outputs}) != len(program.outputs):
        raise BadRequest("outputs are more than 6, or two have one name.", hint="Give 1 to 6, each its own name.")
    for rule in program.outputs:
        _check_rule(rule)
    for name, pattern in program.said.items():
        _check_pattern(f"said.{name}", pattern)
    files = [rule.source for rule in program.outputs if rule.source != "stdout"]
    _check_paths("outputs", files)
    _check_paths("inputs", program.inputs)
    if set(files) & set(program.inputs):
        raise BadRequest("A file is an input and an output.", hint="Let the program write another file.")


def info_of(program: ProgramProblem) -> ProgramInfo:
    """Return what a candidate must know."""
    return ProgramInfo(
        build=program.build,
        run=program.run,
        files=sorted(program.files)[:40],
        replaces=program.replaces,
        outputs=[f"{rule.name} ({rule.format} in {rule.source})" for rule in program.outputs],
        inputs="secret" if program.secret() else "fixed",
    )


def _check_files(program: ProgramProblem) -> None:
    _check_paths("files", list(program.files))
    total = 0
    for path, file in program.files.items():
        try:
            total += len(file.data())
        except (ValueError, UnicodeEncodeError) as error:
            raise BadRequest(f"The file {path!r}: {error}.", hint="Give its text, or its bytes as base64.") from error
    if not program.files or len(program.files) > MAX_PROJECT_FILES or total > MAX_PROJECT_BYTES:
        raise LimitExceeded(
            f"The project has {len(program.files)} files of {total} bytes; 1 to {MAX_PROJECT_FILES} files and "
            f"{MAX_PROJECT_BYTES} bytes are possible.",
            hint="Leave out what neither build nor run needs; let a generator make large inputs.",
        )
    if program.replaces is not None and program.replaces not in program.files:
        raise BadRequest(
            f"replaces names {program.replaces!r}, which is no file of the project.",
            hint=f"It has {', '.join(sorted(program.files)[:20])}.",
        )


def _check_commands(program: ProgramProblem) -> None:
    if len(program.cases) > MAX_CASES:
        raise BadRequest(f"There are {len(program.cases)} cases.", hint=f"Give 1 to {MAX_CASES}.")
    names = set(program.cases[0])
    for case in program.cases:
        if set(case) != names or "seed" in case or program.cases.count(case) > 1:
            raise BadRequest(
                f"The case {case} names other parameters than the first, or `seed`, or is given twice.",
                hint="Each case gives every parameter a value; {seed} is drawn by the judge.",
            )
    for what, words in (("run", program.run), ("generator", program.generator)):
        for place in (place for word in words for place in _PLACE.findall(word)):
            if place not in {*names, "seed", "python"}:
                raise BadRequest(
                    f"{what} has {{{place}}}, which no case gives a value.",
                    hint=f"Known are {', '.join(sorted({*names, 'seed', 'python'}))}.",
                )
    if bool(program.generator) != bool(program.inputs):
        raise BadRequest(
            "A generator and the inputs that it writes go together.", hint="Name both, or ship inputs in `files`."
        )
    if len(program.inputs) > MAX_INPUTS:
        raise BadRequest(f"There are {len(program.inputs)} inputs.", hint=f"At most {MAX_INPUTS} are possible.")
    if program.stdin is not None and program.stdin not in {*program.inputs, *program.files}:
        raise BadRequest(f"stdin names {program.stdin!r}, no input or file.", hint="Name one of `inputs`.")


def _check_rule(rule: OutputRule) -> None:
    needed = _NEEDS.get(rule.format)
    if needed is not None and not getattr(rule, needed):
        raise BadRequest(f"The output {rule.name} is {rule.format} and has no {needed}.", hint=f"Give {needed}.")
    if _PLACE.search(rule.source):
        raise BadRequest(
            f"The output {rule.name} is in {rule.source!r}: its file has one name in all cases.",
            hint='Rename it behind the run: ["sh", "-c", "./app {n} && mv out_{n}.bin out.bin"].',
        )
    if rule.format == "regex":
        _check_pattern(f"outputs.{rule.name}", rule.pattern)


def _check_pattern(what: str, pattern: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadRequest(f"The pattern of {what} is no regular expression: {error}.", hint="Correct it.") from error
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise BadRequest(f"The pattern of {what} is over {MAX_PATTERN_CHARACTERS} characters.", hint="Shorten it.")


def _check_paths(what: str, paths: Sequence[str]) -> None:
    for path in paths:
        if checked_path(path) != path:
            raise BadRequest(f"{what}: {path!r} is not in its plain form.", hint=f"Write {checked_path(path)!r}.")
    for path in paths:
        if any(other.startswith(path + "/") for other in paths):
            raise BadRequest(f"{what}: {path!r} is a file and a folder.", hint="Rename one of them.")
