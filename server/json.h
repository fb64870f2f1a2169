// JSON as the server keeps it.
#pragma once

#include <nlohmann/json.hpp>

namespace mneme {

using Json = nlohmann::ordered_json;

// Empties `json` from the inside. The library's destructor takes as much memory as a list has
// elements, and ends the process where that is not to be had: what strangers may make long is taken
// apart first.
inline void TakeApart(Json& json) {
  if (json.is_array()) {
    auto& list = json.get_ref<Json::array_t&>();
    for (Json& element : list) {
      if (element.is_structured()) TakeApart(element);
    }
    list.clear();
  } else if (json.is_object()) {
    Json::object_t::Container& entries = json.get_ref<Json::object_t&>();
    for (auto& [name, value] : entries) {
      if (value.is_structured()) TakeApart(value);
    }
    entries.clear();
  }
}

// Takes it apart at the end of its own life.
class TakenApart {
 public:
  explicit TakenApart(Json& json) : json_(json) {}
  ~TakenApart() { TakeApart(json_); }
  TakenApart(const TakenApart&) = delete;
  TakenApart& operator=(const TakenApart&) = delete;

 private:
  Json& json_;
};

}  // namespace mneme
