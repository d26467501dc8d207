"""Refuses `python -m vitx.evaluate`, which is now a command of `vitx`."""

MESSAGE = "python -m vitx.evaluate is now: vitx evaluate"

if __name__ == "__main__":
  raise SystemExit(MESSAGE)
raise ImportError(MESSAGE)
