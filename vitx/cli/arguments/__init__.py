"""The arguments of each command: what `--help` prints and a mistake is told from.

A file of this folder imports nothing that takes long: JAX, Flax and TensorFlow come with the
command itself, when its arguments have been read. Its docstring is the command's description.
"""
