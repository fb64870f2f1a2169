#!/usr/bin/env python3
"""Joins recorded figures of the rule benches, and runs run_rule.sh over programs that only write such."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

import join_rules

BENCH = pathlib.Path(__file__).resolve().parent

# Recorded on an H200: the benches' lines for gla's states of 12 and 400 MB and both prompts.
OURS = [
    {"rule": "gla", "head_states": 24, "state_mb": 12.582912, "tile": "chosen", "step_us": 8.7,
     "tbs": 2.8926, "of_copy": 67.9, "of_held_back": 38.6},
    {"rule": "gla", "head_states": 764, "state_mb": 400.556032, "tile": "chosen", "step_us": 204.0,
     "tbs": 3.927, "of_copy": 92.2, "of_held_back": 52.4},
]
FLA = [
    {"rule": "gla", "head_states": 24, "state_mb": 12.582912, "step_us": 11.5, "tbs": 2.19},
    {"rule": "gla", "head_states": 764, "state_mb": 400.556032, "step_us": 227.0, "tbs": 3.53},
]
CHUNKS = """NVIDIA H200
mneme gla          1 x 8192    0.2300 ms (0.2291 to 0.2312)   35.6 M tokens/s
mneme gla          8 x 2048    0.2860 ms (0.2851 to 0.2870)   57.3 M tokens/s
done
"""
GSA_CHUNKS = """NVIDIA H200
mneme gsa_keys     1 x 8192    0.1500 ms (0.1491 to 0.1512)   54.6 M tokens/s
mneme gsa_values   1 x 8192    0.1680 ms (0.1671 to 0.1690)   48.8 M tokens/s
done
"""
DECODE = {"model": "gla-340m, f32 state", "rows": 1, "draw": "greedy", "tokens_per_second": 1500.0,
          "floor": 4800.0, "of_floor": 31.25}
PREFILL = {"model": "gla-340m, f32 state", "prompts": 1, "tokens": 2048, "ms": 10.0,
           "tokens_per_second": 204800.0, "teraflops": 1.4, "product_tflops": 560.0}


def scaled(rows, factor):
    return [dict(row, step_us=row["step_us"] * factor) for row in rows]


class JoinTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name)

    def write(self, name, content, rule="gla"):
        path = self.root / rule / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")

    def steps(self, run, ours, fla):
        self.write(f"steps.{run}.json", {"matrix_memories": {"rows": ours}})
        self.write(f"fla_steps.{run}.json", {"fla_matrix_rules": {"rows": fla}})

    def rule(self, name="gla"):
        return join_rules.Rule(name, self.root / name)

    def step_row(self, megabytes):
        rows = [row for row in join_rules.step_rows(self.rule()) if row[1] == str(megabytes)]
        self.assertEqual(len(rows), 1)
        return rows[0]

    def test_nothing_measured_is_said_and_meets_nothing(self):
        text = join_rules.report(self.root)
        self.assertNotIn("met", text.replace("not measured", "").replace("nothing measured", ""))
        self.assertEqual(text.count("\n| gla |"), 6 + 2 + 3 + 2)
        for table in text.split("\n\n"):
            lines = [line for line in table.splitlines() if line.startswith("|")]
            self.assertLessEqual(len({line.count("|") for line in lines}), 1, table)

    def test_steps_are_judged_by_medians_of_the_runs(self):
        self.steps(1, OURS, FLA)
        self.steps(2, scaled(OURS, 5), scaled(FLA, 0.2))
        self.steps(3, OURS, FLA)
        row = self.step_row(12)
        self.assertEqual(row[2:4], ("11.50", "8.70"))
        self.assertEqual(row[6:], ("fla / 1.32", "met, and the aim"))

    def test_small_states_may_take_three_percent_longer_than_the_peer(self):
        self.steps(1, scaled(OURS, 11.5 / 8.7 * 1.029), FLA)
        self.assertEqual(self.step_row(12)[7], "met")
        self.steps(1, scaled(OURS, 11.5 / 8.7 * 1.031), FLA)
        self.assertEqual(self.step_row(12)[7], "**missed**")

    def test_large_states_have_the_copys_mark_as_well(self):
        self.steps(1, OURS, FLA)
        self.assertEqual(self.step_row(400)[7], "met")
        self.steps(1, [dict(row, of_copy=89.9) for row in OURS], FLA)
        self.assertEqual(self.step_row(400)[7], "**missed**")
        self.steps(1, [dict(row, step_us=227.1) for row in OURS], FLA)
        self.assertEqual(self.step_row(400)[7], "**missed**")

    def test_large_states_have_the_aim_of_a_floor_that_holds_writes_back(self):
        self.steps(1, OURS, FLA)
        self.assertEqual(self.step_row(400)[5], "52.4")
        for share, said in ((84.9, "met"), (85.0, "met, and the aim")):
            self.steps(1, [dict(row, of_held_back=share) for row in OURS], FLA)
            self.assertEqual(self.step_row(400)[7], said)

    def test_rules_behind_a_router_have_steps_and_a_model_and_no_peer(self):
        ours = [dict(row, rule="mom_gla") for row in OURS]
        self.write("steps.1.json", {"matrix_memories": {"rows": ours}}, "mom_gla")
        self.write("engine.json", {"decode": {"rows": [DECODE]}}, "mom_gla")
        rule = self.rule("mom_gla")
        self.assertEqual([row[7] for row in join_rules.step_rows(rule) if row[3] == "204.00"],
                         ["no peer"])
        self.assertEqual(list(join_rules.chunk_rows(rule)), [])
        self.assertEqual([row[2:] for row in join_rules.decode_rows(rule)],
                         [("1,500", "4,800", "", "", "31.2 %", "no mark")])

    def test_chunks_of_four_rules_have_the_strict_mark(self):
        def judge(rule, milliseconds):
            self.write("chunks.1.txt", CHUNKS.replace("gla  ", f"{rule:5}"), rule)
            self.write("fla_chunks.1.json", [[rule, 1, 8192, milliseconds]], rule)
            return list(join_rules.chunk_rows(self.rule(rule)))[0]

        self.assertEqual(judge("gla", 0.431)[5:], ("fla / 1.87", "met, and the aim"))
        self.assertEqual(judge("gla", 0.230)[6], "met")
        self.assertEqual(judge("gla", 0.220)[6], "**missed**")
        self.assertEqual(judge("hgrn2", 0.220)[6], "met")
        self.assertEqual(judge("hgrn2", 0.150)[6], "**missed**")

    def test_a_memory_of_two_matrices_has_the_time_of_both(self):
        self.write("chunks.1.txt", GSA_CHUNKS, "gsa")
        rows = list(join_rules.chunk_rows(self.rule("gsa")))
        self.assertEqual(rows[0][3], "0.318")
        self.assertEqual(rows[0][6], "no peer")
        self.assertEqual(rows[1][3], join_rules.NOT_MEASURED)

    def test_decoding_is_judged_by_its_share_of_the_floor(self):
        def judge(**changes):
            self.write("engine.json", {"decode": {"rows": [dict(DECODE, **changes)]}})
            return list(join_rules.decode_rows(self.rule()))[0]

        self.assertEqual(judge()[2:], ("1,500", "4,800", "25 %", "38 %", "31.2 %", "met"))
        self.assertEqual(judge(of_floor=24.9)[7], "**missed**")
        self.assertEqual(judge(of_floor=38.0)[7], "met, and the aim")
        self.assertEqual(judge(draw="t 0.8, top_p 0.95")[2], join_rules.NOT_MEASURED)

    def test_prompts_have_the_peers_mark_and_that_of_the_product(self):
        def judge(peer, **changes):
            self.write("engine.json", {"prefill": {"rows": [dict(PREFILL, **changes)]}})
            rows = [{"model": "gla-340m", "prompts": 1, "tokens": 2048, "tokens_per_second": peer}]
            self.write("fla_forward.json", {"fla_forward": {"rows": rows}})
            return list(join_rules.prefill_rows(self.rule()))[0]

        self.assertEqual(judge(102400.0)[6:], ("2.00 times, 25.0 %", "met"))
        self.assertEqual(judge(140000.0)[7], "**missed**")
        self.assertEqual(judge(102400.0, teraflops=1.2)[7], "**missed**")
        self.assertEqual(judge(102400.0, teraflops=1.68)[7], "met, and the aim")

    def test_files_that_hold_something_else_are_named(self):
        self.write("steps.1.json", "[")
        done = subprocess.run([sys.executable, join_rules.__file__, str(self.root)], text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("gla/steps.1.json", done.stderr)


# Writes what a bench would, after `--json`, and a line with its name and arguments.
FAKE = """#!/usr/bin/env bash
echo "${0##*/} $*" >>"$CALLS"
if [[ ${0##*/} == "${BROKEN-}" || ${1-} == *"${BROKEN-none}" ]]; then exit 1; fi
if [[ ${1-} == -c ]]; then exit "${NO_FLA:-0}"; fi
if [[ ${0##*/} == cuda_matrix_chunk_bench ]]; then echo "mneme gla 1 x 8192 0.2300 ms"; fi
while (($# > 1)); do
  if [[ $1 == --json ]]; then echo '{}' >"$2"; fi
  shift
done
"""


class RunRuleTest(unittest.TestCase):
    PARTS = {"engine.json", "fla_forward.json", "host.txt"} | {
        f"{part}.{run}.{kind}"
        for run in (1, 2, 3)
        for part, kind in (("steps", "json"), ("fla_steps", "json"), ("chunks", "txt"),
                           ("fla_chunks", "json"))
    }

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name)
        self.calls = self.root / "calls"
        (self.root / "build/bin").mkdir(parents=True)
        (self.root / "build/version.txt").write_text("v1\n", encoding="utf-8")
        for name in ("cuda_matrix_memory_bench", "cuda_matrix_chunk_bench", "gpu_bench",
                     "mneme-make-model", "python", "nvidia-smi"):
            path = self.root / "build/bin" / name
            path.write_text(FAKE, encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_rule(self, rule="gla", *flags, **environment):
        """The finished process, and what it called."""
        self.calls.write_text("", encoding="utf-8")
        binaries = self.root / "build/bin"
        done = subprocess.run(
            [BENCH / "run_rule.sh", rule, "--build", self.root / "build", "--out", self.root / "out",
             "--python", binaries / "python", *flags],
            env=dict(os.environ, PATH=f"{binaries}:{os.environ['PATH']}", CALLS=str(self.calls),
                     **environment),
            text=True, capture_output=True, check=False)
        return done, self.calls.read_text(encoding="utf-8").splitlines()

    def parts(self, rule="gla"):
        return {path.name for path in (self.root / "out" / rule).iterdir()}

    def test_every_part_is_measured_in_turns_and_none_twice(self):
        done, calls = self.run_rule()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.parts(), self.PARTS)
        steps = [call.split()[0] if "bench" in call.split()[0] else "fla" for call in calls
                 if "matrix_memory" in call or "fla_matrix_rules" in call]
        self.assertEqual(steps, ["cuda_matrix_memory_bench", "fla"] * 3)
        (self.root / "out/gla/chunks.2.txt").unlink()
        done, calls = self.run_rule()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call for call in calls if "bench" in call],
                         ["cuda_matrix_chunk_bench --time gla"])
        self.assertEqual(self.parts(), self.PARTS)

    def test_what_failed_is_named_and_tried_again(self):
        done, _ = self.run_rule(BROKEN="gpu_bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed: engine.json", done.stderr)
        self.assertEqual(self.parts(), self.PARTS - {"engine.json"})
        done, _ = self.run_rule(BROKEN="fla_matrix_chunks.py")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_our_side_alone_is_measured_without_the_peer(self):
        done, _ = self.run_rule(NO_FLA="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({name for name in self.parts() if "fla" in name}, {"fla_missing.txt"})
        done, _ = self.run_rule()
        self.assertEqual(self.parts(), self.PARTS)

    def test_both_matrices_of_a_rule_of_two_are_measured(self):
        _, calls = self.run_rule("gsa")
        self.assertIn("cuda_matrix_chunk_bench --time gsa_keys gsa_values", calls)

    def test_a_rule_behind_a_router_has_its_step_and_its_model_alone(self):
        done, calls = self.run_rule("mom_gla")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.parts("mom_gla"), {"host.txt", "engine.json"} |
                         {f"steps.{run}.json" for run in (1, 2, 3)})
        self.assertTrue(any("--shapes mom-gla-340m" in call for call in calls), calls)

    def test_results_of_another_version_are_not_gone_on_with(self):
        self.run_rule()
        (self.root / "build/version.txt").write_text("v2\n", encoding="utf-8")
        done, calls = self.run_rule()
        self.assertEqual(done.returncode, 2)
        self.assertIn("give another --out", done.stderr)
        self.assertEqual([call for call in calls if "bench" in call], [])

    def test_what_is_cut_off_ends_with_status_three(self):
        slow = self.root / "build/bin/cuda_matrix_memory_bench"
        slow.write_text("#!/usr/bin/env bash\nexec sleep 60\n", encoding="utf-8")
        done, _ = self.run_rule("gla", "--seconds", "1")
        self.assertEqual(done.returncode, 3)
        self.assertIn("not measured in 1 s: steps.1.json fla_steps.1.json", done.stderr)

    def test_bad_arguments_are_named(self):
        for arguments, said in ((("mom",), "mom: no rule"), (("gla", "--seconds", "0"), "--seconds 0")):
            done, _ = self.run_rule(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
