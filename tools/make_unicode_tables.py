#!/usr/bin/env python3
"""Writes tokenizers/unicode/tables.cc: facts of Unicode as the tokenizers package of Python knows them.

    python3 -m venv tables && tables/bin/pip install tokenizers==0.23.3 unicodedata2==16.0.0 protobuf \
        sentencepiece regex
    tables/bin/python tools/make_unicode_tables.py

Every table is asked of the package, for all code points: its parts were built with different versions of
Unicode, so no version alone gives the ids that a checkpoint was trained with. unicodedata2 gives names to
what was found (categories, combining classes), and each table is held against it.
"""

import pathlib
import tempfile

import regex
import unicodedata2
from tokenizers import Regex
from tokenizers import normalizers
from tokenizers import pre_tokenizers

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tokenizers/unicode/tables.cc"

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, SCALARS))

# In the order of GeneralCategory (tokenizers/unicode/character_class.h).
CATEGORIES = (
    "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
).split()

# In the order of Script (tokenizers/unicode/character_class.h).
SCRIPTS = (
    "Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han "
    "Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala "
    "Tamil Telugu Thai Tibetan"
).split()


def matched(pattern):
    """The code points that the pattern, of one character, matches."""
    rest = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed").pre_tokenize_str(TEXT)
    return set(SCALARS) - {ord(c) for piece, _ in rest for c in piece}


def isolated(pre_tokenizer):
    """The code points that are cut off from an "a" on both sides."""
    text = "".join("a" + chr(c) for c in SCALARS) + "a"
    pieces = pre_tokenizer.pre_tokenize_str(text)
    return {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "a"}


def each(normalizer):
    return {c: normalizer.normalize_str(chr(c)) for c in SCALARS}


def removed(normalizer):
    return {c for c, text in each(normalizer).items() if text == ""}


def bert(**options):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **options})


def categories():
    result = {c: "Cn" for c in range(0x110000)}
    for category in CATEGORIES[1:]:
        for c in matched(rf"\p{{{category}}}"):
            result[c] = category
    for c in SCALARS:
        assert result[c] == unicodedata2.category(chr(c)), hex(c)
    return {c: CATEGORIES.index(category) for c, category in result.items()}


def scripts():
    result = {c: 0 for c in range(0x110000)}
    for index, script in enumerate(SCRIPTS):
        for c in matched(rf"\p{{{script}}}"):
            result[c] = index + 1
    return result


def section_scripts():
    """Which characters UnicodeScripts keeps together: a number for each script, 0 for any."""
    cut = pre_tokenizers.UnicodeScripts()

    def together(first, second):
        return len(cut.pre_tokenize_str(first + second)) == 1

    result = {c: 0 for c in range(0x110000)}
    some = "".join(chr(c) for c in SCALARS if not (together("a", chr(c)) and together("\u6f22", chr(c))))
    representatives = []
    for run, _ in cut.pre_tokenize_str(some):
        for index, representative in enumerate(representatives):
            if together(representative, run[0]):
                break
        else:
            index = len(representatives)
            representatives.append(run[0])
        for c in run:
            result[ord(c)] = index + 1
    return result


# Bits of CharacterFlags (tokenizers/unicode/character_class.h).
def flags(category):
    cut_off = isolated(pre_tokenizers.Whitespace())
    spaces = set(SCALARS) - {
        ord(c) for piece, _ in pre_tokenizers.WhitespaceSplit().pre_tokenize_str(TEXT) for c in piece
    }
    sets = [
        matched(r"[\w]"),  # kPatternWord
        set(SCALARS) - cut_off - spaces,  # kWord
        isolated(pre_tokenizers.Punctuation()),  # kPunctuation
        isolated(pre_tokenizers.Digits(individual_digits=True)),  # kNumeric
        removed(normalizers.StripAccents()),  # kMark
        removed(bert(strip_accents=True)),  # kBertMark
        removed(bert(clean_text=True)),  # kBertControl
        spaces,  # kWhiteSpace
    ]
    assert sets[7] == matched(r"\s")
    # Added by IsPatternWord.
    assert matched(r"\w") - sets[0] == {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}
    assert spaces - sets[6] - {9, 10, 13, 0x20} == {
        c for c, text in each(bert(clean_text=True)).items() if text == " "
    } - {9, 10, 13, 0x20}
    return {c: sum(1 << bit for bit, members in enumerate(sets) if c in members) for c in range(0x110000)}


# In the order of GraphemeBreak (tokenizers/unicode/grapheme.h). Hangul's syllables are calculated.
def grapheme_breaks(category):
    """Unicode 17's, which the package has: asked where one can see it, of regex (newer) elsewhere."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder, "rules.tsv")
        rules.write_text("61\t58\n")  # a -> X: replaces the whole cluster that begins with an "a"
        text = pathlib.Path(folder, "text")
        text.write_text("hello world a b c d e f g\n" * 50)
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{folder}/m", vocab_size=20, hard_vocab_limit=False,
            normalization_rule_tsv=str(rules), minloglevel=2,
        )
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(pathlib.Path(folder, "m.model").read_bytes())
    table = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    joins = {c for c in SCALARS if c and table.normalize_str("a" + chr(c)) == "X"}

    def members(pattern):
        return {c for c in SCALARS if regex.match(pattern, chr(c))}

    spacing = members(r"\p{GCB=SpacingMark}")
    newer = spacing | members(r"\p{GCB=Extend}") | {0x200D}
    assert joins <= newer, [hex(c) for c in joins - newer]
    assert not any(category[c] for c in newer - joins)
    linkers = joins & members(r"\p{InCB=Linker}")
    sets = [
        {13},
        {10},
        members(r"\p{GCB=Control}"),
        joins - spacing - linkers - {0x200D},
        linkers,
        {0x200D},
        joins & spacing,
        members(r"\p{GCB=Prepend}"),
        members(r"\p{GCB=Regional_Indicator}"),
        members(r"\p{Extended_Pictographic}"),
        members(r"\p{InCB=Consonant}"),
        members(r"\p{GCB=L}"),
        members(r"\p{GCB=V}"),
        members(r"\p{GCB=T}"),
    ]
    result = {c: 0 for c in range(0x110000)}
    for index, found in enumerate(sets):
        for c in found:
            assert result[c] == 0
            result[c] = index + 1
    return result


def runs(values):
    """(first, value) of each run of equal values; what comes first has value 0 unless it is said."""
    result = []
    last = 0
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        if values[c] != last:
            last = values[c]
            result.append((c, last))
    return result


def combining_classes():
    """Combining classes of the characters that the package reorders."""
    nfd = normalizers.NFD()
    result = {c: 0 for c in range(0x110000)}
    for c in SCALARS:
        known = unicodedata2.combining(chr(c))
        # U+0345 has the highest class, 240; U+0334 the lowest, 1.
        low = nfd.normalize_str(chr(0x345) + chr(c)) == chr(c) + chr(0x345)
        if c == 0x345 or low:
            assert known, hex(c)
            result[c] = known
    return result


def canonical_rows(nfc, nfd):
    """(code point, first, second or 0, composes): one step of each decomposition but Hangul's."""
    rows = []
    normalize = normalizers.NFC().normalize_str
    for c in SCALARS:
        full = nfd[c]
        if full == chr(c) or 0xAC00 <= c <= 0xD7A3:
            continue
        if len(full) == 1:
            rows.append((c, ord(full), 0, 0))
            continue
        # A name that unicodedata2 also knows, one step at a time.
        parts = [int(x, 16) for x in unicodedata2.decomposition(chr(c)).split()]
        if len(parts) == 1:
            rows.append((c, parts[0], 0, 0))
            assert nfd[parts[0]] == full
            continue
        assert len(parts) == 2 and nfd[parts[0]] + nfd[parts[1]] == full, hex(c)
        rows.append((c, *parts, int(normalize(full) == chr(c))))
    return rows


def compatibility_rows(nfd, nfkd):
    rows = []
    for c in SCALARS:
        if nfkd[c] != nfd[c] and not 0xAC00 <= c <= 0xD7A3:
            # Characters that decompose by canonical parts alone follow from those.
            parts = unicodedata2.decomposition(chr(c))
            if parts.startswith("<"):
                rows.append((c, [ord(x) for x in nfkd[c]]))
            else:
                expect = "".join(nfkd[int(x, 16)] for x in parts.split())
                assert expect == nfkd[c], hex(c)
    return rows


def lowercase_rows(lowercase):
    """(first, last, stride, difference): characters that have one lowercase character."""
    rows = []
    for c in SCALARS:
        text = lowercase[c]
        if text == chr(c):
            continue
        if len(text) != 1:
            assert c == 0x130 and text == "i\u0307", hex(c)
            continue
        difference = ord(text) - c
        if rows and rows[-1][3] == difference:
            first, last, stride, _ = rows[-1]
            if (first == last and c - last <= 2) or (first != last and c - last == stride):
                rows[-1] = (first, c, c - last, difference)
                continue
        rows.append((c, c, 1, difference))
    return rows


def wrapped(items):
    lines = []
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    lines.append(line)
    return "\n".join(lines)


def write_runs(name, values):
    items = [f"0x{c << 8 | value:X}" for c, value in runs(values)]
    return f"const uint32_t {name}[] = {{\n{wrapped(items)}\n}};\n"


def write_rows(type_name, name, rows):
    return f"const {type_name} {name}[] = {{\n{wrapped(rows)}\n}};\n"


def main():
    category = categories()
    nfd = each(normalizers.NFD())
    nfc = each(normalizers.NFC())
    nfkd = each(normalizers.NFKD())
    compatibility = compatibility_rows(nfd, nfkd)
    mappings = []
    for c, parts in compatibility:
        mappings.append(f"0x{c << 8 | len(parts):X}")
        mappings.extend(f"0x{x:X}" for x in parts)
    tables = [
        write_runs("kCategoryRuns", category),
        write_runs("kScriptRuns", scripts()),
        write_runs("kSectionScriptRuns", section_scripts()),
        write_runs("kFlagRuns", flags(category)),
        write_runs("kGraphemeBreakRuns", grapheme_breaks(category)),
        write_runs("kCombiningClassRuns", combining_classes()),
        write_rows("CanonicalRow", "kCanonicalRows",
                   [f"{{0x{c:X}, 0x{a:X}, 0x{b:X}, {d}}}" for c, a, b, d in canonical_rows(nfc, nfd)]),
        write_rows("uint32_t", "kCompatibilityMappings", mappings),
        write_rows("LowercaseRow", "kLowercaseRows",
                   [f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}"
                    for a, b, s, d in lowercase_rows(each(normalizers.Lowercase()))]),
    ]
    names = ["kCategoryRuns", "kScriptRuns", "kSectionScriptRuns", "kFlagRuns", "kGraphemeBreakRuns",
             "kCombiningClassRuns"]
    out = [
        "// Written by tools/make_unicode_tables.py.",
        '#include "tokenizers/unicode/tables.h"',
        "",
        "// clang-format off",
        "namespace mneme::unicode_tables {",
        "namespace {",
        "",
        *tables,
        "}  // namespace",
        "",
    ]
    for name in names:
        out.append(f"std::span<const uint32_t> {name[1:]}() {{ return {name}; }}")
    for type_name, name in (("CanonicalRow", "CanonicalRows"), ("uint32_t", "CompatibilityMappings"),
                            ("LowercaseRow", "LowercaseRows")):
        out.append(f"std::span<const {type_name}> {name}() {{ return k{name}; }}")
    out += ["", "}  // namespace mneme::unicode_tables", "// clang-format on", ""]
    OUTPUT.write_text("\n".join(out))


if __name__ == "__main__":
    main()
