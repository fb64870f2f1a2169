"""The converter of titans-pytorch's checkpoints, run as its users run it: what it asks, what it says of
files and words that are wrong, and that Mneme's programs read the folder that it makes."""

import json
import os
import pathlib
import pickle
import re
import subprocess
import tempfile
import unittest

from titans_pytorch_checkpoint import (STAND_IN, convert, make_model, read_tensors, state_dict,
                                       torch)

# Arguments that the small network was made with, and no tensor tells.
ANSWERS = {"--segment-len": "7", "--neural-memory-segment-len": "4",
           "--neural-memory-batch-size": "12", "--sliding-window-attn": "yes", "--max-lr": "0.1",
           "--max-grad-norm": "none", "--spectral-norm-surprises": "no", "--hyper-connections": "mhc"}


def words(answers) -> list:
    return [word for pair in answers.items() for word in pair]


def bin_dir():
    folder = pathlib.Path(os.environ.get("MNEME_BIN_DIR", "nowhere"))
    return folder if (folder / "mneme-logits").exists() else None


@unittest.skipIf(bin_dir() is None, "MNEME_BIN_DIR names no folder with Mneme's programs")
class ConverterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = pathlib.Path(cls.folder.name)
        cls.made = make_model(bin_dir(), cls.work / "made")
        cls.tensors = read_tensors(cls.made / "model.safetensors")
        cls.checkpoint = cls.work / "model.pt"
        torch.save(state_dict(cls.tensors), cls.checkpoint)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_on(self, checkpoint, answers=(), *more, folder=None, **options):
        return convert(checkpoint, folder or self.work / self.id().split(".")[-1],
                       *words(dict(answers)), *more, **options)

    def save(self, value) -> pathlib.Path:
        path = self.work / f"{self.id().split('.')[-1]}.pt"
        torch.save(value, path)
        return path

    def expect_refusal(self, run, pattern, folder=None):
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertNotIn("Traceback", run.stderr)
        self.assertRegex(run.stderr, pattern)
        self.assertFalse((folder or self.work / self.id().split(".")[-1]).exists())

    def expect_same_logits(self, one, other):
        ids = self.work / "ids.txt"
        ids.write_text(" ".join(str(5 + 3 * i % 40) for i in range(60)))
        outputs = []
        for number, folder in enumerate((one, other)):
            outputs.append(self.work / f"logits{number}.safetensors")
            run = subprocess.run([bin_dir() / "mneme-logits", "--model", folder, "--tokens", ids,
                                  "--out", outputs[-1]], capture_output=True, text=True, check=False,
                                 timeout=120)
            self.assertEqual(run.returncode, 0, run.stderr)
        run = subprocess.run([bin_dir() / "mneme-inspect", "diff", *outputs], capture_output=True,
                             text=True, check=False, timeout=120)
        self.assertIn("same bits", run.stdout, run.stderr)

    def test_a_file_alone_is_answered_with_questions(self):
        run = self.run_on(self.checkpoint)
        self.expect_refusal(run, "model.pt does not tell, and a model with another value is another model")
        self.assertEqual(re.findall(r"^  (--[a-z-]+) +\S", run.stderr, re.MULTILINE), list(ANSWERS))

    def test_each_answer_that_is_missing_is_asked_for(self):
        for flag in ANSWERS:
            with self.subTest(flag):
                run = self.run_on(self.checkpoint, {f: a for f, a in ANSWERS.items() if f != flag})
                self.expect_refusal(run, "does not tell")
                self.assertEqual(re.findall(r"^  (--[a-z-]+) +\S", run.stderr, re.MULTILINE), [flag])

    def test_the_folder_is_read_by_mneme(self):
        # The file has the memory's network as it was made, and not as it is trained.
        decoy = {"layers.1.4.memory_model.model.weights.0": torch.zeros((16, 32))}
        path = self.save({**state_dict(self.tensors), **decoy})
        folder = self.work / "deeper" / "folder"
        run = self.run_on(path, ANSWERS, "--titans-pytorch-version", "0.5.1", folder=folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(f"{len(self.tensors)} tensors", run.stdout)
        self.assertEqual(read_tensors(folder / "model.safetensors"), self.tensors)
        config = json.loads((folder / "config.json").read_text())
        self.assertEqual(config["titans_pytorch_version"], "0.5.1")
        for key, value in json.loads((self.made / "config.json").read_text()).items():
            if key in ("bos_token_id", "eos_token_id", "neural_memory_kwargs", "dtype",
                       "initializer_range"):
                continue
            self.assertEqual(config[key], value, key)
        self.assertEqual(config["neural_memory_kwargs"], {
            "heads": 2, "dim_head": 16, "qk_rmsnorm": True, "default_step_transform_max_lr": 0.1,
            "max_grad_norm": None, "spectral_norm_surprises": False})
        self.expect_same_logits(self.made, folder)
        again = self.run_on(path, ANSWERS, folder=folder)
        self.assertEqual(again.returncode, 2)
        self.assertRegex(again.stderr, "config.json is there already")

    def test_a_state_dict_within_a_checkpoint_is_named(self):
        wrapped = {f"_orig_mod.module.{name}": t for name, t in state_dict(self.tensors).items()}
        path = self.save({"model": wrapped, "optimizer": {"step": 3}})
        self.expect_refusal(self.run_on(path, ANSWERS),
                            "holds more than tensors; say with --key which of model, optimizer")
        self.expect_refusal(self.run_on(path, ANSWERS, "--key", "ema"),
                            "has no ema; it has model, optimizer")
        folder = self.work / "named"
        run = self.run_on(path, ANSWERS, "--key", "model", folder=folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(read_tensors(folder / "model.safetensors"), self.tensors)

    def test_wrong_files(self):
        missing = self.work / "no.pt"
        self.expect_refusal(self.run_on(missing, ANSWERS), "no.pt: No such file or directory")
        text = self.work / "text.pt"
        text.write_text("segment_len = 128\n")
        self.expect_refusal(self.run_on(text, ANSWERS), "text.pt: is not what torch.save wrote")
        ran = self.work / "ran"

        class Runs:
            def __reduce__(self):
                return os.mkdir, (str(ran),)

        code = self.work / "code.pt"
        code.write_bytes(pickle.dumps({"token_emb.weight": Runs()}))
        self.expect_refusal(self.run_on(code, ANSWERS), "code.pt: is not what torch.save wrote")
        self.assertFalse(ran.exists())
        self.expect_refusal(self.run_on(self.save([1, 2]), ANSWERS), "holds no state dict")
        self.expect_refusal(self.run_on(self.save({}), ANSWERS), "holds no state dict")
        self.expect_refusal(self.run_on(self.save({"wte.weight": torch.zeros((3, 2))}), ANSWERS),
                            "there is no tensor token_emb.weight: this is no state dict of a")

    def test_wrong_tensors(self):
        tensors = state_dict(self.tensors)
        for name, change, pattern in (
                ("layers.0.6.3.weight", None, "there is no tensor layers.0.6.3.weight"),
                ("layers.1.4.to_decay_factor.0.weight", None,
                 "layers.1.4.to_decay_factor.0.weight is missing: not a NeuralMemory"),
                ("token_emb.weight", torch.zeros((4, 3, 2)), "another shape"),
                ("layers.0.6.3.weight", torch.zeros((32, 84)), "84 columns"),
                ("layers.1.4.memory_model_parameters.2", torch.zeros((2, 32, 15)), "other memory models"),
        ):
            with self.subTest(name, pattern=pattern):
                changed = {key: value for key, value in tensors.items() if key != name}
                if change is not None:
                    changed[name] = change
                self.expect_refusal(self.run_on(self.save(changed), ANSWERS), pattern)

    def test_wrong_words(self):
        for flag, value, pattern in (
                ("--segment-len", "0", "--segment-len: expected a number from 1, not '0'"),
                ("--segment-len", "none", "expected a number from 1, not 'none'"),
                ("--neural-memory-batch-size", "-4", "expected a number from 1, not '-4'"),
                ("--sliding-window-attn", "maybe", "expected yes or no"),
                ("--max-lr", "0", "--max-lr: expected a number above 0, not '0'"),
                ("--max-grad-norm", "inf", "expected a number above 0, not 'inf'"),
                ("--hyper-connections", "hc", "invalid choice: 'hc'"),
                ("--max-mem-layer-modulation", "2", "--max-mem-layer-modulation has no meaning"),
                ("--activation", "silu", "--activation has no meaning"),
                ("--segment-length", "7", "unrecognized arguments"),
        ):
            with self.subTest(flag, value=value):
                answers = {key: answer for key, answer in ANSWERS.items() if key != flag}
                more = [f"{flag}={value}"]
                if flag == "--segment-length":
                    answers = ANSWERS
                self.expect_refusal(self.run_on(self.checkpoint, answers, *more), pattern)

    def test_without_torch_it_says_what_to_install(self):
        without = self.work / "without"
        without.mkdir()
        (without / "safetensors.py").write_text("raise ImportError('there is no safetensors here')\n")
        run = self.run_on(self.checkpoint, ANSWERS, env={**os.environ, "PYTHONPATH": str(without)})
        self.expect_refusal(run, "pip install torch safetensors")

    def test_goldens(self):
        """Checkpoints of titans-pytorch's own become the folders that they were made to by hand."""
        goldens = sorted(pathlib.Path(os.environ.get("MNEME_GOLDEN", "nowhere")).glob("titans_lucid_*"))
        if not goldens:
            self.skipTest("MNEME_GOLDEN names no folder with such models")
        for golden in goldens:
            with self.subTest(golden.name):
                config = json.loads((golden / "config.json").read_text())
                kwargs = config.get("neural_memory_kwargs", {})
                said = {"--segment-len": config["segment_len"],
                        "--neural-memory-segment-len": config.get("neural_memory_segment_len"),
                        "--neural-memory-batch-size": config.get("neural_memory_batch_size"),
                        "--sliding-window-attn": config.get("sliding_window_attn", False),
                        "--max-lr": kwargs.get("default_step_transform_max_lr", 1),
                        "--max-grad-norm": kwargs.get("max_grad_norm"),
                        "--spectral-norm-surprises": kwargs.get("spectral_norm_surprises", False),
                        "--max-mem-layer-modulation": kwargs.get("max_mem_layer_modulation", 1),
                        "--activation": kwargs.get("activation"),
                        "--neural-mem-gate-attn-output": config.get("neural_mem_gate_attn_output", False),
                        "--hyper-connections": config.get("hyper_connections")}
                path = self.work / f"{golden.name}.pt"
                torch.save(state_dict(read_tensors(golden / "model.safetensors")), path)
                asked = re.findall(r"^  (--[a-z-]+) +\S", convert(path, self.work / golden.name).stderr,
                                   re.MULTILINE)
                word = {None: "none", True: "yes", False: "no"}
                answers = {flag: word.get(said[flag], str(said[flag]))
                           if isinstance(said[flag], (bool, type(None))) else str(said[flag])
                           for flag in asked}
                run = convert(path, self.work / golden.name, *words(answers))
                self.assertEqual(run.returncode, 0, run.stderr)
                self.expect_same_logits(golden, self.work / golden.name)


if __name__ == "__main__":
    print("with the stand-in for torch" if str(STAND_IN) in torch.__file__ else "with torch")
    unittest.main()
