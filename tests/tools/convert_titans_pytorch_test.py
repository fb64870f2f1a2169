"""What the converter reads from names and shapes of titans-pytorch's tensors, and what it asks for."""

import json
import os
import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from convert_titans_pytorch import QUESTIONS, Unknown, read_arguments, without_wrappers

# Of the constructor, where a configuration leaves an argument out.
DEFAULTS = {"ff_mult": 4, "num_residual_streams": 4, "num_longterm_mem_tokens": 0,
            "num_persist_mem_tokens": 0, "neural_mem_gate_attn_output": False,
            "neural_mem_weight_residual": False, "neural_memory_qkv_receives_diff_views": False}
MEMORY_DEFAULTS = {"num_kv_per_token": 1, "momentum": True, "momentum_order": 1,
                   "learned_momentum_combine": False, "learned_combine_include_zeroth": False,
                   "qk_rmsnorm": False, "post_rmsnorm": False, "pre_rmsnorm": True,
                   "attn_pool_chunks": False, "per_parameter_lr_modulation": False,
                   "gated_transition": False, "per_head_learned_parameters": True,
                   "mem_model_norm_add_residual": True}


def memory_shapes(layer, dim, heads, width, hidden, keys=1, order=1):
    """As NeuralMemory registers them: two matrices behind a norm, each head with its own."""
    channels = heads * width
    own = {"retrieve_norm.weight": (dim,), "store_norm.weight": (dim,),
           "to_queries.weight": (channels, dim), "to_keys.weight": (channels * keys, dim),
           "to_values.weight": (channels * keys, dim),
           "to_adaptive_step.0.weight": (heads * keys, dim), "to_adaptive_step.0.bias": (heads * keys,),
           "to_decay_factor.0.weight": (heads, dim), "to_decay_factor.0.bias": (heads,),
           "memory_model_parameters.0": (heads, width),
           "memory_model_parameters.1": (heads, width, hidden),
           "memory_model_parameters.2": (heads, hidden, width)}
    if order > 0:
        own["to_momentum.0.weight"] = (heads * order, dim)
    return {f"layers.{layer}.4.{name}": shape for name, shape in own.items()}


def model_shapes(streams=4, alpha_rank=3):
    shapes = {"token_emb.weight": (97, 48), "norm.weight": (48,), "to_logits.weight": (97, 48),
              "longterm_mems": (2, 48)}
    if streams > 1:
        shapes["expand_streams.stream_embed"] = (streams, 48)
    for layer in range(3):
        shapes.update({f"layers.{layer}.5.persistent_memory": (2, 4, 3, 12),
                       f"layers.{layer}.5.to_out.weight": (48, 48),
                       f"layers.{layer}.6.3.weight": (48, 128)})
        for part in (0, 1, 2) if streams > 1 else ():
            if part == 0 and layer == 0:
                continue
            own = f"layers.{layer}.{part}."
            alpha = (48, 1 + streams)
            shapes[own + "dynamic_alpha_fn"] = (1, *alpha) if alpha_rank == 3 else alpha
            shapes[own + "static_beta"] = (streams,)
    for layer in (1, 2):
        shapes.update(memory_shapes(layer, 48, heads=2, width=16, hidden=24))
    return shapes


class ReadArgumentsTest(unittest.TestCase):
    def test_what_shapes_show(self):
        arguments, asked = read_arguments(model_shapes())
        self.assertEqual(asked, {"memory"})
        self.assertEqual(arguments, {
            "num_tokens": 97, "dim": 48, "depth": 3, "dim_head": 12, "heads": 4,
            "num_persist_mem_tokens": 3, "num_longterm_mem_tokens": 2, "ff_mult": 4,
            "num_residual_streams": 4, "hyper_connections": "mhc", "neural_memory_layers": [2, 3],
            "neural_memory_model": {"class": "MemoryMLP", "dim": 16, "depth": 2,
                                    "expansion_factor": 1.5},
            "neural_memory_kwargs": {"heads": 2, "dim_head": 16},
            "neural_mem_weight_residual": False, "neural_memory_qkv_receives_diff_views": False,
            "neural_mem_gate_attn_output": False})

    def test_what_shapes_leave_open_is_asked(self):
        self.assertIn("streams", read_arguments(model_shapes(alpha_rank=2))[1])
        self.assertEqual(read_arguments(model_shapes(streams=1))[1], {"memory", "gate"})
        shapes = model_shapes()
        for layer in (1, 2):
            own = f"layers.{layer}.4."
            shapes[own + "to_queries.0.weight"] = shapes.pop(own + "to_queries.weight")
            shapes[own + "to_layer_modulation.0.weight"] = (6, 48)
        self.assertEqual(read_arguments(shapes)[1], {"memory", "activation", "modulation"})

    def test_every_question_has_words(self):
        self.assertEqual(len({flag for flag, *_ in QUESTIONS}), len(QUESTIONS))
        for flag, _, key, what, _ in QUESTIONS:
            self.assertTrue(flag.startswith("--") and key and len(what) > 10)

    def test_options_of_the_memory(self):
        shapes = model_shapes()
        for layer in (1, 2):
            shapes.update(memory_shapes(layer, 48, heads=2, width=16, hidden=24, keys=2, order=2))
            shapes[f"layers.{layer}.4.to_learned_momentum_combine.0.weight"] = (6, 48)
            del shapes[f"layers.{layer}.4.store_norm.weight"]
            shapes[f"layers.{layer}.4.memory_model_parameters.0"] = (16,)
            shapes[f"layers.{layer}.4.memory_model_parameters.1"] = (16, 23)
            shapes[f"layers.{layer}.4.memory_model_parameters.2"] = (23, 16)
        arguments = read_arguments(shapes)[0]
        self.assertEqual(arguments["neural_memory_kwargs"], {
            "heads": 2, "dim_head": 16, "num_kv_per_token": 2, "momentum_order": 2,
            "learned_momentum_combine": True, "learned_combine_include_zeroth": True,
            "pre_rmsnorm": False, "per_head_learned_parameters": False})
        self.assertEqual(int(16 * arguments["neural_memory_model"]["expansion_factor"]), 23)

    def test_every_hidden_width_is_met(self):
        for width in range(1, 80):
            for hidden in range(1, 320):
                shapes = model_shapes()
                for layer in (1, 2):
                    shapes.update(memory_shapes(layer, 48, heads=2, width=width, hidden=hidden))
                factor = read_arguments(shapes)[0]["neural_memory_model"]["expansion_factor"]
                self.assertEqual(int(width * factor), hidden)

    def test_what_is_no_such_model(self):
        with self.assertRaisesRegex(Unknown, "token_emb.weight"):
            without_wrappers(["wte.weight"])
        self.assertEqual(without_wrappers(["module.norm.weight", "module.token_emb.weight"]), "module.")
        shapes = model_shapes()
        shapes["layers.1.4.memory_model_parameters.2"] = (2, 24, 24)
        with self.assertRaisesRegex(Unknown, "not those of a MemoryMLP"):
            read_arguments(shapes)
        shapes = model_shapes()
        shapes["layers.0.6.3.weight"] = (48, 129)
        with self.assertRaisesRegex(Unknown, "129 columns"):
            read_arguments(shapes)

    def test_goldens(self):
        """Of folders that MNEME_GOLDEN holds, every argument that tensors show is that of config.json."""
        goldens = sorted(pathlib.Path(os.environ.get("MNEME_GOLDEN", "nowhere")).glob("titans_lucid_*"))
        if not goldens:
            self.skipTest("MNEME_GOLDEN names no folder with such models")
        for golden in goldens:
            with self.subTest(golden.name):
                config = json.loads((golden / "config.json").read_text())
                with open(golden / "model.safetensors", "rb") as file:
                    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
                shapes = {name: tuple(entry["shape"]) for name, entry in header.items()
                          if name != "__metadata__"}
                arguments, asked = read_arguments(shapes)
                kwargs = {**MEMORY_DEFAULTS, **arguments.pop("neural_memory_kwargs")}
                model = arguments.pop("neural_memory_model")
                own = config["neural_memory_kwargs"]
                for key, value in kwargs.items():
                    if key in MEMORY_DEFAULTS:
                        self.assertEqual(value, own.get(key, MEMORY_DEFAULTS[key]), key)
                self.assertEqual(kwargs["heads"], own.get("heads", 1))
                if config.get("neural_memory_model"):
                    self.assertEqual(model, {**({"expansion_factor": 2} if model["depth"] > 1 else {}),
                                             **config["neural_memory_model"]})
                self.assertEqual("activation" in asked, "activation" in own)
                if "gate" in asked:
                    config.pop("neural_mem_gate_attn_output", None)
                if "streams" in asked or config.get("num_residual_streams") == 1:
                    config.pop("hyper_connections", None)
                for key, value in arguments.items():
                    self.assertEqual(value, config.get(key, DEFAULTS.get(key)), key)


if __name__ == "__main__":
    unittest.main()
