#!/usr/bin/env python3
"""Runs gpu_bench on the CPU with a tiny model, and sets made-up figures beside the marks.

usage: gpu_bench_test.py PATH_OF_GPU_BENCH
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import gpu_marks

BINARY = ""


class GpuBenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.json"
            subprocess.run(
                [
                    BINARY,
                    "--device",
                    "cpu",
                    "--shapes",
                    "mom-tiny",
                    "--state-dtypes",
                    "f32",
                    "--rows",
                    "1,2",
                    "--steps",
                    "4000",
                    "--phases",
                    "3",
                    "--sections",
                    "decode,prefill,context",
                    "--far",
                    "3000",
                    "--json",
                    str(path),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=280,
            )
            cls.report = json.loads(path.read_text(encoding="utf-8"))

    def test_decoding_has_rates_and_bytes(self):
        rows = self.report["decode"]["rows"]
        self.assertEqual({row["rows"] for row in rows}, {1, 2})
        for row in rows:
            self.assertAlmostEqual(
                row["tokens_per_second"] * row["ms_per_step"] / 1000, row["rows"]
            )
            moved = (row["weight_mb"] + row["state_mb"]) * 1e-6  # TB
            self.assertAlmostEqual(
                row["floor"], row["rows"] * row["copy_tbs"] / moved, delta=1e-6 * row["floor"]
            )
            self.assertGreater(row["of_floor"], 0)
            # The CPU holds no write back.
            self.assertEqual(row["deferred_mb"], row["state_mb"])

    def test_a_row_reads_the_weights_of_two_memories_of_four(self):
        one, two = (
            next(row for row in self.report["decode"]["rows"] if row["rows"] == n) for n in (1, 2)
        )
        self.assertLess(one["weight_mb"], two["weight_mb"])
        self.assertAlmostEqual(2 * one["state_mb"], two["state_mb"])

    def test_prompts_have_products_and_a_floor(self):
        rows = self.report["prefill"]["rows"]
        self.assertEqual(
            {(row["prompts"], row["tokens"]) for row in rows}, {(1, 2048), (1, 8192), (8, 2048)}
        )
        for row in rows:
            self.assertGreater(row["teraflops"], 0)
            share = 100 * row["tokens_per_second"] / row["floor"]
            self.assertAlmostEqual(row["of_floor"], share, delta=1e-6 * share)

    def test_context_compares_positions(self):
        self.assertEqual([row["context"] for row in self.report["context"]["rows"]], [1000, 3000])


class MarksTest(unittest.TestCase):
    def rows(self, **sections):
        results = {name: {"rows": rows} for name, rows in sections.items()}
        return list(gpu_marks.Report(results).rows())

    def only(self, **sections):
        measured = [row for row in self.rows(**sections) if "not measured" not in row[5]]
        self.assertEqual(len(measured), 1)
        return measured[0]

    def test_nothing_measured_meets_nothing(self):
        for row in self.rows():
            self.assertEqual((row[5], row[8]), ("not measured", ""))
        lines = gpu_marks.table({}).splitlines()
        self.assertEqual(len({len(line) for line in lines}), 1)
        self.assertEqual(len(lines), 2 + len(self.rows()))

    def test_the_kernel_is_judged_by_its_peer(self):
        ours = {
            "head_states": 1536,
            "state_dtype": "f32",
            "step_us": 100.0,
            "worst_us": 110.0,
            "moved_mb": 460.8,
            "of_copy": 90.0,
        }
        fla = {"head_states": 1536, "step_us": 171.0}
        self.assertEqual(self.only(delta_rule=[ours], fla=[fla])[8], "met, and the aim")
        self.assertEqual(self.only(delta_rule=[ours], fla=[dict(fla, step_us=150.0)])[8], "met")
        self.assertEqual(
            self.only(delta_rule=[ours], fla=[dict(fla, step_us=130.5)])[8], "missed by 10.0 %"
        )
        self.assertEqual(self.only(delta_rule=[ours])[8], "no peer")
        self.assertEqual(self.only(delta_rule=[ours])[2], "copy 90.0 us")

    def test_decoding_is_judged_by_its_rate(self):
        row = {
            "model": "mom-340m, f32 state",
            "rows": 32,
            "draw": "greedy",
            "tokens_per_second": 20900.0,
            "floor": 22861.0,
            "of_floor": 91.4,
            "deferred_floor": 36000.0,
            "of_deferred_floor": 58.1,
            "weight_mb": 1030.0,
            "state_mb": 4900.0,
            "deferred_mb": 2700.0,
            "graph_nodes": 220,
        }
        self.assertEqual(self.only(decode=[row])[8], "missed by 5.0 %")
        self.assertEqual(self.only(decode=[dict(row, tokens_per_second=22000.0)])[8], "met")
        sampled = dict(row, draw="t 0.8, top_p 0.95")
        self.assertEqual(self.rows(decode=[sampled]), self.rows())

    def test_a_prompt_beside_streams_has_two_marks(self):
        def verdict(**figures):
            model = gpu_marks.MODEL
            alone = {
                "model": model,
                "phase": "decoding alone",
                "moved_mb": 3837.0,
                "of_floor": 58.0,
            }
            both = {"model": model, "phase": "both", "p99_ratio": 2.9, "speed_ratio": 0.51}
            return self.only(interference=[alone, dict(both, **figures)])[8]

        self.assertEqual(verdict(), "met")
        self.assertEqual(verdict(p99_ratio=3.3), "missed: p99 by 10.0 %")
        self.assertEqual(verdict(speed_ratio=0.45), "missed: speed by 10.0 %")

    def test_long_contexts_count_from_a_million_tokens_on(self):
        far = {
            "model": gpu_marks.MODEL,
            "context": 1_000_000,
            "ratio": 1.016,
            "moved_mb": 911.0,
            "of_floor": 44.0,
        }
        self.assertEqual(self.only(context=[far])[8], "met")
        self.assertEqual(self.only(context=[dict(far, ratio=1.03)])[8], "missed: 3.0 %")
        self.assertEqual(self.rows(context=[dict(far, context=3000)]), self.rows())
        self.assertEqual(self.rows(context=[dict(far, model="mom-1.3b, f32 state")]), self.rows())

    def test_files_that_hold_no_results_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.json"
            bad.write_text("[", encoding="utf-8")
            for name in (str(bad), folder + "/none.json"):
                done = subprocess.run(
                    [sys.executable, gpu_marks.__file__, name],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                )
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(name, done.stderr)

    def test_figures_of_other_models_are_not_judged(self):
        both = {
            "model": "mom-1.3b, f32 state",
            "phase": "both",
            "p99_ratio": 1.0,
            "speed_ratio": 1.0,
        }
        self.assertEqual(self.rows(interference=[both]), self.rows())


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
