#include "engine/stream_notifier.h"

#include <iterator>
#include <utility>

namespace mneme {

StreamNotifier::StreamNotifier() : thread_([this] { Run(); }) {}

StreamNotifier::~StreamNotifier() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void StreamNotifier::Notify(std::vector<std::shared_ptr<TokenStream>>& streams) {
  if (streams.empty()) return;
  {
    absl::MutexLock lock(&mu_);
    streams_.insert(streams_.end(), std::make_move_iterator(streams.begin()),
                    std::make_move_iterator(streams.end()));
  }
  streams.clear();
}

void StreamNotifier::Run() {
  std::vector<std::shared_ptr<TokenStream>> streams;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &StreamNotifier::Ready));
      if (streams_.empty()) return;
      std::swap(streams, streams_);
    }
    for (const std::shared_ptr<TokenStream>& stream : streams) stream->NotifyReader();
    streams.clear();
  }
}

}  // namespace mneme
