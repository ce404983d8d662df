"""Sources and listings of the greatest length are searched line by line, in no more time than that takes."""

from collections.abc import Callable
from typing import Any

import pytest

from gpu_mcp_server.services.builds.candidate_source import MAX_SOURCE_BYTES
from gpu_mcp_server.services.evaluation.extension_builds import LOCAL
from gpu_mcp_server.toolchains import hiprtc, nvrtc, torch_bindings
from gpu_mcp_server.toolchains.c_source import strip_comments, strip_comments_and_strings
from gpu_mcp_server.toolchains.disassembly_listings import view_of
from gpu_mcp_server.toolchains.object_files import architecture_in
from gpu_mcp_server.toolchains.ptxas_findings import performance_warnings

LOST = "ptxas info : (C7510) Potential Performance Loss: wgmma is serialized in the function 'f'"
READERS: dict[str, Callable[[str], Any]] = {
    "nvrtc": nvrtc.device_only,
    "hiprtc": hiprtc.device_only,
    "an extension's own headers": LOCAL.search,
    "an extension": torch_bindings.binds_torch,
    "a listing": view_of,
    "an architecture": architecture_in,
    "a place in PTX": lambda text: performance_warnings(LOST, text),
}


PIECES = {
    "blank": "\n",
    "spaces": " \n",
    "an open include": "#include <",
    "directives": ".a\n",
    "open comments": "/*",
    "open strings": '\\"',
}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("reader", READERS)
def test_a_long_source_is_read_in_no_more_time_than_its_length_allows(reader: str, piece: str):
    """A pattern that crossed 1 MiB of blank lines kept the server busy for a quarter of an hour."""
    text = PIECES[piece] * (MAX_SOURCE_BYTES // len(PIECES[piece]))

    found = READERS[reader](text)
    assert [each.line for each in found] == [None] if reader == "a place in PTX" else not found


def test_what_is_no_code_goes_and_the_lines_stay():
    source = 'a("// \\" stays"); // goes\n/* two\nlines */ b(\'"\'); c("open\nd(1\'000); /* to the end'
    assert strip_comments(source) == 'a("// \\" stays");  \n \n b(\'"\'); c("open\nd(1\'000);  '
    assert strip_comments_and_strings(source) == 'a("");  \n \n b(\'\'); c(""\nd(1\'000);  '
