#include <memory>
#include <utility>

#include "tokenizers/huggingface/delimiter_splitter.h"
#include "tokenizers/huggingface/pre_tokenizers.h"
#include "tokenizers/huggingface/split_pattern.h"

namespace mneme {
namespace {

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<SplitPattern> pattern, DelimiterBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Split(absl::string_view text, SectionContext context, WorkMeter& meter,
                     PieceSink sink) const override {
    DelimiterSplitter splitter(text, context, behavior_, sink);
    size_t done = 0;
    absl::Status status =
        pattern_->FindAll(text, meter, [&](size_t begin, size_t end) -> absl::Status {
          if (done < begin) {
            if (absl::Status gap = splitter.Stretch(done, begin, invert_); !gap.ok()) return gap;
          }
          done = end;
          return splitter.Stretch(begin, end, !invert_);
        });
    if (status.ok() && done < text.size()) status = splitter.Stretch(done, text.size(), invert_);
    return status.ok() ? splitter.Finish() : status;
  }

 private:
  const std::unique_ptr<SplitPattern> pattern_;
  const DelimiterBehavior behavior_;
  const bool invert_;  // the pattern matches what lies between delimiters
};

}  // namespace

PreTokenizerOr MakeSplitPreTokenizer(const StepOptions& options) {
  const nlohmann::json* pattern = options.Find("pattern");
  if (pattern == nullptr) return options.Error("pattern", "{\"String\": ...} or {\"Regex\": ...}");
  auto compiled = MakeSplitPattern(*pattern, options.path(), options.KeyOf("pattern"));
  if (!compiled.ok()) return compiled.status();
  const auto behavior = DelimiterBehaviorOption(options, "behavior");
  if (!behavior.ok()) return behavior.status();
  const auto invert = options.Bool("invert");
  if (!invert.ok()) return invert.status();
  return std::make_unique<SplitPreTokenizer>(*std::move(compiled), *behavior, *invert);
}

}  // namespace mneme
