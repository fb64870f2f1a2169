#include "server/jinja/value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme::jinja {
namespace {

// Up to so many entries, looking at each of them is quickest.
constexpr size_t kMaxScanned = 8;

absl::Status CheckDepth(int depth) {
  if (depth <= Value::kMaxDepth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a value is nested deeper than ", Value::kMaxDepth, " levels"));
}

}  // namespace

struct Value::ListData {
  List list;
  int depth;
};

struct Value::MapData {
  Map map;
  int depth;
};

absl::StatusOr<Value> Value::OfList(List list) {
  int depth = 0;
  for (const Value& element : list) depth = std::max(depth, element.depth());
  MNEME_RETURN_IF_ERROR(CheckDepth(++depth));
  Value value;
  value.data_ = std::make_shared<const ListData>(ListData{std::move(list), depth});
  return value;
}

absl::StatusOr<Value> Value::OfMap(Map map) {
  int depth = 0;
  for (const auto& [key, element] : map) depth = std::max(depth, element.depth());
  MNEME_RETURN_IF_ERROR(CheckDepth(++depth));
  Value value;
  value.data_ = std::make_shared<const MapData>(MapData{std::move(map), depth});
  return value;
}

absl::StatusOr<Value> Value::OfFunction(Function function) {
  Value value;
  value.data_ = std::make_shared<const Function>(std::move(function));
  MNEME_RETURN_IF_ERROR(CheckDepth(value.depth()));
  return value;
}

absl::StatusOr<Value> Value::OfLoop(std::shared_ptr<const Loop> loop) {
  Value value;
  value.data_ = std::move(loop);
  MNEME_RETURN_IF_ERROR(CheckDepth(value.depth()));
  return value;
}

absl::StatusOr<Value> Value::FromJson(const nlohmann::ordered_json& json, WorkMeter& meter) {
  MNEME_RETURN_IF_ERROR(meter.Add(1));
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::string: {
      const std::string& text = json.get_ref<const std::string&>();
      MNEME_RETURN_IF_ERROR(meter.AddBytes(text.size()));
      return Value(text);
    }
    case nlohmann::json::value_t::array: {
      List list;
      list.reserve(json.size());
      for (const auto& element : json) {
        MNEME_ASSIGN_OR_RETURN(Value value, FromJson(element, meter));
        list.push_back(std::move(value));
      }
      return OfList(std::move(list));
    }
    case nlohmann::json::value_t::object: {
      Map map;
      for (const auto& [key, element] : json.get_ref<const nlohmann::ordered_json::object_t&>()) {
        MNEME_RETURN_IF_ERROR(meter.AddBytes(key.size()));
        MNEME_ASSIGN_OR_RETURN(Value value, FromJson(element, meter));
        map.Set(key, std::move(value));
      }
      return OfMap(std::move(map));
    }
    default:
      return Value(None{});
  }
}

const List& Value::list() const { return std::get<ListPointer>(data_)->list; }
const Map& Value::map() const { return std::get<MapPointer>(data_)->map; }

int Value::depth() const {
  if (is_list()) return std::get<ListPointer>(data_)->depth;
  if (is_map()) return std::get<MapPointer>(data_)->depth;
  if (is_loop()) return loop().list.depth() + 1;
  if (is_function()) return function().self == nullptr ? 0 : function().self->depth() + 1;
  return 0;
}

const void* Value::identity() const {
  if (is_text()) return std::get<TextPointer>(data_).get();
  if (is_list()) return std::get<ListPointer>(data_).get();
  if (is_map()) return std::get<MapPointer>(data_).get();
  if (is_namespace()) return &name_space();
  if (is_loop()) return &loop();
  if (is_function()) return &function();
  return this;
}

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return boolean();
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  if (is_map()) return !map().empty();
  return true;
}

std::string Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (is_bool()) return "boolean";
  if (is_number()) return "number";
  if (is_text()) return "text";
  if (is_list()) return "list";
  if (is_map()) return "mapping";
  if (is_namespace()) return "namespace";
  if (is_loop()) return "loop";
  return "function";
}

size_t Map::PlaceOf(absl::string_view key) const {
  if (!places_.empty()) {
    const auto found = places_.find(key);
    return found == places_.end() ? size() : found->second;
  }
  size_t place = 0;
  while (place < size() && entries_[place].first != key) ++place;
  return place;
}

const Value* Map::Find(absl::string_view key) const {
  const size_t place = PlaceOf(key);
  return place == size() ? nullptr : &entries_[place].second;
}

void Map::Set(absl::string_view key, Value value) {
  const size_t place = PlaceOf(key);
  if (place < size()) {
    entries_[place].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::string(key), std::move(value));
  if (size() <= kMaxScanned) return;
  if (places_.empty()) {
    for (size_t i = 0; i < size(); ++i) places_.emplace(entries_[i].first, i);
  } else {
    places_.emplace(entries_.back().first, place);
  }
}

}  // namespace mneme::jinja
