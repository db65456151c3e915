"""The command line: parse, call the API, print. Bad input is one line and exit code 2."""

import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from annocoin import __version__
from annocoin.cli import datasets, runs
from annocoin.cli.benchmarks import benchmark_command
from annocoin.cli.stages import classifier_command, regions_app, seeds_app
from annocoin.errors import InputError, one_line, printable

INTERRUPTED = 130
"""Exit code after Ctrl-C, the convention of shells."""

CPP_LOG = ("TORCH_CPP_LOG_LEVEL", "ERROR")
"""Torch's C++ code warns of closed connections with a stack trace; read when torch is imported."""

RESUMABLE = ("demo", "train", "benchmark", "label", "classifier", "regions", "seeds")
"""Commands that keep what is done."""

app = typer.Typer(
    name="annocoin",
    help="Weakly supervised instance segmentation: train on image tags, points or boxes, get "
    "instance masks.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(runs.demo_command)
app.command("check")(datasets.check_command)
app.command("train")(runs.train_command)
app.command("label")(runs.label_command)
app.command("predict")(runs.predict_command)
app.command("export")(runs.export_network_command)
app.command("report")(runs.report_command)
app.command("verify")(runs.verify_command)
app.command("benchmark")(benchmark_command)
app.command("evaluate")(datasets.evaluate_command)
app.command("convert")(datasets.convert_command)
app.command("show")(datasets.show_command)
app.command("synth")(datasets.synth_command)
app.command("classifier")(classifier_command)
app.add_typer(regions_app, name="regions")
app.add_typer(seeds_app, name="seeds")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"annocoin {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; every error that a user can cause ends in one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that are not in UTF-8
    os.environ.setdefault(*CPP_LOG)
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):  # which of them Ctrl-C raises depends on typer
        code = INTERRUPTED
    except OSError as error:
        _fail(one_line(error))
    except Exception as error:
        # The classes of typer's usage errors differ between versions; all have this method.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(f"{message()} (see annocoin --help)")
    if code == INTERRUPTED:
        resumes = sys.argv[1:2] and sys.argv[1] in RESUMABLE
        what = "the same command continues" if resumes else "nothing half-written is left"
        print(f"annocoin: interrupted; {what}", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"annocoin: {printable(' '.join(message.split()))}", file=sys.stderr)
    _exit(2)


def _exit(code: int) -> NoReturn:
    """End the process with a code, also while threads of a process group still run.

    In an ordinary end such threads abort the process now and then, with another code.
    """
    torch: Any = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
