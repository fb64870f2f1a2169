#include "tokenizers/rwkv_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "tokenizers/byte_trie.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {
namespace {

constexpr int kMaxId = (1 << 24) - 1;
constexpr size_t kMaxShownBytes = 80;

class RwkvTokenizer final : public Tokenizer {
 public:
  RwkvTokenizer(ByteTrie pieces, Vocabulary vocabulary)
      : Tokenizer(std::move(vocabulary)), pieces_(std::move(pieces)) {}

  absl::string_view kind() const override { return "rwkv"; }

 protected:
  absl::Status AppendIds(absl::string_view text, const TextOptions& options, WorkMeter& meter,
                         std::vector<int32_t>& ids) const override {
    for (const AddedTokens::Part& part :
         added_tokens().Split(text, options.parse_special, options.breaks)) {
      if (part.token != nullptr) ids.push_back(part.token->id);
      for (absl::string_view rest = part.text; !rest.empty();) {
        int64_t steps = 0;
        const ByteTrie::Match match = pieces_.Longest(rest, steps);
        MNEME_RETURN_IF_ERROR(meter.Add(1 + steps / 16));
        ids.push_back(match.value);
        rest.remove_prefix(match.bytes);  // all bytes are entries
      }
    }
    return absl::OkStatus();
  }

 private:
  const ByteTrie pieces_;
};

// The bytes of a Python literal, of text ('...') or bytes (b'...'); none if it is no such thing.
std::optional<std::string> FromPythonLiteral(absl::string_view literal) {
  const bool is_bytes = !literal.empty() && (literal[0] == 'b' || literal[0] == 'B');
  if (is_bytes) literal.remove_prefix(1);
  if (literal.size() < 2 || (literal[0] != '\'' && literal[0] != '"') ||
      literal.back() != literal[0]) {
    return std::nullopt;
  }
  const char quote = literal[0];
  literal = literal.substr(1, literal.size() - 2);
  std::string out;
  while (!literal.empty()) {
    const char c = literal[0];
    literal.remove_prefix(1);
    if (c == quote) return std::nullopt;
    if (c != '\\') {
      if (is_bytes && !absl::ascii_isascii(c)) return std::nullopt;
      out.push_back(c);
      continue;
    }
    if (literal.empty()) return std::nullopt;
    const char escape = literal[0];
    literal.remove_prefix(1);
    constexpr absl::string_view kEscapes = "\\'\"abfnrtv";
    constexpr absl::string_view kCharacters = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t at = kEscapes.find(escape); at != absl::string_view::npos) {
      out.push_back(kCharacters[at]);
      continue;
    }
    const size_t digits = escape == 'x'                ? 2
                          : escape == 'u' && !is_bytes ? 4
                          : escape == 'U' && !is_bytes ? 8
                                                       : 0;
    uint32_t code = 0;
    if (digits == 0 || literal.size() < digits ||
        !absl::SimpleHexAtoi(literal.substr(0, digits), &code) || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000)) {
      return std::nullopt;
    }
    literal.remove_prefix(digits);
    if (is_bytes) {
      out.push_back(static_cast<char>(code));
    } else {
      AppendUtf8(code, out);
    }
  }
  return out;
}

// Bytes that are not text are shown as bytes are in vocabularies that fall back to them.
std::string Spelling(absl::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string spelling;
  for (const char c : bytes) absl::StrAppendFormat(&spelling, "<0x%02X>", static_cast<uint8_t>(c));
  return spelling;
}

}  // namespace

absl::StatusOr<RwkvVocabulary> ParseRwkvVocabulary(absl::string_view text, absl::string_view path) {
  RwkvVocabulary pieces;
  absl::flat_hash_map<std::string, int> by_piece;
  int line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = std::min(text.find('\n'), text.size());
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": line ", line_number, " is ",
                                                     Shortened(SanitizeUtf8(line), kMaxShownBytes),
                                                     ", expected ", what));
    };
    const size_t first = line.find(' ');
    const size_t last = line.rfind(' ');
    int id = 0;
    int size = 0;
    if (first == absl::string_view::npos || last == first ||
        !absl::SimpleAtoi(line.substr(0, first), &id) ||
        !absl::SimpleAtoi(line.substr(last + 1), &size)) {
      return wrong("an id, a Python literal and its length in bytes, with spaces between");
    }
    if (id < 1 || id > kMaxId) return wrong(absl::StrCat("an id from 1 to ", kMaxId));
    std::optional<std::string> piece = FromPythonLiteral(line.substr(first + 1, last - first - 1));
    if (!piece.has_value()) return wrong("a Python literal such as 'a\\n' or b'\\xe4'");
    if (piece->empty() || static_cast<int64_t>(piece->size()) != size) {
      return wrong(absl::StrCat("the length of the literal, which is ", piece->size()));
    }
    if (static_cast<size_t>(id) >= pieces.size()) pieces.resize(id + 1);
    if (!pieces[id].empty())
      return wrong(absl::StrCat("an id other than ", id, ", which is taken"));
    if (const auto [same, is_new] = by_piece.try_emplace(*piece, id); !is_new) {
      return wrong(absl::StrCat("another entry, as that of id ", same->second, " is the same"));
    }
    pieces[id] = *std::move(piece);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (by_piece.contains(std::string(1, static_cast<char>(byte)))) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, " has no entry for the byte 0x",
                                                   absl::Hex(byte, absl::kZeroPad2),
                                                   ", expected each of the 256 bytes"));
  }
  return pieces;
}

std::unique_ptr<Tokenizer> MakeRwkvTokenizer(const RwkvVocabulary& pieces, int vocab_size,
                                             Tokenizer::Vocabulary vocabulary) {
  vocabulary.entries.assign(vocab_size, {.piece = {}, .text = {}, .kind = TokenKind::kPadding});
  std::vector<ByteTrie::Entry> entries;
  int padding = 0;
  for (int id = 0; id < std::max<int>(vocab_size, pieces.size()); ++id) {
    const bool is_piece = id < static_cast<int>(pieces.size()) && !pieces[id].empty();
    if (is_piece) entries.push_back({pieces[id], id});
    if (id >= vocab_size) continue;
    TokenEntry& entry = vocabulary.entries[id];
    if (is_piece) {
      entry = {.piece = Spelling(pieces[id]), .text = pieces[id], .kind = TokenKind::kBytes};
    } else if (id == 0) {
      entry = {.piece = std::string(kRwkvEndOfText),
               .text = std::string(kRwkvEndOfText),
               .kind = TokenKind::kControl};
      vocabulary.added.push_back({.id = 0, .text = entry.piece});
    } else {
      entry.piece = absl::StrCat("<|padding ", id, "|>");
      ++padding;
    }
  }
  if (static_cast<int>(pieces.size()) > vocab_size) {
    vocabulary.notes.push_back(absl::StrCat("the tokenizer has ids up to ", pieces.size() - 1,
                                            " and the model ", vocab_size,
                                            "; texts that need one beyond are refused"));
  } else if (padding > 0) {
    vocabulary.notes.push_back(absl::StrCat("the model has ", vocab_size, " ids and the tokenizer ",
                                            vocab_size - padding, "; the other ", padding,
                                            " are never sampled"));
  }
  return std::make_unique<RwkvTokenizer>(ByteTrie(std::move(entries)), std::move(vocabulary));
}

}  // namespace mneme
