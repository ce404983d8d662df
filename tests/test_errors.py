"""Parts of an error's text."""

import pytest

from gpu_mcp_server.errors import GpuMcpError, HostError, HostUnavailable


@pytest.mark.parametrize(
    ("message", "hint", "text"),
    [
        ("The disk is full", "Make room", "The disk is full. Make room."),
        ("The disk is full.", "Make room.", "The disk is full. Make room."),
        ("It says: stop..", "", "It says: stop."),
        ("Why?", "Look ...", "Why? Look ..."),
        (" It broke \n", "", "It broke."),
        ("", "Try again", "Try again."),
    ],
)
def test_what_happened_and_what_to_do_are_sentences_of_their_own(message: str, hint: str, text: str):
    assert str(GpuMcpError(message, hint=hint)) == text


def test_a_host_s_words_end_before_the_advice_begins():
    assert str(HostError("Host 'box': OSError: no such device", hint="Look at it.")).endswith("device. Look at it.")
    assert str(HostUnavailable("gone")) == "gone. Call gpu_status to see which hosts answer."
