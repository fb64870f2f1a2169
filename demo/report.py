"""Tables and the plot of the documentation, from the files that evaluate.py and state_error.py wrote.

python -m demo.report table demo/results/demo.json
python -m demo.report plot demo/results/demo.json --out recall.png
python -m demo.report states demo/results/state_error.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which differ for every kind of colour vision; lines differ in marker, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vP"
LINES = ("-", "--", "-.", ":", "-", "--")
CHANCE_COLOUR = "#555555"

Result = dict[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(cell: dict[str, Any] | None) -> str:
    """A share with its interval, in percent."""
    if cell is None:
        return "-"
    low, high = 100 * cell["low"], 100 * cell["high"]
    return f"{100 * cell['accuracy']:.1f} ({low:.0f} to {high:.0f})"


def tokens(count: int) -> str:
    """4096 as 4k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def amount(count: float, units: Sequence[str] = ("", "k", "M", "G"), step: float = 1000) -> str:
    """A number with three digits and a unit."""
    unit = 0
    while count >= step and unit + 1 < len(units):
        count /= step
        unit += 1
    return f"{count:.3g} {units[unit]}".strip()


def merged(results: Iterable[Result]) -> list[Result]:
    """Results of one name as one: suites and cells may have been measured one by one."""
    models: dict[str, Result] = {}
    for result in results:
        whole = models.setdefault(result["name"], {**result, "recall": [], "updates": []})
        if whole["model"]["fingerprint"] != result["model"]["fingerprint"]:
            raise SystemExit(f"results named {result['name']!r} are of different models")
        for suite in ("recall", "updates"):
            for cell in result.get(suite, []):
                place = {key: cell[key] for key in ("kind", "facts", "distance")}
                if find(whole[suite], **place):
                    raise SystemExit(f"results named {result['name']!r} have {place} twice")
                whole[suite].append(cell)
        if "sessions" in result:
            whole["sessions"] = result["sessions"]
    return list(models.values())


def find(cells: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any] | None:
    """The cell with these properties."""
    return next((cell for cell in cells if all(cell[key] == wanted[key] for key in wanted)), None)


def values_of(results: Sequence[Result], suite: str, key: str) -> list[int]:
    """All values of a property that any result has, in order."""
    return sorted({cell[key] for result in results for cell in result.get(suite, [])})


def model_table(results: Sequence[Result]) -> str:
    """What was compared."""
    rows = []
    for result in results:
        notes = result["notes"]
        active = notes.get("active_parameters")
        rows.append(
            [
                result["name"],
                result["model"]["architecture"],
                amount(result["model"]["parameters"]),
                amount(float(active)) if active else "-",
                amount(result["state_bytes"], ("B", "KiB", "MiB"), 1024),
                notes.get("state_dtype", "f32"),
                result["server"]["device"],
            ]
        )
    header = ["model", "architecture", "parameters", "active per token", "session", "state", "device"]
    return table(header, rows)


def recall_table(results: Sequence[Result], facts: int) -> str:
    """Recall in percent with 95 % intervals, and the control of each model below it."""
    distances = values_of(results, "recall", "distance")
    rows = []
    for kind, label in (("told", "{}"), ("control", "{}, never told")):
        for result in results:
            cells = result.get("recall", [])
            found = [find(cells, kind=kind, facts=facts, distance=d) for d in distances]
            if any(found):
                rows.append([label.format(result["name"]), *map(percent, found)])
    for label, kind in (("chance", "told"), ("chance, never told", "control")):
        means = []
        for distance in distances:
            cells = [find(r.get("recall", []), kind=kind, facts=facts, distance=distance) for r in results]
            chances = [cell["chance"] for cell in cells if cell]
            means.append(f"{100 * sum(chances) / len(chances):.1f}" if chances else "-")
        rows.append([label, *means])
    return table([f"{facts} facts", *(f"{tokens(d)} tokens" for d in distances)], rows)


def updates_table(results: Sequence[Result]) -> str:
    """How often the latest version of a changed fact is answered, and how often the old one."""
    distances = values_of(results, "updates", "distance")
    rows = []
    for result in results:
        row = [result["name"]]
        for distance in distances:
            cell = find(result.get("updates", []), distance=distance)
            row.append(percent(cell))
            old = cell["outcomes"]["old value"] / max(1, cell["questions"]) if cell else 0.0
            row.append(f"{100 * old:.1f}" if cell else "-")
        rows.append(row)
    header = ["changed facts"]
    for distance in distances:
        header += [f"{tokens(distance)} tokens", "old value"]
    return table(header, rows)


def sessions_table(results: Sequence[Result]) -> str:
    """Told and asked by different clients, forks, and many at once."""
    rows = []
    for result in results:
        trials = result["sessions"]
        many = trials["interleaved"]
        fork = trials["diverge"]
        rows.append(
            [
                result["name"],
                percent(trials["come_back"]),
                percent(fork),
                f"{fork['parent_unmoved']} of {fork['conversations']}",
                percent(many),
                f"{many['mixed']} of {many['conversations']}",
                f"{many['same_answers_alone']} of {many['conversations']}",
            ]
        )
    header = [
        "sessions",
        "asked by another client",
        "forks",
        "parent unmoved",
        "interleaved",
        "mixed",
        "as if alone",
    ]
    return table(header, rows)


def outcomes_table(results: Sequence[Result]) -> str:
    """What wrong answers were, all distances together."""
    rows = []
    for result in results:
        for kind in ("told", "control"):
            for facts in values_of([result], "recall", "facts"):
                cells = [c for c in result["recall"] if c["kind"] == kind and c["facts"] == facts]
                total = sum(cell["questions"] for cell in cells)
                names = list(cells[0]["outcomes"])
                counts = [sum(cell["outcomes"][name] for cell in cells) for name in names]
                shares = [f"{100 * count / max(1, total):.1f}" for count in counts]
                rows.append([result["name"], kind, str(facts), str(total), *shares])
    names = list(results[0]["recall"][0]["outcomes"])
    return table(["model", "questions about facts", "kept", "asked", *names], rows)


def tables(results: Sequence[Result]) -> str:
    """All tables that the results allow, with a line between."""
    parts = [model_table(results)]
    with_recall = [result for result in results if result.get("recall")]
    if with_recall:
        facts = values_of(with_recall, "recall", "facts")
        parts += [recall_table(with_recall, count) for count in facts]
        parts.append(outcomes_table(with_recall))
    with_updates = [result for result in results if result.get("updates")]
    if with_updates:
        parts.append(updates_table(with_updates))
    with_sessions = [result for result in results if result.get("sessions")]
    if with_sessions:
        parts.append(sessions_table(with_sessions))
    return "\n\n".join(parts)


def states_table(result: Result) -> str:
    """Logit error and recall of stored states against float64, by stretch of the text."""
    stretches = [s["until"] for s in result["runs"][0]["stretches"]]
    rows = []
    for run in result["runs"]:
        errors = [f"{stretch['error']:.1e}" for stretch in run["stretches"]]
        rows.append(
            [run["name"], *errors, f"{run['error']:.1e}", f"{run['worst']:.1e}", percent(run["values"])]
        )
    reference = ["reference, float64", *("0" for _ in stretches), "0", "0", percent(result["reference"])]
    header = ["state", *(f"to {until:,}" for until in stretches), "all", "worst position", "values right"]
    return table(header, [reference, *rows])


def plot(results: Sequence[Result], out: Path) -> None:
    """Recall against distance: a panel for each number of facts, a line for each model."""
    import matplotlib  # not needed for tables

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    counts = values_of(results, "recall", "facts")
    figure, axes = pyplot.subplots(
        1, len(counts), figsize=(1.2 + 3.6 * len(counts), 4.2), sharey=True, squeeze=False
    )
    for axis, facts in zip(axes[0], counts, strict=True):
        for i, result in enumerate(results):
            _draw(axis, result, facts, i)
        _draw_chance(axis, results, facts)
        distances = values_of(results, "recall", "distance")
        axis.set_xscale("log", base=2)
        axis.set_xticks(distances, [tokens(d) for d in distances])
        axis.minorticks_off()
        axis.set_xlabel("tokens between fact and question")
        axis.set_title(f"{facts} facts kept")
        axis.set_ylim(0, 102)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes[0][0].set_ylabel("right answers, %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    columns = min(len(labels), 3 if len(counts) > 1 else 1)
    rows = -(-len(labels) // columns)
    figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False)
    figure.tight_layout(rect=(0, 0.03 + 0.055 * rows, 1, 1))
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150, metadata={"Software": None})
    pyplot.close(figure)


def _draw(axis: Any, result: Result, facts: int, number: int) -> None:
    cells = [c for c in result["recall"] if c["kind"] == "told" and c["facts"] == facts]
    cells.sort(key=lambda cell: cell["distance"])
    places = [cell["distance"] for cell in cells]
    colour = COLOURS[number % len(COLOURS)]
    axis.fill_between(
        places,
        [100 * cell["low"] for cell in cells],
        [100 * cell["high"] for cell in cells],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    axis.plot(
        places,
        [100 * cell["accuracy"] for cell in cells],
        color=colour,
        marker=MARKERS[number % len(MARKERS)],
        linestyle=LINES[number % len(LINES)],
        label=result["name"],
    )


def _draw_chance(axis: Any, results: Sequence[Result], facts: int) -> None:
    chances = [
        c["chance"] for r in results for c in r["recall"] if c["facts"] == facts and c["kind"] == "told"
    ]
    level = 100 * sum(chances) / max(1, len(chances))
    axis.axhline(level, color=CHANCE_COLOUR, linestyle=(0, (1, 2)), label="chance")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("table", "plot", "states"))
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="the picture")
    options = parser.parse_args(arguments)
    if options.what == "plot" and options.out is None:
        parser.error("plot needs --out FILE.png")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints tables, or writes the picture."""
    options = parse(arguments)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    if options.what == "states":
        print("\n\n".join(map(states_table, results)))
    elif options.what == "plot":
        plot([result for result in merged(results) if result["recall"]], options.out)
    else:
        print(tables(merged(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
