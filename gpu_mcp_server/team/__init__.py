"""Users of a shared server: their tokens, what they may take, what they did. Nothing here knows of HTTP."""
