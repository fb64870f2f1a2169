// Values of a template: what Python would hold, as far as templates use it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme::jinja {

class Value;
using List = std::vector<Value>;
// In the order of insertion, as in Python.
using Map = std::vector<std::pair<std::string, Value>>;

struct Undefined {
  std::string name;  // of what was missing, for messages
};
struct None {};
// A function that the interpreter knows: "range", or the method "strip" of the text `self`.
struct Builtin {
  std::string name;
  std::shared_ptr<Value> self;  // null for functions
};

// Copies share lists and maps. Only a namespace is ever changed after it was made.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}                           // NOLINT(google-explicit-constructor)
  Value(Undefined missing) : data_(std::move(missing)) {}  // NOLINT(google-explicit-constructor)
  Value(bool value) : data_(value) {}                      // NOLINT(google-explicit-constructor)
  Value(int64_t value) : data_(value) {}                   // NOLINT(google-explicit-constructor)
  Value(double value) : data_(value) {}                    // NOLINT(google-explicit-constructor)
  Value(std::string value) : data_(std::move(value)) {}    // NOLINT(google-explicit-constructor)
  Value(const char* value) : data_(std::string(value)) {}  // NOLINT(google-explicit-constructor)
  Value(List list) : data_(std::make_shared<List>(std::move(list))) {}  // NOLINT
  Value(Map map) : data_(std::make_shared<Map>(std::move(map))) {}      // NOLINT
  Value(Builtin function) : data_(std::move(function)) {}               // NOLINT

  static Value FromJson(const nlohmann::ordered_json& json);
  static Value Namespace(Map map);

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_text() const { return Is<std::string>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_number() const { return Is<int64_t>() || Is<double>(); }
  bool is_list() const { return Is<std::shared_ptr<List>>(); }
  bool is_map() const { return Is<std::shared_ptr<Map>>(); }
  bool is_namespace() const { return is_map() && is_namespace_; }

  const std::string& text() const { return std::get<std::string>(data_); }
  int64_t integer() const { return std::get<int64_t>(data_); }
  double number() const {
    return is_int() ? static_cast<double>(integer()) : std::get<double>(data_);
  }
  const List& list() const { return *std::get<std::shared_ptr<List>>(data_); }
  const Map& map() const { return *std::get<std::shared_ptr<Map>>(data_); }
  Map& mutable_map() const { return *std::get<std::shared_ptr<Map>>(data_); }
  template <typename T>
  const T& Get() const {
    return std::get<T>(data_);
  }

  bool Truthy() const;
  // str(value) in Python; `quoted` is repr(value).
  std::string ToText(bool quoted = false) const;
  // "text", "list": for messages.
  std::string TypeName() const;
  // The value under `key`, or undefined.
  Value Lookup(absl::string_view key) const;

  friend bool operator==(const Value& a, const Value& b);

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Map>, Builtin>
      data_;
  bool is_namespace_ = false;
};

// Sets or replaces.
void Assign(Map& map, absl::string_view key, Value value);

// The elements of a list, keys of a map, characters of a text; nothing of undefined.
absl::StatusOr<List> Elements(const Value& value);

// json.dumps(value, ensure_ascii=False, indent=indent); no indent below 0.
absl::StatusOr<std::string> ToJson(const Value& value, int indent);

// Characters of UTF-8.
std::vector<std::string> Characters(absl::string_view text);

// -1, 0, 1; an error for values that have no order.
absl::StatusOr<int> Compare(const Value& a, const Value& b);

}  // namespace mneme::jinja
