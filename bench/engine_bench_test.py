#!/usr/bin/env python3
"""Runs engine_bench --quick and checks that its report is complete and plausible.

usage: engine_bench_test.py PATH_OF_ENGINE_BENCH
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BINARY = ""


class EngineBenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.json"
            done = subprocess.run(
                [BINARY, "--quick", "--json", str(path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=280,
                check=False,
            )
            if done.returncode != 0:
                raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
            cls.output = done.stdout
            cls.report = json.loads(path.read_text(encoding="utf-8"))

    def rows(self, section):
        rows = self.report[section]["rows"]
        self.assertTrue(rows, section)
        return rows

    def assert_positive(self, row, *keys):
        for key in keys:
            self.assertIsInstance(row[key], (int, float), f"{key} of {row}")
            self.assertGreater(row[key], 0, f"{key} of {row}")

    def test_every_section_is_printed(self):
        for section in ("load", "decode", "operations", "prefill", "context", "streams", "interference"):
            self.assertIn(self.report[section]["title"], self.output)

    def test_loading_has_a_time_and_a_rate(self):
        for row in self.rows("load"):
            self.assert_positive(row, "file_mb", "seconds", "gb_per_second")

    def test_decode_has_every_batch_size_arithmetic_and_way_of_drawing(self):
        rows = self.rows("decode")
        kinds = {(row["rows"], row["compute_dtype"], row["sampling"]) for row in rows}
        self.assertEqual(len(kinds), 2 * 2 * 2)
        for row in rows:
            self.assert_positive(row, "ms_per_step", "tokens_per_second", "floor_ms", "steps")
            self.assertAlmostEqual(
                row["tokens_per_second"] * row["ms_per_step"] / 1000, row["rows"], places=6
            )

    def test_decode_moves_more_state_with_more_rows(self):
        # mom-tiny: 2 layers, each token in 2 routed memories and the shared one, of 2 heads x 32 x 32
        # floats and three windows of 3 x 64 floats.
        per_row = 2 * 3 * (2 * 32 * 32 + 3 * 3 * 64) * 4 / 1e6
        for row in self.rows("decode"):
            self.assertAlmostEqual(row["state_mb"] / (per_row * row["rows"]), 1, delta=0.01)

    def test_decode_reads_the_weights_of_the_memories_that_were_chosen(self):
        # A single row leaves two of four memories alone, so its weights are less than everything.
        rows = self.rows("decode")
        one = [row["weight_mb"] for row in rows if row["rows"] == 1]
        four = [row["weight_mb"] for row in rows if row["rows"] == 4]
        self.assertLessEqual(max(one), min(four))
        self.assertLess(max(four), self.report["load"]["rows"][0]["file_mb"])

    def test_operations_add_up_to_their_step(self):
        rows = self.rows("operations")
        self.assertEqual({row["step"] for row in rows}, {"decode", "prompt"})
        for step in ("decode", "prompt"):
            parts = [row for row in rows if row["step"] == step]
            self.assertIn("MatrixMemory", {row["operation"] for row in parts})
            self.assertAlmostEqual(sum(row["share_percent"] for row in parts), 100, places=6)

    def test_prefill_has_arithmetic(self):
        rows = self.rows("prefill")
        self.assertEqual({row["tokens"] for row in rows}, {32, 128})
        for row in rows:
            self.assert_positive(row, "tokens_per_second", "gflops", "weight_mb", "state_mb")
            if row["onednn_gflops"] is not None:
                self.assert_positive(row, "onednn_gflops", "of_onednn_percent")

    def test_context_compares_positions(self):
        for row in self.rows("context"):
            self.assertLess(row["near_tokens"], row["far_tokens"])
            self.assert_positive(row, "near_ms", "far_ms", "ratio", "control_ratio")

    def test_streams_all_end_well(self):
        for row in self.rows("streams"):
            self.assertEqual((row["errors"], row["missing_tokens"]), (0, 0))
            self.assert_positive(row, "mean_decode_rows", "tokens_per_second", "floor_ms")
            self.assertLessEqual(row["mean_decode_rows"], row["streams"])

    def test_interference_has_three_phases(self):
        alone, decoding, both = self.rows("interference")
        self.assert_positive(alone, "prompt_tokens_per_second")
        self.assert_positive(decoding, "inter_token_p50_ms", "inter_token_p99_ms")
        self.assert_positive(both, "p99_ratio", "prompt_speed_ratio", "gaps")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
