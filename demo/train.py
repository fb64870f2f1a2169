"""Trains the demo's model or one of its twins on the generated corpus, in pieces of any length.

    python -m demo.train --config demo --out runs/demo --steps 3300 --seconds 120
    python -m demo.train --config titans --out runs/titans --steps 3300 --longest 4096 --graph
    python -m demo.train --config memoria --out runs/memoria --steps 2400 --longest 4096 --graph

A run that ends by --seconds leaves a checkpoint in --out and goes on from there when it is started again
with the same arguments. The batch of a step is a function of --seed, --steps and --tokens alone: twins see
the same texts in the same order, whatever the number of workers. At the end of every piece the weights are
written to OUT/export in bf16, as Mneme and Hugging Face load them. OUT/log.jsonl has the losses and the
recall on held-out documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from demo import export
from demo.corpus import Encoder, Stream
from demo.memoria import MemoriaLanguageModel
from demo.model import CONFIGS, LanguageModel, make

Network = LanguageModel | MemoriaLanguageModel

VALIDATION_SEED = 1 << 40  # beyond every step's seeds
VALIDATION_LENGTHS = (1024, 4096, 16384)

FIXED_SHAPES = ("titans", "gpt2_with_memoria")  # networks whose tensors' shapes no value decides

# Documents get longer while the training goes on: first what a fact is, then how to keep it.
CURRICULUM = ((0.10, 256), (0.20, 1024), (0.30, 4096), (0.30, 16384), (0.10, 32768))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which documents each step sees."""

    steps: int
    tokens: int  # of a step
    seed: int
    longest: int = CURRICULUM[-1][1]
    curriculum: tuple[tuple[float, int], ...] = CURRICULUM

    def length(self, step: int) -> int:
        """Tokens of each document of this step."""
        most = min(self.longest, self.tokens)
        end = 0.0
        for share, length in self.curriculum:
            end += share
            if step < end * self.steps:
                return min(length, most)
        return min(self.curriculum[-1][1], most)


class Batches(Dataset):
    """Item i is the batch of step `first + i`: (ids, weights), each [documents, length + 1]."""

    def __init__(self, plan: Plan, first: int, tokenizer_folder: pathlib.Path):
        self.plan, self.first, self.folder = plan, first, tokenizer_folder
        self.encoder: Encoder | None = None

    def __len__(self) -> int:
        return self.plan.steps - self.first

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self.encoder is None:  # once in each worker
            self.encoder = Encoder(self.folder / "tokenizer.model")
        step = self.first + index
        length = self.plan.length(step)
        documents = [
            Stream(
                ((self.plan.seed * self.plan.steps + step) << 8) + i, length, tokenizer=self.encoder
            ).next()
            for i in range(self.plan.tokens // length)
        ]
        ids, weights = zip(*documents, strict=True)
        return np.stack(ids).astype(np.int32), np.stack(weights)


def weighted_loss(model: Network, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross entropy by weights, the same without them, and the balance loss. ids, weights [B, T + 1]."""
    logits, balance = model(ids[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten().float()
    return (losses * weights).sum() / weights.sum(), losses.mean(), balance


def learning_rate(step: int, plan: Plan, peak: float, warm_up: int = 200) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, plan.steps - warm_up)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Validation:
    """Documents that no step sees, with their questions."""

    def __init__(self, tokenizer_folder: pathlib.Path, documents: int = 4):
        encoder = Encoder(tokenizer_folder / "tokenizer.model")
        self.documents = {
            length: [
                Stream(VALIDATION_SEED + i, length, tokenizer=encoder).next_with_questions()
                for i in range(documents)
            ]
            for length in VALIDATION_LENGTHS
        }

    @torch.no_grad()
    def measure(self, model: Network, device: torch.device, longest: int) -> dict:
        """Loss by length, and the share of questions answered right (every token of the value the likeliest)
        by distance in tokens to where the fact was told last, distances rounded down to powers of four."""
        result: dict = {"loss": {}, "recall": {}}
        right: dict[int, list[bool]] = {}
        for length, documents in self.documents.items():
            if length > longest:
                continue
            losses = []
            for ids, _, questions in documents:
                ids = torch.from_numpy(ids.astype(np.int64)).to(device)
                logits = model(ids[None, :-1])[0][0].float()
                losses.append(F.cross_entropy(logits, ids[1:]).item())
                hits = (logits.argmax(-1) == ids[1:]).cpu()  # hits[i]: token i + 1 was foreseen
                for first, count, distance, _ in questions:
                    bucket = 4 ** int(math.log(max(distance, 1), 4))
                    right.setdefault(bucket, []).append(bool(hits[first - 1 : first - 1 + count].all()))
            result["loss"][length] = round(sum(losses) / len(losses), 4)
        result["recall"] = {d: [round(sum(r) / len(r), 3), len(r)] for d, r in sorted(right.items())}
        return result


def optimizer_of(model: Network, peak: float) -> torch.optim.Optimizer:
    """AdamW; matrices decay, vectors, gates and convolutions do not."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    fused = matrices[0].is_cuda
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", choices=sorted(CONFIGS), required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path(__file__).parent / "model")
    parser.add_argument("--steps", type=int, required=True, help="of the whole training")
    parser.add_argument("--tokens", type=int, default=65536, help="of a step")
    parser.add_argument("--longest", type=int, default=CURRICULUM[-1][1], help="tokens of a document")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end this piece after so long")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the balance loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--validate-every", type=int, default=500)
    parser.add_argument(
        "--graph", action="store_true", help="titans, memoria: launch a step on a GPU as one CUDA graph"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(arguments)
    if args.tokens % min(args.longest, args.tokens):
        parser.error(f"--tokens {args.tokens} is no multiple of --longest {args.longest}")
    if args.graph and (CONFIGS[args.config].model_type not in FIXED_SHAPES or args.device != "cuda"):
        parser.error("--graph takes a network of fixed shapes on a GPU: titans or memoria, --device cuda")
    return args


class Log:
    """Lines of JSON, to a file and to the terminal."""

    def __init__(self, path: pathlib.Path, config: str):
        self.begin = time.monotonic()
        self.path, self.config = path, config

    def __call__(self, **values: object) -> None:
        line = json.dumps({"config": self.config, "second": round(self.seconds(), 1), **values})
        with self.path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def seconds(self) -> float:
        """Since the start of this piece."""
        return time.monotonic() - self.begin


class Averages:
    """Means of what the steps since the last report gave, and how many steps of this piece were skipped."""

    def __init__(self, tokens: int):
        self.tokens, self.values, self.skipped = tokens, [], 0
        self.since = time.monotonic()

    def take(self) -> dict:
        """The report; means begin anew."""
        names = ("loss", "plain", "balance", "norm")
        means = torch.stack(self.values).mean(0).tolist()
        speed = len(self.values) * self.tokens / (time.monotonic() - self.since)
        self.values, self.since = [], time.monotonic()
        rounded = {name: round(mean, 4) for name, mean in zip(names, means, strict=True)}
        return {**rounded, "skipped": self.skipped, "tokens_per_s": round(speed)}


class RecordedGradients:
    """A function of a batch that leaves gradients, launched as one CUDA graph.

    It is recorded when the shape of the batch changes: as it never goes back, one graph is kept.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], clear: Callable[[], None]):
        self.function, self.clear = function, clear
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.result: Tensor | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        if [x.shape for x in inputs] != [x.shape for x in self.inputs]:
            self._record(inputs)
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.result.clone()

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self.graph = self.result = None
        self.inputs = tuple(x.clone() for x in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # what libraries allocate and choose at first use is no part of a graph
                self.clear()
                self.function(*self.inputs)
            self.clear()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # The thread that pins batches may go on meanwhile.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = self.function(*self.inputs)


class Trainer:
    """A network with its optimizer. A step whose gradients are not finite changes nothing."""

    def __init__(self, args: argparse.Namespace, plan: Plan):
        self.plan, self.peak, self.balance = plan, args.lr, args.balance
        self.device = torch.device(args.device)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # of products that are not in bf16: of memories
        torch.manual_seed(args.seed)
        self.model = make(CONFIGS[args.config]).to(self.device)
        self.optimizer = optimizer_of(self.model, args.lr)
        self.gradients = RecordedGradients(self._gradients, self._clear) if args.graph else self._gradients
        self.keeps_gradients = args.graph  # the graph writes where they are

    def _clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _gradients(self, ids: Tensor, weights: Tensor) -> Tensor:
        loss, plain, balance = weighted_loss(self.model, ids, weights)
        (loss + self.balance * balance).backward()
        return torch.stack([loss, plain, balance]).detach()

    def resume(self, checkpoint: pathlib.Path) -> int:
        """The step to go on with."""
        if not checkpoint.exists():
            return 0
        saved = torch.load(checkpoint, map_location=self.device)
        if saved["plan"] != dataclasses.asdict(self.plan):
            raise SystemExit(
                f"{checkpoint} is of a training with other --steps, --tokens, --seed or --longest"
            )
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]

    def save(self, checkpoint: pathlib.Path, step: int) -> None:
        """A checkpoint that either is the old one or the new one, whatever happens meanwhile."""
        temporary = checkpoint.with_suffix(".new")
        parts = {
            "step": step,
            "plan": dataclasses.asdict(self.plan),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(parts, temporary)
        temporary.replace(checkpoint)

    def step(self, number: int, ids: Tensor, weights: Tensor, averages: Averages) -> None:
        """One step on a batch [documents, length + 1]."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.plan, self.peak)
        ids = ids.to(self.device, non_blocking=True).long()
        weights = weights.to(self.device, non_blocking=True)
        losses = self.gradients(ids, weights)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        else:
            averages.skipped += 1
        if not self.keeps_gradients:
            self._clear()
        averages.values.append(torch.cat([losses, norm.detach().view(1)]))


def main(arguments: list[str]) -> None:
    args = parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.jsonl", args.config)
    plan = Plan(args.steps, args.tokens, args.seed, args.longest)
    trainer = Trainer(args, plan)
    model, checkpoint = trainer.model, args.out / "checkpoint.pt"
    first = trainer.resume(checkpoint)
    validation = Validation(args.tokenizer)
    loader = DataLoader(
        Batches(plan, first, args.tokenizer),
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=4 if args.workers else None,
        pin_memory=trainer.device.type == "cuda",
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log(step=first, parameters=parameters, state_bytes=model.config.state_bytes)
    step, averages = first, Averages(args.tokens)
    for ids, weights in loader:
        trainer.step(step, ids, weights, averages)
        step += 1
        if step % 50 == 0:
            log(step=step, length=plan.length(step - 1), **averages.take())
        if step % args.validate_every == 0 and step < plan.steps:
            log(step=step, **validation.measure(model, trainer.device, longest=4 * plan.length(step)))
            averages.since = time.monotonic()
        if log.seconds() > args.seconds:
            break
    trainer.save(checkpoint, step)
    export.write(model, args.tokenizer, args.out / "export")
    log(step=step, finished=step == plan.steps, **validation.measure(model, trainer.device, longest=1 << 30))


if __name__ == "__main__":
    main(sys.argv[1:])
