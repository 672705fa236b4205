"""Diagnose a machine before a job runs on it: devices, network, speed of collectives."""
