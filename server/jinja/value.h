// Values of a template: what Python would hold, as far as templates use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/work_meter.h"

namespace mneme::jinja {

class Map;
class Value;
using List = std::vector<Value>;
using TextPointer = std::shared_ptr<const std::string>;

struct Undefined {
  Undefined() = default;
  explicit Undefined(std::string missing)
      : name(std::make_shared<const std::string>(std::move(missing))) {}

  TextPointer name;  // of what was missing, for messages; may be null
};
struct None {};
struct Statement;
// A function that the interpreter knows: "range", or the method "strip" of the text `self`; or one
// that the template defines.
struct Function {
  std::string name;
  std::shared_ptr<const Value> self = nullptr;  // null for functions
  const Statement* macro = nullptr;             // of the template, which outlives the value
};
// A value that namespace() makes: the only kind that changes after it was made.
struct Namespace;
// The variable "loop" of a loop.
struct Loop;

// Texts, lists and mappings are shared by all copies and never change. They nest to kMaxDepth and
// no deeper, so that whoever walks through one, its destructor included, may use recursion. Of
// namespaces, which may hold themselves, a RenderBudget takes care.
class Value {
 public:
  // A text has depth 0, and a list one more than its deepest element.
  static constexpr int kMaxDepth = 100;

  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}                           // NOLINT(google-explicit-constructor)
  Value(Undefined missing) : data_(std::move(missing)) {}  // NOLINT(google-explicit-constructor)
  Value(bool value) : data_(value) {}                      // NOLINT(google-explicit-constructor)
  Value(int64_t value) : data_(value) {}                   // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}                    // NOLINT(google-explicit-constructor)
  Value(std::string value)                                 // NOLINT(google-explicit-constructor)
      : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}               // NOLINT
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}  // NOLINT

  // INVALID_ARGUMENT for what would be nested too deeply.
  static absl::StatusOr<Value> OfList(List list);
  static absl::StatusOr<Value> OfMap(Map map);
  static absl::StatusOr<Value> OfFunction(Function function);
  static absl::StatusOr<Value> OfLoop(std::shared_ptr<const Loop> loop);
  // Counts every value with `meter`.
  static absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, WorkMeter& meter);

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_text() const { return Is<TextPointer>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_number() const { return Is<int64_t>() || Is<double>(); }
  bool is_list() const { return Is<ListPointer>(); }
  bool is_map() const { return Is<MapPointer>(); }
  bool is_namespace() const { return Is<std::shared_ptr<Namespace>>(); }
  bool is_loop() const { return Is<std::shared_ptr<const Loop>>(); }
  bool is_function() const { return Is<std::shared_ptr<const Function>>(); }

  const std::string& text() const { return *std::get<TextPointer>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return std::get<int64_t>(data_); }
  double number() const {
    return is_int() ? static_cast<double>(integer()) : std::get<double>(data_);
  }
  const List& list() const;
  const Map& map() const;
  Namespace& name_space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Loop& loop() const { return *std::get<std::shared_ptr<const Loop>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  // The name of what is undefined.
  std::string missing() const {
    const TextPointer& name = std::get<Undefined>(data_).name;
    return name == nullptr ? "" : *name;
  }

  bool Truthy() const;
  // "text", "list": for messages.
  std::string TypeName() const;
  int depth() const;
  // Whether both are the same object, so that copies of one are; of texts, lists and the like.
  bool SharesWith(const Value& other) const { return identity() == other.identity(); }

 private:
  struct ListData;
  struct MapData;
  using ListPointer = std::shared_ptr<const ListData>;
  using MapPointer = std::shared_ptr<const MapData>;

  const void* identity() const;

  std::variant<Undefined, None, bool, int64_t, double, TextPointer, ListPointer, MapPointer,
               std::shared_ptr<Namespace>, std::shared_ptr<const Loop>,
               std::shared_ptr<const Function>>
      data_;
};

// Entries in the order of insertion, as in Python; found in constant time.
class Map {
 public:
  using Entry = std::pair<std::string, Value>;

  Map() = default;

  // Null if there is none.
  const Value* Find(absl::string_view key) const;
  // Sets or replaces.
  void Set(absl::string_view key, Value value);

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  size_t PlaceOf(absl::string_view key) const;  // size(): nowhere

  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, size_t> places_;  // of all entries, once there are many
};

struct Namespace {
  Map attributes;
};

struct Loop {
  Value list;
  size_t index = 0;  // of the element that it is at
};

}  // namespace mneme::jinja
