#include "clients/cli/bench_load.h"

#include <deque>
#include <limits>
#include <queue>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace mneme::cli {
namespace {

// A turn and when it is to be sent.
struct Due {
  double time = 0;
  size_t conversation = 0;
  size_t turn = 0;
  bool operator<(const Due& other) const { return time > other.time; }  // earliest on top
};

class Load {
 public:
  Load(BenchTransport& transport, const std::vector<PlannedConversation>& plan,
       std::optional<int> max_concurrency, LoadResult& result)
      : transport_(transport),
        plan_(plan),
        turns_(plan[0].turns.size()),
        max_open_(max_concurrency.value_or(std::numeric_limits<int>::max())),
        // Benchmarks that run at once must not meet in one session.
        prefix_(absl::StrFormat("bench-%08x-", absl::Uniform<uint32_t>(absl::BitGen()))),
        start_(clock_.Monotonic()),
        result_(result) {
    RequestRecord unsent;
    unsent.error = "not sent: an earlier turn of its conversation failed";
    result_.records.assign(plan.size() * turns_, unsent);
  }

  void Run() {
    std::thread cleaner([this] { CleanUp(); });
    size_t next = 0;
    while (true) {
      Due due;
      {
        absl::MutexLock lock(&mu_);
        const bool may_begin = next < plan_.size() && open_ < max_open_;
        if (next == plan_.size() && open_ == 0) break;
        double time = std::numeric_limits<double>::infinity();
        bool is_new = false;
        if (may_begin) {
          time = plan_[next].arrival;
          is_new = true;
        }
        if (!due_.empty() && due_.top().time <= time) {
          time = due_.top().time;
          is_new = false;
        }
        const double wait = time - Now();
        if (wait > 0) {  // or until something has ended, which may change what is next
          const auto changed = [this, seen = changes_]()
                                   ABSL_SHARED_LOCKS_REQUIRED(mu_) { return changes_ != seen; };
          mu_.AwaitWithTimeout(absl::Condition(&changed), absl::Seconds(wait));
          continue;
        }
        if (is_new) {
          due = {.conversation = next++};
          open_ += 1;
        } else {
          due = due_.top();
          due_.pop();
        }
      }
      Send(due);
    }
    {
      absl::MutexLock lock(&mu_);
      is_over_ = true;
    }
    cleaner.join();
  }

 private:
  double Now() const { return absl::ToDoubleSeconds(clock_.Monotonic() - start_); }
  std::string NameOf(size_t conversation) const {
    return turns_ == 1 ? "" : absl::StrCat(prefix_, conversation);
  }

  void Send(const Due& due) {
    const PlannedTurn& turn = plan_[due.conversation].turns[due.turn];
    RequestRecord& record = result_.records[due.conversation * turns_ + due.turn];
    record = {};
    transport_.Send(turn, NameOf(due.conversation),
                    std::make_shared<RecordFiller>(record, static_cast<int>(turn.token_ids.size()),
                                                   [this] { return Now(); }),
                    [this, due](bool is_ok) { OnDone(due, is_ok); });
  }

  void OnDone(const Due& due, bool is_ok) {
    const double now = Now();
    absl::MutexLock lock(&mu_);
    changes_ += 1;
    result_.duration = std::max(result_.duration, now);
    const size_t next = due.turn + 1;
    if (is_ok && next < turns_) {
      due_.push({.time = now + plan_[due.conversation].turns[next].think,
                 .conversation = due.conversation,
                 .turn = next});
    } else if (turns_ > 1) {
      to_clean_.push_back(due.conversation);
    } else {
      open_ -= 1;
    }
  }

  // Sessions end here, so that no sender waits for it.
  void CleanUp() {
    while (true) {
      size_t conversation = 0;
      {
        absl::MutexLock lock(&mu_);
        const auto is_there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
          return is_over_ || !to_clean_.empty();
        };
        mu_.Await(absl::Condition(&is_there));
        if (to_clean_.empty()) return;
        conversation = to_clean_.front();
        to_clean_.pop_front();
      }
      const absl::StatusOr<double> latency = transport_.ForkAndDelete(NameOf(conversation));
      absl::MutexLock lock(&mu_);
      if (latency.ok()) result_.fork_latency.push_back(*latency);
      open_ -= 1;
      changes_ += 1;
    }
  }

  BenchTransport& transport_;
  const std::vector<PlannedConversation>& plan_;
  const size_t turns_;  // of every conversation
  const int max_open_;
  const std::string prefix_;
  const RealClock clock_;
  const absl::Duration start_;
  // A record belongs to the callbacks of its own request; the rest is guarded by mu_.
  LoadResult& result_;
  absl::Mutex mu_;
  std::priority_queue<Due> due_ ABSL_GUARDED_BY(mu_);
  std::deque<size_t> to_clean_ ABSL_GUARDED_BY(mu_);
  int open_ ABSL_GUARDED_BY(mu_) = 0;  // conversations
  int64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

LoadResult RunLoad(BenchTransport& transport, const std::vector<PlannedConversation>& plan,
                   std::optional<int> max_concurrency) {
  LoadResult result;
  if (!plan.empty()) Load(transport, plan, max_concurrency, result).Run();
  return result;
}

}  // namespace mneme::cli
