#!/usr/bin/env python3
"""Sets what the GPU benches measured beside the marks that the project holds itself to.

usage: gpu_marks.py FILE...

Each file is what cuda_delta_rule_bench, fla_delta_rule.py or gpu_bench wrote for --json. Prints a
table, as Markdown; what no file has is "not measured".
"""

import json
import pathlib
import sys

HEADER = (
    "work",
    "peer",
    "floor",
    "pass",
    "aim",
    "measured",
    "MB at least",
    "of floor %",
    "",
)
MODEL = "mom-340m, f32 state"  # of all but decoding

# model and state as gpu_bench names them, rows, pass, aim, peer: tokens/s. The peer is the authors'
# Python for this family on the same kind of GPU, measured once and not here.
DECODES = (
    ("mom-340m, f32 state", 1, 2500, 3300, 7),
    ("mom-340m, f32 state", 32, 22000, 28000, None),
    ("mom-340m, f32 state", 256, 36000, 42000, 50),
    ("mom-340m, f16 state", 512, 65000, 78000, None),
    ("mom-1.3b, f32 state", 1, 1050, 1250, 7),
    ("mom-1.3b, f32 state", 128, 22000, 32000, None),
)
PREFILLS = (
    (1, 2048, 100e3, 200e3, 5.3e3),
    (1, 8192, 200e3, 400e3, 34e3),
    (8, 2048, 300e3, 500e3, 45e3),
)
# head states, what fla's time is divided by to pass, and for the aim
DELTA_STEPS = tuple((n, 1.0, 1.3) for n in (12, 24, 48, 96, 192, 384)) + tuple(
    (n, 1.45, 1.7) for n in (1536, 3072, 6144)
)


def number(value):
    return "-" if value is None else f"{value:,.0f}"


def verdict(measured, wanted, aim):
    """The verdict on a figure that should be large; all three above 0."""
    if measured >= aim:
        return "met, and the aim"
    if measured >= wanted:
        return "met"
    return f"missed by {100 * (1 - measured / wanted):.1f} %"


def missing(work, marks):
    return (*work, "-", *marks, "not measured", "-", "-", "")


class Report:
    def __init__(self, results):
        self.results = results

    def find(self, section, **wanted):
        for row in self.results.get(section, {}).get("rows", []):
            if all(row.get(key) == value for key, value in wanted.items()):
                return row
        return None

    def rows(self):
        yield from self.delta_steps()
        yield from self.decodes()
        yield from self.prefills()
        yield from self.interference()
        yield from self.context()

    def delta_steps(self):
        for head_states, least, aim in DELTA_STEPS:
            peer = self.find("fla", head_states=head_states)
            work = (
                f"gated delta step, head 256, f32, {head_states:,} head states",
                "not measured" if peer is None else f"fla {peer['step_us']:.1f} us",
            )
            marks = (f"fla / {least:g}" if least > 1 else "fla", f"fla / {aim:g}")
            ours = self.find("delta_rule", head_states=head_states, state_dtype="f32")
            if ours is None:
                yield missing(work, marks)
                continue
            floor = ours["step_us"] * ours["of_copy"] / 100
            measured = f"{ours['step_us']:.1f} us, worst step {ours['worst_us']:.1f}"
            result = "no peer"
            if peer is not None:
                ratio = peer["step_us"] / ours["step_us"]
                measured += f": fla / {ratio:.2f}"
                result = verdict(ratio, least, aim)
            moved = (f"{ours['moved_mb']:.1f}", f"{ours['of_copy']:.0f}")
            yield (*work, f"copy {floor:.1f} us", *marks, measured, *moved, result)

    def decodes(self):
        for model, batch, least, aim, peer in DECODES:
            work = (f"decode, {model}, batch {batch}, tokens/s", number(peer))
            marks = (number(least), number(aim))
            row = self.find("decode", model=model, rows=batch, draw="greedy")
            if row is None:
                yield missing(work, marks)
                continue
            rate = row["tokens_per_second"]
            floor = f"{number(row['floor'])} read+write, {number(row['deferred_floor'])} held back"
            moved = (
                f"{row['weight_mb']:.0f} + {row['state_mb']:.0f} or {row['deferred_mb']:.0f}",
                f"{row['of_floor']:.0f}, {row['of_deferred_floor']:.0f}",
            )
            measured = f"{number(rate)} ({row['graph_nodes']} graph nodes)"
            yield (*work, floor, *marks, measured, *moved, verdict(rate, least, aim))

    def prefills(self):
        for prompts, tokens, least, aim, peer in PREFILLS:
            work = (f"prefill, {MODEL}, {prompts}x{tokens}, tokens/s", number(peer))
            marks = (number(least), number(aim))
            row = self.find("prefill", model=MODEL, prompts=prompts, tokens=tokens)
            if row is None:
                yield missing(work, marks)
                continue
            rate = row["tokens_per_second"]
            moved = (number(row["moved_mb"]), f"{row['of_floor']:.0f}")
            result = verdict(rate, least, aim)
            yield (*work, number(row["floor"]), *marks, number(rate), *moved, result)

    def interference(self):
        work = ("32 decoding streams beside a prompt: p99 between tokens, the prompt's speed", "-")
        marks = ("3 times, 50 %", "2 times, 50 %")
        alone = self.find("interference", model=MODEL, phase="decoding alone")
        both = self.find("interference", model=MODEL, phase="both")
        if alone is None or both is None:
            yield missing(work, marks)
            return
        p99, speed = both["p99_ratio"], both["speed_ratio"]
        missed = [f"p99 by {100 * (p99 / 3 - 1):.1f} %"] if p99 > 3 else []
        missed += [f"speed by {100 * (1 - speed / 0.5):.1f} %"] if speed < 0.5 else []
        result = "met, and the aim" if p99 <= 2 else "met"
        if missed:
            result = f"missed: {', '.join(missed)}"
        measured = f"{p99:.2f} times, {100 * speed:.0f} %"
        moved = (f"{number(alone['moved_mb'])} alone", f"{alone['of_floor']:.0f} alone")
        yield (*work, "-", *marks, measured, *moved, result)

    def context(self):
        work = ("step time after 1k and after 1M tokens", "grows")
        marks = ("within 2 %", "-")
        far = self.find("context", model=MODEL, context=1_000_000)
        if far is None:
            yield missing(work, marks)
            return
        off = 100 * (far["ratio"] - 1)
        moved = (number(far["moved_mb"]), f"{far['of_floor']:.0f}")
        result = "met" if off <= 2 else f"missed: {off:.1f} %"
        yield (*work, "flat", *marks, f"{off:+.1f} %", *moved, result)


def table(results):
    rows = [HEADER, *Report(results).rows()]
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(HEADER))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * w for w in widths) + " |")
    return "\n".join(lines)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 2
    results = {}
    for name in sys.argv[1:]:
        try:
            results.update(json.loads(pathlib.Path(name).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            print(f"gpu_marks.py: {name}: {error}, expected what --json wrote", file=sys.stderr)
            return 2
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
