"""Runs a Python program with its kernels timed: Triton's Proton, with stall samples where it can; else torch.profiler.

Laid into the job as a file and run by the program's own interpreter:
`python_profile.py OUTPUT SCRIPT|-m MODULE|-c TEXT ARGUMENTS`.
"""

import importlib
import os
import runpy
import sys
from typing import Any, Callable, List, Optional


def with_proton(output: str) -> Optional[Callable[[], None]]:
    """Start Proton; return how it ends, None where there is none."""
    try:
        started: Any = importlib.import_module("triton.profiler")
    except Exception:
        return None
    for options in ({"hook": "triton", "mode": "pcsampling"}, {"hook": "triton"}, {}):
        try:
            started.start(output, **options)
            return lambda: started.finalize()
        except Exception as error:
            print("proton %r: %s" % (options, error), file=sys.stderr)
    return None


def import_profiler() -> Any:
    """Import torch and its profiler, and return torch.

    On a processor Triton is imported too, as its interpreter wants it: torch's profiler imports it before the program
    can ask for that by TRITON_INTERPRET, and then the interpreter would not take Triton's own functions, as tl.sum.

    Raises:
        ImportError: If there is no torch.
    """
    torch: Any = importlib.import_module("torch")
    importlib.import_module("torch.profiler")
    if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
        os.environ["TRITON_INTERPRET"] = "1"
        try:
            importlib.import_module("triton")
        except Exception:  # it is not there, or broken: only a program that uses it need know
            pass
        finally:
            del os.environ["TRITON_INTERPRET"]
    return torch


def with_torch(output: str) -> Optional[Callable[[], None]]:
    """Start torch's profiler; return how it ends, None where there is none."""
    try:
        torch: Any = importlib.import_module("torch.profiler")
    except Exception:
        return None
    running: Any = torch.profile(activities=[torch.ProfilerActivity.CUDA])
    running.__enter__()

    def end() -> None:
        running.__exit__(None, None, None)
        running.export_chrome_trace(output + ".trace.json")

    return end


def play(arguments: List[str]) -> None:
    """Run the program as the interpreter would."""
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


def main(arguments: List[str]) -> None:
    """Start a profiler, run the program, end the profiler whatever came of the program."""
    output, rest = arguments[0], arguments[1:]
    end = with_proton(output) or with_torch(output)
    if end is None:
        print("neither triton.profiler nor torch.profiler can be imported", file=sys.stderr)
        sys.exit(3)
    try:
        play(rest)
    finally:
        sys.stdout.flush()
        end()


if __name__ == "__main__":
    main(sys.argv[1:])
