#include "tokenizers/tokenizer_loader.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/human_bytes.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/huggingface/folder.h"
#include "tokenizers/huggingface/tokenizer_class.h"
#include "tokenizers/rules_digest.h"
#include "tokenizers/rwkv_tokenizer.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/tokenizer.h"
#include "tokenizers/special_ids.h"
#include "tokenizers/tokenizer_config.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

constexpr char kByteTokenizerClass[] = "ByteTokenizer";
constexpr char kModelName[] = "tokenizer.model";
constexpr char kConfigName[] = "tokenizer_config.json";
// The World vocabulary has 1 MiB.
constexpr int64_t kMaxRwkvFileBytes = int64_t{16} << 20;
constexpr char kJsonName[] = "tokenizer.json";
constexpr char kVocabJsonName[] = "vocab.json";
constexpr char kMergesName[] = "merges.txt";
constexpr char kVocabTextName[] = "vocab.txt";

// Files of tokenizers that are not read by themselves, the ones that name a format best first.
constexpr const char* kForeignFiles[] = {
    "vocab.json",         "merges.txt",
    "tekken.json",        "spiece.model",
    "tokenizer.model.v3", "sentencepiece.bpe.model",
    "added_tokens.json",  "special_tokens_map.json",
    kConfigName,
};

bool Exists(const fs::path& path) {
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

AddedToken ToAdded(const TokenizerConfig::AddedToken& token, int32_t id) {
  return {.id = id,
          .text = token.content,
          .special = token.special,
          .strips_left = token.lstrip,
          .strips_right = token.rstrip,
          .single_word = token.single_word};
}

// Control tokens, the unknown piece, and what the configuration names: special, also where they are
// ordinary pieces, and whatever the configuration says of them elsewhere.
void AddSpecialTokens(const TokenizerConfig& config, Tokenizer::Vocabulary& vocabulary) {
  for (AddedToken& token : vocabulary.added) {
    const TokenKind kind = vocabulary.entries[token.id].kind;
    token.special = token.special || kind == TokenKind::kControl || kind == TokenKind::kUnknown ||
                    std::any_of(config.named.begin(), config.named.end(),
                                [&](const TokenizerConfig::NamedToken& named) {
                                  return named.token.content == token.text;
                                });
  }
  for (size_t id = 0; id < vocabulary.entries.size(); ++id) {
    const TokenEntry& entry = vocabulary.entries[id];
    if (entry.kind != TokenKind::kControl && entry.kind != TokenKind::kUnknown) continue;
    vocabulary.added.push_back({.id = static_cast<int32_t>(id), .text = entry.piece});
  }
  for (const TokenizerConfig::NamedToken& named : config.named) {
    if (named.token.content.empty()) continue;
    if (const auto id = FindPiece(vocabulary.entries, named.token.content)) {
      vocabulary.added.push_back({.id = *id, .text = named.token.content});
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
  static const std::vector<TokenizerConfig::AddedToken> kNone;
  for (const auto& token : config.added_tokens.has_value() ? *config.added_tokens : kNone) {
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
        vocabulary.added.push_back(ToAdded(token, static_cast<int32_t>(token.id)));
      }
      continue;
    }
    vocabulary.added.push_back(ToAdded(token, static_cast<int32_t>(token.id)));
    entry.piece = token.content;
    entry.kind = token.special ? TokenKind::kControl : TokenKind::kText;
    entry.text = token.special ? token.content : PieceText(token.content);
    --padding;
  }
  for (int64_t id = pieces; id < vocab_size; ++id) {
    if (vocabulary.entries[id].kind == TokenKind::kPadding) {
      TokenEntry& entry = vocabulary.entries[id];
      entry.text = entry.piece = absl::StrCat("<|padding ", id, "|>");
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
  // All of the file: pieces, scores, how they are combined, the normalisation's table.
  vocabulary.rules_digest = RulesDigest().Add(bytes).Finish();
  MNEME_RETURN_IF_ERROR(AppendMissingRows(config, facts.vocab_size, vocabulary));
  const auto find = [&](absl::string_view spelling) {
    return FindPiece(vocabulary.entries, spelling);
  };
  if (!vocabulary.bos_id.has_value()) vocabulary.bos_id = facts.bos_token_id;
  if (!vocabulary.eos_id.has_value()) vocabulary.eos_id = facts.eos_token_id;
  ChooseSpecialIds(config, facts, find, vocabulary);
  AddSpecialTokens(config, vocabulary);
  if (vocabulary.bos_id.has_value()) {
    vocabulary.post_processor = PostProcessor::Prefix(*vocabulary.bos_id);
    vocabulary.adds_bos = config.add_bos_token.value_or(true);
  } else {
    vocabulary.adds_bos = false;
  }
  if (config.add_eos_token.value_or(false)) {
    vocabulary.notes.push_back(
        absl::StrCat("add_eos_token of ", kConfigName, " is ignored: a prompt is to be continued"));
  }
  return MakeSentencePieceTokenizer(std::move(encoder), std::move(vocabulary),
                                    config.legacy.value_or(true));
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

// Rule 7: what the folder has instead of a tokenizer that can be read.
absl::Status RefuseForeignFiles(const fs::path& folder, absl::string_view tokenizer_class) {
  std::vector<std::string> foreign;
  for (const char* name : kForeignFiles)
    if (Exists(folder / name)) foreign.emplace_back(name);
  if (foreign.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      folder.string(), " has none of the tokenizers that can be read (", kJsonName, "; ",
      kVocabJsonName, " with ", kMergesName, "; ", kVocabTextName, "; ", kModelName,
      "; rwkv_vocab_*.txt; tokenizer_class ", kByteTokenizerClass, ") but ",
      absl::StrJoin(foreign, ", "),
      tokenizer_class.empty() ? "" : absl::StrCat(" (tokenizer_class ", tokenizer_class, ")")));
}

// Rules 8 and 9.
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

// rwkv_vocab_v20230424.txt, or what later ones are called; empty: none.
absl::StatusOr<fs::path> FindRwkvVocabulary(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (absl::StartsWith(name, "rwkv_vocab") && absl::EndsWith(name, ".txt")) {
      found.push_back(it->path());
    }
  }
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(folder.string(), " has ", found.size(),
                                                   " files rwkv_vocab*.txt, expected one"));
  }
  return found.empty() ? fs::path() : found[0];
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadRwkv(const std::string& path,
                                                    const TokenizerConfig& config,
                                                    const TokenizerFacts& facts) {
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (static_cast<int64_t>(file.text().size()) > kMaxRwkvFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", HumanBytes(static_cast<int64_t>(file.text().size())),
                     ", expected at most ", HumanBytes(kMaxRwkvFileBytes)));
  }
  MNEME_ASSIGN_OR_RETURN(const RwkvVocabulary pieces, ParseRwkvVocabulary(file.text(), path));
  Tokenizer::Vocabulary vocabulary;
  const auto find = [&](absl::string_view spelling) -> std::optional<int32_t> {
    if (spelling == kRwkvEndOfText) return 0;
    const auto it = std::find(pieces.begin(), pieces.end(), spelling);
    if (it == pieces.end()) return std::nullopt;
    return static_cast<int32_t>(it - pieces.begin());
  };
  vocabulary.eos_id = 0;
  ChooseSpecialIds(config, facts, find, vocabulary);
  return MakeRwkvTokenizer(pieces, static_cast<int>(facts.vocab_size), std::move(vocabulary));
}

// Rules 3 and 5.
std::optional<TokenizerFiles> FindOldFiles(const fs::path& folder) {
  if (Exists(folder / kVocabJsonName) && Exists(folder / kMergesName)) {
    return TokenizerFiles::kVocabAndMerges;
  }
  if (Exists(folder / kVocabTextName)) return TokenizerFiles::kVocabText;
  return std::nullopt;
}

bool IsMadeFrom(TokenizerFiles files, TokenizerClass tokenizer_class) {
  return files == TokenizerFiles::kVocabText ? ReadsVocabText(tokenizer_class)
                                             : ReadsVocabAndMerges(tokenizer_class);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view folder,
                                                         const TokenizerFacts& facts) {
  const fs::path root{std::string(folder)};
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return absl::InvalidArgumentError(absl::StrCat("model folder ", folder, " does not exist"));
  }
  MNEME_RETURN_IF_ERROR(CheckFacts(facts));
  MNEME_ASSIGN_OR_RETURN(TokenizerConfig config, ReadConfig((root / kConfigName).string()));
  const std::string tokenizer_class =
      config.tokenizer_class.empty() ? facts.tokenizer_class : config.tokenizer_class;
  const std::string model_path = (root / kModelName).string();
  if (tokenizer_class == kByteTokenizerClass) {
    for (const char* name : {kModelName, kJsonName}) {
      if (!Exists(root / name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(folder, " asks for tokenizer_class ",
                                                     kByteTokenizerClass, " and has a ", name,
                                                     "; remove one of them"));
    }
    return MakeByteTokenizer(facts.vocab_size, facts.bos_token_id, facts.eos_token_id);
  }
  if (Exists(root / kJsonName)) {
    return LoadHuggingFaceTokenizer(folder, TokenizerFiles::kTokenizerJson, std::move(config),
                                    facts);
  }
  const std::optional<TokenizerFiles> old_files = FindOldFiles(root);
  const bool has_model = Exists(model_path);
  if (old_files.has_value() &&
      (!has_model ||
       IsMadeFrom(*old_files, ChooseTokenizerClass(tokenizer_class, facts.model_type)))) {
    return LoadHuggingFaceTokenizer(folder, *old_files, std::move(config), facts);
  }
  if (has_model) {
    MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(model_path));
    auto tokenizer = LoadSentencePiece(file.text(), config, facts);
    return tokenizer.ok() ? std::move(tokenizer) : InFile(model_path, tokenizer.status());
  }
  MNEME_ASSIGN_OR_RETURN(const fs::path rwkv, FindRwkvVocabulary(root));
  if (!rwkv.empty()) return LoadRwkv(rwkv.string(), config, facts);
  MNEME_RETURN_IF_ERROR(RefuseForeignFiles(root, tokenizer_class));
  return LoadWithoutFiles(folder, facts);
}

}  // namespace mneme
