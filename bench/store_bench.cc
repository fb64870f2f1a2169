// The store of sessions on a real disk: what a durable turn costs, beside what a sync of that disk
// does, and how soon many sessions are listed.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "base/clock.h"
#include "base/log.h"
#include "store/session_store.h"

namespace mneme {
namespace {

constexpr int kTurnTokens = 100;

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double Milliseconds(absl::Duration time) { return absl::ToDoubleMilliseconds(time); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::unique_ptr<SessionStore> OpenStore(FileSystem& files, const std::string& folder) {
  StoreReport report;
  absl::StatusOr<std::unique_ptr<SessionStore>> store =
      SessionStore::Open(files, folder, {}, report);
  CHECK(store.ok()) << store.status().message();
  return *std::move(store);
}

// A sync of 4 KiB that were appended to a file of its own.
double SyncMilliseconds(FileSystem& files, const std::string& path) {
  const RealClock clock;
  const auto file = files.Open(path, OpenMode::kOpenOrCreate);
  CHECK(file.ok()) << file.status().message();
  const std::vector<std::byte> page(4096);
  std::vector<double> times;
  for (int64_t i = 0; i < 200; ++i) {
    const absl::Duration begin = clock.Monotonic();
    CHECK((*file)->Write(i * 4096, page).ok());
    CHECK((*file)->Sync().ok());
    times.push_back(Milliseconds(clock.Monotonic() - begin));
  }
  CHECK(files.Remove(path).ok());
  return Median(std::move(times));
}

AddTurn NextTurn(uint64_t session, int64_t begin) {
  const Turn turn = {.begin = begin,
                     .events = {TokensFed{std::vector<int32_t>(kTurnTokens, 20'000)}}};
  return {session, turn, turn.end(), absl::UnixEpoch(), std::nullopt};
}

void Turns(SessionStore& store, int sessions, int rounds) {
  const RealClock clock;
  std::vector<uint64_t> ids;
  for (int i = 0; i < sessions; ++i) {
    ids.push_back(store.NewId());
    const SessionRecord session = {
        .id = ids.back(), .owner = "bench", .name = absl::StrCat("turns ", ids.back())};
    CHECK(store.Apply({CreateSession{session}}).ok());
  }
  const StoreStats before = store.stats();
  const absl::Duration begin = clock.Monotonic();
  std::vector<double> times;
  for (int64_t round = 0; round < rounds; ++round) {
    const absl::Duration start = clock.Monotonic();
    absl::BlockingCounter left(sessions);
    for (const uint64_t id : ids) {
      CHECK(store
                .Submit({NextTurn(id, round * kTurnTokens)},
                        [&left](const absl::Status& status) {
                          CHECK(status.ok()) << status.message();
                          left.DecrementCount();
                        })
                .ok());
    }
    left.Wait();
    times.push_back(Milliseconds(clock.Monotonic() - start));
  }
  const double seconds = absl::ToDoubleSeconds(clock.Monotonic() - begin);
  const StoreStats after = store.stats();
  const double turns = static_cast<double>(after.turns - before.turns);
  std::printf("%4d sessions: %.2f ms a round (median), %.0f turns/s, %.3f commits a turn\n",
              sessions, Median(std::move(times)), turns / seconds,
              static_cast<double>(after.commits - before.commits) / turns);
}

// A store of so many sessions, of a turn each.
void Fill(FileSystem& files, const std::string& folder, int64_t sessions) {
  const std::unique_ptr<SessionStore> store = OpenStore(files, folder);
  for (int64_t i = 0; i < sessions; i += 1000) {
    std::vector<Change> batch;
    for (int64_t j = i; j < std::min(i + 1000, sessions); ++j) {
      const SessionRecord session = {.id = store->NewId(),
                                     .name = absl::StrCat("conversation-", j)};
      batch.push_back(CreateSession{session});
      batch.push_back(NextTurn(session.id, 0));
    }
    const absl::Status made = store->Apply(std::move(batch));
    CHECK(made.ok()) << made.message();
  }
}

void Restart(FileSystem& files, const std::string& folder, int64_t sessions) {
  const RealClock clock;
  Fill(files, folder, sessions);
  { OpenStore(files, folder); }  // what the last one left in the WAL is not a restart's to move
  const int64_t before = ResidentBytes();
  const absl::Duration begin = clock.Monotonic();
  const std::unique_ptr<SessionStore> store = OpenStore(files, folder);
  const double took = Milliseconds(clock.Monotonic() - begin);
  std::printf("%lld sessions: open in %.0f ms, %.0f bytes of memory each\n",
              static_cast<long long>(sessions), took,
              static_cast<double>(ResidentBytes() - before) / static_cast<double>(sessions));
}

int Run(const std::string& folder, int64_t sessions) {
  PosixFileSystem files;
  CHECK(files.CreateDirectory(folder).ok()) << folder;
  std::printf("sync: %.2f ms (median)\n", SyncMilliseconds(files, folder + "/sync"));
  Restart(files, folder + "/restart", sessions);
  const std::unique_ptr<SessionStore> store = OpenStore(files, folder + "/turns");
  Turns(*store, 1, 300);
  Turns(*store, 256, 30);
  return 0;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) {
  int64_t sessions = 100'000;
  const bool only_fills = argc > 1 && argv[1] == std::string("--fill");
  const std::vector<std::string> words(argv + (only_fills ? 2 : 1), argv + argc);
  if (words.empty() || words.size() > 2 || words[0].starts_with("-") ||
      (words.size() == 2 && !absl::SimpleAtoi(words[1], &sessions))) {
    std::fprintf(stderr,
                 "usage: store_bench [--fill] NEW_FOLDER [SESSIONS]\n"
                 "  --fill  makes a store of so many sessions there, and measures nothing\n");
    return 2;
  }
  if (!only_fills) return mneme::Run(words[0], sessions);
  mneme::PosixFileSystem files;
  mneme::Fill(files, words[0], sessions);
  return 0;
}
