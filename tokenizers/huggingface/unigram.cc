#include "tokenizers/huggingface/unigram.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/byte_alphabet.h"
#include "tokenizers/huggingface/model_options.h"
#include "tokenizers/huggingface/vocabulary.h"

namespace mneme {
namespace {

// An unknown character scores that much less than the token of the lowest score.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> UnigramModel::Make(const TokenizerJson::Model& model,
                                                                 PieceAlphabet alphabet,
                                                                 absl::string_view path) {
  const std::string model_path = absl::StrCat(path, ": model");
  if (model.has_vocab && !model.has_scores) {
    return absl::InvalidArgumentError(absl::StrCat(
        model_path, ": key \"vocab\" is an object, expected a list of [token, score]"));
  }
  MNEME_ASSIGN_OR_RETURN(Vocabulary vocabulary, MakeVocabulary(model, model_path));
  ConfigReader reader(model.options, model_path);
  const auto last = static_cast<int64_t>(model.vocab.size()) - 1;
  const std::optional<int> unk_id = reader.NullableInt("unk_id", 0, last);
  const bool byte_fallback = reader.Bool("byte_fallback", false);
  MNEME_RETURN_IF_ERROR(reader.status());
  std::vector<double> scores;
  scores.reserve(model.vocab.size());
  for (const auto& token : model.vocab) scores.push_back(token.score);
  return std::unique_ptr<SubwordModel>(new UnigramModel(std::move(vocabulary.by_id), unk_id,
                                                        byte_fallback, std::move(scores), alphabet,
                                                        ByteTokens(vocabulary.by_spelling)));
}

UnigramModel::UnigramModel(std::vector<std::string> tokens, std::optional<int32_t> unk_id,
                           bool byte_fallback, std::vector<double> scores, PieceAlphabet alphabet,
                           const std::array<int32_t, 256>& byte_tokens)
    : SubwordModel(std::move(tokens), unk_id),
      scores_(std::move(scores)),
      byte_fallback_(byte_fallback),
      alphabet_(alphabet),
      unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty),
      byte_tokens_(byte_tokens) {
  TextArena pieces;
  std::vector<ByteTrie::Entry> entries;
  // From the last, which counts among those that are spelled the same.
  for (auto id = static_cast<int32_t>(this->tokens().size()) - 1; id >= 0; --id) {
    if (const auto piece = PieceOf(this->tokens()[id], alphabet_)) {
      entries.push_back({pieces.Add(*piece), id});
    }
  }
  by_piece_ = ByteTrie(std::move(entries));
}

absl::Status UnigramModel::FindPaths(absl::string_view piece, WorkMeter& meter,
                                     std::span<Node> nodes) const {
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Node& node = nodes[end];
    if (node.begin >= 0 && score <= node.score) return;
    node = {.score = score, .id = id, .begin = static_cast<int32_t>(begin)};
  };
  for (size_t at = 0; at < piece.size();) {
    const absl::string_view rest = piece.substr(at);
    const size_t character = alphabet_ == PieceAlphabet::kBytes ? 1 : CharacterBytes(rest);
    const double so_far = nodes[at].score;
    bool is_known = false;  // the character is a token
    int64_t found = 0;
    by_piece_.ForEachPrefix(
        rest,
        [&](size_t bytes, int32_t id) {
          offer(at, at + bytes, so_far + scores_[id], id);
          is_known = is_known || bytes == character;
        },
        found);
    MNEME_RETURN_IF_ERROR(meter.Add(1 + found / 8));
    if (!is_known) {
      const Node& end = nodes[at + character];
      const double score = so_far + unknown_score_;
      if (end.begin < 0 || score > end.score) {
        if (!unk_id().has_value()) return NoUnknownToken(rest.substr(0, character), "");
        offer(at, at + character, score, *unk_id());
      }
    }
    at += character;
  }
  return absl::OkStatus();
}

void UnigramModel::AppendUnknown(absl::string_view run, std::vector<int32_t>& ids) const {
  // The reference looks for the text of what it found; and that of several unknown characters may
  // be a token, which scored less than they did.
  if (const ByteTrie::Match match = by_piece_.Longest(run); match.bytes == run.size()) {
    ids.push_back(match.value);
    return;
  }
  if (byte_fallback_) {
    const std::string spelled =
        alphabet_ == PieceAlphabet::kBytes ? InByteAlphabet(run) : std::string(run);
    const auto token_of = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
    if (std::all_of(spelled.begin(), spelled.end(), [&](char c) { return token_of(c) >= 0; })) {
      for (const char byte : spelled) ids.push_back(token_of(byte));
      return;
    }
  }
  ids.push_back(*unk_id());
}

absl::Status UnigramModel::Append(absl::string_view piece, WorkMeter& meter,
                                  std::vector<int32_t>& ids) const {
  MNEME_RETURN_IF_ERROR(meter.AddBytes(piece.size()));
  absl::InlinedVector<Node, 64> nodes(piece.size() + 1);
  MNEME_RETURN_IF_ERROR(FindPaths(piece, meter, {nodes.data(), nodes.size()}));
  absl::InlinedVector<int32_t, 64> ends;  // of the tokens, from the last
  for (auto end = static_cast<int32_t>(piece.size()); end > 0; end = nodes[end].begin) {
    ends.push_back(end);
  }
  const auto is_unknown = [&](size_t i) { return nodes[ends[i]].id == unk_id(); };
  for (size_t i = ends.size(); i-- > 0;) {
    const int32_t begin = nodes[ends[i]].begin;
    if (!is_unknown(i)) {
      ids.push_back(nodes[ends[i]].id);
      continue;
    }
    while (i > 0 && is_unknown(i - 1)) --i;
    AppendUnknown(piece.substr(begin, ends[i] - begin), ids);
  }
  return absl::OkStatus();
}

}  // namespace mneme
