#!/usr/bin/env python3
"""Decodes and reads prompts with llama.cpp and with Mneme in turns, on a CPU, models of equal shape.

usage: bench/llama_cpp.py --llama-bench FILE [--build DIR] [--out DIR] [--models A,B] [--types A,B]
                          [--threads N] [--rounds N] [--busy]

llama.cpp's source is in PyPI's llama-cpp-python, from which llama-bench is built like this:

  pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
  cmake -S llama_cpp_python-*/vendor/llama.cpp -B llama-build -DCMAKE_BUILD_TYPE=Release \\
    -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_SERVER=OFF
  cmake --build llama-build --target llama-bench

Needs the packages gguf and numpy, and a build of Mneme with MNEME_BENCH=ON. Models have random
weights: Mneme's are made by mneme-make-model, llama.cpp's of the same config.json here. Both have
16-bit matrices and f32 states, the same threads, 512 tokens of a prompt in a step.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import gguf
import numpy as np

T = gguf.MODEL_TENSOR
PROMPT_TOKENS = 512
DECODE_TOKENS = 64
MOST_LOAD = 1.5  # with more of it on the machine, times are somebody else's
DECODE_MARK, PROMPT_MARK, FLOOR_MARK = 1.1, 1.5, 90


def vector(count, value=0.0):
    return {"shape": (count,), "value": value}


def matrix(rows, columns, f32=False):
    return {"shape": (rows, columns), "f32": f32}


def rwkv7_layer(config, layer):
    """The tensors of a layer: (which one, the ending of its name) to what it is."""
    dim = config["hidden_size"]
    inner = config["intermediate_size"] or int(config["hidden_ratio"] * dim)
    value = config["v_low_rank_dim" if layer > 0 else "a_low_rank_dim"]
    tensors = {(name, ending): vector(dim, float(ending == "weight"))
               for name in (T.ATTN_NORM, T.ATTN_NORM_2, T.TIME_MIX_LN) for ending in ("weight", "bias")}
    # Low-rank parts, of which llama.cpp's own converter keeps the decay's in f32.
    for base, down, up, rank, f32 in (
        (T.TIME_MIX_W0, T.TIME_MIX_W1, T.TIME_MIX_W2, config["decay_low_rank_dim"], True),
        (T.TIME_MIX_A0, T.TIME_MIX_A1, T.TIME_MIX_A2, config["a_low_rank_dim"], False),
        (T.TIME_MIX_V0, T.TIME_MIX_V1, T.TIME_MIX_V2, value, False),
        (None, T.TIME_MIX_G1, T.TIME_MIX_G2, config["gate_low_rank_dim"], False),
    ):
        if base is not None:
            tensors[base, "weight"] = vector(dim)
        tensors[down, "weight"] = matrix(rank, dim, f32)
        tensors[up, "weight"] = matrix(dim, rank, f32)
    tensors[T.TIME_MIX_LERP_FUSED, "weight"] = {"shape": (6, 1, 1, dim), "value": 0.5}
    tensors[T.CHANNEL_MIX_LERP_K, "weight"] = {"shape": (1, 1, dim), "value": 0.5}
    for name in (T.TIME_MIX_K_K, T.TIME_MIX_K_A, T.TIME_MIX_R_K):
        tensors[name, "weight"] = vector(dim, 0.5)
    for name in (T.TIME_MIX_KEY, T.TIME_MIX_VALUE, T.TIME_MIX_RECEPTANCE, T.TIME_MIX_OUTPUT):
        tensors[name, "weight"] = matrix(dim, dim)
    tensors[T.CHANNEL_MIX_KEY, "weight"] = matrix(inner, dim)
    tensors[T.CHANNEL_MIX_VALUE, "weight"] = matrix(dim, inner)
    return tensors


def rwkv7(writer, config):
    dim = config["hidden_size"]
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_wkv_head_size(config["head_dim"])
    writer.add_decay_lora_rank(config["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(config["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(config["v_low_rank_dim"])
    writer.add_gate_lora_rank(config["gate_low_rank_dim"])
    writer.add_token_shift_count(2)
    writer.add_feed_forward_length(config["intermediate_size"] or int(config["hidden_ratio"] * dim))
    return {
        (T.TOKEN_EMBD_NORM, "weight"): vector(dim, 1.0),
        (T.TOKEN_EMBD_NORM, "bias"): vector(dim),
        (T.OUTPUT_NORM, "weight"): vector(dim, 1.0),
        (T.OUTPUT_NORM, "bias"): vector(dim),
        (T.OUTPUT, "weight"): matrix(config["vocab_size"], dim),
    }


def mamba2_layer(config, _layer):
    dim, heads, groups = config["hidden_size"], config["num_heads"], config["n_groups"]
    inner = config["expand"] * dim
    streams = inner + 2 * groups * config["state_size"]
    return {
        (T.ATTN_NORM, "weight"): vector(dim, 1.0),
        (T.SSM_IN, "weight"): matrix(inner + streams + heads, dim),
        (T.SSM_CONV1D, "weight"): matrix(streams, config["conv_kernel"], f32=True),
        (T.SSM_CONV1D, "bias"): vector(streams),
        (T.SSM_DT, "bias"): vector(heads),
        (T.SSM_A, ""): {"shape": (heads, 1), "value": -1.0},
        (T.SSM_D, ""): {"shape": (heads, 1), "value": 1.0},
        (T.SSM_NORM, "weight"): {"shape": (groups, inner // groups), "value": 1.0},
        (T.SSM_OUT, "weight"): matrix(dim, inner),
    }


def mamba2(writer, config):
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["expand"] * config["hidden_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["num_heads"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_feed_forward_length(0)
    return {(T.OUTPUT_NORM, "weight"): vector(config["hidden_size"], 1.0)}  # embeddings are tied


# model_type: architecture, what is not of a layer, what is.
FAMILIES = {
    "rwkv7": (gguf.MODEL_ARCH.RWKV7, rwkv7, rwkv7_layer),
    "mamba2": (gguf.MODEL_ARCH.MAMBA2, mamba2, mamba2_layer),
}


def values(tensor, dtype, draw):
    """A tensor as it is stored, and its type: constant, or small random numbers."""
    f32 = "value" in tensor or tensor["f32"]
    if "value" in tensor:
        data = np.full(tensor["shape"], tensor["value"], np.float32)
    else:
        data = draw.standard_normal(tensor["shape"], np.float32) * np.float32(0.02)
    stored = gguf.GGMLQuantizationType.F32 if f32 else gguf.GGMLQuantizationType[dtype.upper()]
    return (data if f32 else gguf.quants.quantize(data, stored)), stored


def write_model(config, dtype, path):
    """Writes a GGUF file of the shape that a config.json describes. Returns its parameters."""
    arch, head, layer_of = FAMILIES[config["model_type"]]
    layers, vocab = config["num_hidden_layers"], config["vocab_size"]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_head_count(0)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{dtype.upper()}"])
    tensors = {(T.TOKEN_EMBD, "weight"): matrix(vocab, config["hidden_size"])}
    tensors.update(head(writer, config))
    named = {name_of(key, 0): tensor for key, tensor in tensors.items()}
    for layer in range(layers):
        named.update({name_of(key, layer): tensor for key, tensor in layer_of(config, layer).items()})
    for name, tensor in named.items():
        data, stored = values({**tensor, "shape": (1,) * (len(tensor["shape"]) - 1) + tensor["shape"][-1:]},
                              dtype, np.random.default_rng(0))
        rows = int(np.prod(tensor["shape"][:-1]))
        shape = (*tensor["shape"][:-1], data.shape[-1])
        writer.add_tensor_info(name, shape, data.dtype, data.nbytes * rows, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    draw = np.random.default_rng(1)
    for tensor in named.values():
        writer.write_tensor_data(values(tensor, dtype, draw)[0])
    writer.close()
    return sum(int(np.prod(tensor["shape"])) for tensor in named.values())


def name_of(key, layer):
    which, ending = key
    name = gguf.TENSOR_NAMES[which].format(bid=layer)
    return f"{name}.{ending}" if ending else name


def run(command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"llama_cpp.py: {command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def peer(program, model, threads):
    """Tokens a second of llama.cpp: prompts and decoding."""
    rows = json.loads(run([program, "-m", model, "-t", threads, "-p", PROMPT_TOKENS, "-n", DECODE_TOKENS,
                           "-ub", PROMPT_TOKENS, "-r", 1, "-o", "json"]))
    rates = {"prompt" if row["n_prompt"] > 0 else "decode": row["avg_ts"] for row in rows}
    return rates["prompt"], rates["decode"]


def ours(program, model, dtype, threads, report):
    """The same of Mneme, and the share of the floor that decoding reaches."""
    run([program, "--model", model, "--sections", "decode,prefill", "--rows", 1, "--prompts", PROMPT_TOKENS,
         "--compute-dtypes", dtype, "--threads", threads, "--rounds", 2, "--steps", DECODE_TOKENS // 2,
         "--json", report])
    sections = json.loads(report.read_text(encoding="utf-8"))
    decode = next(row for row in sections["decode"]["rows"] if row["sampling"] == "greedy")
    prompt = sections["prefill"]["rows"][0]
    return prompt["tokens_per_second"], decode["tokens_per_second"], decode["of_floor_percent"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/llama-cpp"), help="models and results")
    parser.add_argument("--models", default="rwkv7-0.4b,mamba2-370m", help="shapes that mneme-make-model knows")
    parser.add_argument("--types", default="bf16,f16", help="of llama.cpp's weights; the faster one counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="measure although the machine is not idle")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    if load > MOST_LOAD and not args.busy:
        sys.exit(f"llama_cpp.py: the load of this machine is {load:.1f}, expected at most {MOST_LOAD}; "
                 "wait, or --busy for a trial")
    args.out.mkdir(parents=True, exist_ok=True)
    files = {}
    for shape in args.models.split(","):
        folder = args.out / shape
        if not (folder / "config.json").exists():
            run([args.build / "bin/mneme-make-model", "--shape", shape, "--seed", 1, "--out", folder])
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for dtype in args.types.split(","):
            path = args.out / f"{shape}-{dtype}.gguf"
            if not path.exists():
                unfinished = path.with_suffix(".part")
                print(f"{path}: {write_model(config, dtype, unfinished) / 1e6:.0f} M parameters", file=sys.stderr)
                unfinished.rename(path)
            files[shape, dtype] = path

    measured = {}
    for turn in range(args.rounds):
        for shape in args.models.split(","):
            print(f"round {turn + 1} of {args.rounds}: {shape}", file=sys.stderr)
            for dtype in ("bf16", "f32"):
                result = ours(args.build / "bin/engine_bench", args.out / shape, dtype, args.threads,
                              args.out / "report.json")
                measured.setdefault((shape, "mneme", dtype), []).append(result)
            for dtype in args.types.split(","):
                result = peer(args.llama_bench, files[shape, dtype], args.threads)
                measured.setdefault((shape, "llama.cpp", dtype), []).append(result)

    median = {key: [statistics.median(column) for column in zip(*rows)] for key, rows in measured.items()}
    print(f"{args.threads} threads, median of {args.rounds} alternating rounds, load {load:.1f} before; tokens/s\n")
    print(f"| model | program | weights, products | prompt of {PROMPT_TOKENS} | decode | of floor |\n|---|---|---|---:|---:|---:|")
    for (shape, program, dtype), row in sorted(median.items()):
        floor = f"{row[2]:.0f} %" if len(row) > 2 else ""
        weights = f"bf16, {dtype}" if program == "mneme" else f"{dtype}, {dtype}"
        print(f"| {shape} | {program} | {weights} | {row[0]:.1f} | {row[1]:.2f} | {floor} |")
    print("\n| model | prompt, times llama.cpp | mark | decode, times llama.cpp | of floor | mark |\n|---|---:|---|---:|---:|---|")
    for shape in args.models.split(","):
        best = [max(row[i] for key, row in median.items() if key[:2] == (shape, "llama.cpp")) for i in range(2)]
        prompt, decode, floor = median[shape, "mneme", "bf16"]
        prompt_met = prompt >= PROMPT_MARK * best[0]
        decode_met = decode >= DECODE_MARK * best[1] or floor >= FLOOR_MARK
        print(f"| {shape} | {prompt / best[0]:.2f} | {PROMPT_MARK}: {'met' if prompt_met else 'missed'} "
              f"| {decode / best[1]:.2f} | {floor:.0f} % | {DECODE_MARK}, or {FLOOR_MARK} %: "
              f"{'met' if decode_met else 'missed'} |")
    (args.out / "llama_cpp.json").write_text(
        json.dumps([{"model": key[0], "program": key[1], "dtype": key[2], "rounds": rows}
                    for key, rows in measured.items()], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
