"""Plays rounds with copies between calls, to see work that does not wait for the given stream.

A call may begin when that stream has come to it, and is done when the stream has passed it: its inputs are made and
its output is used there. Work on a stream of the candidate's own that does not wait for the given one, or is not
joined into it, may run beside the calls before and behind it, and every output is right when the round ends. Therefore
some rounds have a copy of a few bytes of an answer behind each call, on that stream: of the call's own, which must be
what is there in the end, or of the next one's, which must not have been written.
"""

from ..devices.device import Buffers
from ..timing.rounds import Rounds
from ..verdicts import incorrect
from .trial_setup import Agenda

AT_END = 2
"""Rounds that are played so at a shape's end, as among its first ones by turns of the two kinds."""
ADVICE = (
    "a stream of your own must wait for the given stream before its work, and the given stream for it afterwards "
    "(cudaEventRecord on one, cudaStreamWaitEvent on the other)"
)


class Separation:
    """Plays rounds with copies behind their calls, between those that are timed."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.ahead = bool(rounds.well.word() % 2)
        self.agenda = Agenda(rounds.well)

    def after(self, buffers: Buffers, played: int) -> None:
        """Play what is due behind a round.

        Raises:
            Judged: If the candidate did not pass.
        """
        if buffers.sets == 1 or self.rounds.device.stops_calls:  # nothing is between calls, or nothing goes on there
            return
        for _ in range(self.agenda.due(played)):
            self.play(buffers)

    def look(self, buffers: Buffers) -> None:
        """Play some at a shape's end, where the loop gives its times.

        Raises:
            Judged: If the candidate did not pass.
        """
        if buffers.sets > 1 and not self.rounds.device.stops_calls:
            for _ in range(AT_END):
                self.play(buffers)

    def play(self, buffers: Buffers) -> None:
        """Play a round.

        Raises:
            Judged: If the candidate did not pass, an answer was missing when the stream had passed its call, or was
                begun when the stream had not come to it.
        """
        rounds, watch = self.rounds, self.rounds.watch
        self.ahead = not self.ahead  # by turns: a call's own answer must be there, the next one's must not
        asked = buffers.separators(ahead=self.ahead)
        rounds.more, rounds.watch = {"separators": asked}, None
        try:
            rounds.play(buffers)
        finally:
            rounds.more, rounds.watch = {}, watch
        with rounds.ledger.part("check"):
            misplaced = buffers.misplaced()
        if misplaced:
            (call, output), many = misplaced[0], len({call for call, _ in misplaced})
            which = "output %s of call %d of %d" % (
                buffers.outputs[output].name,
                call + 1 + asked["ahead"],
                buffers.sets,
            )
            if asked["ahead"]:
                text = "%s was written before the given stream reached the call (in %d calls): %s, or it may "
                raise incorrect(text % (which, many, ADVICE) + "use inputs too soon")
            text = "%s was missing when the given stream had passed the call (in %d calls): %s, or the next user "
            raise incorrect(text % (which, many, ADVICE) + "reads it too soon")
