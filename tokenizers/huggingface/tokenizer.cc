#include "tokenizers/huggingface/tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/post_processor_json.h"
#include "tokenizers/huggingface/tokenizer_json.h"
#include "tokenizers/rules_digest.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

// Special tokens that the model's vocabulary has, too.
std::vector<AddedToken> SpecialPieces(const Pipeline& pipeline) {
  std::vector<AddedToken> pieces;
  const std::vector<std::string>& tokens = pipeline.model->tokens();
  for (const Pipeline::Added& added : pipeline.added_tokens) {
    const auto id = static_cast<size_t>(added.token.id);
    if (added.token.special && id < tokens.size() && tokens[id] == added.token.text) {
      pieces.push_back(added.token);
    }
  }
  return pieces;
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(Pipeline pipeline, AddedTokens normalized_tokens, Vocabulary vocabulary)
      : Tokenizer(std::move(vocabulary)),
        pipeline_(std::move(pipeline)),
        normalized_tokens_(std::move(normalized_tokens)),
        special_pieces_(SpecialPieces(pipeline_)),
        kind_(absl::AsciiStrToLower(pipeline_.model_type)) {
    for (const AddedToken& token : special_pieces_.tokens()) special_ids_.insert(token.id);
  }

  absl::string_view kind() const override { return kind_; }

  std::string Broken(absl::string_view text) const override;

 protected:
  absl::Status AppendIds(absl::string_view text, const TextOptions& options, WorkMeter& meter,
                         std::vector<int32_t>& ids) const override;

 private:
  struct Normalized {
    std::string storage;
    absl::string_view text;
    std::vector<size_t> breaks;
  };
  absl::Status Normalize(absl::string_view text, SectionContext context,
                         std::span<const size_t> breaks, WorkMeter& meter, Normalized& out) const;
  absl::Status AppendSection(absl::string_view text, SectionContext context,
                             const TextOptions& options, WorkMeter& meter,
                             std::vector<int32_t>& ids) const;
  absl::Status AppendPieces(absl::string_view text, SectionContext context,
                            const TextOptions& options, WorkMeter& meter,
                            std::vector<int32_t>& ids) const;
  absl::Status AppendPiece(absl::string_view piece, bool guards, WorkMeter& meter,
                           std::vector<int32_t>& ids) const;

  const Pipeline pipeline_;
  const AddedTokens normalized_tokens_;
  const AddedTokens special_pieces_;
  absl::flat_hash_set<int32_t> special_ids_;  // theirs
  const std::string kind_;
};

// Offsets within the part of a text that begins at `begin`.
std::vector<size_t> BreaksWithin(std::span<const size_t> breaks, size_t begin, size_t size) {
  const auto first = std::lower_bound(breaks.begin(), breaks.end(), begin);
  const auto last = std::lower_bound(first, breaks.end(), begin + size);
  std::vector<size_t> within;
  std::transform(first, last, std::back_inserter(within),
                 [begin](size_t at) { return at - begin; });
  return within;
}

absl::Status PipelineTokenizer::AppendIds(absl::string_view text, const TextOptions& options,
                                          WorkMeter& meter, std::vector<int32_t>& ids) const {
  for (const AddedTokens::Part& part :
       added_tokens().Split(text, options.parse_special, options.breaks)) {
    MNEME_RETURN_IF_ERROR(meter.Add(1));
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    const auto offset = static_cast<size_t>(part.text.data() - text.data());
    TextOptions section = options;
    const std::vector<size_t> breaks = BreaksWithin(options.breaks, offset, part.text.size());
    section.breaks = breaks;
    const SectionContext context = {.at_text_start = offset == 0,
                                    .continuation = options.continuation && offset == 0};
    MNEME_RETURN_IF_ERROR(AppendSection(part.text, context, section, meter, ids));
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::Normalize(absl::string_view text, SectionContext context,
                                          std::span<const size_t> breaks, WorkMeter& meter,
                                          Normalized& out) const {
  if (pipeline_.normalizer == nullptr) {
    out.text = text;
    out.breaks.assign(breaks.begin(), breaks.end());
    return absl::OkStatus();
  }
  if (breaks.empty() || normalized_tokens_.empty()) {
    MNEME_ASSIGN_OR_RETURN(out.text,
                           pipeline_.normalizer->Normalize(text, context, meter, out.storage));
    return absl::OkStatus();
  }
  // Where a mark comes to stand is known only if what is before it is normalised by itself.
  size_t begin = 0;
  std::string storage;
  for (size_t i = 0; i <= breaks.size(); ++i) {
    const size_t end = i < breaks.size() ? breaks[i] : text.size();
    if (begin == end) {
      if (i < breaks.size()) out.breaks.push_back(out.storage.size());
      continue;
    }
    MNEME_ASSIGN_OR_RETURN(
        const absl::string_view part,
        pipeline_.normalizer->Normalize(text.substr(begin, end - begin), context, meter, storage));
    absl::StrAppend(&out.storage, part);
    if (i < breaks.size()) out.breaks.push_back(out.storage.size());
    begin = end;
    context = {.at_text_start = false, .continuation = true};
  }
  out.text = out.storage;
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::AppendSection(absl::string_view text, SectionContext context,
                                              const TextOptions& options, WorkMeter& meter,
                                              std::vector<int32_t>& ids) const {
  Normalized normalized;
  MNEME_RETURN_IF_ERROR(Normalize(text, context, options.breaks, meter, normalized));
  if (normalized_tokens_.empty()) {
    return AppendPieces(normalized.text, context, options, meter, ids);
  }
  for (const AddedTokens::Part& part :
       normalized_tokens_.Split(normalized.text, options.parse_special, normalized.breaks)) {
    MNEME_RETURN_IF_ERROR(meter.Add(1));
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    const bool is_first = part.text.data() == normalized.text.data();
    const SectionContext within = {.at_text_start = context.at_text_start && is_first,
                                   .continuation = context.continuation && is_first};
    MNEME_RETURN_IF_ERROR(AppendPieces(part.text, within, options, meter, ids));
  }
  return absl::OkStatus();
}

absl::Status PipelineTokenizer::AppendPieces(absl::string_view text, SectionContext context,
                                             const TextOptions& options, WorkMeter& meter,
                                             std::vector<int32_t>& ids) const {
  if (text.empty()) return absl::OkStatus();
  const bool guards =
      !special_pieces_.empty() && (!options.parse_special || !options.breaks.empty());
  const PreTokenizer* pre_tokenizer = pipeline_.pre_tokenization.pre_tokenizer.get();
  if (pre_tokenizer == nullptr) return AppendPiece(text, guards, meter, ids);
  return pre_tokenizer->Split(text, context, meter, [&](absl::string_view piece, SectionContext) {
    return AppendPiece(piece, guards, meter, ids);
  });
}

// `guards`: a text that spells special tokens is text, even where the model would find one of them
// in it, as Unigram does with all that is in its vocabulary. Such spellings are then cut in two.
absl::Status PipelineTokenizer::AppendPiece(absl::string_view piece, bool guards, WorkMeter& meter,
                                            std::vector<int32_t>& ids) const {
  const SubwordModel& model = *pipeline_.model;
  const size_t known = ids.size();
  MNEME_RETURN_IF_ERROR(model.Append(piece, meter, ids));
  const auto is_special = [&](int32_t id) {
    return special_ids_.contains(id) && id != model.unk_id();
  };
  if (!guards || std::none_of(ids.begin() + static_cast<int64_t>(known), ids.end(), is_special)) {
    return absl::OkStatus();
  }
  ids.resize(known);
  const std::vector<size_t> cuts = special_pieces_.BreaksIn(piece);
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : piece.size();
    if (begin < end) {
      MNEME_RETURN_IF_ERROR(model.Append(piece.substr(begin, end - begin), meter, ids));
    }
    begin = end;
  }
  return absl::OkStatus();
}

std::string PipelineTokenizer::Broken(absl::string_view text) const {
  std::string broken = added_tokens().Broken(text);
  const auto is_special = [](const AddedToken& token) { return token.special; };
  if (std::none_of(normalized_tokens_.tokens().begin(), normalized_tokens_.tokens().end(),
                   is_special)) {
    return broken;
  }
  broken = normalized_tokens_.Broken(broken);
  // The normalised text may still spell one. Marks between all characters leave none: the text is
  // then normalised one character at a time.
  const UnbrokenText plain = TakeOutBreaks(broken);
  WorkMeter meter;
  Normalized normalized;
  const absl::Status status =
      Normalize(plain.text, SectionContext(), plain.breaks, meter, normalized);
  if (status.ok()) {
    const auto parts = normalized_tokens_.Split(normalized.text, true, normalized.breaks);
    const bool spells = std::any_of(parts.begin(), parts.end(), [](const AddedTokens::Part& part) {
      return part.token != nullptr && part.token->special;
    });
    if (!spells) return broken;
  }
  std::string apart;
  for (size_t i = 0; i < plain.text.size(); ++i) {
    if (i > 0 && (plain.text[i] & 0xc0) != 0x80) absl::StrAppend(&apart, AddedTokens::kBreak);
    apart.push_back(plain.text[i]);
  }
  return apart;
}

std::string Dumped(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The order of a vocabulary in its file, and how merges are written there, make no difference.
// Options of the model that are false or null are those that older files do not have.
uint64_t DigestOf(const TokenizerJson& file) {
  using Token = TokenizerJson::Model::Token;
  RulesDigest digest;
  for (const auto& [key, value] : file.model.options.items()) {
    if (value.is_null() || value == false) continue;
    digest.Add(key).Add(Dumped(value));
  }
  std::vector<const Token*> tokens;
  for (const Token& token : file.model.vocab) tokens.push_back(&token);
  std::sort(tokens.begin(), tokens.end(), [](const Token* a, const Token* b) {
    return std::tie(a->id, a->text) < std::tie(b->id, b->text);
  });
  digest.Add(uint64_t{tokens.size()});
  for (const Token* token : tokens) {
    digest.Add(token->text)
        .Add(static_cast<uint64_t>(token->id))
        .Add(std::bit_cast<uint64_t>(token->score));
  }
  digest.Add(uint64_t{file.model.merges.size()});
  for (const TokenizerJson::Model::Merge& merge : file.model.merges) {
    digest.Add(merge.left).Add(merge.right);
  }
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    const auto part = file.rest.find(key);
    digest.Add(part == file.rest.end() ? "null" : Dumped(*part));
  }
  return digest.Finish();
}

}  // namespace

absl::StatusOr<Pipeline> MakePipeline(TokenizerJson file, absl::string_view path) {
  const auto part = [&](const char* key) -> const Json& {
    static const Json kNull;
    const auto it = file.rest.find(key);
    return it == file.rest.end() ? kNull : *it;
  };
  const auto path_of = [&](const char* key) { return absl::StrCat(path, ": ", key); };
  Pipeline pipeline;
  pipeline.digest = DigestOf(file);
  if (const Json& config = part("normalizer"); !config.is_null()) {
    MNEME_ASSIGN_OR_RETURN(pipeline.normalizer, MakeNormalizer(config, path_of("normalizer")));
  }
  if (const Json& config = part("pre_tokenizer"); !config.is_null()) {
    MNEME_ASSIGN_OR_RETURN(pipeline.pre_tokenization,
                           MakePreTokenizer(config, path_of("pre_tokenizer")));
  }
  MNEME_ASSIGN_OR_RETURN(pipeline.post_processor,
                         ParsePostProcessor(part("post_processor"), path_of("post_processor")));
  MNEME_ASSIGN_OR_RETURN(pipeline.decoder, TokenDecoder::Make(part("decoder"), path_of("decoder")));
  pipeline.model_type = "BPE";  // of files that are too old to say
  if (const auto type = file.model.options.find("type"); type != file.model.options.end()) {
    if (type->is_string()) pipeline.model_type = type->get<std::string>();  // else it is refused
  }
  MNEME_ASSIGN_OR_RETURN(
      pipeline.model,
      MakeSubwordModel(std::move(file.model), pipeline.pre_tokenization.alphabet, path));
  return pipeline;
}

namespace {

// How each added token is spelled where it is looked for, which is also what is decoded.
absl::StatusOr<std::vector<std::string>> SpellingsOf(const Pipeline& pipeline) {
  std::vector<std::string> spellings;
  for (const Pipeline::Added& added : pipeline.added_tokens) {
    spellings.push_back(added.token.text);
    if (!added.normalized || pipeline.normalizer == nullptr) continue;
    WorkMeter meter;
    std::string storage;
    MNEME_ASSIGN_OR_RETURN(
        const absl::string_view text,
        pipeline.normalizer->Normalize(added.token.text, SectionContext(), meter, storage));
    spellings.back() = std::string(text);
  }
  return spellings;
}

// Rows of the model's head, with their texts. `spellings` are those of the added tokens.
void FillEntries(const Pipeline& pipeline, const std::vector<std::string>& spellings,
                 int vocab_size, Tokenizer::Vocabulary& vocabulary) {
  std::vector<TokenEntry>& entries = vocabulary.entries;
  DecodeRules& rules = vocabulary.decode;
  const TokenDecoder& decoder = pipeline.decoder;
  rules.start = decoder.start();
  rules.stripped = decoder.stripped();
  rules.replaces_each_byte = decoder.replaces_each_byte();
  const bool has_initial = rules.start == DecodeRules::Start::kInitialTexts;
  bool differs = false;

  entries.assign(vocab_size, {.piece = {}, .text = {}, .kind = TokenKind::kPadding});
  if (has_initial) rules.initial_texts.resize(vocab_size);
  if (decoder.has_bytes_before_next()) rules.bytes_before_next.resize(vocab_size);
  const auto fill = [&](size_t id, const std::string& piece, const std::string& decoded,
                        TokenKind kind) {
    if (id >= entries.size() || piece.empty()) return;
    TokenDecoder::Text text = decoder.Decode(decoded);
    entries[id] = {.piece = piece,
                   .text = std::move(text.within),
                   .kind = kind == TokenKind::kText && text.is_bytes ? TokenKind::kBytes : kind};
    if (has_initial) {
      differs = differs || text.initial != entries[id].text;
      rules.initial_texts[id] = std::move(text.initial);
    }
    if (decoder.has_bytes_before_next()) rules.bytes_before_next[id] = text.bytes_before_next;
  };
  const std::vector<std::string>& tokens = pipeline.model->tokens();
  for (size_t id = 0; id < tokens.size(); ++id) fill(id, tokens[id], tokens[id], TokenKind::kText);
  for (size_t i = 0; i < pipeline.added_tokens.size(); ++i) {
    const AddedToken& token = pipeline.added_tokens[i].token;
    fill(token.id, token.text, spellings[i],
         token.special ? TokenKind::kControl : TokenKind::kText);
  }
  if (has_initial && !differs) {
    rules.start = DecodeRules::Start::kSame;
    rules.initial_texts = {};
  }
  for (size_t id = 0; id < entries.size(); ++id) {
    if (entries[id].kind == TokenKind::kPadding) {
      entries[id].piece = absl::StrCat("<|padding ", id, "|>");
    }
  }
}

// How many ids have a token, and one more than the largest of them.
std::pair<int64_t, int64_t> CountTokens(const Pipeline& pipeline) {
  const std::vector<std::string>& tokens = pipeline.model->tokens();
  int64_t count = std::count_if(tokens.begin(), tokens.end(),
                                [](const std::string& token) { return !token.empty(); });
  auto end = static_cast<int64_t>(tokens.size());
  for (const Pipeline::Added& added : pipeline.added_tokens) {
    const auto id = static_cast<size_t>(added.token.id);
    if (id >= tokens.size() || tokens[id].empty()) ++count;
    end = std::max(end, static_cast<int64_t>(added.token.id) + 1);
  }
  return {count, end};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(Pipeline pipeline, int vocab_size,
                                                                 Tokenizer::Vocabulary vocabulary) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<std::string> spellings, SpellingsOf(pipeline));
  FillEntries(pipeline, spellings, vocab_size, vocabulary);
  const auto [count, end] = CountTokens(pipeline);
  if (end > vocab_size) {
    vocabulary.notes.push_back(absl::StrCat("the tokenizer has ids up to ", end - 1,
                                            " and the model ", vocab_size,
                                            "; texts that need one beyond are refused"));
  } else if (count < vocab_size) {
    vocabulary.notes.push_back(absl::StrCat("the model has ", vocab_size, " ids and the tokenizer ",
                                            count, "; the other ", vocab_size - count,
                                            " are never sampled"));
  }
  for (const auto* items : {&pipeline.post_processor.single, &pipeline.post_processor.pair}) {
    for (const PostProcessor::Item& item : *items) {
      if (item.kind != PostProcessor::Item::Kind::kToken || item.id < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("post_processor puts token ", item.id,
                       " around texts, expected less than the model's vocab_size of ", vocab_size));
    }
  }
  std::vector<AddedToken> normalized;
  for (size_t i = 0; i < spellings.size(); ++i) {
    const Pipeline::Added& added = pipeline.added_tokens[i];
    std::vector<AddedToken>& tokens = added.normalized ? normalized : vocabulary.added;
    tokens.push_back(added.token);
    tokens.back().text = spellings[i];
  }
  RulesDigest digest;
  AddToDigest(normalized, digest);
  vocabulary.rules_digest = digest.Add(pipeline.digest).Finish();
  if (pipeline.model->unk_id().has_value()) vocabulary.unk_id = pipeline.model->unk_id();
  if (vocabulary.unk_id.has_value() && *vocabulary.unk_id >= vocab_size) vocabulary.unk_id.reset();
  vocabulary.post_processor = pipeline.post_processor;
  vocabulary.adds_bos =
      pipeline.post_processor.single.front().kind == PostProcessor::Item::Kind::kToken;
  return std::unique_ptr<Tokenizer>(new PipelineTokenizer(
      std::move(pipeline), AddedTokens(std::move(normalized)), std::move(vocabulary)));
}

}  // namespace mneme
