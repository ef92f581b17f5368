"""Scheduling, devices, actors and the driver's loop: the only package that knows Ray."""
