#include "models/state_layout.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "kernels/tensor.h"
#include "models/context_tables.h"

namespace mneme {
namespace {

constexpr int64_t kFieldAlignment = 64;

int64_t Aligned(int64_t bytes) {
  return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
}

// "layers.3." of a field of layer 3.
std::string NamePrefix(const StateField& field) {
  return field.layer < 0 ? "" : absl::StrCat("layers.", field.layer, ".");
}

// "memory" of "layers.3.memory".
absl::string_view NameInLayer(const StateField& field) {
  return absl::string_view(field.name).substr(NamePrefix(field).size());
}

// Fields that differ in their layer only.
struct FieldGroup {
  const StateField* field = nullptr;  // the first one
  std::vector<int> layers;
};

bool Joins(const FieldGroup& group, const StateField& field) {
  return field.layer >= 0 && group.field->layer >= 0 &&
         NameInLayer(*group.field) == NameInLayer(field) && group.field->dtype == field.dtype &&
         group.field->shape == field.shape;
}

// "0-3,5", and "1,3,..,11" of every second one.
std::string ShownLayers(const std::vector<int>& layers) {
  std::string text;
  size_t first = 0;
  while (first < layers.size()) {
    size_t end = first + 1;
    const int step = end < layers.size() ? layers[end] - layers[first] : 1;
    while (end < layers.size() && layers[end] - layers[end - 1] == step) ++end;
    if (step > 1 && end - first < 5) end = first + 1;  // too few to leave any out
    absl::StrAppend(&text, text.empty() ? "" : ",", layers[first]);
    if (end - first > 1) {
      if (step > 1) absl::StrAppend(&text, ",", layers[first + 1], ",..,");
      absl::StrAppend(&text, step > 1 ? "" : "-", layers[end - 1]);
    }
    first = end;
  }
  return text;
}

// The line of a field that grows has the bytes of a token's rows in all its `layers`, and the
// number that rows are rounded up to.
std::string RowsText(const StateField& field, int64_t layers) {
  std::string text = "  a row a token";
  if (field.guard == StateGuard::kRing) absl::StrAppend(&text, ", the last ", field.rows());
  absl::StrAppend(&text, ": ", layers * field.memories() * field.row_bytes(), " bytes a token");
  const int64_t room = field.blocks() * kContextBlock;
  if (room > field.rows()) {
    absl::StrAppend(&text, ", room for ", room, " as blocks have ", kContextBlock, " rows");
  }
  return text;
}

}  // namespace

StateField StateLayout::Add(StateField field) {
  field.name = absl::StrCat(NamePrefix(field), field.name);
  if (field.guard == StateGuard::kFlags) {
    CHECK(field.flags >= 0 && field.flags < static_cast<int>(fields_.size())) << field.name;
    const StateField& flags = fields_[field.flags];
    CHECK(flags.dtype == DType::kU8 && flags.shape == Shape{field.memories()} &&
          flags.guard == StateGuard::kAlways)
        << flags.name << " are no flags of " << field.name;
  }
  // What is not read until it is written needs a guard that says what was.
  CHECK(field.initial != StateInitial::kShared || field.guard == StateGuard::kFlags ||
        field.guard == StateGuard::kFed)
      << field.name;
  field.index = static_cast<int>(fields_.size());
  if (field.grows()) {
    CHECK_GE(field.shape.rank, 3) << field.name;
    CHECK_GE(field.rows(), 1) << field.name;
    const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const ContextGroup& g) {
      return g.guard == field.guard && g.rows == field.rows() && g.inserted == field.inserted;
    });
    field.group = static_cast<int>(group - groups_.begin());
    if (group == groups_.end()) {
      groups_.push_back({.guard = field.guard, .rows = field.rows(), .inserted = field.inserted});
    }
    field.offset = groups_[field.group].block_bytes;
    groups_[field.group].block_bytes += Aligned(field.memories() * field.memory_bytes());
  } else if (field.is_late) {
    CHECK(!fields_.empty() && !fields_.back().grows()) << field.name << " has nothing before it";
    field.offset = fields_.back().offset + fields_.back().bytes();
    CHECK_LE(field.offset + field.bytes(), fixed_bytes_) << "no room for " << field.name;
  } else {
    field.offset = fixed_bytes_;
    fixed_bytes_ += Aligned(field.bytes());
  }
  fields_.push_back(field);
  return field;
}

int64_t StateLayout::slab_bytes() const {
  int64_t bytes = fixed_bytes_;
  for (const ContextGroup& group : groups_) bytes += group.bytes();
  // Sessions without a state have slabs, too.
  return std::max(bytes, kFieldAlignment);
}

int64_t StateLayout::BlockOffset(int group, int64_t block) const {
  int64_t offset = fixed_bytes_;
  for (int g = 0; g < group; ++g) offset += groups_[g].bytes();
  return offset + block * groups_[group].block_bytes;
}

int64_t StateLayout::RowOffset(const StateField& field, int64_t memory, int64_t position) const {
  const int64_t block = position / kContextBlock % field.blocks();
  return BlockOffset(field.group, block) + field.offset + memory * field.memory_bytes() +
         position % kContextBlock * field.row_bytes();
}

std::optional<int64_t> StateLayout::max_tokens() const {
  std::optional<int64_t> most;
  for (const ContextGroup& group : groups_) {
    if (group.guard == StateGuard::kFirstRows) {
      most = std::min(most.value_or(group.rows), group.rows);
    }
  }
  return most;
}

int64_t StateLayout::growing_bytes() const {
  int64_t bytes = 0;
  for (const ContextGroup& group : groups_) {
    if (group.guard == StateGuard::kFirstRows) bytes += group.bytes();
  }
  return bytes;
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
    FieldGroup* group = nullptr;
    for (FieldGroup& candidate : groups) {
      if (Joins(candidate, field)) group = &candidate;
    }
    if (group == nullptr) {
      groups.push_back({&field, {field.layer}});
    } else {
      group->layers.push_back(field.layer);
    }
  }
  std::vector<std::array<std::string, 2>> columns;  // names and shapes
  constexpr absl::string_view kPadding = "alignment";
  int64_t padding = slab_bytes();
  for (const StateField& field : fields_) padding -= field.bytes();
  size_t name_width = padding > 0 ? kPadding.size() : 0, shape_width = 0;
  for (const FieldGroup& group : groups) {
    std::string name = group.field->name;
    if (group.layers.size() > 1) {
      name = absl::StrCat("layers.", ShownLayers(group.layers), ".", NameInLayer(*group.field));
    }
    columns.push_back({std::move(name), ShapeToString(group.field->shape)});
    name_width = std::max(name_width, columns.back()[0].size());
    shape_width = std::max(shape_width, columns.back()[1].size());
  }
  std::string text;
  const auto append = [&](absl::string_view name, const char* type, absl::string_view shape,
                          int64_t bytes, absl::string_view more) {
    absl::StrAppendFormat(&text, "%-*s %-4s %-*s %12d bytes%s\n", static_cast<int>(name_width),
                          name, type, static_cast<int>(shape_width), shape, bytes, more);
  };
  for (size_t i = 0; i < groups.size(); ++i) {
    const FieldGroup& group = groups[i];
    std::string birth;
    if (group.field->initial == StateInitial::kPhase) {
      birth = absl::StrCat("  one of ", group.field->phases, " in turn in new sessions");
    } else if (group.field->guard == StateGuard::kAlways) {
      birth = "  cleared in new sessions";
    } else if (group.field->grows()) {
      birth = RowsText(*group.field, static_cast<int64_t>(group.layers.size()));
    } else if (group.field->initial == StateInitial::kShared) {
      birth = "  shared by sessions that have not written it";
    }
    append(columns[i][0], Name(group.field->dtype), columns[i][1],
           static_cast<int64_t>(group.layers.size()) * group.field->bytes(), birth);
  }
  if (padding > 0) append(kPadding, "", "", padding, "  between fields");
  absl::StrAppend(&text, "slab: ", slab_bytes(), " bytes\n");
  if (const int64_t tables = ContextTables::bytes(*this); tables > 0) {
    absl::StrAppend(&text, "tables: ", tables, " bytes beside it, which say where its rows lie\n");
  }
  return text;
}

}  // namespace mneme
