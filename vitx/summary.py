"""Refuses `python -m vitx.summary`, which is now a command of `vitx`."""

MESSAGE = "python -m vitx.summary is now: vitx summary"

if __name__ == "__main__":
  raise SystemExit(MESSAGE)
raise ImportError(MESSAGE)
