"""A problem's own check of answers, run beside the reference, on the owner's copies, out of a candidate's reach."""

import contextlib
import importlib
import sys
from typing import Any, Dict, Generator, List

from ..memory.mapped_file import Mapping
from ..memory.torch_views import tensors_at
from ..numerics.tensors import tensors

Reply = Dict[str, Any]
SAID_CHARACTERS = 300


class CheckForks(RuntimeError):
    """The check was about to fork."""


class AnswerCheck:
    """Answers a reference process's requests for it."""

    def __init__(self, reference: Any) -> None:
        """Take the process's `Reference`, whose buffers are open when it is asked."""
        self.reference = reference
        self.refuses = self.heeds = False
        """Whether this process's forks are refused now; whether it is told of them."""

    def check_answer(self, message: Dict[str, Any], descriptors: List[int]) -> Reply:
        """Say whether the problem's check takes the answer in a memory file to a call's inputs, and what it says.

        An exception in the check is a no to the answer, unless memory has run out.
        """
        torch: Any = importlib.import_module("torch")
        reference = self.reference
        memory = Mapping(descriptors[0], writable=False)
        try:
            items = tensors(reference.task["outputs"], reference.dims)
            device = getattr(reference.arrays, "device", None) or torch.device("cpu")
            found = tensors_at(torch, memory.address, message["where"], items)[0]
            # Copies of its own: an author's check may work in place, and the mapping is read-only.
            answers = [torch.empty_like(each, device=device).copy_(each) for each in found]
            # The views must be gone before the mapping is, or a later access to them would crash.
            del found
        finally:
            memory.close()
        given = reference.laid_inputs(reference.arrays.inputs[int(message["call"])])
        try:
            with torch.no_grad(), self._refusing_forks():
                passed, said = reference.module.check(given, answers)
            reference.arrays.finish()
        except (MemoryError, CheckForks):  # which say nothing about the answer
            raise
        except Exception as error:
            # A lack of memory says nothing about the answer, so it must not count as a refusal.
            if "out of memory" in str(error):
                raise
            passed, said = False, "%s: %s" % (type(error).__name__, error)
        return {"passed": passed, "said": " ".join(said.split())[:SAID_CHARACTERS]}

    @contextlib.contextmanager
    def _refusing_forks(self) -> Generator[None, None, None]:
        """Refuse forks of this process in the body.

        A forked copy has torch's locks and none of its threads: its first operation waits for them for ever, and the
        check for the copy. A new program, as `subprocess` starts it, has no such locks.
        """
        if not self.heeds:
            # A hook stays for the process's life. Set at a first check, it is in the way of no other problem's times.
            sys.addaudithook(self._heed)
        self.refuses = self.heeds = True
        try:
            yield
        finally:
            self.refuses = False

    def _heed(self, event: str, arguments: Any) -> None:
        if self.refuses and event in ("os.fork", "os.forkpty"):
            text = "%s() in the check, as multiprocessing calls it, too: a copy of this process would hang in torch;"
            raise CheckForks(text % event + " compute in this process, or start a program by subprocess")
