"""lm-eval over HTTP: its scores are those of mneme-logits, which shares no code with the server."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")
sys.path.append(str(Path(__file__).parents[2] / "integrations"))

from lm_eval_tasks import evaluate, write_task
from test_openai_sdk import post

CHOICES = [
    {"question": "The key is in the", "choices": [" drawer", " sea", " old house"], "answer": 0},
    {"question": "Anna wrote down the number", "choices": [" seven", " of the day"], "answer": 1},
    {"question": "It rained all day, so", "choices": [" they stayed", " we left."], "answer": 0},
]
WORDS = [{"question": "Once upon a time", "answer": "x"}, {"question": "The code is", "answer": "y"}]

CHOICE_TASK = """
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""
WORDS_TASK = """
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {max_gen_toks: 12, temperature: 0, do_sample: false, until: ["\\n\\n\\n"]}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def samples(text_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder, "mneme_choice", CHOICE_TASK, CHOICES)
    write_task(folder, "mneme_words", WORDS_TASK, WORDS)
    results = evaluate(
        folder,
        ["mneme_choice", "mneme_words"],
        f"http://127.0.0.1:{text_server.http_port}",
        model="text",
        tokenizer_backend="remote",
        batch_size=2,
        num_concurrent=1,
        max_retries=1,
    )
    return results["samples"]


def reference(bin_dir: Path, model: Path, folder: Path, ids: list[int], greedy: int = 0):
    """Logits after each token, and the most likely continuation."""
    tokens, out = folder / "ids.txt", folder / "out.safetensors"
    tokens.write_text(" ".join(map(str, ids)))
    command = [bin_dir / "mneme-logits", "--model", model, "--tokens", tokens, "--out", out]
    subprocess.run([*command, *(["--greedy", str(greedy)] if greedy else [])], check=True,
                   capture_output=True)
    data = out.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])

    def tensor(name, code):
        begin, end = (8 + size + offset for offset in header[name]["data_offsets"])
        return struct.unpack(f"<{(end - begin) // 4}{code}", data[begin:end])

    flat = tensor("logits", "f")
    vocab = header["logits"]["shape"][1]
    logits = [flat[i : i + vocab] for i in range(0, len(flat), vocab)]
    return logits, list(tensor("tokens", "i")) if greedy else []


def log_softmax(row, token):
    top = max(row)
    return row[token] - top - math.log(sum(math.exp(value - top) for value in row))


def encode(server, text):
    return post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def test_loglikelihoods_are_those_of_mneme_logits(samples, text_server, text_model, bin_dir, tmp_path):
    worst, compared = 0.0, 0
    for sample in samples["mneme_choice"]:
        doc = sample["doc"]
        for choice, response in zip(doc["choices"], sample["resps"], strict=True):
            score, is_greedy = response[0]
            context = encode(text_server, doc["question"])
            ids = encode(text_server, doc["question"] + choice)
            logits, _ = reference(bin_dir, text_model, tmp_path, ids)
            rows = [(logits[i - 1], ids[i]) for i in range(len(context), len(ids))]
            want = sum(log_softmax(row, token) for row, token in rows)
            worst = max(worst, abs(float(score) - want) / abs(want))
            assert str(is_greedy) == str(all(row[t] == max(row) for row, t in rows))
            compared += 1
    assert compared == 7
    assert worst < 2e-5, f"worst relative error {worst}"


def test_generations_are_those_of_mneme_logits(samples, text_server, text_model, bin_dir, tmp_path):
    for sample in samples["mneme_words"]:
        ids = encode(text_server, sample["doc"]["question"])
        _, greedy = reference(bin_dir, text_model, tmp_path, ids, greedy=12)
        whole = post(text_server, "/detokenize", {"tokens": ids + greedy})["prompt"]
        prompt = post(text_server, "/detokenize", {"tokens": ids})["prompt"]
        assert prompt + sample["resps"][0][0] == whole
