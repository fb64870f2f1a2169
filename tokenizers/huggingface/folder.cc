#include "tokenizers/huggingface/folder.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/human_bytes.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/added_token_rules.h"
#include "tokenizers/huggingface/post_processor_json.h"
#include "tokenizers/huggingface/tokenizer.h"
#include "tokenizers/huggingface/tokenizer_class.h"
#include "tokenizers/huggingface/tokenizer_json.h"
#include "tokenizers/huggingface/vocabulary_files.h"
#include "tokenizers/special_ids.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<MappedFile> OpenFile(const std::string& path) {
  MNEME_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  if (static_cast<int64_t>(file.text().size()) <= kMaxTokenizerFileBytes) return file;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " has ", HumanBytes(static_cast<int64_t>(file.text().size())),
                   ", expected at most ", HumanBytes(kMaxTokenizerFileBytes)));
}

// A file that may be missing.
absl::StatusOr<std::optional<MappedFile>> OpenIfThere(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  MNEME_ASSIGN_OR_RETURN(MappedFile file, OpenFile(path.string()));
  return file;
}

struct Parsed {
  TokenizerJson file;
  std::string path;  // in errors
  TokenizerClass tokenizer_class = TokenizerClass::kFile;
};

// Classes that are nothing but tokenizer.json.
bool IsOfTheFile(absl::string_view declared) {
  declared = absl::StripSuffix(declared, "Fast");
  return declared == "PreTrainedTokenizer" || declared == "TokenizersBackend" ||
         declared == "PythonBackend";
}

absl::StatusOr<Parsed> ParseFiles(const fs::path& folder, TokenizerFiles files,
                                  const std::string& declared, absl::string_view model_type,
                                  std::vector<std::string>& notes) {
  Parsed parsed;
  const TokenizerClass chosen = ChooseTokenizerClass(declared, model_type);
  if (files == TokenizerFiles::kTokenizerJson) {
    parsed.path = (folder / "tokenizer.json").string();
    MNEME_ASSIGN_OR_RETURN(const MappedFile file, OpenFile(parsed.path));
    MNEME_ASSIGN_OR_RETURN(parsed.file, ParseTokenizerJson(file.text(), parsed.path));
    // Llama 3's folders name the class of Llama 2.
    const bool is_whole =
        chosen == TokenizerClass::kLlama && absl::StrContains(file.text(), "\"ByteLevel\"");
    parsed.tokenizer_class = is_whole ? TokenizerClass::kFile : chosen;
    if (chosen == TokenizerClass::kFile && !declared.empty() && !IsOfTheFile(declared)) {
      notes.push_back(absl::StrCat("tokenizer_class is ", declared,
                                   ", which is not known: tokenizer.json is taken as it is"));
    }
    return parsed;
  }
  const bool is_text = files == TokenizerFiles::kVocabText;
  if (chosen == TokenizerClass::kFile && !declared.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        folder.string(), " has ", is_text ? "vocab.txt" : "vocab.json and merges.txt",
        " and no tokenizer.json; tokenizer_class is ", declared, ", expected ",
        is_text ? "BertTokenizer"
                : "GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer or RobertaTokenizer"));
  }
  parsed.tokenizer_class = chosen != TokenizerClass::kFile ? chosen
                           : is_text                       ? TokenizerClass::kBert
                                                           : TokenizerClass::kGpt2;
  if (is_text ? !ReadsVocabText(parsed.tokenizer_class)
              : !ReadsVocabAndMerges(parsed.tokenizer_class)) {
    return absl::UnimplementedError(absl::StrCat(
        folder.string(), " has ", is_text ? "vocab.txt" : "vocab.json and merges.txt",
        ", from which tokenizer_class ", TokenizerClassName(parsed.tokenizer_class),
        " is not made; expected tokenizer.json beside it, or the class ",
        is_text ? "BertTokenizer"
                : "GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer or RobertaTokenizer"));
  }
  if (chosen == TokenizerClass::kFile) {
    notes.push_back(absl::StrCat("the folder does not say what class of tokenizer its ",
                                 is_text ? "vocab.txt" : "vocab.json", " is for; ",
                                 TokenizerClassName(parsed.tokenizer_class), " is taken"));
  }
  if (is_text) {
    parsed.path = (folder / "vocab.txt").string();
    MNEME_ASSIGN_OR_RETURN(const MappedFile vocab, OpenFile(parsed.path));
    MNEME_ASSIGN_OR_RETURN(parsed.file.model, ParseVocabText(vocab.text(), parsed.path));
    return parsed;
  }
  parsed.path = (folder / "vocab.json").string();
  const std::string merges_path = (folder / "merges.txt").string();
  MNEME_ASSIGN_OR_RETURN(const MappedFile vocab, OpenFile(parsed.path));
  MNEME_ASSIGN_OR_RETURN(const MappedFile merges, OpenFile(merges_path));
  MNEME_ASSIGN_OR_RETURN(parsed.file.model, ParseVocabAndMerges(vocab.text(), parsed.path,
                                                                merges.text(), merges_path));
  return parsed;
}

absl::Status CheckModelType(const Parsed& parsed) {
  const absl::string_view expected = ModelTypeOf(parsed.tokenizer_class);
  const nlohmann::json& options = parsed.file.model.options;
  const auto type = options.find("type");
  if (expected.empty() || type == options.end() || *type == std::string(expected)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      parsed.path, ": model.type is ", type->dump(), " and tokenizer_class ",
      TokenizerClassName(parsed.tokenizer_class), ", which is made of a model of type \"", expected,
      "\"; expected a class that fits, such as PreTrainedTokenizerFast"));
}

// Refuses a file that puts something around texts that is no token of it.
absl::Status CheckTemplate(const nlohmann::json& post_processor,
                           const std::vector<Pipeline::Added>& added,
                           const std::vector<std::string>& model_tokens, const std::string& path) {
  for (const TemplateToken& token : TemplateTokens(post_processor)) {
    const bool is_added = std::ranges::any_of(
        added, [&](const Pipeline::Added& one) { return one.token.text == token.spelling; });
    if (is_added || std::ranges::find(model_tokens, token.spelling) != model_tokens.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": post_processor puts \"", absl::CHexEscape(token.spelling), "\" (id ", token.id,
        ") around texts, which is neither in model.vocab nor in "
        "added_tokens; expected it in one of them"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadHuggingFaceTokenizer(absl::string_view folder,
                                                                    TokenizerFiles files,
                                                                    TokenizerConfig config,
                                                                    const TokenizerFacts& facts) {
  const fs::path root{std::string(folder)};
  Tokenizer::Vocabulary vocabulary;
  std::vector<TokenizerConfig::AddedToken> legacy;
  if (!config.added_tokens.has_value()) {
    const fs::path map_path = root / "special_tokens_map.json";
    MNEME_ASSIGN_OR_RETURN(const std::optional<MappedFile> map, OpenIfThere(map_path));
    if (map.has_value()) {
      MNEME_RETURN_IF_ERROR(ParseSpecialTokensMap(map->text(), map_path.string(), config));
    }
    const fs::path added_path = root / "added_tokens.json";
    MNEME_ASSIGN_OR_RETURN(const std::optional<MappedFile> added, OpenIfThere(added_path));
    if (added.has_value()) {
      MNEME_ASSIGN_OR_RETURN(legacy, ParseAddedTokensFile(added->text(), added_path.string()));
    }
  }
  const std::string& declared =
      config.tokenizer_class.empty() ? facts.tokenizer_class : config.tokenizer_class;
  MNEME_ASSIGN_OR_RETURN(Parsed parsed,
                         ParseFiles(root, files, declared, facts.model_type, vocabulary.notes));
  MNEME_RETURN_IF_ERROR(CheckModelType(parsed));
  AddClassTokens(parsed.tokenizer_class, config);
  ApplyTokenizerClass(parsed.tokenizer_class, config, parsed.file);
  const std::string list_path = absl::StrCat(parsed.path, ": added_tokens");
  MNEME_ASSIGN_OR_RETURN(
      std::vector<TokenizerConfig::AddedToken> file_tokens,
      ParseAddedTokens(parsed.file.rest.value("added_tokens", nlohmann::json()), list_path));
  const bool file_has_post_processor =
      parsed.file.rest.contains("post_processor") && !parsed.file.rest["post_processor"].is_null();
  // The ids that files say; other tokens are added behind these, or behind the vocabulary.
  std::set<std::pair<std::string, int64_t>> listed;
  for (const auto* tokens :
       {&file_tokens, &legacy, config.added_tokens.has_value() ? &*config.added_tokens : nullptr}) {
    if (tokens == nullptr) continue;
    for (const TokenizerConfig::AddedToken& token : *tokens)
      listed.emplace(token.content, token.id);
  }
  const nlohmann::json file_post_processor =
      parsed.file.rest.value("post_processor", nlohmann::json());
  const auto model_count = static_cast<int32_t>(parsed.file.model.vocab.size());
  MNEME_ASSIGN_OR_RETURN(Pipeline pipeline, MakePipeline(std::move(parsed.file), parsed.path));
  pipeline.added_tokens =
      ResolveAddedTokens({.file = std::move(file_tokens),
                          .file_is_whole = parsed.tokenizer_class == TokenizerClass::kFile,
                          .config = config,
                          .legacy = std::move(legacy)},
                         pipeline.model->tokens(), model_count, vocabulary.notes);
  // All that a configuration names were added.
  const auto find = [&added = pipeline.added_tokens](absl::string_view spelling) {
    const auto it = std::find_if(added.begin(), added.end(), [&](const Pipeline::Added& one) {
      return one.token.text == spelling;
    });
    return it == added.end() ? std::nullopt : std::optional<int32_t>(it->token.id);
  };
  const std::vector<std::string>& model_tokens = pipeline.model->tokens();
  const auto find_listed = [&](absl::string_view spelling) -> std::optional<int32_t> {
    const std::optional<int32_t> id = find(spelling);
    const bool is_listed = id.has_value() && listed.contains({std::string(spelling), *id});
    return is_listed || std::ranges::find(model_tokens, spelling) != model_tokens.end()
               ? id
               : std::nullopt;
  };
  absl::StatusOr<std::optional<PostProcessor>> around =
      ClassPostProcessor(parsed.tokenizer_class, config, file_has_post_processor, find_listed);
  if (!around.ok()) {
    return absl::Status(around.status().code(),
                        absl::StrCat(parsed.path, ": ", around.status().message()));
  }
  if (around->has_value()) {
    pipeline.post_processor = **std::move(around);
  } else {
    MNEME_RETURN_IF_ERROR(
        CheckTemplate(file_post_processor, pipeline.added_tokens, model_tokens, parsed.path));
  }
  if (config.clean_up_tokenization_spaces.value_or(false) && pipeline.model_type != "BPE" &&
      pipeline.model_type != "WordPiece") {
    vocabulary.notes.push_back(
        "clean_up_tokenization_spaces of tokenizer_config.json is ignored: text is given out as it "
        "is generated");
  }
  ChooseSpecialIds(config, facts, find, vocabulary);
  if (const auto unk = config.Spelling("unk_token"); unk.has_value())
    vocabulary.unk_id = find(*unk);
  return MakePipelineTokenizer(std::move(pipeline), static_cast<int>(facts.vocab_size),
                               std::move(vocabulary));
}

}  // namespace mneme
