#!/usr/bin/env python3
"""Compares Mneme's tokenizers with the packages tokenizers, transformers and sentencepiece: ids, decoded
texts and streams, over folders of all sorts (tokenizer_folders.py), the goldens and, with --model, folders
of one's own. Run by tools/check_tokenizers.sh, which installs the packages.

A difference is made as small as it gets, and each class of them, of one folder and one kind of text, is
told once. Exits 1 if there are any that `KNOWN` does not explain.

usage: compare_with_packages.py [--only WORD] [--texts N] [--quick | --whole] [--model FOLDER]... [--write-golden] TOKENIZE_LINES
"""

import argparse
import base64
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import unicodedata
from collections import Counter
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="critical", RUST_BACKTRACE="0")
logging.disable(logging.WARNING)

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
from tokenizer_folders import BYTE_LEVEL, Folder, folders  # noqa: E402
from tokenizer_models import MODELS, PUNCTUATION, WORDS, texts  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden"

# Differences that are meant: (word in the folder's name, kind of question or "", word in what the package says or
# "") and the reason.
KNOWN = [
    ("fallback", "decoded", "\\ufffd", "of a run of bytes that is not UTF-8 the package replaces every byte, streams cannot"),
    ('BPEDecoder", "suffix": "e"', "decoded", "", "a suffix within a token stays a space at the end of a text"),
    ("split_special_tokens", "", "", "whether texts may spell special tokens is the caller's choice (parse_special)"),
    ("sentencepiece", "long texts", "", "more unknown characters in a row than it may have are refused"),
    ("clean_up", "decoded", "", "clean_up_tokenization_spaces is not done: what it removes was said already in streams"),
    ("added: sn", "decoded", "", "a special token is skipped, also where its normalised spelling is not special"),
]


class Ours:
    """A tokenize_lines process."""

    def __init__(self, program, folder, vocab_size, model_type=""):
        command = [program, str(folder), str(vocab_size)] + ([model_type] if model_type else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.loaded = json.loads(self.process.stdout.readline() or '{"error": "it ended without a word"}')

    def ask(self, questions):
        """The answers, in the order of the questions."""

        def write():
            try:
                for question in questions:
                    self.process.stdin.write(json.dumps(question).encode() + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                pass

        writer = threading.Thread(target=write)
        writer.start()
        answers = []
        for _ in questions:
            line = self.process.stdout.readline()
            answers.append(json.loads(line) if line else {"error": "it ended without a word"})
        writer.join()
        return answers

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Package:
    """The tokenizers package, with one tokenizer.json."""

    def __init__(self, folder):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = 1 + max(self.tokenizer.get_vocab().values(), default=0)

    def answer(self, question):
        try:
            if "text" in question:
                pair = question.get("pair")
                encoding = self.tokenizer.encode(
                    question["text"], pair, add_special_tokens=question.get("add_special_tokens", False)
                )
                answer = {"ids": encoding.ids}
                if pair is not None:
                    answer["type_ids"] = encoding.type_ids
                return answer
            skip = question.get("skip_special_tokens", True)
            return {"text": self.tokenizer.decode(question["ids"], skip_special_tokens=skip)}
        except BaseException as error:  # noqa: BLE001: it panics; what it refuses, we may refuse
            if isinstance(error, KeyboardInterrupt):
                raise
            return {"error": str(error), "panic": type(error).__name__ == "PanicException"}


class Transformers(Package):
    """AutoTokenizer, where several files of a folder have a say."""

    def __init__(self, folder):
        self.auto = transformers.AutoTokenizer.from_pretrained(folder)
        self.tokenizer = self.auto._tokenizer
        self.size = 1 + max(self.auto.get_vocab().values(), default=0)

    def answer(self, question):
        if "ids" not in question:
            return super().answer(question)
        skip = question.get("skip_special_tokens", True)
        return {"text": self.auto.decode(question["ids"], skip_special_tokens=skip)}


class SentencePiece:
    """The sentencepiece package, which knows of no special tokens in texts."""

    def __init__(self, folder):
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.size = self.processor.vocab_size()

    def answer(self, question):
        if "text" in question:
            ids = self.processor.encode(question["text"])
            return {"ids": [self.processor.bos_id()] * question.get("add_special_tokens", False) + ids}
        return {"text": self.processor.decode(question["ids"])}


def sweep(width):
    """All of Unicode, `width` characters at a time: by themselves, and with a letter or a space between them.
    Of the planes that hold nothing, or private characters alone, some."""
    points = [c for c in map(chr, range(0x110000)) if not 0xD800 <= ord(c) <= 0xDFFF]
    points = [c for c in points if ord(c) < 0x34000 or 0xE0000 <= ord(c) < 0xE0200 or ord(c) % 64 < 2]
    for i in range(0, len(points), width):
        part = points[i : i + width]
        yield "".join(part)
        yield "a".join(part)
        yield " ".join(part)


def long_texts():
    """A megabyte of one character, and of classes that take turns."""
    for c in "a 0.\n中e\u0301'\u3000":
        yield c * (1_000_000 // len(c.encode()))
    for parts in ("a1", "a ", "A.", " \n", "1 ", "中a", "'s", "a\u0301", "Aa", "\r\n", " ▁", "<s>", "ab\u200b"):
        yield parts * (400_000 // len(parts.encode()))
    yield " ".join(random.Random(3).choices(WORDS, k=100_000))
    yield "".join(random.Random(4).choices(PUNCTUATION, k=300_000))


ILL_FORMED = [
    (b"\xff", 0), (b"ab\xc3", 2), (b"a\x80b", 1), (b"\xe2\x82", 0), (b"\xed\xa0\x80", 0), (b"x\xf4\x90\x80\x80", 1),
    (b"\xc0\xaf", 0), (b"\xf0\x80\x80\xaf", 0), (b"\xf8\x88\x80\x80\x80", 0), (b"\xe2\x82\xac\xff", 3),
    (b"\xf0\x9f\x98", 0), ("ä".encode() * 3 + b"\xa4", 6), (b"<s>\xfe</s>", 3),
]


def id_lists(size, seed, count):
    rng = random.Random(seed)
    out = [[]] + [[i] for i in range(size)]
    out += [[rng.randrange(size) for _ in range(rng.choice([2, 3, 5, 9, 20]))] for _ in range(count)]
    return out


def same(ours, theirs):
    """Whether both say the same; what both refuse is, and what the package has no answer to."""
    if theirs.get("panic"):
        return True
    if "error" in ours or "error" in theirs:
        return "error" in ours and "error" in theirs
    return all(ours.get(key) == value for key, value in theirs.items())


def smaller(question, differs):
    """The question with the least text, or the fewest ids, that still differs."""
    key = "text" if "text" in question else "ids"
    rest = question[key]
    size = max(1, len(rest) // 2)
    tries = 0
    while size >= 1 and tries < 4000:
        for i in range(0, len(rest), size):
            if len(rest) > 20_000 and tries > 40:
                return {**question, key: rest}  # each try takes a second
            shorter = rest[:i] + rest[i + size :]
            tries += 1
            if differs({**question, key: shorter}):
                rest = shorter
                break
        else:
            size = size // 2 if size > 1 else 0
    return {**question, key: rest}


def class_of(question):
    """Characters by their category, or ids as they are; each run once."""
    if "text" not in question:
        return ("ids", len(question["ids"]) > 1)
    kinds = []
    for c in question["text"]:
        kind = c if c in "▁'" else "white" if c.isspace() else unicodedata.category(c)
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return ("text", "pair" in question, tuple(kinds[:6]))


class Comparison:
    def __init__(self, program, text_count):
        self.program = program
        self.text_count = text_count
        self.asked = Counter()
        self.refused = []
        self.known = 0
        self.left = 0

    def tell(self, *difference):
        name, kind, question, ours, theirs = difference
        why = explained(difference)
        self.known += why is not None
        self.left += why is None
        print(f"{'known' if why else 'DIFFERENT'}: {name}, {kind}" + (f": {why}" if why else ""))
        for label, value in (("question", question), ("ours", ours), ("theirs", theirs)):
            print(f"    {label:9}{json.dumps(value, ensure_ascii=True)[:400]}", flush=True)

    def run(self, name, folder, reference, model_type="", whole=False):
        """`whole`: all of Unicode, and for some long texts, too."""
        print(name, file=sys.stderr, flush=True)
        try:
            theirs = reference(folder)
        except BaseException as error:  # noqa: BLE001: the package panics
            theirs, why = None, f"{type(error).__name__}: {error}"
        ours = Ours(self.program, folder, theirs.size if theirs else 1000, model_type)
        try:
            if theirs is None:
                self.asked["folders that the package refuses"] += 1
                if "error" not in ours.loaded:
                    self.tell(name, "load", {}, ours.loaded, {"error": why})
            elif "error" in ours.loaded:
                self.refused.append(name)
                print(f"refused: {name}\n    {ours.loaded['error']}", flush=True)
            else:
                self.asked["folders"] += 1
                self.compare(name, ours, theirs, whole)
        finally:
            ours.close()

    def compare(self, name, ours, theirs, whole):
        found = texts(7, self.text_count)
        questions = [("ids", {"text": t}) for t in found]
        questions += [("with special", {"text": t, "add_special_tokens": True}) for t in found[: self.text_count // 4]]
        if not isinstance(theirs, SentencePiece):
            for a, b in zip(found[: self.text_count // 8], found[30:]):
                questions.append(("pairs", {"text": a, "pair": b, "add_special_tokens": True}))
                questions.append(("pairs", {"text": a, "pair": b}))
        if whole:
            questions += [("all of Unicode", {"text": t}) for t in sweep(256)]
        if whole and name.startswith(("model", "golden")):
            questions += [("long texts", {"text": t}) for t in long_texts()]
        if isinstance(theirs, SentencePiece):
            questions = [(kind, {**q, "parse_special": False}) for kind, q in questions]
        id_questions = []
        for skip in (True, False):
            if isinstance(theirs, SentencePiece) and not skip:
                continue
            for ids in id_lists(theirs.size, 5, self.text_count):
                id_questions.append(("decoded", {"ids": ids, "skip_special_tokens": skip}))
        self.check(name, ours, theirs, questions + id_questions)
        self.check_streams(name, ours, id_questions)
        for data, offset in ILL_FORMED:
            answer = ours.ask([{"bytes_hex": data.hex()}])[0]
            self.asked["ill-formed texts"] += 1
            if f"offset {offset} " not in answer.get("error", "") + " ":
                self.tell(name, "ill-formed", {"bytes_hex": data.hex()}, answer, {"offset": offset})

    def check(self, name, ours, theirs, questions):
        answers = ours.ask([question for _, question in questions])
        told = set()
        for (kind, question), answer in zip(questions, answers):
            self.asked[kind] += 1
            if same(answer, theirs.answer(question)):
                continue

            def differs(changed):
                return not same(ours.ask([changed])[0], theirs.answer(changed))

            if ours.process.poll() is not None:
                self.tell(name, kind, question, answer, {})
                return
            if len(told) > 40:
                return
            least = smaller(question, differs)
            key = (kind, class_of(least))
            if key not in told:
                told.add(key)
                self.tell(name, kind, least, ours.ask([least])[0], theirs.answer(least))

    def check_streams(self, name, ours, id_questions):
        """Whatever was held back where: the pieces are the whole."""
        streams = [
            {"stream": question["ids"], "skip_special_tokens": question["skip_special_tokens"]}
            for _, question in id_questions
        ]
        wholes = ours.ask([question for _, question in id_questions])
        for (_, question), stream, whole in zip(id_questions, ours.ask(streams), wholes):
            self.asked["streams"] += 1
            if "".join(stream.get("pieces", ["error"])) != whole.get("text"):
                self.tell(name, "stream", question, stream, whole)
                return


def explained(difference):
    name, kind, _, _, theirs = difference
    said = json.dumps(theirs)
    return next((why for word, k, part, why in KNOWN if word in name and k in ("", kind) and part in said), None)


def charsmap():
    """The normaliser of a golden SentencePiece model, as tokenizer.json holds it."""
    from transformers.utils import sentencepiece_model_pb2_new as proto  # noqa: PLC0415

    model = proto.ModelProto()
    model.ParseFromString((GOLDEN / "tokenizer_sp/unigram.model").read_bytes())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def write_folder(contents, path):
    for name, text in contents.items():
        (path / name).write_text(text, encoding="utf-8", newline="")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="folders whose name has this word")
    parser.add_argument("--texts", type=int, default=400)
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--whole", action="store_true", help="all of Unicode for every folder, not for some")
    whole.add_argument("--quick", action="store_true", help="for none")
    parser.add_argument("--model", action="append", default=[], type=Path, help="a folder to compare, too")
    parser.add_argument("--write-golden", type=Path, help="write a small part of it all to this file instead")
    arguments = parser.parse_args()

    # The charsmap is too long for a golden.
    all_folders = folders(None if arguments.write_golden else charsmap())
    all_folders = [f for f in all_folders if arguments.only in f.name]
    models = {name: make() for name, make in MODELS.items()}
    if arguments.write_golden:
        return write_golden(arguments.write_golden, all_folders, models)

    comparison = Comparison(arguments.program, arguments.texts)
    with tempfile.TemporaryDirectory() as scratch:
        for i, folder in enumerate(all_folders):
            path = Path(scratch) / str(i)
            path.mkdir()
            write_folder(folder.contents(models[folder.model]), path)
            some = not arguments.quick and folder.name.startswith(("normalizer", "pre-tokenizer", "model:"))
            reference = Package if folder.reference == "tokenizers" else Transformers
            comparison.run(folder.name, path, reference, folder.model_type, arguments.whole or some)
        for name in ("bpe", "wordpiece", "unigram", "qwen3", "qwen35"):
            if arguments.only in f"golden: {name}":
                comparison.run(f"golden: {name}", GOLDEN / f"tokenizer_{name}", Transformers, whole=not arguments.quick)
        for name in ("bpe", "unigram"):
            if arguments.only in f"golden: sentencepiece {name}":
                path = Path(scratch) / f"sentencepiece_{name}"
                path.mkdir()
                (path / "tokenizer.model").write_bytes((GOLDEN / f"tokenizer_sp/{name}.model").read_bytes())
                comparison.run(f"golden: sentencepiece {name}", path, SentencePiece, whole=not arguments.quick)
        for path in arguments.model:
            comparison.run(str(path), path, Transformers, whole=not arguments.quick)

    for kind, count in comparison.asked.items():
        print(f"{count:9} {kind}")
    print(f"{len(comparison.refused):9} folders refused")
    print(f"{comparison.known:9} known differences")
    print(f"{comparison.left:9} differences")
    return 1 if comparison.left else 0


def write_golden(path, all_folders, models):
    """Writes the file that mix_tokenizer_test.cc reads: each folder with a few texts and lists of ids."""
    cases = []
    shared = []  # values that many folders have
    plain = {}  # by model: what a text gives without anything around the model
    for folder in all_folders:
        with tempfile.TemporaryDirectory() as scratch:
            write_folder(folder.contents(models[folder.model]), Path(scratch))
            theirs = (Package if folder.reference == "tokenizers" else Transformers)(Path(scratch))
            if folder.model not in plain:
                bare = Folder("", folder.model, parts={"pre_tokenizer": BYTE_LEVEL if folder.model == "bytes" else None})
                write_folder({"tokenizer.json": bare.contents(models[folder.model])["tokenizer.json"]}, Path(scratch))
                plain[folder.model] = Package(Path(scratch))
            case = golden_case(folder, theirs, plain[folder.model], shared)
            cases += [case] if case else []
    head = {"models": models, "shared": shared}
    lines = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in [head, *cases]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(cases)} folders, {path.stat().st_size} bytes")
    return 0


def golden_case(folder, theirs, plain, shared):
    rng = random.Random(folder.name)
    # First of all texts in which this folder's rules show.
    found = [t for t in texts(11, 400, 10) if len(t) > 3 and "error" not in theirs.answer({"text": t})]
    rng.shuffle(found)
    found.sort(key=lambda t: same(theirs.answer({"text": t}), plain.answer({"text": t})))
    if len(found) < 3:
        return None  # the package panics
    asked = [{"text": t} for t in found[: 1 if folder.name.startswith("added") else 2]]
    asked.append({"text": found[2], "add_special_tokens": True})
    if folder.name.startswith(("post-processor", "class", "model type", "vocab")):
        asked.append({"text": found[0], "pair": found[1], "add_special_tokens": True})
        asked.append({"text": found[0], "pair": found[1]})
    if folder.name.startswith("decoder"):
        asked = []
    first = 0
    if folder.name.startswith("added"):
        asked.append({"text": "e\n\n\n"})
        first = theirs.size - 20
    if folder.name.startswith("sources"):
        asked.append({"ids": list(range(639, theirs.size)), "skip_special_tokens": True})
    for i in range(4 if folder.name.startswith("decoder") else 2):
        asked.append({"ids": [rng.randrange(first, theirs.size) for _ in range(4)], "skip_special_tokens": i % 2 == 0})
    answers = []
    for question in asked:
        kind = "decoded" if "ids" in question else "ids"
        answer = theirs.answer(question)
        if not explained((folder.name, kind, question, {}, answer)):
            answers.append([question, answer])
    out = {"name": folder.name, "model": folder.model, "size": theirs.size, "cases": answers}
    out["parts"] = {}
    for key, value in folder.parts.items():
        if value not in shared:
            shared.append(value)
        out["parts"][key] = shared.index(value)
    for key in ("model_options", "config", "model_type", "extra"):
        if getattr(folder, key):
            out[key] = getattr(folder, key)
    if folder.files != ("tokenizer.json",):
        out["files"] = folder.files
    return out


if __name__ == "__main__":
    sys.exit(main())
