#!/usr/bin/env python3
"""Draws panels of the Grafana dashboard as PNG files, with the data of a Prometheus.

usage: render_dashboard.py --url http://127.0.0.1:9090 --out DIR [--minutes N]

Needs matplotlib. The pictures show what the queries say, not Grafana's looks.
"""

import argparse
import re
import sys
import time
from datetime import datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))

from dashboard import Prometheus, panels

COLUMNS, ROWS = 3, 3
UNITS = {"s": "seconds", "reqps": "requests / s", "Bps": "bytes / s", "bytes": "bytes"}


def legend(template: str, labels: dict) -> str:
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match.group(1), ""), template)
    return text.strip() or labels.get("instance", "")


def draw(axes, panel, prometheus: Prometheus, start: float, end: float, step: float) -> None:
    lines = []
    for query in panel.queries:
        for labels, times, values in prometheus.query_range(query.expr, start, end, step):
            if any(values) or len(panel.queries) > 1 or not panel.stacked:
                lines.append((legend(query.legend, labels), times, values))
    if panel.stacked and lines:
        grid = sorted({t for _, times, _ in lines for t in times})
        rows = []
        for _, times, values in lines:
            at = dict(zip(times, values))
            rows.append([at.get(t, 0) for t in grid])
        axes.stackplot(
            [datetime.fromtimestamp(t) for t in grid],
            rows,
            labels=[name for name, _, _ in lines],
            alpha=0.7,
        )
    else:
        for name, times, values in lines:
            axes.plot([datetime.fromtimestamp(t) for t in times], values, label=name, linewidth=1.2)
    axes.set_title(panel.title, fontsize=10)
    axes.set_ylabel(UNITS.get(panel.unit, ""), fontsize=7)
    if panel.unit == "percentunit":
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize=6, loc="upper left", ncol=2)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def render(prometheus: Prometheus, out: Path, start: float, end: float) -> list[Path]:
    """One picture for every nine time series; the paths of the files."""
    out.mkdir(parents=True, exist_ok=True)
    step = max(1.0, (end - start) / 300)
    shown = [panel for panel in panels(f"{max(10, int(4 * step))}s") if panel.kind == "timeseries"]
    files = []
    for page, first in enumerate(range(0, len(shown), COLUMNS * ROWS), start=1):
        figure, grid = plt.subplots(ROWS, COLUMNS, figsize=(18, 11), layout="constrained")
        for axes, panel in zip(grid.flat, shown[first:]):
            draw(axes, panel, prometheus, start, end, step)
        for axes in list(grid.flat)[len(shown) - first :]:
            axes.axis("off")
        files.append(out / f"mneme-{page}.png")
        figure.savefig(files[-1], dpi=80)
        plt.close(figure)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    arguments = parser.parse_args()
    end = time.time()
    prometheus = Prometheus(arguments.url)
    for path in render(prometheus, arguments.out, end - 60 * arguments.minutes, end):
        print(path)


if __name__ == "__main__":
    main()
