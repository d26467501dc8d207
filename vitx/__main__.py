"""`python -m vitx`: the command `vitx`."""

import sys

from vitx.cli.main import main

sys.exit(main())
