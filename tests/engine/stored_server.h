// What tests of stored sessions share: a server on a disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tests/engine/loop_harness.h"
#include "tests/store/failing_fs.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {

// A server on a disk, which can be started again.
class Server {
 public:
  explicit Server(HarnessOptions options = {}) : options_(std::move(options)) {
    disk_ = std::make_unique<PowerLossFileSystem>();
    Start();
  }

  LoopHarness* operator->() { return h_.get(); }
  LoopHarness& operator*() { return *h_; }

  // Ends as a process does that is told to.
  void Restart() {
    h_.reset();
    Start();
  }
  // Waits until all that was submitted to the store is on the disk.
  void Commit() { CHECK_OK(h_->store->Apply({})); }
  // Goes on from what is on the disk now, if power fails.
  void LosePower(uint64_t seed) {
    std::unique_ptr<PowerLossFileSystem> image = disk_->CrashImage(seed);
    h_.reset();
    disk_ = std::move(image);
    Start();
  }
  void Kill() {
    std::unique_ptr<PowerLossFileSystem> image = disk_->KillImage();
    h_.reset();
    disk_ = std::move(image);
    Start();
  }
  static const char* wal() { return "/store/catalogue.1.db-wal"; }
  // As Kill, and that file has only so many bytes then.
  void CutWal(size_t bytes) {
    std::unique_ptr<PowerLossFileSystem> image = disk_->KillImage();
    h_.reset();
    disk_ = std::move(image);
    CHECK_OK(
        disk_->Open(wal(), OpenMode::kReadWrite).value()->Truncate(static_cast<int64_t>(bytes)));
    Start();
  }
  // How many snapshots there are.
  int snapshots() const { return static_cast<int>(SnapshotPaths().size()); }
  // Alters a byte of each of them.
  void DamageSnapshots() {
    for (const std::string& path : SnapshotPaths()) {
      const std::byte altered{0x5a};
      CHECK_OK(disk_->Open(path, OpenMode::kReadWrite).value()->Write(40, {&altered, 1}));
    }
  }
  PowerLossFileSystem& disk() { return *disk_; }

 private:
  std::vector<std::string> SnapshotPaths() const {
    std::vector<std::string> paths;
    for (const auto& [path, bytes] : disk_->AllFiles()) {
      if (path.ends_with(".slab")) paths.push_back(path);
    }
    return paths;
  }
  void Start() {
    failing_ = std::make_unique<FailingFileSystem>(*disk_);
    options_.disk = failing_.get();
    h_ = std::make_unique<LoopHarness>(options_);
  }

  HarnessOptions options_;
  std::unique_ptr<PowerLossFileSystem> disk_;

 public:
  std::unique_ptr<FailingFileSystem> failing_;

 private:
  std::unique_ptr<LoopHarness> h_;
};

inline HarnessOptions Options(int slots = 4, int64_t snapshot_tokens = 0) {
  HarnessOptions options;
  options.slots = slots;
  options.engine.snapshot_tokens = snapshot_tokens;
  return options;
}

// `pick(low, high)`: a random number of these, both included.
template <typename Pick>
HarnessOptions RandomOptions(const Pick& pick) {
  HarnessOptions options = Options(pick(1, 4), pick(0, 1) * pick(1, 20));
  options.host_states = pick(0, 2) == 0 ? pick(1, 3) : 0;
  options.asynchronous = pick(0, 1) == 1;
  options.engine.history_tokens = pick(0, 12);
  return options;
}

// What a session that is fed these prompts one after the other says in the end.
inline std::vector<int32_t> Alone(const std::vector<std::vector<int32_t>>& prompts, int tokens) {
  LoopHarness h;
  Answer answer;
  for (const std::vector<int32_t>& prompt : prompts) {
    answer = h.Generate(Greedy(prompt, tokens, "s"));
  }
  return answer.tokens.at(0);
}

}  // namespace mneme
