"""``python -m experiments NAME ...`` is ``discernel reproduce NAME ...``."""

import sys

from discernel.cli import app

app(["reproduce", *sys.argv[1:]])
