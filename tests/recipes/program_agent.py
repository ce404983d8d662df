"""A scripted agent of mode program: it names a target that is not there first, then writes the scan wrong, then right."""

import json
import os
import sys

KERNEL = """
#include <stdint.h>
#define WIDTH 64
int launch(const float *x, const float *keep, float *y) {
    for (int64_t at = 0; at < 2048; at++)
        for (int c = 0; c < WIDTH; c++)
            y[at * WIDTH + c] = x[at * WIDTH + c] SIGN (at ? keep[at * WIDTH + c] * y[(at - 1) * WIDTH + c] : 0);
    return 0;
}
"""
step, prompt = sys.argv[1], sys.stdin.read()
if step.startswith("target"):
    assert "find_hotspots says:" in prompt and "bench.py" in prompt
    chosen = "recurrence:scan" if "could not be used" in prompt else "recurrence:scam"
    scenario = os.environ.get("SCENARIO")
    gives_up = scenario == "nothing" or (scenario == "gives up" and chosen.endswith("scan"))
    handed = {"target": "" if gives_up else chosen, "why": "a loop over time"}
elif step.startswith("specification"):
    assert "def scan(x, keep):" in prompt, "the program's own code is not in the prompt"
    handed = {"operation": "y[t] = x[t] + keep[t] * y[t - 1]"}
else:
    handed = {"source": KERNEL.replace("SIGN", "-" if step == "code-001" else "+"), "idea": "one pass"}
print(f"```json\n{json.dumps(handed)}\n```")
