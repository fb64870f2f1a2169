// Commands for the loop's thread, by threads that wait for what becomes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"

namespace mneme {

// All threads but the loop's may call it. RESOURCE_EXHAUSTED where too many commands wait already.
class LoopCalls {
 public:
  explicit LoopCalls(EngineLoop& loop) : loop_(loop) {}

  // Runs `command` on the loop thread and waits for it.
  template <typename Result, typename Command>
  Result OnLoop(Command command) {
    std::optional<Result> result;
    absl::Notification done;
    if (!loop_.Post([&] {
          result.emplace(command());
          done.Notify();
        })) {
      return QueueFullError("too many commands are waiting");
    }
    done.WaitForNotification();
    return *std::move(result);
  }

  // As OnLoop, of what is done when it calls `done` with its result.
  template <typename Result, typename Command>
  Result Answered(Command command) {
    std::optional<Result> result;
    absl::Notification done;
    const bool posted = loop_.Post([&] {
      command([&](const Result& answer) {
        result.emplace(answer);
        done.Notify();
      });
    });
    if (!posted) return QueueFullError("too many commands are waiting");
    done.WaitForNotification();
    return *std::move(result);
  }

  // As OnLoop, of what is durable when it calls `done`: waits for that, where it returns OK.
  // `with_slab`: when this session has its slab, if it exists. `logged`: and that is what it was
  // fed, where only its log says it.
  template <typename Result, typename Command>
  Result Durably(Command command, const SessionKey* with_slab = nullptr,
                 std::vector<int32_t>* logged = nullptr) {
    using Run = std::function<void(const absl::Status&)>;
    return DurablyWhen<Result>(std::move(command), [&](const Run& run) {
      if (with_slab == nullptr) return run(absl::OkStatus());
      if (logged == nullptr) return loop_.OnSession(*with_slab, run);
      loop_.OnLoggedSession(
          *with_slab, [run, logged](const absl::Status& slab, std::span<const int32_t> tokens) {
            logged->assign(tokens.begin(), tokens.end());
            run(slab);
          });
    });
  }

  // As Durably, of what makes a session, when there is room for it (EngineLoop::OnRoom).
  template <typename Result, typename Command>
  Result DurablyNew(Command command, const SessionKey& key, const NewSession& options,
                    const SessionKey* parent = nullptr, int64_t tokens = 0) {
    return DurablyWhen<Result>(std::move(command),
                               [&](const std::function<void(const absl::Status&)>& run) {
                                 loop_.OnRoom(key, options, parent, tokens, run);
                               });
  }

 private:
  // `when`, on the loop's thread, calls what it gets once, maybe later: not OK, and the command
  // does not run.
  template <typename Result, typename Command, typename When>
  Result DurablyWhen(Command command, When when) {
    std::optional<Result> result;
    absl::Notification returned, settled;
    absl::Status durable;
    const auto run = [&](const absl::Status& slab) {
      if (slab.ok()) {
        result.emplace(command([&](const absl::Status& status) {
          durable = status;
          settled.Notify();
        }));
      } else {
        result.emplace(slab);
      }
      returned.Notify();
    };
    const bool posted = loop_.Post([&] { when(run); });
    if (!posted) return QueueFullError("too many commands are waiting");
    returned.WaitForNotification();
    if (!result->ok()) return *std::move(result);
    settled.WaitForNotification();
    if (!durable.ok()) return durable;
    return *std::move(result);
  }

  EngineLoop& loop_;
};

}  // namespace mneme
