"""How a host is reached: a backend opens a channel to hostd and nothing more."""
