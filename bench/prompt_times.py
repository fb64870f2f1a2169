"""Times another program's own model on prompts, beside gpu_bench's section prefill: the command line of
fla_forward.py, titans_pytorch_forward.py and ttt_forward.py.

A whole forward from token ids to logits and the state behind the prompt, warm, the host's time to
launch it included.
"""

import argparse
import json
import pathlib
import statistics

import torch

PROMPTS = ((1, 2048), (8, 2048))


def measure(forward, vocab, prompts, tokens, rounds, warm_ups):
    """Seconds of the forward, the median of some."""
    ids = torch.randint(0, vocab, (prompts, tokens), device="cuda")
    times = []
    for round_number in range(warm_ups + rounds):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        forward(ids)
        end.record()
        end.synchronize()
        if round_number >= warm_ups:
            times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def run(description, program, version, make):
    """Measures what make(folder) gives, a function of token ids, for the folder that is named.

    With --json, prompts that an earlier call has measured are left out.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=pathlib.Path,
                        help="a model's folder (mneme-make-model); its config.json is read")
    parser.add_argument("--name", help="of the model in the results; default: the folder's")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results there")
    parser.add_argument("--tf32", action="store_true", help="products of float32 may round to TF32")
    parser.add_argument("--rounds", type=int, default=5)
    # The first one compiles and tunes.
    parser.add_argument("--warm-ups", type=int, default=3)
    args = parser.parse_args()
    name = args.name or args.folder.resolve().name
    config = config_of(args.folder)
    vocab = config["num_tokens" if "num_tokens" in config else "vocab_size"]
    key = f"{program}_forward"
    rows = []
    if args.json is not None and args.json.exists():
        report = json.loads(args.json.read_text(encoding="utf-8"))
        rows = [row for row in report[key]["rows"] if row["model"] == name]
    measured = {(row["prompts"], row["tokens"]) for row in rows}
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    forward = make(args.folder)
    for prompts, tokens in PROMPTS:
        if (prompts, tokens) in measured:
            continue
        seconds = measure(forward, vocab, prompts, tokens, args.rounds, args.warm_ups)
        rows.append({"model": name, "prompts": prompts, "tokens": tokens, "ms": 1e3 * seconds,
                     "tokens_per_second": prompts * tokens / seconds, program: version})
        print(f"{program} {name} {prompts}x{tokens}: {1e3 * seconds:.2f} ms, "
              f"{rows[-1]['tokens_per_second']:,.0f} tokens/s", flush=True)
        if args.json is not None:  # so far: tuning of the next one may take longer than there is
            args.json.write_text(json.dumps({key: {"rows": rows}}, indent=1), encoding="utf-8")
