#include "engine/token_stream.h"

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "engine/mailbox.h"
#include "engine/stream_notifier.h"
#include "gtest/gtest.h"

namespace mneme {
namespace {

TokenEvent Event(int token, bool last = false) {
  TokenEvent event;
  event.token_ids = {token};
  event.is_last = last;
  return event;
}

TEST(TokenStreamTest, EventsComeInOrder) {
  TokenStream stream(4);
  EXPECT_FALSE(stream.TryNext().has_value());
  EXPECT_FALSE(stream.Push(Event(1))) << "nobody set a callback";
  EXPECT_FALSE(stream.Push(Event(2, /*last=*/true)));
  EXPECT_EQ(stream.Next()->token_ids[0], 1);
  EXPECT_TRUE(stream.TryNext()->is_last);
  EXPECT_FALSE(stream.Next(absl::ZeroDuration()).has_value());
}

TEST(TokenStreamTest, AFullStreamPausesUntilHalfIsReadAndWakesOnce) {
  TokenStream stream(4);
  int wakes = 0;
  stream.SetWaker([&] { ++wakes; });
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(stream.full());
    (void)stream.Push(Event(i));
  }
  EXPECT_TRUE(stream.full());
  (void)stream.Push(Event(4));  // a step under way may add more
  stream.TryNext();
  stream.TryNext();
  EXPECT_TRUE(stream.full());
  EXPECT_EQ(wakes, 0);
  stream.TryNext();
  EXPECT_FALSE(stream.full());
  EXPECT_EQ(wakes, 1);
}

TEST(TokenStreamTest, CancellingWakesTheEngineOnceAndNotAfterTheEnd) {
  TokenStream stream(4);
  int wakes = 0;
  stream.SetWaker([&] { ++wakes; });
  stream.Cancel();
  stream.Cancel();
  EXPECT_TRUE(stream.cancelled());
  EXPECT_EQ(wakes, 1);
  TokenStream ended(4);
  ended.SetWaker([&] { ++wakes; });
  (void)ended.Push(Event(0, /*last=*/true));
  ended.Cancel();
  EXPECT_EQ(wakes, 1);
}

TEST(TokenStreamTest, AnAbandonedStreamTakesEverythingAndKeepsNothing) {
  TokenStream stream(2);
  (void)stream.Push(Event(0));
  (void)stream.Push(Event(1));
  stream.Abandon();
  EXPECT_FALSE(stream.full());
  (void)stream.Push(Event(2));
  (void)stream.Push(Event(3));
  EXPECT_FALSE(stream.full());
  EXPECT_FALSE(stream.TryNext().has_value());
}

TEST(TokenStreamTest, TheCallbackRunsOnlyForAReaderThatFoundNothing) {
  TokenStream stream(4);
  int calls = 0;
  stream.SetReadyCallback([&] { ++calls; });
  EXPECT_FALSE(stream.Push(Event(0))) << "the reader has not asked yet";
  stream.NotifyReader();
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(stream.TryNext().has_value());
  EXPECT_FALSE(stream.TryNext().has_value());
  EXPECT_TRUE(stream.Push(Event(1)));
  stream.NotifyReader();
  stream.NotifyReader();
  EXPECT_EQ(calls, 1);
}

TEST(TokenStreamTest, AnEventDuringTheCallbackIsNotMissed) {
  auto stream = std::make_unique<TokenStream>(4);
  int calls = 0;
  bool must_notify = false;
  stream->SetReadyCallback([&] {
    ++calls;
    while (stream->TryNext().has_value()) {
    }
    if (calls == 1) must_notify = stream->Push(Event(1));
  });
  stream->TryNext();
  ASSERT_TRUE(stream->Push(Event(0)));
  stream->NotifyReader();
  EXPECT_TRUE(must_notify);
  stream->NotifyReader();
  EXPECT_EQ(calls, 2);
}

TEST(TokenStreamTest, ACallbackMayRemoveItself) {
  TokenStream stream(4);
  int calls = 0;
  stream.SetReadyCallback([&] {
    ++calls;
    stream.SetReadyCallback(nullptr);
  });
  stream.TryNext();
  (void)stream.Push(Event(0));
  stream.NotifyReader();
  while (stream.TryNext().has_value()) {
  }
  EXPECT_FALSE(stream.Push(Event(1)));
  EXPECT_EQ(calls, 1);
}

TEST(TokenStreamTest, RemovingTheCallbackWaitsForItToReturn) {
  StreamNotifier notifier;
  auto stream = std::make_shared<TokenStream>(4);
  absl::Notification began, go_on;
  bool returned = false;
  stream->SetReadyCallback([&] {
    began.Notify();
    go_on.WaitForNotification();
    returned = true;
  });
  stream->TryNext();
  ASSERT_TRUE(stream->Push(Event(0)));
  std::vector<std::shared_ptr<TokenStream>> touched = {stream};
  notifier.Notify(touched);
  EXPECT_TRUE(touched.empty());
  began.WaitForNotification();
  std::thread other([&] { go_on.Notify(); });
  stream->SetReadyCallback(nullptr);
  EXPECT_TRUE(returned);
  other.join();
}

// A callback may hold the last reference to the reader, which, once gone, lets go of the stream.
TEST(TokenStreamTest, ACallbackThatIsReplacedDiesOutsideOfTheLock) {
  TokenStream stream(4);
  int calls = 0;
  const auto use = [&stream, &calls](void*) {
    stream.Cancel();
    ++calls;
  };
  stream.SetReadyCallback([held = std::shared_ptr<void>(&stream, use)] {});
  EXPECT_EQ(calls, 0);
  stream.SetReadyCallback(nullptr);
  EXPECT_EQ(calls, 1);
}

TEST(TokenStreamTest, PlainEventsOfAChoiceMerge) {
  TokenEvent a = Event(1), b = Event(2);
  a.text = "x";
  b.text = "y";
  EXPECT_TRUE(MergeEvents(a, b));
  EXPECT_EQ(a.text, "xy");
  EXPECT_EQ(a.token_ids, (std::vector<int32_t>{1, 2}));
  TokenEvent other_choice = Event(3);
  other_choice.choice = 1;
  EXPECT_FALSE(MergeEvents(a, other_choice));
  TokenEvent prompt = Event(3);
  prompt.is_prompt = true;
  EXPECT_FALSE(MergeEvents(a, prompt));
  TokenEvent last = Event(3, /*last=*/true);
  EXPECT_FALSE(MergeEvents(a, last));
}

TEST(MailboxTest, RefusesWhatDoesNotFitAndWhatComesAfterClosing) {
  Mailbox<int> mailbox(2);
  EXPECT_TRUE(mailbox.TryPush(1));
  EXPECT_TRUE(mailbox.TryPush(2));
  EXPECT_FALSE(mailbox.TryPush(3));
  EXPECT_EQ(mailbox.Drain(absl::ZeroDuration()), (std::vector<int>{1, 2}));
  EXPECT_TRUE(mailbox.TryPush(4));
  mailbox.Close();
  EXPECT_FALSE(mailbox.TryPush(5));
  EXPECT_EQ(mailbox.Drain(absl::InfiniteDuration()), (std::vector<int>{4}));
}

TEST(MailboxTest, AWakeBeforeTheWaitIsNotLost) {
  Mailbox<int> mailbox(2);
  mailbox.Wake();
  EXPECT_TRUE(mailbox.Drain(absl::InfiniteDuration()).empty());
}

TEST(MailboxTest, PushingEndsTheWait) {
  Mailbox<int> mailbox(2);
  std::thread pusher([&] { EXPECT_TRUE(mailbox.TryPush(1)); });
  EXPECT_EQ(mailbox.Drain(absl::InfiniteDuration()), (std::vector<int>{1}));
  pusher.join();
}

}  // namespace
}  // namespace mneme
