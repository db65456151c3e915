"""Commands that begin with a dataset and still have commands of their own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DatasetFirst(TyperGroup):
    """`annocoin regions DATASET ...`: what is no other command's name begins the main one, make."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            args = ["--help"]
        elif args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)
