"""The command line: parse, call the API, print. Bad input is one line and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from annocoin import __version__
from annocoin.cli import datasets, options, runs
from annocoin.cli.stages import regions_app, seeds_app
from annocoin.demo import IMAGES, run_demo
from annocoin.errors import InputError, one_line

app = typer.Typer(
    name="annocoin",
    help="Weakly supervised instance segmentation: from tags, points and boxes to masks.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(runs.train_command)
app.command("label")(runs.label_command)
app.command("predict")(runs.predict_command)
app.command("evaluate")(datasets.evaluate_command)
app.command("convert")(datasets.convert_command)
app.command("synth")(datasets.synth_command)
app.command("show")(datasets.show_command)
app.add_typer(regions_app, name="regions")
app.add_typer(seeds_app, name="seeds")

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for what it makes.")] = Path("runs/demo"),
    images: Annotated[int, typer.Option(help="How many scenes.")] = IMAGES,
    seed: Annotated[int, typer.Option(help="Of everything random in the training.")] = 0,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change an option; repeatable."),
    ] = None,
) -> None:
    """The whole job on data it makes itself: from tags and from boxes to masks, in minutes."""
    run_demo(out, images=images, seed=seed, changes=options.assignments(assignments or []))


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"annocoin {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; every failure that a user can cause ends in one line."""
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):  # what Ctrl-C becomes depends on typer's version
        code = INTERRUPTED
    except OSError as error:
        _fail(one_line(error))
    except Exception as error:
        # typer's own errors (unknown option, missing argument) carry their text in this method.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(f"{message()} (see annocoin --help)")
    if code == INTERRUPTED:
        print("annocoin: interrupted; nothing half-written is left", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"annocoin: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
