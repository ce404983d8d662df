"""Configuration of the server, its hosts and a team's server.

These modules alone read configuration files and environment variables. Commands that edit the user's file are in cli,
and what users may take is in team.
"""
