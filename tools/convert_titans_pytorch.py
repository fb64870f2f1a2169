#!/usr/bin/env python3
"""Makes a model folder of a checkpoint that titans-pytorch's MemoryAsContextTransformer was saved to.

Such a file holds tensors alone. What they show (widths, heads, which layers have a memory, most
options) is read from their names and shapes; what they do not show changes what the model computes,
so it has to be said: run the program with the file alone, and it lists what it wants to know.

    tools/convert_titans_pytorch.py model.pt folder --segment-len 128 --neural-memory-segment-len 16 \\
        --neural-memory-batch-size 128 --sliding-window-attn yes --max-lr 0.1 --hyper-connections mhc

needs: torch, safetensors
"""

import argparse
import json
import pathlib
import re
import sys

FLAVOURS = ("mhc", "mhc_0_3_11")


class Unknown(Exception):
    """The tensors are not those of a MemoryAsContextTransformer that can be served."""


def yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError("expected yes or no")
    return text == "yes"


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, not {text!r}")
    return int(text)


def count_or_none(text: str):
    return None if text == "none" else count(text)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return value


def positive_or_none(text: str):
    return None if text == "none" else positive(text)


# Flag, type, key, what it is: what no tensor tells, asked for where `when` says that it matters.
QUESTIONS = (
    ("--segment-len", count, "segment_len", "real tokens of a segment of attention", None),
    ("--neural-memory-segment-len", count_or_none, "neural_memory_segment_len",
     "tokens of one step of the memory; none: segment_len and the long-term tokens", None),
    ("--neural-memory-batch-size", count_or_none, "neural_memory_batch_size",
     "tokens after which the weights that gradients are taken at are refreshed; none: never", None),
    ("--sliding-window-attn", yes_or_no, "sliding_window_attn",
     "whether attention slides (yes), or sees its segment alone (no)", None),
    ("--max-lr", positive, "default_step_transform_max_lr",
     "default_step_transform_max_lr of neural_memory_kwargs; the constructor's default is 1", "memory"),
    ("--max-grad-norm", positive_or_none, "max_grad_norm",
     "max_grad_norm of neural_memory_kwargs, or none", "memory"),
    ("--spectral-norm-surprises", yes_or_no, "spectral_norm_surprises",
     "whether neural_memory_kwargs had spectral_norm_surprises", "memory"),
    ("--max-mem-layer-modulation", positive, "max_mem_layer_modulation",
     "max_mem_layer_modulation of neural_memory_kwargs; the constructor's default is 1", "modulation"),
    ("--activation", str, "activation",
     "the module that neural_memory_kwargs had as activation; only silu is served", "activation"),
    ("--hyper-connections", str, "hyper_connections",
     "by the version of the package hyper-connections that the model was trained with: mhc (from "
     "0.3.12 on) or mhc_0_3_11 (0.3.11), of which tensors look alike", "streams"),
)
OF_MEMORY = ("default_step_transform_max_lr", "max_grad_norm", "spectral_norm_surprises",
             "max_mem_layer_modulation", "activation")


def without_wrappers(names) -> str:
    """The prefix that a trainer's wrappers put before all names: "module.", "_orig_mod." and such."""
    for name in names:
        if name.endswith("token_emb.weight"):
            return name[: -len("token_emb.weight")]
    raise Unknown("there is no tensor token_emb.weight: this is no state dict of a "
                  "MemoryAsContextTransformer with its own token embedding")


def read_memory(shapes: dict, layer: int) -> dict:
    """neural_memory_kwargs and neural_memory_model, as far as the tensors of a layer show them."""
    own = f"layers.{layer}.4."

    def rows(name: str):
        shape = shapes.get(own + name)
        return shape[0] if shape is not None else None

    heads = rows("to_decay_factor.0.weight")
    if heads is None:
        raise Unknown(f"{own}to_decay_factor.0.weight is missing: not a NeuralMemory that is known")
    activated = own + "to_queries.0.weight" in shapes
    queries = rows("to_queries.0.weight" if activated else "to_queries.weight")
    if queries is None or queries % heads != 0:
        raise Unknown(f"{own}to_queries has {queries} rows for {heads} heads")
    parameters = []
    while own + f"memory_model_parameters.{len(parameters)}" in shapes:
        parameters.append(shapes[own + f"memory_model_parameters.{len(parameters)}"])
    # Matrices are [in, out] or, each head with its own, [heads, in, out]; a gain has one less.
    per_head = any(len(shape) == 3 for shape in parameters)
    ranks = [len(shape) - (1 if per_head else 0) for shape in parameters]
    gain = bool(ranks) and ranks[0] == 1
    matrices = [shape[-2:] for shape in parameters[1 if gain else 0:]]
    dim = queries // heads
    hidden = matrices[0][1] if len(matrices) > 1 else dim
    widths = [dim] + [hidden] * (len(matrices) - 1) + [dim]
    expected = [tuple(pair) for pair in zip(widths, widths[1:])]
    if not matrices or set(ranks[1 if gain else 0:]) != {2} or list(map(tuple, matrices)) != expected:
        raise Unknown(f"{own}memory_model_parameters have shapes {parameters}, which are not those of "
                      "a MemoryMLP: other memory models are not served")
    expansion = hidden / dim
    model = {"class": "MemoryMLP", "dim": dim, "depth": len(matrices)}
    if len(matrices) > 1:
        model["expansion_factor"] = int(expansion) if expansion.is_integer() else expansion
        if int(dim * expansion) != hidden:
            # The quotient may be rounded down just below what makes the width again.
            model["expansion_factor"] = (hidden + 0.5) / dim
    kwargs = {"heads": heads, "dim_head": dim}
    keys = (rows("to_adaptive_step.0.weight") or 0) // heads
    order = (rows("to_momentum.0.weight") or 0) // heads
    if keys != 1:
        kwargs["num_kv_per_token"] = keys
    if order == 0:
        kwargs["momentum"] = False
    elif order > 1:
        kwargs["momentum_order"] = order
    mixed = rows("to_learned_momentum_combine.0.weight")
    if mixed is not None:
        kwargs["learned_momentum_combine"] = True
        if mixed // heads == order + 1:
            kwargs["learned_combine_include_zeroth"] = True
    for key, tensor, value in (("qk_rmsnorm", "q_norm.gamma", True),
                               ("post_rmsnorm", "multihead_rmsnorm.gamma", True),
                               ("attn_pool_chunks", "reduce_to_chunk_rep.to_attn_logits.weight", True),
                               ("per_parameter_lr_modulation", "to_layer_modulation.0.weight", True),
                               ("gated_transition", "transition_gate", True)):
        if own + tensor in shapes:
            kwargs[key] = value
    if own + "store_norm.weight" not in shapes:
        kwargs["pre_rmsnorm"] = False
    if not per_head:
        kwargs["per_head_learned_parameters"] = False
    if not gain:
        kwargs["mem_model_norm_add_residual"] = False
    return {"neural_memory_model": model, "neural_memory_kwargs": kwargs, "activated": activated}


def read_arguments(shapes: dict) -> tuple[dict, set]:
    """The constructor's arguments that names and shapes show, and which questions there are beside."""
    vocab, dim = shapes["token_emb.weight"]
    depth = 1 + max((int(match[1]) for name in shapes
                     if (match := re.match(r"layers\.(\d+)\.5\.", name))), default=-1)
    if depth == 0:
        raise Unknown("there are no tensors layers.<i>.5. of attention")
    # [2, heads, tokens, width]; without persistent tokens still there, of no elements
    persistent = shapes.get("layers.0.5.persistent_memory")
    freqs = shapes.get("layers.0.5.rotary_emb.freqs")
    if persistent is None and freqs is None:
        raise Unknown("layers.0.5.persistent_memory and rotary_emb.freqs are missing: no tensor tells "
                      "the width of a head")
    dim_head = persistent[3] if persistent is not None else 2 * freqs[0]
    arguments = {"num_tokens": vocab, "dim": dim, "depth": depth,
                 "dim_head": dim_head, "heads": shapes["layers.0.5.to_out.weight"][1] // dim_head,
                 "num_persist_mem_tokens": persistent[2] if persistent is not None else 0,
                 "num_longterm_mem_tokens": shapes.get("longterm_mems", (0,))[0]}
    inner = shapes["layers.0.6.3.weight"][1]
    mult = next((m for m in range(1, 65) if int(dim * m * 2 / 3) == inner), None)
    if mult is None:
        raise Unknown(f"layers.0.6.3.weight has {inner} columns, which is no int(dim * ff_mult * 2 / 3)")
    arguments["ff_mult"] = mult
    streams = shapes.get("expand_streams.stream_embed", (1,))[0]
    arguments["num_residual_streams"] = streams
    questions = set()
    if streams > 1:
        if "layers.0.1.dynamic_alpha_scale" in shapes:
            arguments["hyper_connections"] = "hc"
        elif len(shapes["layers.0.1.dynamic_alpha_fn"]) == 3:  # from 0.4.0 on
            arguments["hyper_connections"] = "mhc"
        else:
            questions.add("streams")

    with_memory = [i for i in range(depth)
                   if any(name.startswith(f"layers.{i}.4.") for name in shapes)]
    if len(with_memory) < depth:
        arguments["neural_memory_layers"] = [i + 1 for i in with_memory]
    if not with_memory:
        return arguments, questions
    memories = [read_memory(shapes, i) for i in with_memory]
    if any(memory != memories[0] for memory in memories):
        raise Unknown("memories of different layers have different shapes")
    activated = memories[0].pop("activated")
    arguments.update(memories[0])
    arguments["neural_mem_weight_residual"] = any(
        f"layers.{i}.4.to_learned_weight_residual_mix.0.weight" in shapes for i in with_memory)
    arguments["neural_memory_qkv_receives_diff_views"] = any(
        f"layers.{i}.3.1.weight" in shapes for i in range(depth))
    questions |= {"memory"}
    if activated:
        questions |= {"activation"}
    if "per_parameter_lr_modulation" in arguments["neural_memory_kwargs"]:
        questions |= {"modulation"}
    # Where the memory's output gates attention's, its hyper-connection adds nothing back.
    first = f"layers.{with_memory[0]}.0."
    if streams > 1:
        arguments["neural_mem_gate_attn_output"] = first + "static_beta" not in shapes
    else:
        questions |= {"gate"}
    return arguments, questions


GATE_QUESTION = ("--neural-mem-gate-attn-output", yes_or_no, "neural_mem_gate_attn_output",
                 "whether what the memory returns gates attention's output (yes) or is added (no)",
                 "gate")


def read_checkpoint(path: pathlib.Path):
    """The contents of a file of torch.save, of tensors and plain containers alone: nothing of it is run."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Unknown(error.strerror or str(error)) from error
    except Exception as error:  # of many kinds, by what is wrong with the file
        lines = str(error).splitlines()
        raise Unknown("is not what torch.save wrote of a state dict: "
                      f"{lines[0] if lines else type(error).__name__}") from error


def state_dict_of(checkpoint, key) -> dict:
    import torch

    state = checkpoint
    if key is not None:
        if not isinstance(checkpoint, dict) or key not in checkpoint:
            known = ", ".join(map(str, checkpoint)) if isinstance(checkpoint, dict) else "no keys"
            raise Unknown(f"has no {key}; it has {known}")
        state = checkpoint[key]
    if not isinstance(state, dict) or not state:
        raise Unknown("holds no state dict, of tensors by their names")
    if not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise Unknown(f"holds more than tensors; say with --key which of {', '.join(map(str, state))} "
                      "is the state dict")
    return state


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Makes a model folder of a checkpoint of titans-pytorch.")
    parser.add_argument("checkpoint", type=pathlib.Path, help="what torch.save wrote: a state dict")
    parser.add_argument("folder", type=pathlib.Path, help="is made")
    parser.add_argument("--key", help="the state dict's key, where the file holds more")
    parser.add_argument("--titans-pytorch-version", help="written down, for those who read the folder")
    all_questions = QUESTIONS + (GATE_QUESTION,)
    for flag, kind, key, what, _ in all_questions:
        parser.add_argument(flag, type=kind, dest=key, help=what, default=argparse.SUPPRESS,
                            choices=FLAVOURS if key == "hyper_connections" else None,
                            metavar="yes|no" if kind is yes_or_no else None if
                            key == "hyper_connections" else "X")
    flags = parser.parse_args()

    try:
        from safetensors.torch import save_file

        state = state_dict_of(read_checkpoint(flags.checkpoint), flags.key)
        prefix = without_wrappers(state)
        tensors = {name[len(prefix):]: value for name, value in state.items()
                   if name.startswith(prefix)}
        arguments, asked = read_arguments({name: tuple(t.shape) for name, t in tensors.items()})
    except ImportError as error:
        parser.error(f"{error}: pip install torch safetensors")
    except Unknown as error:
        parser.error(f"{flags.checkpoint}: {error}")
    except KeyError as error:
        parser.error(f"{flags.checkpoint}: there is no tensor {error.args[0]}")
    except (IndexError, ValueError) as error:
        parser.error(f"{flags.checkpoint}: a tensor has another shape than those of a "
                     f"MemoryAsContextTransformer: {error}")
    wanted = [q for q in all_questions if q[4] is None or q[4] in asked]
    open_questions = [q for q in wanted if not hasattr(flags, q[2])]
    if open_questions:
        lines = "\n".join(f"  {flag:32} {what}" for flag, _, _, what, _ in open_questions)
        parser.error(f"{flags.checkpoint} does not tell, and a model with another value is another "
                     f"model:\n{lines}")
    for flag, _, key, _, _ in all_questions:
        if hasattr(flags, key) and key not in {q[2] for q in wanted}:
            parser.error(f"{flag} has no meaning for {flags.checkpoint}, whose tensors rule it out")
    for _, _, key, _, _ in wanted:
        place = arguments["neural_memory_kwargs"] if key in OF_MEMORY else arguments
        place[key] = getattr(flags, key)
    if arguments.get("neural_memory_kwargs", {}).get("activation", "silu") != "silu":
        parser.error("--activation: only silu is served")

    config = {"model_type": "titans_mac_lucidrains", "architectures": ["MemoryAsContextTransformer"],
              **arguments}
    if flags.titans_pytorch_version is not None:
        config["titans_pytorch_version"] = flags.titans_pytorch_version
    for name in ("config.json", "model.safetensors"):
        if (flags.folder / name).exists():
            parser.error(f"{flags.folder / name} is there already")
    flags.folder.mkdir(parents=True, exist_ok=True)
    # memory_model is the shape of the memory's network; its values are not those of the memory.
    kept = {name: t.detach().float().clone().contiguous() for name, t in tensors.items()
            if ".memory_model." not in name}
    save_file(kept, flags.folder / "model.safetensors")
    (flags.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{flags.folder}: {len(kept)} tensors of {flags.checkpoint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
