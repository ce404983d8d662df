"""Programs judged as wholes: what they write is compared, what they say is not believed."""

import json
from itertools import count

import pytest

from gpu_mcp_server.judge.programs.program_process import KEPT
from tests.judge.harness import edited
from tests.judge.program_harness import PROGRAM, judge_program

OUT = 'FILE *out = fopen("out.bin", "wb");'
HEAD = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* Return when an output was looked for at the program's end and once more: the clock has stopped by then. */
static void looked_for_again(const char *path) {
    for (int times = 0; times < 2; times++) {
        struct pollfd end = {open(path, O_WRONLY), 0, 0};
        while (!(end.revents & POLLERR)) poll(&end, 1, -1);
        close(end.fd);
    }
    unlink(path);
}
static void work(int n, unsigned s, const char *path) {
    FILE *out = fopen(path, "wb");
    for (int i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        float y = sinf((s >> 8) / 16777216.0f);
        fwrite(&y, 4, 1, out);
    }
    fclose(out);
}
"""


def program(body: str) -> str:
    return HEAD + "int main(int argc, char **argv) { int n = atoi(argv[1]); unsigned s = atoi(argv[2]);" + body + "}"


@pytest.fixture
def sit(tmp_path):
    turn = count()

    def judge(candidate, reference=PROGRAM, **task):
        outcome = judge_program(tmp_path / str(next(turn)), reference, candidate, **task)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome.verdict

    return judge


def test_words_on_which_a_pattern_goes_wrong_hold_nobody_up(sit):
    body = 'work(n, s, "out.bin"); for (int i = 0; i < 4000; i++) putchar(97); puts("!"); return 0;'
    code = edited("programs/output_parsers.py", ("READ_S = 10.0", "READ_S = 2.0"))  # it is waited out
    verdict = sit(program(body), said={"verdict": r"(\w+\s?)+PASS"}, tier="smoke", sandboxes=1, code=code)

    assert (verdict["verdict"], verdict["said"]) == ("correct", [])


def test_an_honest_program_is_correct_timed_as_a_whole_and_said_to_be_of_the_weaker_kind(sit):
    verdict = sit(program('work(n, s, "out.bin"); puts("PASS 0.000001 us"); return 0;'), said={"verdict": "PASS.*"})

    assert (verdict["verdict"], verdict["reason"]) == ("correct", "")
    (shape,) = verdict["shapes"]
    assert shape["calls_checked"] == 7 and shape["candidate"]["rounds"] == 6
    assert 0 < shape["candidate"]["low_us"] <= shape["candidate"]["median_us"] <= shape["candidate"]["high_us"]
    assert shape["speedup_low"] <= verdict["speedup"] <= shape["speedup_high"]
    assert (verdict["kind"], verdict["inputs"]) == ("program", "secret")
    assert verdict["weaker"] == "program: timed as a whole process; inputs secret"
    assert verdict["said"] == ["verdict: PASS 0.000001 us"] and "not believed" in verdict["note"]
    assert verdict["trials_summary"].startswith("7 runs, each checked in full")


CHEATS = {
    "prints the expected text without computing": (
        'puts("total 1.0\\nTest PASSED in 0.001 ms"); return 0;',
        "incorrect",
        "out.bin is not there",
    ),
    "writes zeros": (
        'float z = 0; FILE *f = fopen("out.bin", "wb"); for (int i = 0; i < n; i++) fwrite(&z, 4, 1, f); fclose(f);',
        "incorrect",
        "1000 of 1000 elements are wrong",
    ),
    "writes too little": ('work(n - 1, s, "out.bin"); return 0;', "incorrect", "has 999 numbers"),
    "computes for a seed of its own": ('work(n, 7, "out.bin"); return 0;', "incorrect", "elements are wrong"),
    "goes on in the background": (
        'mkfifo("out.bin", 0600); if (!fork()) { looked_for_again("out.bin"); work(n, s, "out.bin"); sleep(30); _exit(0); }'
        "return 0;",
        "cheat",
        "finished after it exited",
    ),
    "goes on in a session of its own": (
        'mkfifo("out.bin", 0600); if (!fork()) { setsid(); if (!fork())'
        ' { looked_for_again("out.bin"); work(n, s, "out.bin"); sleep(30); } _exit(0); }'
        "return 0;",
        "cheat",
        "finished after it exited",
    ),
    "leaves a process behind": (
        'work(n, s, "out.bin"); if (!fork()) { sleep(30); _exit(0); } return 0;',
        "cheat",
        "left 1 processes running",
    ),
    "links to its output": (
        'work(n, s, "other.bin"); symlink("other.bin", "out.bin"); return 0;',
        "incorrect",
        "is a symbolic link",
    ),
    "makes its output a FIFO": ('mkfifo("out.bin", 0600); return 0;', "incorrect", "FIFO"),
    "makes its output a folder": ('mkdir("out.bin", 0700); return 0;', "incorrect", "folder"),
    "links to a device": ('symlink("/dev/zero", "out.bin"); return 0;', "incorrect", "symbolic link"),
    "writes without end": (
        'char b[1 << 16]; FILE *f = fopen("out.bin", "wb"); for (;;) fwrite(b, 1, sizeof b, f);',
        "incorrect",
        "more than 16777216 bytes, which is the limit",
    ),
    "prints without end": ('for (;;) puts("PASS");', "incorrect", "more than 16777216 bytes, which is the limit"),
    "makes a huge file of nothing": (
        'int f = open("out.bin", O_CREAT | O_WRONLY, 0600); return ftruncate(f, 1L << 50) ? 9 : 0;',
        "incorrect",
        "which is the limit",
    ),
    "fails": ('fputs("no device\\n", stderr); return 3;', "incorrect", "exited with status 3: no device"),
    "fails and says so on stdout": ('puts("no file"); return 1;', "incorrect", "exited with status 1: no file"),
    "crashes": ("abort();", "incorrect", "crashed with SIGABRT"),
    "kills the process that started it": ("kill(getppid(), SIGKILL); sleep(30);", "incorrect", "SIGKILL"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_is_caught_that(sit, name):
    body, verdict, words = CHEATS[name]
    found = sit(program(body), sandboxes=1, tier="smoke")

    assert found["verdict"] == verdict, found["reason"]
    assert words in found["reason"]
    assert found["speedup"] is None
    assert found["trials_summary"].startswith("stopped at the first failure, after ")


@pytest.mark.parametrize(
    ("end", "verdict", "words"),
    [
        ("if (!fork()) { sleep(30); _exit(0); } return 0;", "cheat", "left 1 processes running"),
        ("return 3;", "incorrect", "exited with status 3"),
        ("return 0;", None, "the reference program exited with status 4"),
    ],
)
def test_a_program_does_not_escape_its_verdict_by_taking_what_the_reference_needs(sit, tmp_path, end, verdict, words):
    once, taken = (f'"{tmp_path / name}"' for name in ("once", "taken"))
    body = (
        f'work(n, s, "out.bin"); if (access({once}, F_OK)) {{ creat({once}, 0600); return 0; }} creat({taken}, 0600);'
    )
    needs = PROGRAM.replace("int n =", f"if (!access({taken}, 0)) return 4; int n =")
    reference = "#include <unistd.h>\n" + needs
    found = sit(program(body + end), reference, sandboxes=2, tier="correctness")

    assert found.get("verdict") == verdict, found
    assert words in (found.get("reason") or found["refused"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("if (!fork()) { sleep(30); _exit(0); }", "the reference program left 1 processes running"),
        ('fclose(fopen("out.bin", "wb")); truncate("out.bin", 3);', "the reference program: "),
    ],
)
def test_a_reference_that_fails_is_refused_as_such(sit, wrong, words):
    reference = "#include <unistd.h>\n" + PROGRAM.replace("return 0;", wrong + " return 0;")
    found = sit(program('work(n, s, "out.bin"); return 0;'), reference, sandboxes=1, tier="smoke")

    assert words in found["refused"]
    assert "register it again" in found["advice"]


def test_an_output_that_lay_in_the_folder_is_taken_away_before_each_run(sit):
    files = {"app.c": program('puts("PASS"); return 0;'), "out.bin": bytes(4000)}
    found = sit(files, sandboxes=1, tier="smoke")

    assert found["verdict"] == "incorrect"
    assert "out.bin is not there, and the judge had removed an older one from its folder" in found["reason"]


def test_what_a_run_leaves_is_not_there_for_the_next(sit):
    kept = f"{KEPT}/seen"
    body = f'if (access("seen", F_OK) == 0 || access("{kept}", F_OK) == 0) return 4;'
    body += f'fclose(fopen("seen", "w")); fclose(fopen("{kept}", "w")); work(n, s, "out.bin"); return 0;'

    assert sit(program(body), tier="correctness")["verdict"] == "correct"


def test_a_run_by_make_builds_nothing_again(sit):
    """Files travel one by one: a program that was laid before what it is made of would be made again, in its time."""
    files = {"app.c": PROGRAM, "Makefile": "run: app\n\t./app $(n) $(seed)\napp: app.c\n\texit 5\n"}
    run = ["make", "-s", "run", "n={n}", "seed={seed}"]
    assert sit(files, reference=files, run=run, newest="app.c", tier="smoke", sandboxes=1)["verdict"] == "correct"


def test_without_a_secret_parameter_the_verdict_says_that_outputs_could_be_hard_coded(sit):
    found = sit(PROGRAM, run=["./app", "{n}", "5"], tier="correctness")

    assert found["verdict"] == "correct" and found["inputs"] == "fixed"
    assert "inputs fixed (no secret parameter: outputs could be hard-coded)" in found["weaker"]
    assert "not timed" in found["weaker"] and found["speedup"] is None


def test_a_seed_that_changes_nothing_is_as_good_as_none_and_said_so(sit):
    same = PROGRAM.replace("atoi(argv[2])", "3")
    found = sit(same, reference=same, tier="correctness")

    assert found["verdict"] == "correct" and found["inputs"] == "fixed"
    assert "another seed did not change the outputs" in found["weaker"]


def test_generated_inputs_are_made_anew_for_each_run_and_given_to_both(sit):
    generator = "import random, sys\nr = random.Random(int(sys.argv[1]))\n"
    generator += "open('in/x.txt', 'w').write(' '.join(str(r.random()) for _ in range(int(sys.argv[2]))))\n"
    double = "import json\nx = [float(w) for w in open('in/x.txt').read().split()]\n"
    double += "print(json.dumps({'result': [{'y': [2 * v for v in x]}]}))\nopen('t.csv', 'w').write('a, b\\n'"
    double += " + ''.join(f'0, {v}\\n' for v in x))\n"
    rules = [
        {"name": "y", "source": "stdout", "format": "json", "json_path": "result.0.y"},
        {"name": "b", "source": "t.csv", "format": "csv", "columns": ["b"]},
    ]
    task = {
        "run": ["{python}", "double.py"],
        "generator": ["{python}", "generate.py", "{seed}", "{n}"],
        "inputs": ["in/x.txt"],
        "rules": rules,
        "cases": [{"n": 5}, {"n": 11}],
        "tier": "correctness",
        "sandboxes": 4,
    }
    files = {"generate.py": generator, "double.py": double}
    found = sit(files, reference=files, **task)
    assert (found["verdict"], found["inputs"], [s["dims"] for s in found["shapes"]]) == (
        "correct",
        "secret",
        [{"n": 5}, {"n": 11}],
    )
    wrong = sit({**files, "double.py": double.replace("2 * v", "3 * v")}, reference=files, **task)
    assert wrong["verdict"] == "incorrect" and "output y[0]" in wrong["reason"]


def test_numbers_are_found_in_stdout_by_named_groups(sit):
    rules = [{"name": "sum", "source": "stdout", "format": "regex", "pattern": r"^total (?P<total>\S+)$"}]
    assert sit(PROGRAM, rules=rules, tier="smoke", sandboxes=1)["verdict"] == "correct"


def test_a_number_that_is_not_there_is_told(sit):
    rules = [{"name": "sum", "source": "stdout", "format": "regex", "pattern": r"^total (?P<total>\S+)$"}]
    found = sit(program('puts("PASS"); return 0;'), rules=rules, tier="smoke", sandboxes=1)

    assert found["verdict"] == "incorrect" and "nothing that matches ^total" in found["reason"]
    assert "it ends with 'PASS'" in found["reason"]


def test_a_word_that_is_captured_is_said_to_prove_nothing(tmp_path):
    rules = [{"name": "ok", "source": "stdout", "format": "regex", "pattern": "(PASS)ED"}]
    found = judge_program(tmp_path, PROGRAM, rules=rules).verdict

    assert (
        found["status"] == "refused" and "'PASS' where a number should be; let the pattern capture" in found["reason"]
    )


def test_numbers_are_read_as_fortran_writes_them(sit):
    """D is the exponent's letter of double precision, and one of three digits has none."""
    rules = [{"name": "y", "source": "stdout", "format": "text"}]
    body = "for (int i = 0; i < n; i++) printf(%s, ((i * 7 + s) %% 90 + 10) / 100.0, i %% 30); return 0;"
    fortran, plain, wrong = (program(body % each) for each in ('" %.2fD-%03d"', '" %.2fE-%d"', '" %.2fE+%d"'))
    given = {"rules": rules, "atol": 0, "tier": "smoke", "sandboxes": 1, "reference": fortran}

    assert sit(plain, **given)["verdict"] == "correct"
    assert sit(program(body % '" %.2f-%03d"'), **given)["verdict"] == "correct"
    assert "output y[1] is " in sit(wrong, **given)["reason"]


def test_bytes_that_must_be_the_same_are_told_as_text(tmp_path):
    rules = [{"name": "all", "source": "stdout", "format": "exact"}]
    timed = PROGRAM.replace("in 0.001 ms", "in %d ms").replace(", total);", ", total, getpid());")
    found = judge_program(tmp_path, "#include <unistd.h>\n" + timed, rules=rules).verdict

    assert found["status"] == "refused"
    assert "output all differs from byte " in found["reason"] and "'Test PASSED in " in found["reason"]
    assert "compare nothing that differs from run to run, such as its own times" in found["reason"]


def test_a_pattern_that_never_ends_on_a_hostile_text_is_broken_off(tmp_path):
    import subprocess
    import sys

    from tests.judge_package import packages

    code = (
        "from gpu_mcp_judge.programs import output_parsers\n"
        "rules = [{'name': 'x', 'source': 's', 'format': 'regex', 'pattern': '(a+)+$'}]\n"
        "with output_parsers.within(0.2):\n    output_parsers.extract(rules[0], b'a' * 40 + b'b')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=packages(), capture_output=True, timeout=60, check=False)
    assert b"Unreadable: takes more than 0 s to read" in ran.stderr


def test_a_reference_is_tried_before_it_is_registered(tmp_path):
    outcome = judge_program(tmp_path, PROGRAM)

    assert outcome.verdict["status"] == "ok", outcome.verdict
    assert outcome.verdict["tried"] == ["zeros", "ones", "mean", "the answer to another seed"]
    assert outcome.verdict["notes"] == ["verdicts will say: program: timed as a whole process; inputs secret"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("return 0;", "return 2;"), "exited with status 2"),
        (("sinf(", "0 * sinf("), "an answer without any work passes: zeros"),
        (("atoi(argv[2]);", "atoi(argv[2]) + getpid();"), "answers the same inputs differently"),
        (("i < n;", "i < 0;"), "hold no numbers"),
        (("sinf(", "NAN + sinf("), "writes NaN"),
    ],
)
def test_a_reference_is_refused_that_cannot_judge(tmp_path, change, words):
    outcome = judge_program(tmp_path, "#include <unistd.h>\n" + PROGRAM.replace(*change))

    assert outcome.verdict["status"] == "refused" and words in outcome.verdict["reason"]


def test_the_seed_is_committed_to_before_and_revealed_after(tmp_path):
    import hashlib

    outcome = judge_program(tmp_path, PROGRAM, PROGRAM + " ", sandboxes=1, tier="smoke")
    evidence = outcome.verdict["evidence"]

    assert {"commitment": evidence["seed_commitment"]} in outcome.progress
    assert hashlib.sha256(evidence["seed"].encode()).hexdigest() == evidence["seed_commitment"]
    assert json.dumps(outcome.verdict)
