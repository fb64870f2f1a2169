#!/usr/bin/env python3
"""Joins what run_rule.sh measured of several rules into tables with their marks, as Markdown.

usage: join_rules.py FOLDER

FOLDER is run_rule.sh's --out: a folder for each rule. Figures are medians of the runs that are there;
what is not there is "not measured".
"""

import json
import pathlib
import re
import statistics
import sys

RULES = ("linear_attn", "retnet", "gla", "delta_net", "kda", "hgrn2", "gsa")
# The same behind a router: their step and their model are measured, which have no peer.
ROUTED = ("mom_linear_attn", "mom_gla", "mom_gsa")
RUNS = (1, 2, 3)

# States of a step in MB; those of COLD_MB have the mark of the copy, too.
STEP_MB = (3, 12, 50, 100, 400, 1600)
COLD_MB = (400, 1600)
STEP_PASS, STEP_AIM = 1.03, 1 / 1.3  # of fla's time
COPY_PASS, HELD_BACK_AIM = 90, 85  # %

CHUNK_WORK = ((1, 8192), (8, 2048))
STRICT_CHUNKS = ("gla", "delta_net", "kda", "retnet")
STRICT_PASS, CHUNK_PASS, CHUNK_AIM = 1.03, 1.5, 1 / 1.3  # of fla's time

# Marks of decoding, by rows of a step: the share of the floor in %, to pass and as the aim.
USUAL_DECODE = {1: (25, 38), 32: (40, 55), 256: (70, 85)}
DECODE = {
    "gla": USUAL_DECODE,
    "delta_net": USUAL_DECODE,
    "kda": USUAL_DECODE,
    "retnet": {1: (25, 42), 32: (65, 78), 256: (85, 110)},
}
# Marks of prompts, by their number and tokens: times fla's rate to pass, then % of a large product's
# rate, to pass and as the aim.
PREFILL = {(1, 2048): (1.5, 22, 30), (8, 2048): (1.1, 28, 40)}


class BadResults(Exception):
    """A file that holds something else than the bench of its name writes."""


def verdict(passed, aimed):
    return "met, and the aim" if passed and aimed else "met" if passed else "**missed**"


class Rule:
    """The results of a rule, read from its folder."""

    def __init__(self, name, folder):
        self.name = name
        self.folder = folder

    def _read(self, file, parse):
        path = self.folder / file
        if not path.exists():
            return None
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadResults(f"{path}: {error!r}") from error

    def host(self):
        return self._read("host.txt", str.strip) or "nothing measured"

    def steps(self, side, section):
        """Rows of the median time, with that run's bandwidth, by head states in rising order."""
        by_size = {}
        for run in RUNS:
            rows = self._read(f"{side}.{run}.json", lambda text: json.loads(text)[section]["rows"])
            for row in rows or []:
                if row["rule"] == self.name:
                    by_size.setdefault(row["head_states"], []).append(row)
        return {
            size: {
                "us": statistics.median(row["step_us"] for row in rows),
                "of_copy": statistics.median(row.get("of_copy", 0) for row in rows),
                "of_held_back": statistics.median(row.get("of_held_back", 0) for row in rows),
                "state_mb": rows[0]["state_mb"],
                "runs": len(rows),
            }
            for size, rows in sorted(by_size.items())
        }

    def chunks(self):
        """Milliseconds of ours, all parts of the rule together, by prompts and tokens."""
        names = ("gsa_keys", "gsa_values") if self.name == "gsa" else (self.name,)

        def parse(text):
            times = {}
            for name, prompts, tokens, ms in re.findall(
                r"^mneme (\w+) +(\d+) x (\d+) +([\d.]+) ms", text, re.MULTILINE
            ):
                times.setdefault((int(prompts), int(tokens)), {})[name] = float(ms)
            return {
                work: sum(parts[name] for name in names)
                for work, parts in times.items()
                if all(name in parts for name in names)
            }

        return self._median_times("chunks.{}.txt", parse)

    def fla_chunks(self):
        def parse(text):
            return {(p, t): ms for rule, p, t, ms in json.loads(text) if rule == self.name}

        return self._median_times("fla_chunks.{}.json", parse)

    def _median_times(self, pattern, parse):
        runs = [self._read(pattern.format(run), parse) or {} for run in RUNS]
        return {
            work: statistics.median(run[work] for run in runs if work in run)
            for work in CHUNK_WORK
            if any(work in run for run in runs)
        }

    def engine(self, section):
        rows = self._read("engine.json", lambda text: json.loads(text).get(section, {}).get("rows"))
        return rows or []

    def fla_forward(self):
        def parse(text):
            rows = json.loads(text)["fla_forward"]["rows"]
            return {(row["prompts"], row["tokens"]): row["tokens_per_second"] for row in rows}

        return self._read("fla_forward.json", parse) or {}


NOT_MEASURED = "not measured"


def step_rows(rule):
    ours, fla = rule.steps("steps", "matrix_memories"), rule.steps("fla_steps", "fla_matrix_rules")
    by_mb = {min(STEP_MB, key=lambda mb: abs(mb - row["state_mb"])): size
             for size, row in {**fla, **ours}.items()}
    for megabytes in STEP_MB:
        size = by_mb.get(megabytes)
        peer, own = fla.get(size), ours.get(size)
        work = (rule.name, f"{megabytes:,}", f"{peer['us']:.2f}" if peer else NOT_MEASURED)
        if own is None:
            yield (*work, NOT_MEASURED, "", "", "", "")
            continue
        figures = (f"{own['us']:.2f}", f"{own['of_copy']:.1f}", f"{own['of_held_back']:.1f}")
        if peer is None:
            yield (*work, *figures, "", "no peer")
            continue
        ratio = peer["us"] / own["us"]
        if megabytes in COLD_MB:
            passed = ratio >= 1 and own["of_copy"] >= COPY_PASS
            aimed = own["of_held_back"] >= HELD_BACK_AIM
        else:
            passed, aimed = ratio >= 1 / STEP_PASS, ratio >= 1 / STEP_AIM
        yield (*work, *figures, f"fla / {ratio:.2f}", verdict(passed, aimed))


def chunk_rows(rule):
    if rule.name in ROUTED:
        return
    ours, fla = rule.chunks(), rule.fla_chunks()
    most = STRICT_PASS if rule.name in STRICT_CHUNKS else CHUNK_PASS
    for prompts, tokens in CHUNK_WORK:
        own, peer = ours.get((prompts, tokens)), fla.get((prompts, tokens))
        work = (rule.name, f"{prompts} x {tokens}", f"{peer:.3f}" if peer else NOT_MEASURED,
                f"{own:.3f}" if own else NOT_MEASURED, f"{most:g} times")
        if own is None or peer is None:
            yield (*work, "", "no peer" if own else "")
            continue
        yield (*work, f"fla / {peer / own:.2f}",
               verdict(own <= most * peer, own <= CHUNK_AIM * peer))


def decode_rows(rule):
    rows = {row["rows"]: row for row in rule.engine("decode") if row["draw"] == "greedy"}
    if rule.name in ROUTED:
        for batch, row in sorted(rows.items()):
            yield (rule.name, str(batch), f"{row['tokens_per_second']:,.0f}",
                   f"{row['floor']:,.0f}", "", "", f"{row['of_floor']:.1f} %", "no mark")
    for batch, (least, aim) in DECODE.get(rule.name, {}).items():
        row = rows.get(batch)
        if row is None:
            yield (rule.name, str(batch), NOT_MEASURED, "", f"{least} %", f"{aim} %", "", "")
            continue
        share = row["of_floor"]
        yield (rule.name, str(batch), f"{row['tokens_per_second']:,.0f}", f"{row['floor']:,.0f}",
               f"{least} %", f"{aim} %", f"{share:.1f} %", verdict(share >= least, share >= aim))


def prefill_rows(rule):
    if rule.name not in DECODE:
        return
    rows = {(row["prompts"], row["tokens"]): row for row in rule.engine("prefill")}
    fla = rule.fla_forward()
    for work, (times, least, aim) in PREFILL.items():
        row, peer = rows.get(work), fla.get(work)
        named = (rule.name, "{} x {}".format(*work), f"{peer:,.0f}" if peer else NOT_MEASURED)
        marks = (f"{times:g} times, {least} %", f"{aim} %")
        if row is None:
            yield (*named, NOT_MEASURED, *marks, "", "")
            continue
        rate = row["tokens_per_second"]
        share = 100 * row["teraflops"] / (row["ms"] / 1e3) / row["product_tflops"]
        own = (f"{rate:,.0f}", *marks)
        if peer is None:
            yield (*named, *own, f"{share:.1f} %", "no peer")
            continue
        passed = rate >= times * peer and share >= least
        yield (*named, *own, f"{rate / peer:.2f} times, {share:.1f} %",
               verdict(passed, share >= aim))


TABLES = (
    ("Decode step, f32 states, not in a cache",
     ("rule", "state MB", "fla us", "us", "of copy %", "of its held-back floor %", "", ""), step_rows),
    ("Prompts, the operation alone, bf16",
     ("rule", "prompts", "fla ms", "ms", "at most", "", ""), chunk_rows),
    ("Decoding through the engine, 340M-class, bf16",
     ("rule", "rows", "tokens/s", "floor, read and written", "pass", "aim", "of the floor", ""),
     decode_rows),
    ("Prompts through the engine, 340M-class, bf16",
     ("rule", "prompts", "fla tokens/s", "tokens/s", "pass", "aim", "beside fla, of a large product", ""),
     prefill_rows),
)


def report(folder):
    """The tables as Markdown."""
    rules = [Rule(name, folder / name) for name in RULES + ROUTED]
    lines = [f"- {rule.name}: {rule.host()}" for rule in rules]
    for title, header, rows_of in TABLES:
        lines += ["", f"**{title}**", "", "| " + " | ".join(header) + " |",
                  "|" + "---|" * len(header)]
        for rule in rules:
            lines += ["| " + " | ".join(row) + " |" for row in rows_of(rule)]
    return "\n".join(lines)


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) == 2 else 2
    folder = pathlib.Path(sys.argv[1])
    if not folder.is_dir():
        print(f"join_rules.py: {folder}: no such folder, expected run_rule.sh's --out",
              file=sys.stderr)
        return 2
    try:
        print(report(folder))
    except BadResults as error:
        print(f"join_rules.py: {error}, expected what the bench writes", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
