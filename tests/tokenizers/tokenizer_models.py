"""Small models of tokenizers, trained with the package tokenizers, and texts for them.

Nothing is fetched. Texts are the same in every run; the trainers of the package break ties as they like, so
the models are not.
"""

import json
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WORDS = (
    "the of and memory keeps its state while new tokens arrive one by one reading writing layers ran Don't "
    "we're they've I'll it's 'tis 1234 56 7 3.14 2024-11-23 x_y foo(bar) {} [] <a> != == => // /* */ "
    "naïve café Straße Ünïcode ﬁne ½ Ⅷ Ａｂｃ １２ İstanbul ſtrange ΑΣ ας русский текст ещё Ґ 中文 分词 測試 日本語 "
    "カタカナ ﾊﾝｶｸ ひらがな 한국어 한국 ไทย ภาษา हिन्दी नमस्ते עברית العربية ١٢٣ தமிழ் ქართული 😀 👩‍👩‍👧 🏳️‍🌈 e\u0301 o\u0308\u0323 q\u0307\u0323"
).split()
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u200b", "\u2028", "\u0085", "\u1680"]
ODD = (
    "\x00\x01\x07\x0b\x0c\x1b\x1c\x1f\x7f\x80\x85\xad\u0300\u0345\u034f\u0378\u061c\u0640\u0e33\u0eb3\u1160\u11a8"
    "\u180e\u1e9e\u200c\u200d\u200e\u2009\u202e\u2060\u2126\u212a\u2215\u2581\u2f00\u3000\u3099\u309a\u3131\uac00\ud7a3"
    "\ue000\uf900\ufb1d\ufdd0\ufe0f\ufeff\ufffc\ufffd\uffff\U0001d11e\U0001d400\U0001e944\U0001f1e6\U0001f3fb"
    "\U00020000\U0002f800\U000e0001\U000e0100\U0010ffff·¿¡…—–‘’“”«»€£©®™°±²³µ¶§"
)
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
ADDED = ["<s>", "</s>", "<unk>", "<pad>", "[MASK]", "<|im_start|>", "<think>", "##", "aha", "Zed", "naïve", "<|im_", "\n\n\n"]


def texts(seed, count, longest=60):
    """Texts that mix all of the above: words, spaces, odd characters, added tokens, cut ones."""
    rng = random.Random(seed)
    out = ["", " ", "  ", "a", "A b", " a", "a ", "\n", "'s", "<s>", "<s></s>", " <s> ", "x<think>y</think>"]
    while len(out) < count:
        parts = []
        for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 13])):
            kind = rng.randrange(10)
            if kind < 4:
                parts.append(rng.choice(WORDS))
            elif kind < 6:
                parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
            elif kind == 6:
                parts.append(rng.choice(PUNCTUATION) * rng.choice([1, 1, 2, 3]))
            elif kind == 7:
                parts.append(rng.choice(ODD))
            elif kind == 8:
                token = rng.choice(ADDED)
                parts.append(token if rng.random() < 0.8 else token[: rng.randrange(len(token))])
            else:
                parts.append(chr(rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])))
            if rng.random() < 0.35:
                parts.append(" ")
        text = "".join(c for c in "".join(parts) if not 0xD800 <= ord(c) <= 0xDFFF)
        out.append(text[:longest])
    return out


TRAINING = [" ".join(random.Random(i).choices(WORDS, k=8)) for i in range(300)]


def _json(tokenizer):
    return json.loads(tokenizer.to_str())


def byte_level_bpe(size=640):
    """Merges across everything, so that each cut of a pre-tokenizer shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(TRAINING + texts(1, 200), trainer)
    return _json(tokenizer)["model"]


def character_bpe(size=520, byte_fallback=True, suffix=None, prefix=None, **options):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Whitespace() if suffix or prefix else pre_tokenizers.Metaspace(split=False)
    )
    specials = ["<unk>", "<s>", "</s>", "<pad>"]
    if byte_fallback:
        specials += [f"<0x{b:02X}>" for b in range(256)]
    extra = {k: v for k, v in (("end_of_word_suffix", suffix), ("continuing_subword_prefix", prefix)) if v}
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, limit_alphabet=90, show_progress=False, max_token_length=10, **extra
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return {**_json(tokenizer)["model"], "byte_fallback": byte_fallback, "fuse_unk": True, **options}


def unigram(byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<unk>", "<s>", "</s>", "<pad>"] + [f"<0x{b:02X}>" for b in range(256) if byte_fallback]
    trainer = trainers.UnigramTrainer(
        vocab_size=330 + 256 * byte_fallback, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    model = _json(tokenizer)["model"]
    # Rounded, so that the file is small and equal everywhere.
    model["vocab"] = [[piece, round(score, 4)] for piece, score in model["vocab"]]
    return {**model, "byte_fallback": byte_fallback}


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], limit_alphabet=110, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING + [t.lower() for t in TRAINING], trainer)
    return _json(tokenizer)["model"]


def word_level():
    words = ["<unk>", "<s>", "</s>", "<pad>"]
    for word in WORDS + list(PUNCTUATION) + list("aZ 中一1"):
        if word not in words:
            words.append(word)
    return {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"}


MODELS = {
    "bytes": byte_level_bpe,
    "fallback": character_bpe,
    "unk": lambda: character_bpe(byte_fallback=False, size=300),
    "suffix": lambda: character_bpe(byte_fallback=False, size=420, suffix="</w>"),
    "prefix": lambda: character_bpe(byte_fallback=False, size=420, prefix="##"),
    "unigram": unigram,
    "unigram_fallback": lambda: unigram(True),
    "wordpiece": wordpiece,
    "wordlevel": word_level,
}
