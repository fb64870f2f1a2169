#include "models/state_layout.h"

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

StateField StateLayout::Add(absl::string_view name, DType dtype, Shape shape,
                            bool lazily_initialized) {
  StateField field{.name = std::string(name),
                   .dtype = dtype,
                   .shape = shape,
                   .offset = slab_bytes_,
                   .lazily_initialized = lazily_initialized};
  slab_bytes_ += (field.bytes() + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
  fields_.push_back(field);
  return field;
}

StateField StateLayout::AddBirthPhase(int phases) {
  for (const StateField& field : fields_) {
    if (field.birth_phases == 0) continue;
    CHECK_EQ(field.birth_phases, phases) << "a second number of phases";
    return field;
  }
  Add("phase", DType::kI32, {1}, /*lazily_initialized=*/false);
  fields_.back().birth_phases = phases;
  return fields_.back();
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
    if (group.field->birth_phases > 0) {
      birth = absl::StrCat("  one of ", group.field->birth_phases, " in turn in new sessions");
    } else if (!group.field->lazily_initialized) {
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
