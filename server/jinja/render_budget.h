// The budget of one rendering, so that no template takes a server's time or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"
#include "server/jinja/value.h"

namespace mneme::jinja {

struct RenderLimits {
  int64_t steps = 0;         // operations, and elements or sixteen bytes that one looks at
  int64_t memory_bytes = 0;  // of all texts, lists and mappings made, whether still in use or not
};

// Everything that can grow is made here: RESOURCE_EXHAUSTED once a limit is reached, before there
// is anything to be had for it. Of one rendering, and its thread.
class RenderBudget {
 public:
  RenderBudget(const RenderLimits& limits, WorkMeter& meter)
      : limits_(limits),
        steps_left_(limits.steps),
        memory_left_(limits.memory_bytes),
        meter_(meter) {}
  // Empties all namespaces, which may hold each other. Nothing of the rendering may be left by
  // then.
  ~RenderBudget();
  RenderBudget(const RenderBudget&) = delete;
  RenderBudget& operator=(const RenderBudget&) = delete;

  [[nodiscard]] absl::Status Step(int64_t steps = 1) {
    steps_left_ -= steps;
    return steps_left_ >= 0 ? meter_.Add(steps) : OutOfSteps();
  }
  // For a text that is looked through.
  [[nodiscard]] absl::Status StepOver(absl::string_view text) {
    return Step(1 + static_cast<int64_t>(text.size() / 16));
  }
  [[nodiscard]] absl::Status TakeMemory(size_t bytes) {
    memory_left_ -= static_cast<int64_t>(bytes);
    return memory_left_ >= 0 ? meter_.AddBytes(bytes) : OutOfMemory();
  }

  // For a text no longer than what it was made of; longer ones need a TextBuilder.
  absl::StatusOr<Value> Text(std::string text);
  absl::StatusOr<Value> NewList(List list);
  absl::StatusOr<Value> NewMap(Map map);
  absl::StatusOr<Value> NewNamespace(Map attributes);
  absl::StatusOr<Value> NewMethod(std::string name, const Value& self);

 private:
  absl::Status OutOfSteps() const;
  absl::Status OutOfMemory() const;

  const RenderLimits limits_;
  int64_t steps_left_;
  int64_t memory_left_;
  WorkMeter& meter_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// A list in the making, paid for element by element.
class ListBuilder {
 public:
  explicit ListBuilder(RenderBudget& budget) : budget_(budget) {}

  [[nodiscard]] absl::Status Add(Value value) {
    if (auto status = budget_.TakeMemory(sizeof(Value)); !status.ok()) return status;
    list_.push_back(std::move(value));
    return absl::OkStatus();
  }
  // A text of its own.
  [[nodiscard]] absl::Status AddText(absl::string_view text);
  List& list() { return list_; }
  absl::StatusOr<Value> Finish();

 private:
  RenderBudget& budget_;
  List list_;
};

// A text in the making, paid for as it grows.
class TextBuilder {
 public:
  explicit TextBuilder(RenderBudget& budget) : budget_(&budget) {}

  [[nodiscard]] absl::Status Append(absl::string_view part) {
    if (auto status = budget_->TakeMemory(part.size()); !status.ok()) return status;
    text_.append(part.data(), part.size());
    return absl::OkStatus();
  }
  // str(value) in Python; `quoted` is repr(value).
  [[nodiscard]] absl::Status AppendValue(const Value& value, bool quoted = false);
  // json.dumps(value, ensure_ascii=False, indent=indent); no indent below 0.
  [[nodiscard]] absl::Status AppendJson(const Value& value, int indent);

  RenderBudget& budget() { return *budget_; }
  size_t size() const { return text_.size(); }
  std::string TakeText() { return std::exchange(text_, {}); }
  Value Finish() { return Value(TakeText()); }

 private:
  RenderBudget* budget_;
  std::string text_;
};

// The value as a text: itself, if it is one.
absl::StatusOr<Value> AsText(const Value& value, RenderBudget& budget);

}  // namespace mneme::jinja
