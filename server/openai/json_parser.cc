#include "server/openai/json_parser.h"

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "engine/status_payload.h"
#include "server/process/out_of_memory.h"

namespace mneme {
namespace {

// The most bytes shown of a field's name, and of a fault of syntax, which quotes what was read.
constexpr size_t kShownNameBytes = 60;
constexpr size_t kShownSyntaxBytes = 200;

// Takes a parser's events and makes the value of them, from its leaves: each list and object is
// made once all of it is there, so that nothing is ever moved to make room, nor looked for.
class JsonMaker final : public nlohmann::json_sax<Json> {
 public:
  JsonMaker(const JsonLimits& limits, WorkMeter& meter) : limits_(limits), meter_(meter) {}
  ~JsonMaker() override {
    TakeApart(result_);
    for (Level& level : open_) {
      for (Json& element : level.elements) TakeApart(element);
      for (auto& [name, value] : level.fields) TakeApart(value);
    }
  }

  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return Allows(meter_.AddBytes(text.size())) && Add(value);
  }
  bool string(string_t& value) override {
    return Allows(meter_.AddBytes(value.size())) && Add(std::move(value));
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool key(string_t& name) override {
    Level& level = open_.back();
    if (!Allows(meter_.AddBytes(name.size()))) return false;
    if (level.names.size() == limits_.fields) {
      return Allows(
          open_.size() == 1
              ? BodyError(absl::StrCat("the body has more than ", limits_.fields, " fields"))
              : FieldError(Path(open_.size() - 1),
                           absl::StrCat("has more than ", limits_.fields, " fields")));
    }
    level.fields.emplace_back(std::move(name), Json());
    if (level.names.insert(level.fields.back().first).second) return true;
    return Allows(FieldError(Path(open_.size()), "is there twice"));
  }
  bool end_object() override {
    Level level = TakeLevel();
    Json made = Json::object();
    auto& object = made.get_ref<Json::object_t&>();
    object.reserve(level.fields.size());
    // Not the object's own way of adding one, which looks at all others for the same name.
    Json::object_t::Container& entries = object;
    for (auto& [name, value] : level.fields) {
      entries.emplace_back(std::move(name), std::move(value));
    }
    return Keep(std::move(made));
  }

  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool end_array() override { return Keep(Json(TakeLevel().elements)); }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    absl::string_view what = error.what();
    what = what.substr(what.find("] ") + 2);  // "[json.exception.parse_error.101] "
    return Allows(BodyError(
        absl::StrCat("the body is not JSON: ", SanitizeUtf8(Shortened(what, kShownSyntaxBytes)))));
  }

  absl::StatusOr<Json> Result() {
    if (!status_.ok()) return status_;
    return std::move(result_);
  }

 private:
  // A list or an object that has begun and not ended.
  struct Level {
    bool is_object;
    Json::array_t elements;
    std::vector<std::pair<std::string, Json>> fields;
    absl::flat_hash_set<std::string> names;
  };

  bool Allows(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return status_.ok();
  }

  // A value that has no others inside.
  bool Add(Json value) { return Count() && Keep(std::move(value)); }

  bool Count() {
    if (++values_ <= limits_.values) return Allows(meter_.Add(1));
    return Allows(BodyError(absl::StrCat(Where(), " has more than ", limits_.values, " values")));
  }

  bool Open(bool is_object) {
    if (!Count()) return false;
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      return Allows(
          BodyError(absl::StrCat(Where(), " is nested deeper than ", limits_.depth, " levels")));
    }
    if (++lists_and_objects_ > limits_.lists_and_objects) {
      return Allows(BodyError(absl::StrCat(Where(), " has more than ", limits_.lists_and_objects,
                                           " lists and objects")));
    }
    open_.emplace_back().is_object = is_object;
    return true;
  }

  Level TakeLevel() {
    Level level = std::move(open_.back());
    open_.pop_back();
    return level;
  }

  bool Keep(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().fields.back().second = std::move(value);
    } else {
      open_.back().elements.push_back(std::move(value));
    }
    return true;
  }

  // The body, or the field of it that a limit was reached in.
  std::string Where() const {
    const std::string path = Path(open_.size());
    return path.empty() ? "the body" : absl::StrCat("the body, at ", path, ",");
  }

  // The names of the fields under way in the outermost `levels`, without the places in lists.
  std::string Path(size_t levels) const {
    std::string path;
    for (size_t i = 0; i < levels; ++i) {
      if (open_[i].fields.empty()) continue;
      absl::StrAppend(&path, path.empty() ? "" : ".",
                      Shortened(open_[i].fields.back().first, kShownNameBytes));
    }
    return path;
  }

  const JsonLimits limits_;
  WorkMeter& meter_;
  std::vector<Level> open_;  // from the outermost
  int64_t values_ = 0;
  int64_t lists_and_objects_ = 0;
  Json result_;
  absl::Status status_;
};

}  // namespace

absl::Status BodyError(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message), "BAD_BODY");
}

absl::StatusOr<Json> ParseJson(absl::string_view text, const JsonLimits& limits, WorkMeter& meter) {
  try {
    JsonMaker maker(limits, meter);
    (void)Json::sax_parse(text.begin(), text.end(), &maker);
    return maker.Result();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError();
  }
}

}  // namespace mneme
