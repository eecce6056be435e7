"""``python -m discernel``."""

from discernel.cli import main

main()
