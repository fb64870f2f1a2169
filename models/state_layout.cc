#include "models/state_layout.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

constexpr int64_t kFieldAlignment = 64;

// "layers.3.memory" is layer 3's "memory"; other names have no layer.
struct FieldName {
  int layer = -1;
  std::string rest;
};

FieldName Split(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 2));
  int layer = 0;
  if (parts.size() == 3 && parts[0] == "layers" && absl::SimpleAtoi(parts[1], &layer)) {
    return {layer, parts[2]};
  }
  return {-1, name};
}

// Fields that differ in their layer only.
struct FieldGroup {
  std::string rest;
  const StateField* field = nullptr;
  int first_layer = -1;
  int last_layer = -1;
  int count = 0;
};

bool Joins(const FieldGroup& group, const FieldName& name, const StateField& field) {
  return name.layer >= 0 && group.rest == name.rest && name.layer == group.last_layer + 1 &&
         group.field->dtype == field.dtype && group.field->shape == field.shape;
}

}  // namespace

StateField StateLayout::Add(StateField field) {
  if (field.guard == StateGuard::kFlags) {
    CHECK(field.flags >= 0 && field.flags < static_cast<int>(fields_.size())) << field.name;
    const StateField& flags = fields_[field.flags];
    CHECK(flags.dtype == DType::kU8 && flags.shape == Shape{field.memories()} &&
          flags.guard == StateGuard::kAlways)
        << flags.name << " are no flags of " << field.name;
  }
  if (field.guard == StateGuard::kFirstRows || field.guard == StateGuard::kRing) {
    CHECK_GE(field.shape.rank, 2) << field.name;
    CHECK_GE(field.rows(), 1) << field.name;
  }
  // What is not read until it is written needs a guard that says what was.
  CHECK(field.initial != StateInitial::kShared || field.guard == StateGuard::kFlags ||
        field.guard == StateGuard::kFed)
      << field.name;
  field.index = static_cast<int>(fields_.size());
  field.offset = slab_bytes_;
  slab_bytes_ += (field.bytes() + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
  fields_.push_back(field);
  return field;
}

std::vector<ByteRange> WrittenBytes(const StateLayout& layout, const StateField& field,
                                    const std::byte* slab, int64_t tokens) {
  std::vector<ByteRange> ranges;
  const auto add = [&](int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = begin + bytes;
    } else {
      ranges.push_back({begin, begin + bytes});
    }
  };
  for (int64_t m = 0; m < field.memories(); ++m) {
    const int64_t begin = field.offset + m * field.memory_bytes();
    switch (field.guard) {
      case StateGuard::kAlways:
        add(begin, field.memory_bytes());
        break;
      case StateGuard::kFlags:
        if (slab == nullptr || slab[layout.fields()[field.flags].offset + m] != std::byte{0}) {
          add(begin, field.memory_bytes());
        }
        break;
      case StateGuard::kFed:
        if (tokens > 0) add(begin, field.memory_bytes());
        break;
      case StateGuard::kFirstRows:
      case StateGuard::kRing:
        add(begin, std::min(tokens, field.rows()) * field.row_bytes());
        break;
    }
  }
  return ranges;
}

StateField StateLayout::AddPhase(int phases) {
  for (const StateField& field : fields_) {
    if (field.initial != StateInitial::kPhase) continue;
    CHECK_EQ(field.phases, phases) << "a second number of phases";
    return field;
  }
  return Add({.name = "phase",
              .dtype = DType::kI32,
              .shape = {1},
              .initial = StateInitial::kPhase,
              .role = StateRole::kDerived,
              .phases = phases});
}

std::string StateLayout::ToString() const {
  std::vector<FieldGroup> groups;
  for (const StateField& field : fields_) {
    const FieldName name = Split(field.name);
    FieldGroup* group = nullptr;
    for (FieldGroup& candidate : groups) {
      if (Joins(candidate, name, field)) group = &candidate;
    }
    if (group == nullptr) {
      groups.push_back({name.rest, &field, name.layer, name.layer, 1});
    } else {
      group->last_layer = name.layer;
      ++group->count;
    }
  }
  std::string text;
  for (const FieldGroup& group : groups) {
    std::string name = group.rest;
    if (group.count > 1) {
      name = absl::StrCat("layers.", group.first_layer, "-", group.last_layer, ".", group.rest);
    } else if (group.first_layer >= 0) {
      name = absl::StrCat("layers.", group.first_layer, ".", group.rest);
    }
    std::string birth;
    if (group.field->initial == StateInitial::kPhase) {
      birth = absl::StrCat("  one of ", group.field->phases, " in turn in new sessions");
    } else if (group.field->guard == StateGuard::kAlways) {
      birth = "  cleared in new sessions";
    }
    absl::StrAppendFormat(&text, "%-24s %-4s %-22s %12d bytes%s\n", name, Name(group.field->dtype),
                          ShapeToString(group.field->shape), group.count * group.field->bytes(),
                          birth);
  }
  absl::StrAppend(&text, "slab: ", slab_bytes_, " bytes\n");
  return text;
}

}  // namespace mneme
