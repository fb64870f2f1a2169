// The HTTP transport of a load test: one thread, a coroutine for each request, connections that are
// used again.
#include <utility>  // in front of awaitable.hpp of Boost 1.74, which forgets it
// A group of its own, so that it stays there.

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <future>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "clients/cli/bench_http_connection.h"  // first: it has <utility> for Boost
#include "clients/cli/bench_transport.h"
#include "clients/cpp/error_details.h"
#include "nlohmann/json.hpp"

namespace mneme::cli {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
constexpr char kSessions[] = "/v1/sessions";

Json Parse(const std::string& text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int64_t IntegerAt(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number() ? found->get<int64_t>() : 0;
}

absl::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
      return absl::StatusCode::kDeadlineExceeded;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kUnknown;
  }
}

// The error in an answer with another status than 200.
absl::Status ErrorOf(int http_status, const std::string& body) {
  const Json json = Parse(body);
  std::string message = body.substr(0, 200);
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    message = json["error"]["message"].get<std::string>();
  }
  return {CodeOf(http_status), absl::StrCat("HTTP ", http_status, ": ", message)};
}

// A stream is a connection is a file, and the usual soft limit is 1024 of them.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Takes apart a stream of server-sent events and fills a record.
class EventReader {
 public:
  EventReader(RecordFiller& filler, HttpKind kind, bool is_text)
      : filler_(filler), kind_(kind), is_text_(is_text) {}

  void Read(absl::string_view piece) {
    text_.append(piece.data(), piece.size());
    size_t begin = 0;
    for (size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      absl::string_view line = absl::string_view(text_).substr(begin, end - begin);
      line = absl::StripSuffix(line, "\r");
      if (absl::ConsumePrefix(&line, "data:")) OnData(std::string(absl::StripPrefix(line, " ")));
    }
    text_.erase(0, begin);
  }

  // Empty if the stream came to its end.
  std::string error() const {
    if (!error_.empty()) return error_;
    return is_done_ ? "" : "the stream broke off before its end";
  }

 private:
  void OnData(const std::string& data) {
    if (data == "[DONE]") {
      is_done_ = true;
      return;
    }
    const Json json = Parse(data);
    if (!json.is_object()) {
      error_ = "an event is not JSON";
    } else if (json.contains("error")) {
      error_ = ErrorOf(200, data).ToString();
    } else {
      if (json.contains("choices") && !json["choices"].empty()) OnChoice(json["choices"][0]);
      if (json.contains("usage") && json["usage"].is_object()) OnUsage(json["usage"]);
    }
  }

  void OnChoice(const Json& choice) {
    const Json& part =
        kind_ == HttpKind::kChat && choice.contains("delta") ? choice["delta"] : choice;
    const char* key = kind_ == HttpKind::kChat ? "content" : "text";
    const auto text = part.find(key);
    filler_.OnText(1, text != part.end() && text->is_string() ? text->get<std::string>() : "");
  }

  void OnUsage(const Json& usage) {
    const auto details = usage.find("prompt_tokens_details");
    const int64_t cached = details != usage.end() ? IntegerAt(*details, "cached_tokens") : 0;
    filler_.OnResumed(cached);
    filler_.OnUsage(static_cast<int>(IntegerAt(usage, "completion_tokens")));
    if (!is_text_) return;
    // A session's tokens count as prompt, too.
    filler_.OnPrompt(static_cast<int>(IntegerAt(usage, "prompt_tokens") - cached));
  }

  RecordFiller& filler_;
  const HttpKind kind_;
  const bool is_text_;  // the prompt, not token ids
  std::string text_;    // since the last end of a line
  bool is_done_ = false;
  std::string error_;
};

class HttpTransport final : public BenchTransport {
 public:
  HttpTransport(const Connection& connection, const BenchSampling& sampling, HttpKind kind)
      : kind_(kind),
        path_(kind == HttpKind::kChat ? "/v1/chat/completions" : "/v1/completions"),
        common_({{"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"temperature", sampling.temperature},
                 {"ignore_eos", sampling.ignore_eos}}),
        work_(boost::asio::make_work_guard(io_)),
        peer_(connection, io_) {
    RaiseFileLimit();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~HttpTransport() override {
    work_.reset();
    // Connections that wait to be used again are closed on their own thread.
    boost::asio::post(io_, [this] { peer_.CloseIdle(); });
    thread_.join();
  }

  absl::StatusOr<ServedModel> Connect(absl::Duration timeout) override {
    const absl::Time give_up = absl::Now() + timeout;
    absl::Status health = Ask("GET", "/health").status();
    // Another server may not have /health: then /v1/models tells.
    while (absl::IsUnavailable(health) && peer_.has_connected() && absl::Now() < give_up) {
      absl::SleepFor(kPollInterval);
      health = Ask("GET", "/health").status();
    }
    MNEME_ASSIGN_OR_RETURN(const Json models, Ask("GET", "/v1/models"));
    ServedModel model;
    if (models.contains("data") && !models["data"].empty() && models["data"][0].contains("id")) {
      model.name = models["data"][0]["id"].get<std::string>();
    }
    if (const absl::StatusOr<Json> tokenizer = Ask("GET", "/tokenizer_info"); tokenizer.ok()) {
      model.vocab = static_cast<int>(IntegerAt(*tokenizer, "vocab_size"));
    }
    if (const auto metrics = AskText("GET", "/metrics", ""); metrics.ok()) {
      model.slab_bytes = static_cast<int64_t>(ValueOf(*metrics, "mneme_slab_bytes"));
    }
    common_["model"] = model.name;
    return model;
  }

  absl::StatusOr<int> CountTokens(const std::string& text) override {
    MNEME_ASSIGN_OR_RETURN(
        const Json answer,
        Ask("POST", "/tokenize", {{"prompt", text}, {"add_special_tokens", false}}));
    return static_cast<int>(IntegerAt(answer, "count"));
  }

  absl::StatusOr<ServerCounts> Counts() override {
    MNEME_ASSIGN_OR_RETURN(const std::string text, AskText("GET", "/metrics", ""));
    const auto mean = [&text](const std::string& name) {
      return ServerCounts::Mean{ValueOf(text, name + "_sum"), ValueOf(text, name + "_count")};
    };
    return ServerCounts{.decode_rows = mean("mneme_step_decode_rows"),
                        .step_seconds = mean("mneme_step_seconds"),
                        .queue_seconds = mean("mneme_request_queue_time_seconds")};
  }

  void Send(const PlannedTurn& turn, const std::string& session,
            std::shared_ptr<RecordFiller> filler, std::function<void(bool)> on_done) override {
    Json body = common_;
    body["max_tokens"] = turn.max_tokens;
    if (!session.empty()) body["session_id"] = session;
    if (kind_ == HttpKind::kChat) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", turn.text}}});
      if (!session.empty()) body["session_mode"] = "append";
    } else if (turn.token_ids.empty()) {
      body["prompt"] = turn.text;
    } else {
      body["prompt"] = turn.token_ids;
    }
    boost::asio::co_spawn(
        io_, Exchange(Dump(body), turn.token_ids.empty(), std::move(filler), std::move(on_done)),
        boost::asio::detached);
  }

  absl::StatusOr<double> ForkAndDelete(const std::string& session) override {
    const std::string fork = absl::StrCat(session, "-fork");
    const RealClock clock;
    const absl::Duration begin = clock.Monotonic();
    const absl::Status forked =
        Ask("POST", kSessions, {{"session_id", fork}, {"fork_of", session}}).status();
    const absl::Duration latency = clock.Monotonic() - begin;
    const auto remove = [this](const std::string& name) {
      (void)Ask("DELETE", absl::StrCat(kSessions, "/", name));
    };
    if (forked.ok()) remove(fork);
    remove(session);                  // there is none if the first turn failed
    if (!forked.ok()) return forked;  // no room for another one, say
    return absl::ToDoubleSeconds(latency);
  }

 private:
  boost::asio::awaitable<void> Exchange(std::string body, bool is_text,
                                        std::shared_ptr<RecordFiller> filler,
                                        std::function<void(bool)> on_done) {
    EventReader events(*filler, kind_, is_text);
    std::string refusal;
    HttpHead head;
    // Named, all of them: GCC 12 destroys temporaries of a co_await twice.
    HttpQuestion question{.method = "POST", .path = path_, .body = std::move(body)};
    HttpPeer::OnPiece on_piece = [&](absl::string_view piece) {
      head.status == 200 ? events.Read(piece) : void(absl::StrAppend(&refusal, piece));
    };
    const absl::Status status = co_await peer_.Exchange(question, head, on_piece);
    const std::string error = !status.ok()         ? ReadableError(status)
                              : head.status != 200 ? ReadableError(ErrorOf(head.status, refusal))
                                                   : events.error();
    filler->OnEnd(error);
    on_done(error.empty());
  }

  // A whole answer, from any thread but the transport's own.
  absl::StatusOr<std::string> AskText(const char* method, const std::string& path,
                                      std::string body) {
    std::promise<absl::StatusOr<std::string>> promise;
    const HttpQuestion question{.method = method, .path = path, .body = std::move(body)};
    const auto ask = [this, &promise, &question]() -> boost::asio::awaitable<void> {
      std::string text;
      HttpHead head;
      HttpPeer::OnPiece on_piece = [&text](absl::string_view piece) {
        absl::StrAppend(&text, piece);
      };
      const absl::Status status = co_await peer_.Exchange(question, head, on_piece);
      if (status.ok() && head.status == 200) {
        promise.set_value(std::move(text));
      } else {
        promise.set_value(status.ok() ? ErrorOf(head.status, text) : status);
      }
    };
    boost::asio::co_spawn(io_, ask, boost::asio::detached);
    return promise.get_future().get();
  }
  absl::StatusOr<Json> Ask(const char* method, const std::string& path,
                           const Json& body = nullptr) {
    MNEME_ASSIGN_OR_RETURN(const std::string text,
                           AskText(method, path, body.is_null() ? "" : Dump(body)));
    Json json = Parse(text);
    if (!json.is_object()) {
      return absl::UnknownError(absl::StrCat(path, " of the server answers no JSON object"));
    }
    return json;
  }

  // The value of the first series of that name in Prometheus' text; 0 if there is none.
  static double ValueOf(const std::string& text, const std::string& name) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      absl::string_view rest = line;
      if (!absl::ConsumePrefix(&rest, name) || rest.empty() || (rest[0] != ' ' && rest[0] != '{')) {
        continue;
      }
      double value = 0;
      return absl::SimpleAtod(rest.substr(rest.rfind(' ') + 1), &value) ? value : 0;
    }
    return 0;
  }

  const HttpKind kind_;
  const std::string path_;
  Json common_;  // written by Connect only
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  HttpPeer peer_;  // on the thread
  std::thread thread_;
};

}  // namespace

std::unique_ptr<BenchTransport> MakeHttpTransport(const Connection& connection,
                                                  const BenchSampling& sampling, HttpKind kind) {
  return std::make_unique<HttpTransport>(connection, sampling, kind);
}

}  // namespace mneme::cli
