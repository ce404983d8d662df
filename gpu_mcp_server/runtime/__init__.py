"""What accompanies every call: who it is for, how long its answer may be, and where logs and traces go.

Store, services and the web application all use it. Rules about users belong in team, and settings in settings.
"""
