"""Test that runs survive faults that are injected from outside."""
