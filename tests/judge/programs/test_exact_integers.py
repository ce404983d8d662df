"""Whole numbers that a program writes as words: from 2^53 on neighbours are the same double, and still not the same."""

import time

import pytest
from gpu_mcp_judge.owner import program_owner
from gpu_mcp_judge.programs import output_parsers, program_runs

from tests.judge.program_harness import judge_program

BIG = (1 << 62) + 5
RULES = {
    "text": {"skip_lines": 1},
    "json": {"json_path": "a.0"},
    "csv": {"columns": ["h"]},
    "regex": {"pattern": r"^h=(\S+)$"},
}
FORMATS = pytest.mark.parametrize("format", RULES)


def written(format, words):
    """Return the series that a rule of a format finds where a program wrote these words."""
    text = {
        "text": "numbers\n" + ", ".join(words),
        "json": '{"a": [[' + ", ".join(words) + "]]}",
        "csv": "i, h\n" + "".join(f"0, {word} \n" for word in words),
        "regex": "".join(f"h={word}\n" for word in words),
    }[format]
    return output_parsers.extract({"name": "h", "format": format, **RULES[format]}, text.encode())


def reason(format, expected, got, rtol=0.0, atol=0.0):
    expected, got = (written(format, [str(word) for word in words]) for words in (expected, got))
    return program_runs.matched(expected, got, rtol, atol).reason


@FORMATS
@pytest.mark.parametrize("sign", [1, -1])
def test_large_whole_numbers_are_compared_digit_by_digit(format, sign):
    expected, got = ([sign * each for each in (3, BIG, n, 2**70)] for n in (BIG + 1, BIG))
    words = f"output h[2] is {got[2]}, expected {expected[2]}; 1 of 4 elements are wrong; "

    assert reason(format, expected, expected) == ""
    assert reason(format, expected, got).startswith(words)
    assert "digit by digit" in reason(format, expected, got, rtol=1e-2, atol=1e9)


@FORMATS
@pytest.mark.parametrize("small", ["4", "-3", "3.0", "3e0"])
def test_no_tolerance_and_no_fraction_stands_beside_a_large_whole_number(format, small):
    words = reason(format, [3, BIG], [small, BIG], rtol=0.5, atol=5.0)

    assert words.startswith("output h[0] is ") and ", expected 3; 1 of 2 " in words


@FORMATS
@pytest.mark.parametrize("large", [f"{BIG}.0", "4611686018427387909e0", "4.6116860184273879e18"])
def test_a_fraction_where_a_large_whole_number_is_expected_is_wrong(format, large):
    assert f"expected {BIG}; 1 of 1 elements are wrong" in reason(format, [BIG], [large], rtol=1e-2)


def test_the_first_number_that_two_share_a_double_with_is_large():
    assert float(2**53) == float(2**53 + 1)
    for sign in (1, -1):
        assert reason("text", [sign * 2**53], [sign * (2**53 + 1)])
        assert reason("text", [sign * (2**53 + 1)], [sign * 2**53])
        assert reason("text", [sign * (2**53 - 1)], [sign * 2**53])
        assert reason("text", [sign * (2**53 - 1)], [sign * (2**53 - 2)], rtol=1e-9) == ""


@FORMATS
@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (["1000", "7"], ["1009", "7"]),
        (["1000", "7"], ["1009.5", "7.0"]),
        ([BIG, "0.5"], [BIG + 1, "0.5001"]),
        (["1e20", "7"], ["100000000000000000001", "7"]),
        (["-1.5"], ["-1.51"]),
    ],
)
def test_ordinary_numbers_and_fractions_keep_their_tolerance(format, expected, got):
    assert reason(format, expected, got, rtol=1e-2) == ""


@FORMATS
def test_what_the_candidate_writes_does_not_choose_how_it_is_compared(format):
    assert reason(format, [BIG, 2], [f"{BIG}.0", "2.0"], rtol=1e-2)
    assert reason(format, [1000, 2], [BIG, 2], rtol=1e-2).startswith("output h[0] is 4.6")


def test_all_ways_to_write_a_whole_number_are_alike():
    assert reason("text", [BIG, "-0", -BIG], [f"+000{BIG}", "0", f"-00{BIG}"]) == ""
    assert reason("csv", [BIG], [f"\t{BIG} "]) == ""
    assert [program_runs.literal(word) for word in ("", "-", "+-1", "1_0", "1.", "٣", "0x1", "--1")] == [None] * 8
    assert reason("text", [BIG], ["4_611686018427387909"]) and reason("text", [BIG], [f"{BIG}".replace("4", "٤")])


def test_booleans_and_strings_of_a_json_text_are_no_numbers():
    for word in ("true", '"5"', "null", "{}"):
        with pytest.raises(output_parsers.Unreadable, match="where a number should be"):
            written("json", [word])


@FORMATS
def test_a_word_of_millions_of_digits_takes_no_longer_than_it_is_long(format):
    size = 131_000 if format == "csv" else 4_000_000  # Python's own limit of a cell is 131,072
    long, other = "1" * size, "1" * (size - 1) + "2"
    begin = time.process_time()

    assert reason(format, [long], [long]) == ""
    words = reason(format, [long], [other])
    assert f"is 111111112 (from character {size - 8} of {size}), expected 111111111 (" in words and len(words) < 300
    assert reason(format, [BIG], [long[:-2] + ".0"])
    assert reason(format, [1000], [long], rtol=1e-2)
    assert time.process_time() - begin < 10


def test_answers_without_work_are_tried_digit_by_digit_too():
    def passes(words):
        (series,) = written("text", [str(word) for word in words])
        tried = {name: program_owner.trivial([series], name) for name in program_owner.TRIVIAL}
        return [name for name, answer in tried.items() if not program_runs.matched([series], answer, 0.0, 0.0).reason]

    assert passes([BIG, BIG]) == ["mean"]
    assert passes([BIG, BIG + 2]) == passes([BIG]) == passes([0, BIG]) == passes([1, BIG]) == []
    assert passes([0, 0]) == ["zeros", "mean"]


HASHES = """
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
int main(int argc, char **argv) {
    int n = atoi(argv[1]); uint64_t s = atoi(argv[2]); FILE *out = fopen("out.txt", "w");
    fprintf(out, HEAD);
    for (int i = 0; i < n; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t v = (1ull << 62) | (s >> 2 & ~1023ull) | 5;
        fprintf(out, LINE, i ? COMMA : "", (unsigned long long)(v MASK));
    }
    fprintf(out, TAIL); fclose(out); return 0;
}
"""
LAYOUT = {
    "text": ("numbers\\n", "%s%llu\\n", "", ""),
    "json": ('{\\"a\\": [[', "%s%llu", ",", "]]}"),
    "csv": ("i, h\\n", "%s0, %llu\\n", "", ""),
    "regex": ("", "%sh=%llu\\n", "", ""),
}


@FORMATS
def test_a_hash_without_its_low_bits_is_incorrect(tmp_path, format):
    def program(mask):
        source = HASHES.replace("MASK", mask)
        for word, text in zip(("HEAD", "LINE", "COMMA", "TAIL"), LAYOUT[format], strict=True):
            source = source.replace(word, f'"{text}"')
        return source

    rule = {"name": "h", "source": "out.txt", "format": format, **RULES[format]}
    task = {"rules": [rule], "tier": "correctness", "sandboxes": 2}
    right = judge_program(tmp_path / "right", program(""), program("| 1"), **task).verdict
    wrong = judge_program(tmp_path / "wrong", program(""), program("& ~7ull"), **task).verdict
    registered = judge_program(tmp_path / "registered", program(""), **task).verdict

    assert (right["verdict"], right["reason"], right["inputs"]) == ("correct", "", "secret")
    assert wrong["verdict"] == "incorrect"
    assert "output h[0] is " in wrong["reason"] and "1000 of 1000 elements are wrong" in wrong["reason"]
    assert (registered["status"], len(registered["tried"])) == ("ok", 4)


def test_words_among_the_numbers_of_a_text_are_told_with_what_reads_them():
    with pytest.raises(output_parsers.Unreadable, match="'total' where a number should be; `skip_lines` passes over"):
        output_parsers.extract({"name": "h", "format": "text"}, b"total 3")
