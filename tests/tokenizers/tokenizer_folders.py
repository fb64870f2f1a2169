"""Tokenizer folders of all sorts: around small models (tokenizer_models.py) each normalizer, pre-tokenizer,
decoder, post-processor and kind of added token by itself and in combinations. They are the same in every
run.
"""

import itertools
import json
from dataclasses import dataclass, field

# Patterns in use; those of GPT-2 are built into ByteLevel.
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CL100K,
    "cl100k_possessive": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "o200k": O200K,
    "qwen2": CL100K.replace("{1,3}", ""),
    "qwen35": CL100K.replace("{1,3}", "")
    .replace(r"\p{L}+|", r"[\p{L}\p{M}]+|")
    .replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),
    "digits3": r"\p{N}{1,3}",
    "digits3_from_behind": r"\d{1,3}(?=(?:\d{3})*\b)",
    "cjk": "[一-龥぀-ゟ゠-ヿ]+",
    "letters_ascii": r"[A-Za-z]+'?[a-z]*",
}


def _added(content, id, special=True, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": not special, "special": special, **flags}


def _specials():
    return [_added(t, i) for i, t in enumerate(["<unk>", "<s>", "</s>", "<pad>"])]


@dataclass
class Folder:
    """A folder to be: tokenizer.json is `model` with `parts` around it, where `model` is one of MODELS."""

    name: str
    model: str
    model_options: dict = field(default_factory=dict)
    parts: dict = field(default_factory=dict)
    config: dict | None = None  # tokenizer_config.json
    model_type: str = ""
    files: tuple = ("tokenizer.json",)  # of tokenizer.json, vocab.json, merges.txt, vocab.txt
    extra: dict = field(default_factory=dict)  # further files, as text or as what JSON holds

    @property
    def reference(self):
        """transformers' AutoTokenizer where files other than tokenizer.json have a say."""
        return "tokenizers" if self.config is None and not self.extra and not self.model_type else "transformers"

    def contents(self, model):
        """Names to texts."""
        model = {**model, **self.model_options}
        out = {}
        if "tokenizer.json" in self.files:
            whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": _specials()}
            whole |= {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
            out["tokenizer.json"] = {**whole, **self.parts, "model": model}
        if "vocab.json" in self.files:
            out["vocab.json"] = model["vocab"]
        if "merges.txt" in self.files:
            out["merges.txt"] = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in map(_pair, model["merges"]))
        if "vocab.txt" in self.files:
            by_id = sorted(model["vocab"], key=model["vocab"].get)
            out["vocab.txt"] = "".join(f"{token}\n" for token in by_id)
        if self.config is not None:
            out["tokenizer_config.json"] = self.config
        if self.model_type:
            out["config.json"] = {"model_type": self.model_type}
        out |= self.extra
        return {n: t if isinstance(t, str) else json.dumps(t, ensure_ascii=False) for n, t in out.items()}


def _pair(merge):
    return merge.split(" ") if isinstance(merge, str) else merge


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def _split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def _bytes(name, normalizer=None, pre_tokenizer=None, **more):
    """On the byte-level model, where every change of the text and each cut shows."""
    pre = BYTE_LEVEL
    if pre_tokenizer:
        pre = {"type": "Sequence", "pretokenizers": [pre_tokenizer, BYTE_LEVEL]}
    parts = {"normalizer": normalizer, "pre_tokenizer": pre, "decoder": BYTE_DECODER}
    return Folder(name, "bytes", parts={**parts, **more.pop("parts", {})}, **more)


def _normalizers(charsmap):
    bert = [
        {"type": "BertNormalizer", "clean_text": c, "handle_chinese_chars": h, "strip_accents": s, "lowercase": l}
        for c, h, s, l in itertools.product([True, False], [True, False], [None, True, False], [True, False])
    ]
    simple = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")]
    strip = [{"type": "Strip", "strip_left": l, "strip_right": r} for l in (True, False) for r in (True, False)]
    replace = [
        {"type": "Replace", "pattern": p, "content": c}
        for p, c in (
            ({"String": " "}, "▁"),
            ({"String": "a"}, ""),
            ({"String": "ab"}, "$1x"),
            ({"Regex": " {2,}"}, " "),
            ({"Regex": r"\s+"}, " "),
            ({"Regex": r"[\n\r\t]"}, "\\n"),
            ({"Regex": r"^\s+|\s+$"}, ""),
            ({"Regex": r"\p{M}"}, ""),
        )
    ]
    prepend = [{"type": "Prepend", "prepend": p} for p in ("▁", "x y")]
    sequences = [
        {"type": "Sequence", "normalizers": n}
        for n in (
            [],
            [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}],
            [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "NFC"}],
            [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
            [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "▁"}],
            [{"type": "Sequence", "normalizers": [{"type": "NFC"}]}, {"type": "Lowercase"}],
        )
    ]
    precompiled = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
    return simple + strip + replace + prepend + sequences + bert + precompiled


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def _pre_tokenizers():
    out = [{"type": t} for t in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")]
    out += [{"type": "Punctuation", "behavior": b} for b in BEHAVIORS]
    out += [{"type": "Digits", "individual_digits": i} for i in (True, False)]
    out += [{"type": "CharDelimiterSplit", "delimiter": d} for d in " -é"]
    out += [{"type": "FixedLength", "length": n} for n in (1, 3)]
    out += [
        {"type": "Metaspace", "replacement": r, "prepend_scheme": p, "split": s}
        for r, p, s in itertools.product("▁_", ("always", "first", "never"), (True, False))
    ]
    out += [_split({"Regex": p}) for p in PATTERNS.values()]
    out += [_split({"Regex": PATTERNS["cl100k"]}, "Removed", True)]
    for behavior, invert in itertools.product(BEHAVIORS, (True, False)):
        out.append(_split({"Regex": r"\s+"}, behavior, invert))
        out.append(_split({"String": "a"}, behavior, invert))
    out += [
        {"type": "Sequence", "pretokenizers": p}
        for p in (
            [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}],
            [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}],
            [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}],
            [_split({"Regex": PATTERNS["digits3"]}), _split({"Regex": PATTERNS["cjk"]}), _split({"Regex": PATTERNS["letters_ascii"]})],
        )
    ]
    return out


def _decoders():
    strip = [{"type": "Strip", "content": " ", "start": s, "stop": e} for s, e in ((1, 0), (0, 1), (2, 0))]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    out = [None, BYTE_DECODER, fallback, fuse, replace, *strip]
    out += [{"type": "WordPiece", "prefix": p, "cleanup": c} for p in ("##", "e") for c in (True, False)]
    out += [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": p, "split": True}
        for p in ("always", "first", "never")
    ]
    out += [{"type": "BPEDecoder", "suffix": s} for s in ("</w>", "e")]
    out += [
        {"type": "Sequence", "decoders": d}
        for d in (
            [replace, fallback, fuse, strip[0]],
            [replace, fallback, fuse],
            [fallback, fuse, replace],
            [fallback, replace, fuse, strip[0]],
            [replace, fuse, strip[0]],
        )
    ]
    return out


def _template(single, pair, tokens):
    def item(word):
        name, _, type_id = word.partition(":")
        key = "Sequence" if name in "AB" else "SpecialToken"
        return {key: {"id": name, "type_id": int(type_id or 0)}}

    return {
        "type": "TemplateProcessing",
        "single": [item(w) for w in single.split()],
        "pair": [item(w) for w in pair.split()],
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in tokens.items()},
    }


def _post_processors():
    tokens = {"<s>": 1, "</s>": 2}
    template = _template("<s> A </s>", "<s> A </s> B:1 </s>:1", tokens)
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True}
    return [
        template,
        _template("A", "A B:1", {}),
        _template("<s> A", "<s> A <s>:1 B:1", {"<s>": 1}),
        _template("A </s>", "A </s> B </s>", {"</s>": 2}),
        _template("<s> <s> A", "A:1 </s>:3 B:2", tokens),
        {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
        roberta,
        {**roberta, "trim_offsets": False, "add_prefix_space": False},
        byte_level,
        {"type": "Sequence", "processors": [byte_level, template]},
    ]


def _added_tokens():
    """All flags, of tokens that are in the model, are new, touch each other or need the normalizer."""
    out = []
    for special, normalized in itertools.product((True, False), repeat=2):
        for lstrip, rstrip, single_word in itertools.product((True, False), repeat=3):
            flags = {"special": special, "normalized": normalized, "lstrip": lstrip, "rstrip": rstrip}
            flags["single_word"] = single_word
            label = "".join(k[0] for k, v in flags.items() if v) or "plain"
            out.append((label, flags))
    return out


CONTENTS = ["aha", "Zed", "naïve", "[MASK]", "<think>", "##", "\n\n\n", "e", "<|im_", "<|im_start|>"]


def folders(charsmap=None):
    out = []

    def add(kind, label, made):
        made.name = f"{kind}: {label}"
        out.append(made)

    def short(part):
        return json.dumps(part, ensure_ascii=False)[:110]

    for part in _normalizers(charsmap):
        add("normalizer", short(part), _bytes("", normalizer=part))
    add("normalizer", "ByteLevel", Folder("", "bytes", parts={"normalizer": {"type": "ByteLevel"}, "decoder": BYTE_DECODER}))
    for part in _pre_tokenizers():
        add("pre-tokenizer", short(part), _bytes("", pre_tokenizer=part))
    for prefix, regex in itertools.product((True, False), repeat=2):
        part = {**BYTE_LEVEL, "add_prefix_space": prefix, "use_regex": regex}
        add("pre-tokenizer", f"ByteLevel {prefix} {regex}", Folder("", "bytes", parts={"pre_tokenizer": part, "decoder": BYTE_DECODER}))
    for part in _decoders():
        for model in ("bytes", "fallback", "unk", "wordpiece", "suffix"):
            parts = {"decoder": part}
            parts["pre_tokenizer"] = BYTE_LEVEL if model == "bytes" else None
            add("decoder", f"{model} {short(part)}", Folder("", model, parts=parts))
    for part in _post_processors():
        add("post-processor", short(part), _bytes("", parts={"post_processor": part}))
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    for model, pre in (
        ("fallback", {**metaspace, "split": False}),
        ("fallback", {**metaspace, "prepend_scheme": "first", "split": False}),
        ("fallback", None),
        ("unk", metaspace),
        ("unk", {"type": "Whitespace"}),
        ("suffix", {"type": "Whitespace"}),
        ("prefix", {"type": "BertPreTokenizer"}),
        ("unigram", metaspace),
        ("unigram", {**metaspace, "prepend_scheme": "first"}),
        ("unigram", None),
        ("unigram_fallback", metaspace),
        ("wordpiece", {"type": "BertPreTokenizer"}),
        ("wordpiece", {"type": "WhitespaceSplit"}),
        ("wordlevel", {"type": "Whitespace"}),
        ("wordlevel", {"type": "WhitespaceSplit"}),
        ("wordlevel", None),
    ):
        decoder = {
            "wordpiece": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "suffix": {"type": "BPEDecoder", "suffix": "</w>"},
            "wordlevel": None,
            "unk": metaspace,
            "prefix": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        }.get(model, {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
        add("model", f"{model} {short(pre)}", Folder("", model, parts={"pre_tokenizer": pre, "decoder": decoder}))
    for model, options in (
        ("bytes", {"ignore_merges": True}),
        ("fallback", {"ignore_merges": True}),
        ("unk", {"fuse_unk": False}),
        ("unk", {"unk_token": None}),
        ("fallback", {"byte_fallback": False}),
        ("fallback", {"byte_fallback": False, "fuse_unk": False}),
        ("wordpiece", {"max_input_chars_per_word": 5}),
        ("wordpiece", {"continuing_subword_prefix": "e"}),
    ):
        pre = BYTE_LEVEL if model == "bytes" else {"type": "WhitespaceSplit"} if model == "wordpiece" else None
        decoder = BYTE_DECODER if model == "bytes" else None
        add("model", f"{model} {options}", Folder("", model, options, parts={"pre_tokenizer": pre, "decoder": decoder}))
    for label, flags in _added_tokens():
        for normalizer in (None, {"type": "Lowercase"}, {"type": "NFD"}):
            tokens = _specials() + [_added(c, 640 + i, **flags) for i, c in enumerate(CONTENTS)]
            add("added", f"{label} {short(normalizer)}", _bytes("", normalizer=normalizer, parts={"added_tokens": tokens}))
    for label, part in (
        ("prepend", {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}}),
        ("always", {"pre_tokenizer": metaspace}),
        ("first", {"pre_tokenizer": {**metaspace, "prepend_scheme": "first"}}),
        ("never", {"pre_tokenizer": {**metaspace, "prepend_scheme": "never", "split": False}}),
        ("strip", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}),
    ):
        for special in (True, False):
            if label == "strip" and not special:
                continue  # the package takes all memory
            tokens = _specials() + [_added(c, 520 + i, special=special) for i, c in enumerate(CONTENTS)]
            decoder = {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
            add("added", f"fallback {label} {'special' if special else 'plain'}",
                Folder("", "fallback", parts={**part, "decoder": decoder, "added_tokens": tokens}))
    mixed = _specials() + [
        _added("<|im_start|>", 640), _added("<think>", 641, False, normalized=False), _added("aha", 642, False),
        _added("[MASK]", 643, lstrip=True), _added("Zed", 644, False, single_word=True), _added("##", 645, rstrip=True),
        _added("e", 646, False, normalized=False, single_word=True), _added("<|im_", 647),
    ]
    for normalizer in (None, {"type": "Lowercase"}):
        add("added", f"mixed {short(normalizer)}", _bytes("", normalizer=normalizer, parts={"added_tokens": mixed}))
    out += _class_folders(mixed, add)
    return out


def _class_folders(mixed, add):
    """Folders whose other files have a say: classes, added_tokens_decoder, special tokens, options."""
    odd = {
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
        "post_processor": _template("<s> A", "<s> A B:1", {"<s>": 1}),
        "decoder": BYTE_DECODER,
        "added_tokens": mixed,
    }
    file_class = "TokenizersBackend"
    classes = ("GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer",
               "RobertaTokenizer", "LlamaTokenizer", "PreTrainedTokenizerFast", file_class, "NoSuchTokenizer")
    for name in classes:
        add("class", name, Folder("", "bytes", parts=odd, config={"tokenizer_class": name}))
    for kind in ("gpt2", "mamba", "falcon_mamba", "qwen2", "qwen3", "qwen3_5", "qwen3_next", "nemotron_h", "llama",
                 "mistral", "roberta", "olmo_hybrid", "gated_deltanet"):
        add("model type", kind, Folder("", "bytes", parts=odd, model_type=kind))
        add("model type", f"{kind} GPT2Tokenizer",
            Folder("", "bytes", parts=odd, config={"tokenizer_class": "GPT2Tokenizer"}, model_type=kind))
    for name in ("GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "RobertaTokenizer"):
        for extra in ({}, {"add_prefix_space": True}, {"add_bos_token": True, "bos_token": "<s>"},
                      {"add_eos_token": True, "eos_token": "</s>"}, {"pad_token": "<pad>", "unk_token": "<unk>"}):
            config = {"tokenizer_class": name, **extra}
            label = f"{name} {json.dumps(extra)}"
            add("class", label, Folder("", "bytes", parts=odd, config=config))
            add("vocab.json", label, Folder("", "bytes", config=config, files=("vocab.json", "merges.txt")))
    llama = {"pre_tokenizer": None, "decoder": None, "post_processor": _template("<s> A", "<s> A B:1", {"<s>": 1})}
    for extra in ({}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}, {"add_bos_token": True}):
        add("class", f"LlamaTokenizer fallback {json.dumps(extra)}",
            Folder("", "fallback", parts=llama, config={"tokenizer_class": "LlamaTokenizer", **extra}))
    bert = {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<pad>"}
    for extra in ({}, {"do_lower_case": False}, {"strip_accents": False}, {"strip_accents": True, "do_lower_case": False},
                  {"tokenize_chinese_chars": False}, {"clean_up_tokenization_spaces": True}):
        config = {"tokenizer_class": "BertTokenizer", **bert, **extra}
        add("class", f"BertTokenizer {json.dumps(extra)}", Folder("", "wordpiece", parts={"decoder": None}, config=config))
        add("vocab.txt", f"BertTokenizer {json.dumps(extra)}", Folder("", "wordpiece", config=config, files=("vocab.txt",)))

    def token(content, **flags):
        made = {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        return {**made, "special": True, **flags}

    sources = {
        "pad_token": ({"pad_token": "aha"}, {}),
        "pad_token, object": ({"pad_token": {"__type": "AddedToken", **token("aha", lstrip=True)}}, {}),
        "pad_token, a piece": ({"pad_token": "Ġthe"}, {}),
        "pad_token, not special": ({"pad_token": "<think>"}, {}),
        "additional": ({"additional_special_tokens": ["naïve", "e2"]}, {}),
        "additional, not special": ({"additional_special_tokens": ["<think>"]}, {}),
        "extra list": ({"extra_special_tokens": ["naïve"]}, {}),
        "extra object": ({"extra_special_tokens": {"image_token": "naïve"}}, {}),
        "other key": ({"image_token": "naïve"}, {}),
        "decoder": ({"added_tokens_decoder": {"648": token("naïve", special=False, normalized=True)}}, {}),
        "decoder, flags": ({"added_tokens_decoder": {"641": token("<think>", lstrip=True)}}, {}),
        "decoder, unspecial": ({"added_tokens_decoder": {"640": token("<|im_start|>", special=False)}}, {}),
        "decoder, named": ({"eos_token": "<think>", "added_tokens_decoder": {"641": token("<think>", special=False)}}, {}),
        "decoder, named elsewhere": ({"eos_token": "<think>", "added_tokens_decoder": {"1": token("<s>")}}, {}),
        "decoder, a few": ({"added_tokens_decoder": {str(i): token(t) for i, t in ((1, "<s>"), (2, "</s>"))}}, {}),
        "several": ({"eos_token": "e3", "bos_token": "e1", "pad_token": "e5", "unk_token": "e4", "mask_token": "e7",
                     "cls_token": "e6", "sep_token": "e8", "additional_special_tokens": ["e9"]}, {}),
        "map": ({}, {"special_tokens_map.json": {"pad_token": "naïve", "additional_special_tokens": ["e2"]}}),
        "map, objects": ({}, {"special_tokens_map.json": {"pad_token": {k: v for k, v in token("naïve", rstrip=True).items() if k != "special"}}}),
        "map over config": ({"eos_token": "e2"}, {"special_tokens_map.json": {"eos_token": "e3"}}),
        "map beside decoder": ({"added_tokens_decoder": {"1": token("<s>")}}, {"special_tokens_map.json": {"eos_token": "e3"}}),
        "added_tokens.json": ({}, {"added_tokens.json": {"naïve": 648, "e2": 649}}),
        "added_tokens.json beside decoder": ({"added_tokens_decoder": {"1": token("<s>")}}, {"added_tokens.json": {"naïve": 648}}),
        "split_special_tokens": ({"split_special_tokens": True}, {}),
        "clean_up": ({"clean_up_tokenization_spaces": True}, {}),
        "add_bos_token": ({"add_bos_token": True, "bos_token": "<s>"}, {}),
        "null": ({"eos_token": None, "bos_token": None}, {}),
        "length": ({"model_max_length": 3, "padding_side": "left", "truncation_side": "left"}, {}),
    }
    for name in (file_class, "GPT2Tokenizer"):
        for label, (config, extra) in sources.items():
            whole = {"tokenizer_class": name, **config}
            add("sources", f"{name} {label}", Folder("", "bytes", parts={**odd, "added_tokens": mixed}, config=whole, extra=extra))
            if name == "GPT2Tokenizer":
                add("sources", f"vocab.json {label}",
                    Folder("", "bytes", config=whole, extra=extra, files=("vocab.json", "merges.txt")))
    for name in ("unigram", "wordpiece"):
        add("sources", f"{name} clean_up", Folder("", name, parts={"pre_tokenizer": {"type": "Whitespace"}, "decoder": None},
            config={"tokenizer_class": file_class, "clean_up_tokenization_spaces": True}))
    return []
