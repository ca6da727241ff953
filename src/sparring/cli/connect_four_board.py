"""Connect Four in a terminal: the board in colour where rich is installed and it is a terminal, plain otherwise."""

from typing import TextIO

from sparring.wire.chunk import Array

COLUMNS = "  1   2   3   4   5   6   7"
EDGE = "╭───┬───┬───┬───┬───┬───┬───╮", "├───┼───┼───┼───┼───┼───┼───┤", "╰───┴───┴───┴───┴───┴───┴───╯"
SIGNS = {"you": "●", "bot": "○"}  # told apart without colour too
STYLES = {"you": "bold red", "bot": "bold yellow"}


def owners(planes: Array) -> list[list[str]]:
    """Who holds each cell, the top row first: "you", "bot" or ""; `planes` is what the person's seat sees."""
    own, other = planes
    return [
        ["you" if mine else "bot" if theirs else "" for mine, theirs in zip(*rows, strict=True)]
        for rows in zip(own, other, strict=True)
    ]


def draw(planes: Array, stream: TextIO) -> None:
    """The board, with the columns' numbers under it."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        stream.write("\n".join((*_lines(planes), "")))
        stream.flush()
        return
    console = Console(file=stream, highlight=False)
    for line in _lines(planes):
        text = Text(line, style="blue")
        text.highlight_regex(SIGNS["you"], STYLES["you"])
        text.highlight_regex(SIGNS["bot"], STYLES["bot"])
        console.print(text)


def _lines(planes: Array) -> list[str]:
    top, between, bottom = EDGE
    rows = ["│" + "│".join(f" {SIGNS.get(cell, ' ')} " for cell in row) + "│" for row in owners(planes)]
    lines = [top]
    for i, row in enumerate(rows):
        lines += [row] if i == 0 else [between, row]
    return [*lines, bottom, COLUMNS]
