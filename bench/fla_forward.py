#!/usr/bin/env python3
"""Times flash-linear-attention's own model on prompts, beside gpu_bench's section prefill.

The model is made of the config.json of a folder (mneme-make-model) with random bf16 weights: a whole
forward from token ids to the logits of each prompt's last token and the state behind it, warm, the
host's time to launch it included. With --json, prompts that an earlier call has measured are left out.
Needs torch with CUDA, triton, transformers, flash-linear-attention.
"""

import argparse
import json
import pathlib
import statistics

import fla
import fla.models  # registers the model types
import torch
from transformers import AutoConfig, AutoModelForCausalLM

PROMPTS = ((1, 2048), (8, 2048))
ROUNDS = 5
WARM_UPS = 3  # the first of which compiles and tunes


def measure(model, vocab, prompts, tokens):
    """Seconds of the forward, the median of some."""
    ids = torch.randint(0, vocab, (prompts, tokens), device="cuda")
    times = []
    for round_number in range(WARM_UPS + ROUNDS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        model(ids, logits_to_keep=1, use_cache=True)
        end.record()
        end.synchronize()
        if round_number >= WARM_UPS:
            times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="a model's folder; its config.json is read")
    parser.add_argument("--name", help="of the model in the results; default: the folder's")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    args = parser.parse_args()
    name = args.name or args.folder.resolve().name
    config = AutoConfig.from_pretrained(args.folder)
    rows = []
    if args.json is not None and args.json.exists():
        report = json.loads(args.json.read_text(encoding="utf-8"))
        rows = [row for row in report["fla_forward"]["rows"] if row["model"] == name]
    measured = {(row["prompts"], row["tokens"]) for row in rows}
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_config(config).to("cuda", torch.bfloat16).eval()
        for prompts, tokens in PROMPTS:
            if (prompts, tokens) in measured:
                continue
            seconds = measure(model, config.vocab_size, prompts, tokens)
            rows.append({"model": name, "prompts": prompts, "tokens": tokens, "ms": 1e3 * seconds,
                         "tokens_per_second": prompts * tokens / seconds, "fla": fla.__version__})
            print(f"fla {name} {prompts}x{tokens}: {1e3 * seconds:.2f} ms, "
                  f"{rows[-1]['tokens_per_second']:,.0f} tokens/s", flush=True)
            if args.json is not None:  # so far: tuning of the next one may take longer than there is
                report = {"fla_forward": {"rows": rows}}
                args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
