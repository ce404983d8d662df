"""Programs that run beside an agent in its sandbox: standard library, Python 3.8, nothing of ours imported."""
