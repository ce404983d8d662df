"""The server over HTTP: transport, who is there, limits, health."""
