"""What was found, as a table for the terminal and as a page of ratios that hold on other machines too."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from .machine import versions

Found = dict[str, Any]

HEAD = """# Results

Written by `make bench`. How many times as long as `archive` each contestant takes in the same process, turn by turn:
the median over the repeats, and the smallest and the largest. Above 1 ours is faster, below 1 slower. `memcpy` is a
copy of the bytes that the work has to move, which nothing can beat. Bytes and memory: as many times as ours."""
OTHERS = ("numpy", "cpprb", "tianshou", "stable-baselines3", "dopamine-rl", "d3rlpy", "torchrl")


def ratios(found: Found) -> dict[str, tuple[float, float, float]]:
    """Return median, smallest and largest ratio of each contestant's time to ours in the same round."""
    seconds = found["seconds"]
    result = {}
    for name, times in seconds.items():
        each = [theirs / mine for theirs, mine in zip(times, seconds.get("archive", times), strict=True)]
        result[name] = (statistics.median(each), min(each), max(each))
    return result


def table(found: Found) -> Table:
    """Return a case's results for the terminal."""
    title = f"{found['case']} {found['size'] or ''} (peak {found['peak_rss'] / 1e6:.0f} MB)"
    result = Table("contestant", "min", "median", "max", "x ours", title=title, title_justify="left", width=100)
    for name, times in found["seconds"].items():
        cells = [f"{s * 1e6:,.2f} us" for s in (min(times), statistics.median(times), max(times))]
        result.add_row(name, *cells, number(ratios(found)[name][0]))
    for figure, values in found["figures"].items():
        for name, value in values.items():
            result.add_row(name, figure, f"{value:,.0f}", "", number(value / values.get("archive", value)))
    return result


def markdown(every: list[Found]) -> str:
    """Return the page of ratios, a table for cases of one name."""
    cases: dict[str, list[Found]] = {}
    for found in every:
        cases.setdefault(found["case"], []).append(found)
    parts = [HEAD, versions(OTHERS)]
    for name, founds in cases.items():
        parts += [f"## {name}", founds[0]["title"], "\n".join(lines(founds))]
    parts.append("\n".join(f"- {line}" for line in skipped(every)))
    return "\n\n".join(parts) + "\n"


def lines(founds: list[Found]) -> Iterator[str]:
    """Yield the lines of a table: a row for each size or figure, a column for each contestant but ours."""
    rows = [row for found in founds for row in rows_of(found)]
    names = list(dict.fromkeys(name for _, cells in rows for name in cells if name != "archive"))
    yield "| size | " + " | ".join(names) + " |"
    yield "| --- |" + " ---: |" * len(names)
    for label, cells in rows:
        yield f"| {label} | " + " | ".join(cells.get(name, "") for name in names) + " |"


def rows_of(found: Found) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the label of a row and its cells by contestant."""
    size = f"{found['size']:,}" if found["size"] else ""
    if found["seconds"]:
        yield size, {name: f"{number(m)} ({number(a)} to {number(b)})" for name, (m, a, b) in ratios(found).items()}
    for figure, values in found["figures"].items():
        yield f"{size} {figure}", {name: number(value / values["archive"]) for name, value in values.items()}


def number(ratio: float) -> str:
    """Return a ratio with the digits that count."""
    if ratio >= 10:
        return f"{ratio:,.0f}"
    return f"{ratio:.2f}" if ratio >= 0.01 else "<0.01"


def skipped(every: list[Found]) -> list[str]:
    """Return a line for each contestant that could not take part: in what, and why."""
    absent: dict[tuple[str, str], dict[str, None]] = {}
    for found in every:
        for item in found["skipped"].items():
            absent.setdefault(item, {})[found["case"]] = None
    return [f"{name} is not in {', '.join(cases)}: {reason}" for (name, reason), cases in absent.items()]
