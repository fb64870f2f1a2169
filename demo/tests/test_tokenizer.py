"""The tokenizer's files: the same bytes again, whole words, and the same ids for transformers."""

from pathlib import Path

import pytest

pytest.importorskip("numpy")
sentencepiece = pytest.importorskip("sentencepiece")

from demo import tokenizer  # noqa: E402
from demo.corpus import DEFAULT_TOKENIZER, EOS, Encoder, Stream  # noqa: E402

FOLDER = DEFAULT_TOKENIZER.parent


@pytest.fixture(scope="module")
def processor() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(DEFAULT_TOKENIZER))


def test_training_again_gives_the_files_that_are_here(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    tokenizer.write(tmp_path, tokenizer.train())
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_words_of_facts_are_one_piece(processor: sentencepiece.SentencePieceProcessor) -> None:
    assert [word for word in tokenizer.key_words() if len(processor.encode(" " + word)) != 1] == []
    assert processor.encode(" Anna's code is 7281.", out_type=str) == [
        "\u2581Anna", "'s", "\u2581code", "\u2581is", "\u258172", "81", "."
    ]  # fmt: skip


def test_turns_begin_with_one_piece(processor: sentencepiece.SentencePieceProcessor) -> None:
    assert processor.encode("User: What\nAssistant: Your", out_type=str) == [
        "User:", "\u2581What", "\n", "Assistant:", "\u2581Your"
    ]  # fmt: skip


def test_only_special_tokens_are_declared_as_added() -> None:
    assert set(tokenizer.tokenizer_config()["added_tokens_decoder"]) == {"0", "1", "2"}


@pytest.fixture(scope="module")
def fast():  # noqa: ANN201
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(FOLDER)


def test_transformers_gives_the_ids_of_sentencepiece(fast, processor) -> None:  # noqa: ANN001
    texts = [
        "Hello, w\u00f6rld \u2603 7 42 1234 12345678!",
        "  two  spaces ",
        "",
        "\n\n a\tb",
        "Anna72 x's 's Users: User:User:",
        "The announcement surprised Benjamin's teacher in 1999.",
        *(f"{number} of {number}, x{number}" for number in (7, 100, 728, 12345, 1234567, 571038, 864209753)),
    ]
    stream = Stream(23, 2048)
    for _ in range(20):
        ids = stream.next()[0].tolist()
        texts += [processor.decode(part) for part in _turns(ids)]
    for text in texts:
        assert fast(text)["input_ids"] == [1, *processor.encode(text)], text
        assert fast(text, add_special_tokens=False)["input_ids"] == processor.encode(text), text
        assert fast.decode(processor.encode(text)) == text


def _turns(ids: list[int]) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids[1:]:
        if token == EOS:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def test_the_chat_template_writes_what_the_corpus_has(fast) -> None:  # noqa: ANN001
    encoder = Encoder()
    messages = [
        {"role": "user", "content": "My code is 7281."},
        {"role": "assistant", "content": " Noted. Your code is 7281."},
        {"role": "user", "content": "What is my code?"},
    ]
    text = (
        "<s>User: My code is 7281.\nAssistant: Noted. Your code is 7281.</s>\n"
        "User: What is my code?\nAssistant:"
    )
    assert fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    ids = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == [
        1, encoder.user, *encoder.spaced("My code is 7281."), encoder.newline, encoder.assistant,
        *encoder.spaced("Noted. Your code is 7281."), 2, encoder.newline, encoder.user,
        *encoder.spaced("What is my code?"), encoder.newline, encoder.assistant,
    ]  # fmt: skip


def test_a_system_message_begins_the_users_turn(fast) -> None:  # noqa: ANN001
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}]
    assert fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<s>User: Be kind. Hello.\nAssistant:"
    )
