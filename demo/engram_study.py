"""The analyses of Memoria's paper on a served model: reads a text into a session, segment by segment, and
looks at its engrams in each of them.

    mneme-server --model runs/memoria/export &
    python -m demo.engram_study --server 127.0.0.1:50051 --tokens 16384 --json study.json --plots study/
    python -m demo.engram_study --text book.txt --twice --graph-at 20,60,130

Without --text it reads a conversation of the demo's corpus, and asks for a model with its tokenizer. Run it
in the repository's root, with clients/python installed. docs/demo_model.md says what is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mneme import (
    Client,
    ContiguityView,
    EdgesView,
    EngramKind,
    EngramsView,
    HistogramQuantity,
    HistogramView,
    MemoryReport,
    MnemeError,
)

from demo import engram_statistics as statistics
from demo.engram_statistics import Engram, Moment, Strength
from demo.report import table

_PROBE = "Anna's code is 7281."
MOST_ENGRAMS, MOST_EDGES = 10_000, 20_000  # that the server tells at once
SHOWN_SEGMENTS = 12
NEAR = 5  # segments between engrams that are told to be near
_KINDS = {
    EngramKind.WORKING: "working",
    EngramKind.SHORT_TERM: "short_term",
    EngramKind.LONG_TERM: "long_term",
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:50051", metavar="ADDRESS")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what is read")
    parser.add_argument("--tokens", type=int, default=16384, help="at most so many of the text")
    parser.add_argument("--seed", type=int, default=1, help="of the conversation, without --text")
    parser.add_argument("--twice", action="store_true", help="read all of it a second time (figure 13)")
    parser.add_argument(
        "--graph-at",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[20, 60, 130],
        metavar="SEGMENTS",
        help="when to keep the strongest links (figure 12)",
    )
    parser.add_argument("--links", type=int, default=5000, help="how many of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all numbers")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="what the tables show, as JSON")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="pictures; takes matplotlib")
    options = parser.parse_args(arguments)
    if not 0 < options.links <= MOST_EDGES:
        parser.error(f"--links {options.links}: expected 1 to {MOST_EDGES}")
    return options


def text_ids(client: Client, options: argparse.Namespace) -> list[int]:
    """The text, as the model's tokens."""
    if options.text is not None:
        ids = client.tokenize(options.text.read_text(encoding="utf-8")).ids
        return list(ids)[: options.tokens]
    from demo.corpus import MAX_LENGTH, MIN_LENGTH, Encoder, Stream

    encoder = Encoder()
    if list(client.tokenize(_PROBE, continuation=True).ids) != encoder.text(_PROBE):
        raise SystemExit("the model's tokenizer is not the demo's: give it a text (--text)")
    length = min(MAX_LENGTH, max(MIN_LENGTH, options.tokens))
    ids, _ = Stream(options.seed, length, tokenizer=encoder).next()
    return ids[: options.tokens].tolist()


class Reader:
    """A session that reads, and what is seen of its memory."""

    def __init__(self, client: Client):
        self._client = client
        self.name = client.sessions.create(f"study-{uuid.uuid4().hex[:8]}").name
        self._session = client.session(self.name)
        self.segment_tokens = self.look().summary.segment_tokens
        self.segments = 0
        self.origins: dict[int, int] = {}  # of the engrams that live

    def close(self) -> None:
        """Forgets the session."""
        self._client.sessions.delete(self.name)

    def look(self, **views: Any) -> MemoryReport:
        """What there is now, by the views of `inspect_memory`."""
        return self._session.inspect_memory(**views)

    def read(self, ids: Sequence[int]) -> Iterator[Moment]:
        """Reads whole segments; what the memory is like at the end of each one."""
        for first in range(0, len(ids) // self.segment_tokens * self.segment_tokens, self.segment_tokens):
            completion = self._session.send(ids[first : first + self.segment_tokens], max_tokens=0)
            expected = (self.segments + 1) * self.segment_tokens
            if completion.session is None or completion.session.position != expected:
                raise SystemExit(f"session {self.name} is not at token {expected}: somebody else uses it")
            yield self._moment()
            self.segments += 1

    def _moment(self) -> Moment:
        seen = self.look(engrams=EngramsView(limit=MOST_ENGRAMS))
        summary = seen.summary
        engrams = tuple(Engram(e.birth, _KINDS[e.kind], e.source.segment, e.recalled) for e in seen.engrams)
        self.origins = {engram.birth: engram.origin for engram in engrams}
        return Moment(
            self.segments,
            engrams,
            found=summary.found,
            evictions=summary.evictions,
            lifespan_sum=summary.lifespan_sum,
            max_lifespan=summary.max_lifespan,
        )

    def links(self, limit: int, birth: int | None = None) -> list[Strength]:
        """The strongest links, or those of one engram."""
        edges = self.look(edges=EdgesView(limit=limit, birth=birth)).edges
        return [Strength(e.origin, e.target, e.weight, e.weight_back) for e in edges]


def study(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured."""
    reader = Reader(client)
    try:
        if reader.segment_tokens == 0:
            raise SystemExit("the model has no segments, and no engrams")
        ids = text_ids(client, options)
        whole = len(ids) // reader.segment_tokens
        if whole < 2:
            raise SystemExit(f"{len(ids)} tokens of text: expected two segments of {reader.segment_tokens}")
        ids = ids[: whole * reader.segment_tokens]
        moments, graphs = [], []
        for moment in reader.read(ids * (2 if options.twice else 1)):
            moments.append(moment)
            if moment.segment in options.graph_at:
                graphs.append(_graph(reader, moment, options.links))
        last = reader.look(
            histogram=HistogramView(HistogramQuantity.LIFESPAN, logarithmic=True),
            contiguity=ContiguityView(),
        )
        bins = last.histogram
        result = {
            "segment_tokens": reader.segment_tokens,
            "segments": len(moments),
            "readings": 2 if options.twice else 1,
            "by_segment": [statistics.by_segment(moment) for moment in moments],
            "creation": statistics.creation_counts(moments[-1]),
            "autocorrelation": {
                kind: statistics.mean_autocorrelations(
                    statistics.recall_series(moments, kind), by_length=kind == "long_term"
                )
                for kind in ("short_term", "long_term")
            },
            "contiguity": [
                {"distance": b.distance, "mean_weight": b.mean_weight, "pairs": b.pairs}
                for b in last.contiguity
            ],
            "lifespans": [{"from": b.low, "to": b.high, "engrams": b.engrams} for b in bins],
            "graphs": graphs,
        }
        if options.twice:
            again = [birth for birth, origin in reader.origins.items() if origin >= whole]
            links = (link for birth in again for link in reader.links(MOST_EDGES, birth))
            result["second_reading"] = statistics.second_reading(reader.origins, whole, links)
        return result
    finally:
        reader.close()


def _graph(reader: Reader, moment: Moment, limit: int) -> dict[str, Any]:
    return {
        "segment": moment.segment,
        "engrams": [{"birth": e.birth, "kind": e.kind, "origin": e.origin} for e in moment.engrams],
        "links": [link._asdict() for link in reader.links(limit)],
    }


def _shown(moments: Sequence[dict[str, Any]], lines: int) -> list[dict[str, Any]]:
    """About so many of them, at equal distances, the last one among them."""
    step = max(1, -(-len(moments) // lines))
    return [*moments[step - 1 :: step], *([] if len(moments) % step == 0 else [moments[-1]])]


def _rounded(value: Any) -> Any:
    """All floats to six digits, which a summary needs no more of."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def summary(result: dict[str, Any], options: argparse.Namespace, model: str) -> dict[str, Any]:
    """A small account of a study: what was asked, of which model, and what the tables show of it."""
    text = (
        ["--text", options.text.name] if options.text is not None else ["--seed", str(options.seed)]
    )
    command = ["python -m demo.engram_study", "--tokens", str(options.tokens), *text]
    if options.twice:
        command.append("--twice")
    graphs = []
    for graph in result["graphs"]:
        origins = {engram["birth"]: engram["origin"] for engram in graph["engrams"]}
        spans = [abs(origins[one["first"]] - origins[one["second"]]) for one in graph["links"]]
        near = sum(span <= NEAR for span in spans)
        graphs.append(
            {
                "segment": graph["segment"],
                "engrams": len(origins),
                "links": len(spans),
                f"share_within_{NEAR}_segments": near / len(spans) if spans else None,
            }
        )
    kept = {
        "command": " ".join(command),
        "model_fingerprint": model,
        **{key: result[key] for key in ("segment_tokens", "segments", "readings")},
        "by_segment": _shown(result["by_segment"], SHOWN_SEGMENTS),
        **{key: result[key] for key in ("creation", "autocorrelation")},
        "contiguity": [b for b in result["contiguity"] if _round(b["distance"])],
        "lifespans": result["lifespans"],
        "strongest_links": graphs,
        **{key: result[key] for key in ("second_reading",) if key in result},
    }
    return _rounded(kept)


def tables(result: dict[str, Any], lines: int = SHOWN_SEGMENTS) -> str:
    """What was measured, to read."""
    shown = _shown(result["by_segment"], lines)
    parts = [
        table(
            [
                "segment",
                "short-term",
                "long-term",
                "found",
                "recalled",
                "mean age",
                "lifespans",
                "longest",
                "evicted",
            ],
            [
                [
                    str(m["segment"]),
                    str(m["short_term"]),
                    str(m["long_term"]),
                    str(m["found"]),
                    f"{m['recalled_short_term']} + {m['recalled_long_term']}",
                    "-" if m["mean_age"] is None else f"{m['mean_age']:.1f}",
                    f"{m['lifespan_sum']:.0f}",
                    f"{m['max_lifespan']:.1f}",
                    str(m["evictions"]),
                ]
                for m in shown
            ],
        )
    ]
    counts = result["creation"]
    width = 100 // len(counts)
    header = ["created, % of the text", *(f"{i * width} to {(i + 1) * width}" for i in range(len(counts)))]
    parts.append(table(header, [["long-term engrams", *map(str, counts)]]))
    by_kind = result["autocorrelation"]
    lags = max(map(len, by_kind.values()))
    if lags:
        rows = []
        for kind, found in by_kind.items():
            values = [f"{one['mean']:.3f}" for one in found] + ["-"] * (lags - len(found))
            rows.append([kind.replace("_", "-"), *values])
        parts.append(table(["recalled again, lag", *map(str, range(1, lags + 1))], rows))
    parts.append(
        _weights("segments apart", "distance", [b for b in result["contiguity"] if _round(b["distance"])])
    )
    if "second_reading" in result:
        parts.append(_weights("second reading, segments ahead", "offset", result["second_reading"]))
    parts.append(
        table(
            ["lifespan", "engrams"],
            [[f"{b['from']:.3g} to {b['to']:.3g}", str(b["engrams"])] for b in result["lifespans"]],
        )
    )
    return "\n\n".join(parts)


def _round(distance: int) -> bool:
    """Whether a distance is shown: the first ones, then tens, then hundreds."""
    return distance < 10 or (distance < 100 and distance % 10 == 0) or distance % 50 == 0


def _weights(name: str, key: str, bins: Sequence[dict[str, Any]]) -> str:
    return table(
        [name, "mean E", "pairs"], [[str(b[key]), f"{b['mean_weight']:.4f}", str(b["pairs"])] for b in bins]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads, prints the tables, and writes what was asked for."""
    options = parse(arguments)
    with Client(options.server) as client:
        client.wait_until_ready()
        try:
            result = study(client, options)
            fingerprint = "" if options.summary is None else client.info().model.fingerprint
        except MnemeError as error:
            raise SystemExit(f"{options.server}: {error}") from error
    print(tables(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.summary is not None:
        told = json.dumps(summary(result, options, fingerprint))
        options.summary.write_text(told + "\n", encoding="utf-8")
    if options.plots is not None:
        from demo.engram_plots import plot_all

        plot_all(result, options.plots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
