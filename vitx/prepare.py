"""Refuses `python -m vitx.prepare`, which is now a command of `vitx`."""

MESSAGE = "python -m vitx.prepare is now: vitx prepare"

if __name__ == "__main__":
  raise SystemExit(MESSAGE)
raise ImportError(MESSAGE)
