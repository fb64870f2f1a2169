"""Pictures of what engram_study.py measured, numbered as the paper numbers its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo.report import COLOURS, MARKERS

_COLOUR_OF_KIND = dict(zip(("working", "short_term", "long_term"), COLOURS, strict=False))


def plot_all(result: dict[str, Any], folder: Path) -> list[Path]:
    """Writes every picture that the numbers allow; returns their files."""
    import matplotlib  # not needed for tables

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def picture(name: str, draw: Any, *arguments: Any) -> None:
        figure, axis = pyplot.subplots(figsize=(6.4, 4.2))
        draw(axis, *arguments)
        figure.tight_layout()
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=150, metadata={"Software": None})
        pyplot.close(figure)

    picture("figure_5_age", _ages, result["by_segment"])
    picture("figure_6_creation", _creation, result["creation"])
    picture("figure_7_autocorrelation", _autocorrelation, result["autocorrelation"])
    if result["contiguity"]:
        picture("figure_8_contiguity", _weights, result["contiguity"], "distance", "segments apart")
    if "second_reading" in result:
        picture(
            "figure_13_second_reading",
            _weights,
            result["second_reading"],
            "offset",
            "segments that the second reading is ahead",
        )
    for graph in result["graphs"]:
        picture(f"figure_12_graph_{graph['segment']}", _graph, graph)
    if result["lifespans"]:
        picture("lifespans", _lifespans, result["lifespans"])
    return written


def _ages(axis: Any, moments: list[dict[str, Any]]) -> None:
    known = [m for m in moments if m["mean_age"] is not None]
    axis.plot([m["segment"] for m in known], [m["mean_age"] for m in known], color=COLOURS[0])
    axis.set_xlabel("segment")
    axis.set_ylabel("mean age of recalled long-term engrams")


def _creation(axis: Any, counts: list[int]) -> None:
    width = 100 / len(counts)
    axis.bar([(i + 0.5) * width for i in range(len(counts))], counts, 0.9 * width, color=COLOURS[0])
    axis.set_xlabel("created, % of the text")
    axis.set_ylabel("long-term engrams")


def _autocorrelation(axis: Any, by_kind: dict[str, list[dict[str, Any]]]) -> None:
    for (kind, found), marker in zip(by_kind.items(), MARKERS, strict=False):
        colour, label = _COLOUR_OF_KIND[kind], kind.replace("_", "-")
        lags, means = [one["lag"] for one in found], [one["mean"] for one in found]
        axis.plot(lags, means, color=colour, marker=marker, label=label)
    axis.set_xlabel("lag in segments")
    axis.set_ylabel("autocorrelation of being recalled")
    axis.legend(frameon=False)


def _weights(axis: Any, bins: list[dict[str, Any]], key: str, label: str) -> None:
    axis.plot([b[key] for b in bins], [b["mean_weight"] for b in bins], color=COLOURS[0])
    axis.set_xlabel(label)
    axis.set_ylabel("mean E")


def _graph(axis: Any, graph: dict[str, Any]) -> None:
    """A dot for each link, dark where it is strong, at the segments that its engrams were made of."""
    origins = {engram["birth"]: engram["origin"] for engram in graph["engrams"]}
    links = sorted(graph["links"], key=lambda link: max(link["weight"], link["weight_back"]))
    dots = axis.scatter(
        [origins[link["first"]] for link in links],
        [origins[link["second"]] for link in links],
        c=[max(link["weight"], link["weight_back"]) for link in links],
        cmap="viridis_r",
        vmin=0,
        vmax=1,
        s=6,
    )
    axis.figure.colorbar(dots, label="E, the larger one")
    axis.set_xlim(-1, graph["segment"])
    axis.set_ylim(-1, graph["segment"])
    axis.set_xlabel("older engram's segment")
    axis.set_ylabel("younger engram's segment")


def _lifespans(axis: Any, bins: list[dict[str, Any]]) -> None:
    edges = [bins[0]["from"], *(b["to"] for b in bins)]
    axis.stairs([b["engrams"] for b in bins], edges, fill=True, color=COLOURS[0])
    if edges[0] > 0:
        axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=1)
    axis.set_xlabel("lifespan")
    axis.set_ylabel("engrams")
