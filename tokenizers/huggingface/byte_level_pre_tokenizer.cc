#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/byte_alphabet.h"
#include "tokenizers/huggingface/delimiter_splitter.h"
#include "tokenizers/huggingface/pre_tokenizers.h"
#include "tokenizers/huggingface/word_scanner.h"

namespace mneme {
namespace {

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex, ByteLevelOutput output)
      : add_prefix_space_(add_prefix_space),
        words_(use_regex ? MakeWordScanner(kGpt2Pattern) : nullptr),
        output_(output) {}

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    std::string with_space;
    if (add_prefix_space_ && !context.continuation && text[0] != ' ') {
      with_space = absl::StrCat(" ", text);
      text = with_space;
    }
    if (words_ == nullptr) {
      if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
      return Emit(text, context, sink);
    }
    return words_->FindAll(text, meter, [&](size_t begin, size_t end) {
      return Emit(text.substr(begin, end - begin), ContextAt(begin, context), sink);
    });
  }

 private:
  absl::Status Emit(absl::string_view piece, SectionContext context, PieceSink sink) const {
    return output_ == ByteLevelOutput::kRaw ? sink(piece, context)
                                            : sink(InByteAlphabet(piece), context);
  }

  const bool add_prefix_space_;
  const std::unique_ptr<SplitPattern> words_;  // null: the text is one
  const ByteLevelOutput output_;
};

class ByteLevelEnd final : public PreTokenizer {
 public:
  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    if (absl::Status status = meter.AddBytes(text.size()); !status.ok()) return status;
    const auto bytes = FromByteAlphabet(text);
    if (!bytes.has_value()) {
      return absl::InternalError(absl::StrCat("\"", text, "\" is not in the byte-level alphabet"));
    }
    return sink(*bytes, context);
  }
};

}  // namespace

PreTokenizerOr MakeByteLevelPreTokenizer(const StepOptions& options, ByteLevelOutput output) {
  const auto add_prefix_space = options.Bool("add_prefix_space");
  if (!add_prefix_space.ok()) return add_prefix_space.status();
  const auto use_regex = options.Bool("use_regex", true);
  if (!use_regex.ok()) return use_regex.status();
  return std::make_unique<ByteLevelPreTokenizer>(*add_prefix_space, *use_regex, output);
}

std::unique_ptr<PreTokenizer> MakeByteLevelEnd() { return std::make_unique<ByteLevelEnd>(); }

}  // namespace mneme
