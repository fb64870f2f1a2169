#include "tokenizers/huggingface/pre_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/pre_tokenizers.h"
#include "tokenizers/huggingface/step_options.h"

namespace mneme {
namespace {

constexpr int kMaxPreTokenizerNesting = 16;

// Each piece of a step goes through the next step before the one after it is cut off.
class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    return RunFrom(0, text, context, meter, sink);
  }

 private:
  absl::Status RunFrom(size_t step, absl::string_view text, SectionContext context,
                       WorkMeter& meter, PieceSink sink) const {
    if (step == steps_.size()) return sink(text, context);
    if (step + 1 == steps_.size()) return steps_[step]->Split(text, context, meter, sink);
    return steps_[step]->Split(text, context, meter,
                               [&](absl::string_view piece, SectionContext of_piece) {
                                 return RunFrom(step + 1, piece, of_piece, meter, sink);
                               });
  }

  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// An object of the file that is no Sequence.
struct Step {
  const nlohmann::json* config;
  std::string key;
  std::string type;
};

// The steps of `config` in their order, those of sequences within it included.
absl::Status CollectSteps(const nlohmann::json& config, absl::string_view path,
                          absl::string_view key, int depth, std::vector<Step>& steps) {
  const StepOptions options(config, path, key);
  if (!config.is_object()) return options.Error("", "an object");
  auto type = options.Text("type");
  if (!type.ok()) return type.status();
  if (*type != "Sequence") {
    steps.push_back({&config, std::string(key), *std::move(type)});
    return absl::OkStatus();
  }
  if (depth > kMaxPreTokenizerNesting)
    return options.Error("", "sequences no deeper in one another");
  const auto list = options.List("pretokenizers");
  if (!list.ok()) return list.status();
  for (size_t i = 0; i < (*list)->size(); ++i) {
    absl::Status status =
        CollectSteps((**list)[i], path, absl::StrCat(options.KeyOf("pretokenizers"), "[", i, "]"),
                     depth + 1, steps);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

PreTokenizerOr MakeStep(const Step& step, absl::string_view path, ByteLevelOutput output) {
  const StepOptions options(*step.config, path, step.key);
  const std::string& type = step.type;
  if (type == "ByteLevel") return MakeByteLevelPreTokenizer(options, output);
  if (type == "Split") return MakeSplitPreTokenizer(options);
  if (type == "Metaspace") return MakeMetaspacePreTokenizer(options);
  if (type == "Whitespace") return MakeWhitespacePreTokenizer();
  if (type == "WhitespaceSplit") return MakeWhitespaceSplitPreTokenizer();
  if (type == "BertPreTokenizer") return MakeBertPreTokenizer();
  if (type == "Punctuation") return MakePunctuationPreTokenizer(options);
  if (type == "Digits") return MakeDigitsPreTokenizer(options);
  if (type == "CharDelimiterSplit") return MakeCharDelimiterSplitPreTokenizer(options);
  if (type == "UnicodeScripts") return MakeUnicodeScriptsPreTokenizer();
  if (type == "FixedLength") return MakeFixedLengthPreTokenizer(options);
  return absl::UnimplementedError(
      options
          .Error("type",
                 "one of Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, "
                 "BertPreTokenizer, Punctuation, Digits, CharDelimiterSplit, UnicodeScripts, "
                 "FixedLength")
          .message());
}

}  // namespace

absl::StatusOr<PreTokenization> MakePreTokenizer(const nlohmann::json& config,
                                                 absl::string_view path) {
  std::vector<Step> steps;
  absl::Status status = CollectSteps(config, path, "pre_tokenizer", 0, steps);
  if (!status.ok()) return status;

  PreTokenization result;
  std::vector<std::unique_ptr<PreTokenizer>> made;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    // Steps behind ByteLevel see its alphabet; a last one need not make it.
    auto step = MakeStep(steps[i], path, last ? ByteLevelOutput::kRaw : ByteLevelOutput::kMapped);
    if (!step.ok()) return step.status();
    if (steps[i].type == "ByteLevel") result.alphabet = PieceAlphabet::kBytes;
    if (steps[i].type == "Metaspace" && result.alphabet == PieceAlphabet::kBytes) {
      return absl::UnimplementedError(
          StepOptions(*steps[i].config, path, steps[i].key)
              .Error("type", "no step behind ByteLevel that adds to a text")
              .message());
    }
    made.push_back(*std::move(step));
    if (last && result.alphabet == PieceAlphabet::kBytes && steps[i].type != "ByteLevel") {
      made.push_back(MakeByteLevelEnd());
    }
  }
  if (made.size() == 1) {
    result.pre_tokenizer = std::move(made[0]);
  } else if (!made.empty()) {
    result.pre_tokenizer = std::make_unique<SequencePreTokenizer>(std::move(made));
  }
  return result;
}

}  // namespace mneme
