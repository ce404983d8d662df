"""Programs that are judged as a whole: their process, one run, and what is read from their output.

The process is the same for reference and candidate. The owner's side, which plays the runs and gives the verdict, is
judge/owner/program_owner.
"""
