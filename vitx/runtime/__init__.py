"""Runs the network of a task on all devices of all processes: shared by training and inference."""
