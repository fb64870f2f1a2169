#include "server/jinja/render_budget.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme::jinja {
namespace {

// The bytes that the allocator and a shared pointer add to a value of its own, and those that an
// entry of a mapping takes beside its key.
constexpr size_t kBytesOfOne = 64;
constexpr size_t kBytesOfEntry = 128;

}  // namespace

RenderBudget::~RenderBudget() {
  // One at a time, while all others are held: so nothing is destroyed through a namespace, however
  // long a chain of them is.
  for (const std::shared_ptr<Namespace>& each : namespaces_) each->attributes = Map();
}

absl::Status RenderBudget::OutOfSteps() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("the template takes more than ", limits_.steps, " steps"));
}

absl::Status RenderBudget::OutOfMemory() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the template makes more than ", limits_.memory_bytes, " bytes of texts and lists"));
}

absl::StatusOr<Value> RenderBudget::Text(std::string text) {
  MNEME_RETURN_IF_ERROR(TakeMemory(kBytesOfOne + text.size()));
  return Value(std::move(text));
}

absl::StatusOr<Value> RenderBudget::NewList(List list) {
  MNEME_RETURN_IF_ERROR(TakeMemory(kBytesOfOne + list.size() * sizeof(Value)));
  return Value::OfList(std::move(list));
}

absl::StatusOr<Value> RenderBudget::NewMap(Map map) {
  MNEME_RETURN_IF_ERROR(TakeMemory(kBytesOfOne + map.size() * kBytesOfEntry));
  return Value::OfMap(std::move(map));
}

absl::StatusOr<Value> RenderBudget::NewNamespace(Map attributes) {
  MNEME_RETURN_IF_ERROR(TakeMemory(2 * kBytesOfOne + attributes.size() * kBytesOfEntry));
  namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(attributes)}));
  return Value(namespaces_.back());
}

absl::StatusOr<Value> RenderBudget::NewMethod(std::string name, const Value& self) {
  MNEME_RETURN_IF_ERROR(TakeMemory(3 * kBytesOfOne));
  return Value::OfFunction({std::move(name), std::make_shared<const Value>(self)});
}

absl::Status ListBuilder::AddText(absl::string_view text) {
  MNEME_ASSIGN_OR_RETURN(Value value, budget_.Text(std::string(text)));
  return Add(std::move(value));
}

absl::StatusOr<Value> ListBuilder::Finish() {
  MNEME_RETURN_IF_ERROR(budget_.TakeMemory(kBytesOfOne));
  return Value::OfList(std::move(list_));
}

absl::StatusOr<Value> AsText(const Value& value, RenderBudget& budget) {
  if (value.is_text()) return value;
  TextBuilder text(budget);
  MNEME_RETURN_IF_ERROR(text.AppendValue(value));
  return text.Finish();
}

}  // namespace mneme::jinja
