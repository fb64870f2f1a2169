#include "tokenizers/tokenizer_loader.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/tokenizer.h"
#include "tokenizers/tokenizer_config.h"

namespace mneme {
namespace {

constexpr char kByteTokenizerClass[] = "ByteTokenizer";
constexpr char kModelName[] = "tokenizer.model";
constexpr char kConfigName[] = "tokenizer_config.json";

// Tokenizers of other formats, the ones that name the format best first.
constexpr const char* kForeignFiles[] = {
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
    "tokenizer.model.v3",
    "sentencepiece.bpe.model",
    "rwkv_vocab_v20230424.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    kConfigName,
};

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// The id of a piece by its spelling. Special tokens are few and near either end, but not always.
std::optional<int32_t> FindPiece(const std::vector<TokenEntry>& entries, absl::string_view piece) {
  for (size_t id = 0; id < entries.size(); ++id) {
    if (entries[id].piece == piece && entries[id].kind != TokenKind::kPadding) {
      return static_cast<int32_t>(id);
    }
  }
  return std::nullopt;
}

// Chooses BOS or EOS among tokenizer_config.json (`spelling`), the tokenizer's own (`id`, replaced)
// and config.json (`config_id`).
void ChooseSpecialToken(absl::string_view name, const std::optional<std::string>& spelling,
                        std::optional<int32_t> config_id, std::optional<int32_t>& id,
                        Tokenizer::Vocabulary& vocabulary) {
  if (spelling.has_value() && spelling->empty()) {
    id = std::nullopt;
    return;
  }
  if (!id.has_value()) id = config_id;
  if (spelling.has_value()) {
    const std::optional<int32_t> found = FindPiece(vocabulary.entries, *spelling);
    if (found.has_value()) {
      id = found;
    } else {
      vocabulary.notes.push_back(absl::StrCat(name, " \"", absl::CHexEscape(*spelling), "\" of ",
                                              kConfigName, " is not in the vocabulary, so it is ",
                                              "ignored"));
    }
  }
  if (id.has_value() && config_id.has_value() && *id != *config_id) {
    vocabulary.notes.push_back(absl::StrCat("config.json says that ", name, " is id ", *config_id,
                                            ", the tokenizer says ", *id,
                                            "; prompts are encoded with the latter"));
  }
}

SpecialTokens::Token ToSpecial(const TokenizerConfig::AddedToken& token) {
  return {.id = static_cast<int32_t>(token.id),
          .strips_left = token.lstrip,
          .strips_right = token.rstrip};
}

// Those that the configuration names are special, also where they are ordinary pieces.
void AddNamedTokens(const TokenizerConfig& config, Tokenizer::Vocabulary& vocabulary) {
  for (const auto* spelling :
       {&config.bos_token, &config.eos_token, &config.unk_token, &config.pad_token}) {
    if (!spelling->has_value() || (*spelling)->empty()) continue;
    if (const auto id = FindPiece(vocabulary.entries, **spelling)) {
      vocabulary.added.push_back({.id = *id});
    }
  }
}

// Extends the entries to the model's vocab_size: added tokens, then padding.
absl::Status AppendMissingRows(const TokenizerConfig& config, int64_t vocab_size,
                               Tokenizer::Vocabulary& vocabulary) {
  const auto pieces = static_cast<int64_t>(vocabulary.entries.size());
  if (pieces > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary has ", pieces,
                                                   " pieces, more than the model's vocab_size of ",
                                                   vocab_size));
  }
  int64_t padding = vocab_size - pieces;
  vocabulary.entries.resize(static_cast<size_t>(vocab_size),
                            TokenEntry{.piece = {}, .text = {}, .kind = TokenKind::kPadding});
  for (const TokenizerConfig::AddedToken& token : config.added_tokens) {
    if (token.id >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added token \"", absl::CHexEscape(token.content), "\" of ", kConfigName, " has id ",
          token.id, ", expected less than the model's vocab_size of ", vocab_size));
    }
    TokenEntry& entry = vocabulary.entries[token.id];
    if (token.id < pieces) {
      if (entry.piece != token.content) {
        vocabulary.notes.push_back(
            absl::StrCat("id ", token.id, " is \"", absl::CHexEscape(token.content), "\" in ",
                         kConfigName, " and \"", absl::CHexEscape(entry.piece), "\" in ",
                         kModelName, "; the latter is used"));
      } else {
        vocabulary.added.push_back(ToSpecial(token));
      }
      continue;
    }
    vocabulary.added.push_back(ToSpecial(token));
    entry.piece = token.content;
    entry.kind = token.special ? TokenKind::kControl : TokenKind::kText;
    entry.text = token.special ? std::string() : PieceText(token.content);
    --padding;
  }
  for (int64_t id = pieces; id < vocab_size; ++id) {
    if (vocabulary.entries[id].kind == TokenKind::kPadding) {
      vocabulary.entries[id].piece = absl::StrCat("<|padding ", id, "|>");
    }
  }
  if (padding > 0) {
    vocabulary.notes.push_back(absl::StrCat("the model has ", vocab_size, " ids and the tokenizer ",
                                            vocab_size - padding, "; the other ", padding,
                                            " decode to nothing"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(absl::string_view bytes,
                                                             const TokenizerConfig& config,
                                                             const TokenizerFacts& facts) {
  MNEME_ASSIGN_OR_RETURN(const SentencePieceModelFile file, ParseSentencePieceModel(bytes));
  MNEME_ASSIGN_OR_RETURN(auto encoder, SentencePieceEncoder::Load(bytes, file));
  Tokenizer::Vocabulary vocabulary = SentencePieceVocabulary(file, *encoder);
  MNEME_RETURN_IF_ERROR(AppendMissingRows(config, facts.vocab_size, vocabulary));
  ChooseSpecialToken("bos_token", config.bos_token, facts.bos_token_id, vocabulary.bos_id,
                     vocabulary);
  ChooseSpecialToken("eos_token", config.eos_token, facts.eos_token_id, vocabulary.eos_id,
                     vocabulary);
  AddNamedTokens(config, vocabulary);
  vocabulary.prefix_after_special = config.legacy.value_or(true);
  vocabulary.adds_bos = vocabulary.bos_id.has_value() && config.add_bos_token.value_or(true);
  if (config.add_eos_token.value_or(false)) {
    vocabulary.notes.push_back(
        absl::StrCat("add_eos_token of ", kConfigName, " is ignored: a prompt is to be continued"));
  }
  return MakeSentencePieceTokenizer(std::move(encoder), std::move(vocabulary));
}

absl::Status CheckFacts(const TokenizerFacts& facts) {
  if (facts.vocab_size <= 0 || facts.vocab_size > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size is ", facts.vocab_size, ", expected 1 to ", INT32_MAX));
  }
  const auto check = [&](absl::string_view name, std::optional<int32_t> id) {
    return !id.has_value() || (*id >= 0 && *id < facts.vocab_size)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat(name, " is ", *id, ", expected 0 to ", facts.vocab_size - 1));
  };
  MNEME_RETURN_IF_ERROR(check("bos_token_id", facts.bos_token_id));
  return check("eos_token_id", facts.eos_token_id);
}

absl::StatusOr<TokenizerConfig> ReadConfig(const std::string& path) {
  if (!Exists(path)) return TokenizerConfig();
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseTokenizerConfig(file.text(), path);
}

// Rule 3: what the folder has instead of a tokenizer that can be read.
absl::Status RefuseForeignFiles(const std::filesystem::path& folder,
                                absl::string_view tokenizer_class) {
  std::vector<std::string> foreign;
  for (const char* name : kForeignFiles)
    if (Exists(folder / name)) foreign.emplace_back(name);
  if (foreign.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      folder.string(), " has no ", kModelName, " but ", absl::StrJoin(foreign, ", "),
      tokenizer_class.empty() ? "" : absl::StrCat(" (tokenizer_class ", tokenizer_class, ")"),
      ": only SentencePiece's ", kModelName, " and tokenizer_class ", kByteTokenizerClass,
      " are supported"));
}

// Rules 4 and 5.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadWithoutFiles(absl::string_view folder,
                                                            const TokenizerFacts& facts) {
  if (!FitsByteTokenizer(facts.vocab_size)) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has no tokenizer, and its vocab_size of ", facts.vocab_size,
                     " does not fit the byte tokenizer (", kByteTokenizerMinVocabSize, " to ",
                     kByteTokenizerMaxVocabSize, "): only token ids can be served"));
  }
  return MakeByteTokenizer(
      facts.vocab_size, facts.bos_token_id, facts.eos_token_id,
      {absl::StrCat(folder, " has no tokenizer; its vocab_size of ", facts.vocab_size,
                    " fits the byte tokenizer, which is used")});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view folder,
                                                         const TokenizerFacts& facts) {
  const std::filesystem::path root{std::string(folder)};
  std::error_code error;
  if (!std::filesystem::is_directory(root, error)) {
    return absl::InvalidArgumentError(absl::StrCat("model folder ", folder, " does not exist"));
  }
  MNEME_RETURN_IF_ERROR(CheckFacts(facts));

  const std::string model_path = (root / kModelName).string();
  const bool has_model = Exists(model_path);
  MNEME_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadConfig((root / kConfigName).string()));
  const std::string& tokenizer_class =
      config.tokenizer_class.empty() ? facts.tokenizer_class : config.tokenizer_class;
  if (tokenizer_class == kByteTokenizerClass) {
    if (!has_model) {
      return MakeByteTokenizer(facts.vocab_size, facts.bos_token_id, facts.eos_token_id);
    }
    return absl::InvalidArgumentError(absl::StrCat(folder, " asks for tokenizer_class ",
                                                   kByteTokenizerClass, " and has a ", kModelName,
                                                   "; remove one of them"));
  }
  if (has_model) {
    MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(model_path));
    auto tokenizer = LoadSentencePiece(file.text(), config, facts);
    return tokenizer.ok() ? std::move(tokenizer) : InFile(model_path, tokenizer.status());
  }
  MNEME_RETURN_IF_ERROR(RefuseForeignFiles(root, tokenizer_class));
  return LoadWithoutFiles(folder, facts);
}

}  // namespace mneme
