// JSON as the server keeps it.
#pragma once

#include <nlohmann/json.hpp>

namespace mneme {

using Json = nlohmann::ordered_json;

}  // namespace mneme
