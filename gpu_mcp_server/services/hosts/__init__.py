"""The hosts of the laboratory: their connections, draining, the environment of jobs, figures of their devices.

Every job goes through a connection from here. How a host is reached is in backends, and which one is chosen is in
services/jobs.
"""
