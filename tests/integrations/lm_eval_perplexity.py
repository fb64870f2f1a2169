"""lm-eval: byte perplexity with the server's tokenizer, and with the model folder's own.

usage: lm_eval_perplexity.py HTTP_URL MODEL_FOLDER
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

TEXTS = [
    "On Monday Ben went to the market. He wanted to buy plums and turnips before noon.",
    "The market opened early, and Clara was among the first to come.",
    "My code is 7281.\nWhat is my code?",
    "Anna's city is Rome. The lantern's shelf is 42. A gull ran between the stalls.",
    "Ünïcödé and numbers: 3.14159, and a </s> in the middle.",
]
TASK = """
task: mneme_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}, {metric: word_perplexity}]
"""


def evaluate(folder: Path, url: str, **tokenizer) -> dict[str, float]:
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": None, "base_url": f"{url}/v1/completions", **tokenizer},
        tasks=["mneme_perplexity"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    scores = results["results"]["mneme_perplexity"]
    return {name.split(",")[0]: value for name, value in scores.items() if "perplexity," in name}


def main() -> None:
    url, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "texts.jsonl"
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        (folder / "task.yaml").write_text(TASK.replace("FILE", str(data)))
        remote = evaluate(folder, url, tokenizer_backend="remote")
        local = evaluate(folder, url, tokenizer_backend="huggingface", tokenizer=model)
        found = evaluate(folder, url, tokenizer_backend="auto")
    print("remote tokenizer ", remote)
    print("local tokenizer  ", local)
    for scores in (remote, found):
        for metric, value in local.items():
            assert math.isclose(scores[metric], value, rel_tol=1e-6), (metric, scores[metric], value)
    assert 1 < local["byte_perplexity"] < 50, local


main()
