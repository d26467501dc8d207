"""Measures token mixers, attention kernels, data reading and the cost of training."""
