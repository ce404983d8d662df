"""Foundation of every mode of a run: its plan, journal, context, candidates and verdicts in words.

A step is written to the journal before and after it is done. Loops over steps are in recipes/modes.
"""
