"""A problem whose reference is a whole program: its files, how it is built and run, and where its numbers are."""

import base64
import binascii
from typing import Annotated, Literal

from pydantic import Field

from gpu_mcp_server.models._base import Model

RuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,31}$")]
Parameter = int | float | str
Words = list[Annotated[str, Field(min_length=1, max_length=4096)]]


class ProgramFile(Model):
    """A file of a project, as text or as base64."""

    text: str | None = None
    base64: str | None = None
    executable: bool = False

    def data(self) -> bytes:
        """Return its bytes.

        Raises:
            ValueError: If it is neither text nor base64, or both.
        """
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give either text or base64")
        if self.text is not None:
            return self.text.encode()
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except binascii.Error as error:
            raise ValueError(f"no base64: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes, *, executable: bool = False) -> "ProgramFile":
        """Return a file with these bytes, as text where they are."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return cls(base64=base64.b64encode(data).decode(), executable=executable)
        return cls(text=text, executable=executable)


class OutputRule(Model):
    """Rule that locates the numbers of an output."""

    name: RuleName
    source: str = "stdout"
    """A file that the program writes, by its path in the project, or `stdout`."""
    format: Literal["binary", "text", "json", "csv", "regex", "exact"]
    """exact: the bytes as they are, without tolerance."""
    dtype: Literal["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"] | None = None
    """Of a binary file."""
    offset: int = Field(default=0, ge=0)
    """Bytes of a binary file before its numbers."""
    skip_lines: int = Field(default=0, ge=0)
    """Of a text, before its numbers."""
    json_path: str = ""
    """As `results.0.values`; lists below it are taken in order."""
    columns: list[str | int] = []
    """Of a CSV: names of its first line, or numbers from 0."""
    pattern: str = ""
    """Each named group is a series of its own; every match counts."""


class ProgramProblem(Model):
    """A program as a problem."""

    files: dict[str, ProgramFile]
    """The reference's project by path."""
    build: Words = []
    """Command that builds it in its folder, such as `make`; none for a script."""
    run: Annotated[Words, Field(min_length=1)]
    """Command that runs it; `{seed}` and the cases' parameters are put in, `{python}` is the judge's interpreter."""
    generator: Words = []
    """Command that writes the inputs, run in the reference's sandbox."""
    inputs: list[str] = []
    """Files that the generator writes and the program reads."""
    stdin: str | None = None
    """The input that is given on stdin."""
    cases: Annotated[list[dict[RuleName, Parameter]], Field(min_length=1)]
    outputs: Annotated[list[OutputRule], Field(min_length=1)]
    said: dict[RuleName, str] = {}
    """Patterns of what the program says of itself: told in the verdict, never believed."""
    replaces: str | None = None
    """The file that a candidate of one file replaces."""
    run_timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Of one run."""
    device: Literal["cpu", "cuda", "hip"] = "cpu"
    """What its runs may use: no GPU, one of NVIDIA's, or one of AMD's. Either way it is timed from outside."""

    def secret(self) -> bool:
        """Say whether a run depends on a seed that nobody knows before."""
        return any("{seed}" in word for word in [*self.run, *self.generator])


class ProgramInfo(Model):
    """A program as an agent sees it."""

    build: list[str]
    run: list[str]
    files: list[str]
    replaces: str | None = None
    outputs: list[str]
    inputs: Literal["secret", "fixed"]

    def summary(self) -> str:
        """Say what a candidate is."""
        one = f", or the text of {self.replaces} alone" if self.replaces else ""
        return (
            f"program candidate: a folder whose files replace the project's{one} (language program)\n"
            f"built by: {' '.join(self.build) or 'nothing'}; run as: {' '.join(self.run)}; inputs {self.inputs}\n"
            f"compared: {', '.join(self.outputs)}; project: {', '.join(self.files)}"
        )
