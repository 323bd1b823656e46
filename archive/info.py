"""What is in a file, as JSON values for machines and as tables for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .checkpoint import Checkpoint
from .layout import FORMAT_VERSION
from .run import Run
from .source import Source


def summary(run: Run) -> dict[str, Any]:
    """Return everything that `rl-archive info` tells about a run open for reading."""
    return {
        "file": str(run.path),
        "bytes": Path(run.path).stat().st_size,
        **about(run),
        "environments": run.num_envs,
        "rows": run.num_rows,
        "steps": run.num_steps,
        "episodes": episodes(run),
        "fields": fields(run),
        "checkpoints": [checkpoint(c) for c in run.checkpoints()],
        "metadata": dict(run.metadata),
    }


def about(run: Run) -> dict[str, Any]:
    """Return run id, format version, environment, when the run was created and whether it was closed."""
    record = run._file.record if isinstance(run._file, Source) else None
    return {
        "run_id": run._header.run_id,
        "format_version": FORMAT_VERSION,
        "environment": run._texts.get("environment", {}).get("id"),
        "created": run._texts.get("provenance", {}).get("created"),
        "forked_from": run._texts.get("provenance", {}).get("forked_from", [])[-1:],
        "complete": record is not None and record.in_fields,
    }


def checkpoint(kept: Checkpoint) -> dict[str, Any]:
    """Return number, rows and names of a checkpoint, and the values among it that are short."""
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in kept.items()}
    short = {k: v for k, v in plain.items() if isinstance(v, (bool, int, str)) and len(str(v)) <= 40}
    return {"id": kept.id, "rows": int(kept.position["rows"].sum()), "values": sorted(kept), "short": short}


def stored_size(run: Run, field: str) -> tuple[int, int]:
    """Return how many chunks of a field are in the file, and their bytes."""
    column = run._rows.columns[field]
    return int((column.offset >= 0).sum()), int(column.size.sum())


def episodes(run: Run) -> dict[str, Any]:
    """Return how many episodes there are, how they ended, and their returns and lengths."""
    table = run.episodes
    ended = table["terminated"] | table["truncated"]
    result: dict[str, Any] = {
        "count": run.num_episodes,
        "terminated": int(table["terminated"].sum()),
        "truncated": int(table["truncated"].sum()),
        "unfinished": int((~ended).sum()),
    }
    for name in ("return", "length"):
        values = table[name][ended]
        keys = ("mean", "min", "max")
        stats = (values.mean(), values.min(), values.max()) if len(values) else (None, None, None)
        result[name] = {
            k: None if v is None or not np.isfinite(v) else float(v) for k, v in zip(keys, stats, strict=True)
        }
    return result


def fields(run: Run) -> list[dict[str, Any]]:
    """Return dtype, shape, codec and size of every field."""
    result = []
    for name, field in run.schema.steps.items():
        chunks, stored = stored_size(run, name)
        raw = chunks * run._header.rows[name] * field.nbytes
        result.append(
            {
                "name": name,
                "dtype": str(np.dtype(field.dtype)),
                "shape": list(field.shape),
                "stacked": field.stacked,
                "codec": ("" if np.dtype(field.dtype).itemsize == 1 else "shuffle+") + run._header.codec(name),
                "chunk_rows": run._header.rows[name],
                "chunks": chunks,
                "stored_bytes": stored,
                "ratio": round(raw / stored, 2) if stored else None,
            }
        )
    return result


def show(values: dict[str, Any], console: Console) -> None:
    """Print a summary as tables."""
    facts = Table(show_header=False, title=plain(values["file"]), title_justify="left", box=SIMPLE_HEAD)
    for name, text in facts_of(values):
        facts.add_row(plain(name), plain(text))
    console.print(facts)
    table = Table(title="fields", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("field", "dtype", "shape", "codec", "rows", "chunks", "stored", "ratio"):
        left = heading in ("field", "dtype", "shape", "codec")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for f in values["fields"]:
        shape = "x".join(map(str, f["shape"])) or "-"
        stack = f" (x{f['stacked']})" if f["stacked"] else ""
        ratio = "-" if f["ratio"] is None else f"{f['ratio']:.1f}"
        numbers = (str(f["chunk_rows"]), f"{f['chunks']:,}", size(f["stored_bytes"]), ratio)
        table.add_row(plain(f["name"]), f["dtype"], shape + stack, f["codec"].removeprefix("shuffle+"), *numbers)
    console.print(table)
    if values["checkpoints"]:
        table = Table("checkpoint", "rows", "values", title="checkpoints", title_justify="left", box=SIMPLE_HEAD)
        for c in values["checkpoints"]:
            named = (f"{k}={c['short'][k]}" if k in c["short"] else k for k in c["values"])
            table.add_row(str(c["id"]), f"{c['rows']:,}", plain(", ".join(named)))
        console.print(table)


def facts_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the first table."""
    ended = values["episodes"]
    lines = [
        ("run", f"{values['run_id']}, format {values['format_version']}, created {values['created']}"),
        ("environment", f"{values['environment'] or '-'}, {values['environments']} at a time"),
        ("state", "closed" if values["complete"] else "not closed: being written, or its writer was killed"),
        ("size", size(values["bytes"])),
        ("rows", f"{values['rows']:,}"),
        ("steps", f"{values['steps']:,}"),
        (
            "episodes",
            "{count:,}: {terminated:,} terminated, {truncated:,} truncated, {unfinished:,} neither".format(**ended),
        ),
    ]
    lines += [("forked from", "checkpoint {checkpoint} of run {run_id}".format(**o)) for o in values["forked_from"]]
    for name in ("return", "length"):
        stats = ended[name]
        if stats["mean"] is not None:
            lines.append((name, "mean {mean:,.2f}, from {min:,.2f} to {max:,.2f}".format(**stats)))
    lines += [(name, str(value)) for name, value in values["metadata"].items()]
    return lines


def size(count: int) -> str:
    """Return bytes as people read them."""
    for unit, power in (("GB", 9), ("MB", 6), ("KB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} B"


def printable(text: str) -> str:
    """Return text without control characters: a file may come from a stranger."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def plain(text: str) -> str:
    """Return printable text that is no markup."""
    return printable(text).replace("[", "\\[")
