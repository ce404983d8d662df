"""A scripted agent: reads its prompt, answers as its scenario has it. Runs under the sandbox's Python."""

import json
import os
import re
import sys
import time
from pathlib import Path

prompt = sys.stdin.read()
scenario = os.environ["SCENARIO"]
kernel = """
#include <stdint.h>
int launch(const float *x, float *y, int64_t n) {
    for (volatile int k = 0; k < REPEATS; k++)
        for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + OFFSET;
    return 0;
}
"""
GOOD = kernel.replace("REPEATS", "20").replace("OFFSET", "1")
SLOW = kernel.replace("REPEATS", "250").replace("OFFSET", "1")
WRONG = kernel.replace("REPEATS", "1").replace("OFFSET", "1.5f")
BROKEN = GOOD.replace("int64_t n", "int65_t n")

if scenario == "hangs":
    while True:
        time.sleep(3600)
if scenario == "exits":
    print("out of credit", file=sys.stderr)
    sys.exit(1)
if scenario == "escapes":
    refused = []
    for place in ("/etc/escaped", "/usr/escaped", "/root/escaped", os.environ["OUTSIDE"], "/job/../escaped"):
        try:
            Path(place).write_text("here")
        except OSError as error:
            refused.append(type(error).__name__)
    Path("handoff.json").symlink_to("/etc/passwd")
    print(f"{len(refused)} of 5 refused", file=sys.stderr)
    sys.exit(1)
if scenario == "floods":
    print("x" * 3_000_000)
    sys.exit()

if "You write the specification" in prompt:
    print("Here it is:\n```json\n" + json.dumps({"operation": "y = 2 x + 1", "plan": ["one loop"]}) + "\n```")
    sys.exit()

if scenario == "quits":
    print("out of credit", file=sys.stderr)
    sys.exit(1)
if "SAID" in os.environ:
    print(os.environ["SAID"])
if '"title":"BuildPlan"' in prompt:
    flags = ["-O1", "-lm"] if "could not be used" in prompt else ["-fplugin=evil.so"]
    Path("handoff.json").write_text(json.dumps({"flags": flags, "entry": "begin", "why": "small"}))
    sys.exit()
if '"title":"TestPlan"' in prompt:
    cases = [{"sizes": {"n": 1}, "values": "infinities", "catches": "a tail that is skipped"}]
    print("```json\n" + json.dumps({"cases": cases}) + "\n```")
    sys.exit()
if '"title":"Hint"' in prompt:
    given = prompt.count("int65_t") and "the type is int64_t"
    hint = {"kind": "compile" if given else "correctness", "cause": "as it says", "text": given or "look at the offset"}
    print("```json\n" + json.dumps(hint) + "\n```")
    sys.exit()
number = int(re.search(r"This is candidate (\d+)\.", prompt)[1])
if scenario == "evolves":
    source = prompt.partition("Ancestor 1")[2].partition("```c\n")[2].partition("```")[0]
    source = source.replace("1.5f", "1") if number % 2 else source.replace("return 0", "return 1")
    print(f"try {number}\n```c\n{source}```")
    sys.exit()
if scenario == "rewrites":
    source = prompt.partition(" now:\n\n```")[2].partition("\n")[2].partition("```")[0]
    source += "} // one brace too many\n" if number == 1 and "hipcc" in prompt else "// anew\n"
    print(f"the same again\n```cpp\n{source}```")
    sys.exit()
if scenario == "hostile":
    evil = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>"
    source = WRONG if number == 1 else GOOD
    source += f"// {evil}\u202e {'y' * 5000}\n"
    Path("handoff.json").write_text(json.dumps({"source": source, "idea": evil, "analysis": evil}))
    sys.exit()
if scenario == "tunable":
    source = "#define REPEATS 250\n" + kernel.replace("OFFSET", "1")
    print(f"a parameter\n```c\n{source}```")
    sys.exit()
if scenario == "builds":
    print("as planned\n```c\n" + GOOD.replace("launch", "begin") + "```")
    sys.exit()
order = {
    "learns": [BROKEN, WRONG, SLOW, GOOD],
    "stumbles": [BROKEN, BROKEN, GOOD],
    "never": [BROKEN] * 9,
    "wrong": [WRONG] * 9,
}[scenario]
source = order[number - 1]
if number % 2:
    left = {"source": source, "idea": f"idea {number}", "parameters": {"tile": number}}
    Path("handoff.json").write_text(json.dumps(left))
    print("done")
else:
    text = f"idea {number}\n```c\n{source}```\n"
    usage = {"input_tokens": 100, "output_tokens": 20, "service_tier": "standard"}
    print(json.dumps({"result": text, "total_cost_usd": 0.25, "usage": usage}))
