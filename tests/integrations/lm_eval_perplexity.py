"""lm-eval: byte perplexity with the server's tokenizer, and with the model folder's own.

usage: lm_eval_perplexity.py HTTP_URL MODEL_FOLDER
"""

import math
import sys
import tempfile
from pathlib import Path

from lm_eval_tasks import evaluate, write_task

TEXTS = [
    "On Monday Ben went to the market. He wanted to buy plums and turnips before noon.",
    "The market opened early, and Clara was among the first to come.",
    "My code is 7281.\nWhat is my code?",
    "Anna's city is Rome. The lantern's shelf is 42. A gull ran between the stalls.",
    "Ünïcödé and numbers: 3.14159, and a </s> in the middle.",
]
TASK = """
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}, {metric: word_perplexity}]
"""


def scores(folder: Path, url: str, **tokenizer) -> dict[str, float]:
    results = evaluate(folder, ["mneme_perplexity"], url, model=None, **tokenizer)["results"]
    found = results["mneme_perplexity"]
    return {name.split(",")[0]: value for name, value in found.items() if "perplexity," in name}


def main() -> None:
    url, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_task(folder, "mneme_perplexity", TASK, [{"text": text} for text in TEXTS])
        remote = scores(folder, url, tokenizer_backend="remote")
        local = scores(folder, url, tokenizer_backend="huggingface", tokenizer=model)
        found = scores(folder, url, tokenizer_backend="auto")
    print("remote tokenizer ", remote)
    print("local tokenizer  ", local)
    for other in (remote, found):
        for metric, value in local.items():
            assert math.isclose(other[metric], value, rel_tol=1e-6), (metric, other[metric], value)
    assert 1 < local["byte_perplexity"] < 50, local


main()
