"""The command line. What a command needs is imported when it runs, so that `--help` is quick."""

import signal

import typer

from discernel.cli.common import app
from discernel.cli.comparing import two_sample
from discernel.cli.demonstration import demo
from discernel.cli.fitting import fit
from discernel.cli.reproduction import reproduce
from discernel.cli.showing import export, inspect, plot, report
from discernel.cli.using import evaluate, predict, transform

__all__ = ["app", "main"]


@app.callback(
    epilog="Exit codes: 0 done, 1 the data or the model cannot be used, 2 wrong usage, 3 two samples differ, 70 a bug, "
    "130 stopped."
)
def discernel() -> None:
    """Discernel learns kernels: a few hundred trained features instead of thousands of random ones.

    From a table to a served model: fit, evaluate, predict, report, export.
    """


def version() -> None:
    """Print the version."""
    from discernel import __version__

    typer.echo(__version__)


COMMANDS = (fit, evaluate, predict, transform, report, plot, inspect, export)
for each in (*COMMANDS, two_sample, demo, reproduce, version):  # in the order of --help
    app.command(each.__name__.replace("_", "-"))(each)


def main() -> None:
    """Run the command line. Being told to stop by the system (SIGTERM) is the same as by Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
