"""The table of episodes under scrutiny: by itself, and against the rows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from .errors import DamagedError
from .finding import Findings
from .record import BETWEEN, OPEN, STATES
from .returns import BLOCK, returns_of
from .rows import Rows
from .schema import FLAGS

Array = np.ndarray[Any, Any]
Range = tuple[int, int]
WRONG = "batches of these rows may be wrong"


class EpisodeCheck:
    """Check the episodes of one environment; `given_up` are its rows that a rewind gave up, `lost` those without data.

    Rows of no episode must be among them. After a rewind the stored flags of the last row kept are as recorded, so
    they are not compared; nor is the first flag of an episode whose beginning was lost.
    """

    def __init__(self, rows: Rows, env: int, given_up: list[Range], lost: list[Range], findings: Findings) -> None:
        self.rows, self.env, self.findings = rows, env, findings
        self.count, self.state = int(rows.rows[env]), int(rows.states[env])
        table = rows.episodes
        self.number = np.flatnonzero(table["env"] == env)
        self.columns = {name: table[name][self.number] for name in table.columns}
        self.start, length, self.final = (self.columns[name] for name in ("start", "length", "final"))
        self.steps_end = self.start + length
        self.stop = self.steps_end + self.final
        self.lost, self.no_episode = lost, given_up + lost
        self.sound = self.check_table()

    def check_table(self) -> bool:
        """Episodes lie within the rows, one behind the other, without gaps that nothing explains."""
        before = len(self.findings.damage)
        bad = (self.start < 0) | (self.steps_end < self.start) | (self.stop > self.count) | (self.stop == self.start)
        self.complain(bad, "does not lie within the rows")
        if not bad.any():
            self.complain(np.append(False, self.stop[:-1] > self.start[1:]), "overlaps the one before it")
        if len(self.findings.damage) == before:
            starts, stops = np.append(self.start, self.count), np.append(0, self.stop)
            for low, high in zip(stops[stops < starts].tolist(), starts[stops < starts].tolist(), strict=True):
                if not covered(low, high, self.no_episode):
                    what = "belong to no episode, and were not given up"
                    self.findings.add(what, f"environment {self.env}, rows {low} to {high - 1}", WRONG)
            self.check_state()
        return len(self.findings.damage) == before

    def check_state(self) -> None:
        """An environment whose episode goes on has it at its end, without flags; OPEN: with its head."""
        if self.state in (OPEN, BETWEEN):
            goes_on = len(self.start) > 0 and bool(
                self.stop[-1] == self.count
                and self.final[-1] == (self.state == OPEN)
                and not (self.columns["terminated"][-1] or self.columns["truncated"][-1])
            )
            if not goes_on:
                what = f"is {STATES[self.state]}, but no episode goes on there"
                self.findings.add(what, f"environment {self.env}", WRONG)

    def check_rows(self, known: int) -> None:
        """Compare flags and rewards of the first `known` rows with the table, in bounded memory."""
        for low in range(0, known, BLOCK):
            high = min(low + BLOCK, known)
            with suppress(DamagedError):  # it was found with the chunks
                found = {name: self.rows.columns[name].rows(self.env, low, high) for name in FLAGS}
                self.check_flags(found, low, high)
        self.check_returns(known)

    def check_flags(self, found: dict[str, Array], low: int, high: int) -> None:
        """Compare the flags of rows `low` to `high`."""
        inside = np.zeros(high - low + 1, np.int64)
        np.add.at(inside, np.clip(self.start, low, high) - low, 1)
        np.add.at(inside, np.clip(self.stop, low, high) - low, -1)
        known = np.cumsum(inside[:-1]) > 0
        cut = np.isin(self.stop, [start for start, _ in self.no_episode])
        as_recorded = np.concatenate([self.stop[cut] - 1, self.steps_end[cut] - 1])
        without_start = self.start[np.isin(self.start, [stop for _, stop in self.lost])]
        for name, at, unknown in (
            ("is_first", self.start, without_start),
            ("is_last", self.stop[self.final] - 1, as_recorded),
            ("terminated", self.steps_end[self.columns["terminated"]] - 1, as_recorded),
            ("truncated", self.steps_end[self.columns["truncated"]] - 1, as_recorded),
        ):
            expected = mask_of(at, low, high)
            compared = known & ~mask_of(unknown, low, high)
            wrong = np.flatnonzero((found[name] != expected) & compared)
            if len(wrong):
                where = f"field {name!r}, environment {self.env}, row {low + wrong[0]}"
                self.findings.add(f"{len(wrong)} flags contradict the table of episodes", where, WRONG)

    def check_returns(self, known: int) -> None:
        """Compare returns with the sums of rewards, of episodes whose steps are among the first `known` rows."""
        totals, read = returns_of(self.rows, self.env, self.start, self.steps_end)
        expected = self.columns["return"]
        wrong = read & (self.steps_end <= known) & (totals != expected) & ~(np.isnan(totals) & np.isnan(expected))
        for k in np.flatnonzero(wrong).tolist():
            what = f"its return is {expected[k]}, its rewards sum to {totals[k]}"
            self.findings.add(what, f"episode {self.number[k]}", "the column is wrong")

    def complain(self, bad: Array, what: str) -> None:
        """Add a finding for each episode of a mask."""
        for k in np.flatnonzero(bad).tolist():
            rows = f"environment {self.env}, rows {self.start[k]} to {self.stop[k] - 1}"
            self.findings.add(what, f"episode {self.number[k]} ({rows})", WRONG)


def mask_of(rows: Array, low: int, high: int) -> Array:
    """Return which of the rows `low` to `high` are among `rows`."""
    mask = np.zeros(high - low, np.bool_)
    mask[rows[(rows >= low) & (rows < high)] - low] = True
    return mask


def covered(low: int, high: int, ranges: list[Range]) -> bool:
    """Tell whether rows `low` to `high` all lie within some of the ranges."""
    for start, stop in sorted(ranges):
        if start <= low < stop:
            low = stop
    return low >= high
