"""Trains the SentencePiece model of the demo and writes all files of its tokenizer; the same bytes every
time.

usage: python -m demo.tokenizer demo/model

Unigram, byte fallback, nothing normalised. Two digits are one piece, with a space before them or
without. All words that a fact can hold are one piece, because they occur often enough in what it is
trained on.

tokenizer.json says the same for the transformers package: its Llama class knows BPE only. Ids are equal
but for one tie: "77" "7" and "7" "77" in an odd number of digits.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import sentencepiece

from demo import filler, world

VOCABULARY = 1920
SPACE = "\u2581"
SPECIAL = ("<unk>", "<s>", "</s>")
_NUMBERS = tuple(f"{number:02d}" for number in range(100))
_SPACED_NUMBERS = tuple(SPACE + number for number in _NUMBERS)
USER_DEFINED = ("\n", "User:", "Assistant:", "'s", *_NUMBERS, *_SPACED_NUMBERS)

# A system message begins the user's turn that follows. Answers are trimmed, as they begin with a space.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '\\nAssistant: ' + message['content'] | trim + eos_token }}"
    "{% elif message['role'] == 'user' or message['role'] == 'system' %}"
    "{% if loop.index0 > 0 and messages[loop.index0 - 1]['role'] == 'system' %}{{ ' ' }}"
    "{% else %}{{ ('' if loop.first else '\\n') + 'User: ' }}{% endif %}"
    "{{ message['content'] | trim }}"
    "{% else %}{{ raise_exception('a role is ' + message['role'] + ', expected user, assistant or system') }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\\nAssistant:' }}{% endif %}"
)


def key_words() -> list[str]:
    """The words that shall be one piece with the space before them."""
    words = {"My", "Your", "The", "my", "your", "is", *world.NAMES, *world.OBJECTS, *world.ATTRIBUTES}
    for attribute in world.ATTRIBUTES.values():
        words.update(value for value in attribute.values if not value.isdigit())
    return sorted(words)


def _sample(seed: int) -> Iterator[str]:
    """What the model is trained on, line by line."""
    rng = Random(seed)
    for _ in range(20000):  # more than there are pairs of subject and attribute
        (fact,) = world.random_facts(1, rng)
        yield " " + world.ask(fact.subject, fact.attribute, rng)
        yield " " + world.acknowledge(fact, rng)
        yield " " + world.tell(fact, rng)
        yield " " + world.update(fact, rng)
        yield " " + world.tell_together([fact, *world.random_facts(2, rng)], rng)
        yield " " + world.acknowledge_update(fact, rng)
    for _ in range(6000):
        for text in (*world.chatter(rng), *filler.story_turn(rng, 6)):
            yield " " + text
        yield world.story(rng, 4)
    for word in key_words():
        yield from [f" {word}"] * 400
    for word in filler.all_words():
        yield from [f" {word}"] * 100


def train(seed: int = 1) -> bytes:
    """The bytes of tokenizer.model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sample(seed),
        model_writer=model,
        model_type="unigram",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=list(USER_DEFINED),
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return _weigh_numbers(model.getvalue(), seed)


def _weigh_numbers(model: bytes, seed: int) -> bytes:
    """The model with another score for each number, where SentencePiece gives all the same.

    "12" "3" and "1" "23" would weigh the same otherwise, and the last bit of a sum decide, which each
    program adds in another way. A number with its space stays ahead of a space and a number.
    """
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
    best = max(piece.score for piece in proto.pieces if piece.type == normal)
    rng = Random(seed)
    by_name = {piece.piece: piece for piece in proto.pieces}
    for number in (*_NUMBERS, *_SPACED_NUMBERS):
        behind = 0.0 if number.startswith(SPACE) else 1.0
        by_name[number].type = normal
        by_name[number].score = len(number) * best - 0.1 - behind - rng.random() / 2
    return proto.SerializeToString(deterministic=True)


def _added(piece: str, token: int) -> dict[str, Any]:
    """An entry of added_tokens, which have the special tokens only."""
    return {
        "id": token,
        "content": piece,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def fast_tokenizer(processor: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The content of tokenizer.json."""
    size = processor.get_piece_size()
    pieces = [processor.id_to_piece(token) for token in range(size)]
    defined = {processor.piece_to_id(piece) for piece in set(USER_DEFINED) - {*_NUMBERS, *_SPACED_NUMBERS}}
    ordinary = range(len(SPECIAL) + len(USER_DEFINED) + 256, size)
    best = max(processor.get_score(token) for token in ordinary)

    def score(token: int) -> float:
        """As SentencePiece weighs pieces that are user-defined."""
        if token in defined:
            return len(pieces[token]) * best - 0.1
        return processor.get_score(token)

    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    unspace = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(piece, token) for token, piece in enumerate(SPECIAL)],
        "normalizer": space,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, first],
            "pair": [start, first, second],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [unspace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[piece, score(token)] for token, piece in enumerate(pieces)],
            "byte_fallback": True,
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """The content of tokenizer_config.json.

    Only the three special tokens may stand in added_tokens_decoder: a server keeps what users write from
    becoming one of those, and "'s" is an ordinary word.
    """
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(token): {key: value for key, value in _added(piece, token).items() if key != "id"}
            for token, piece in enumerate(SPECIAL)
        },
        "bos_token": "<s>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "model_max_length": 1000000000,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
    }


def write(folder: Path, model: bytes) -> None:
    """All files of the tokenizer, and how to generate by default."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    generation = {
        "bos_token_id": 1,
        "do_sample": True,
        "eos_token_id": 2,
        "max_new_tokens": 200,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for name, content, indent in (
        ("tokenizer.json", fast_tokenizer(processor), None),
        ("tokenizer_config.json", tokenizer_config(), 2),
        ("special_tokens_map.json", special, 2),
        ("generation_config.json", generation, 2),
    ):
        text = json.dumps(content, indent=indent, ensure_ascii=False, sort_keys=name != "tokenizer.json")
        (folder / name).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Trains and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.folder, train(arguments.seed))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(arguments.folder / "tokenizer.model"))
    split = [word for word in key_words() if len(processor.encode(" " + word)) > 1]
    print(
        f"{processor.get_piece_size()} pieces in {arguments.folder}; split words of facts: {split or 'none'}"
    )


if __name__ == "__main__":
    main()
