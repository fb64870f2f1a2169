// Linked into every program of a ThreadSanitizer build, and into nothing else.
//
// Distributions ship Abseil uninstrumented, so ThreadSanitizer cannot see that absl::Mutex orders
// anything and reports each guarded variable as a race. The definitions here come before those of
// Abseil's shared library, also for gRPC's calls: each calls the library's own and tells the
// sanitizer which order it establishes.
//
// The library evaluates absl::Conditions of waiting threads inside Unlock, before or after the
// moment at which the order is declared, so accesses made inside its calls are not checked.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
// Part of the sanitizer's run-time library, though in no header of its own.
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

#define MNEME_QUOTE_(x) #x
#define MNEME_QUOTE(x) MNEME_QUOTE_(x)

namespace {

// The definition of the shared library; `qualifiers` is "K" for a const member.
template <typename Function>
Function* Library(const char* qualifiers, const char* name_and_parameters) {
  const std::string version = MNEME_QUOTE(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string symbol = std::string("_ZN") + qualifiers + "4absl" +
                             std::to_string(version.size()) + version + name_and_parameters;
  void* found = dlsym(RTLD_NEXT, symbol.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "abseil_mutex.cc: no %s in Abseil's library\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

struct Unchecked {
  Unchecked() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unchecked() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

// How a call orders events around the object, told to the sanitizer before and after it.
struct Acquires {
  static void Before(void*) {}
  static void After(void* object) { __tsan_acquire(object); }
};
struct Releases {
  static void Before(void* object) { __tsan_release(object); }
  static void After(void*) {}
};
struct ReleasesAndAcquires {
  static void Before(void* object) { __tsan_release(object); }
  static void After(void* object) { __tsan_acquire(object); }
};

template <typename Order, typename Call>
auto Ordered(const void* object, Call call) {
  void* const address = const_cast<void*>(object);
  struct Scope {
    void* const address;
    ~Scope() { Order::After(address); }  // after `Unchecked` has ended
  };
  Order::Before(address);
  const Scope scope{address};
  const Unchecked unchecked;
  return call();
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

// A failed attempt acquires nothing, but declaring an order too many only hides, and hardly so.
#define MNEME_WRAP(Order, Result, Class, qualifier, mangled, Name, parameters, types, arguments) \
  Result Class::Name parameters qualifier {                                                      \
    static auto* const library = Library<Result types>(*#qualifier ? "K" : "", mangled);         \
    return Ordered<Order>(MNEME_ORDERED_OBJECT, [&] { return library arguments; });              \
  }

#define MNEME_ORDERED_OBJECT this
MNEME_WRAP(Acquires, void, Mutex, , "5Mutex4LockEv", Lock, (), (Mutex*), (this))
MNEME_WRAP(Releases, void, Mutex, , "5Mutex6UnlockEv", Unlock, (), (Mutex*), (this))
MNEME_WRAP(Acquires, bool, Mutex, , "5Mutex7TryLockEv", TryLock, (), (Mutex*), (this))
MNEME_WRAP(Acquires, void, Mutex, , "5Mutex10ReaderLockEv", ReaderLock, (), (Mutex*), (this))
MNEME_WRAP(Releases, void, Mutex, , "5Mutex12ReaderUnlockEv", ReaderUnlock, (), (Mutex*), (this))
MNEME_WRAP(Acquires, bool, Mutex, , "5Mutex13ReaderTryLockEv", ReaderTryLock, (), (Mutex*), (this))
MNEME_WRAP(ReleasesAndAcquires, void, Mutex, , "5Mutex5AwaitERKNS0_9ConditionE", Await,
           (const Condition& c), (Mutex*, const Condition&), (this, c))
MNEME_WRAP(ReleasesAndAcquires, bool, Mutex, ,
           "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", AwaitWithTimeout,
           (const Condition& c, Duration t), (Mutex*, const Condition&, Duration), (this, c, t))
MNEME_WRAP(ReleasesAndAcquires, bool, Mutex, ,
           "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", AwaitWithDeadline,
           (const Condition& c, Time t), (Mutex*, const Condition&, Time), (this, c, t))
MNEME_WRAP(Acquires, void, Mutex, , "5Mutex8LockWhenERKNS0_9ConditionE", LockWhen,
           (const Condition& c), (Mutex*, const Condition&), (this, c))
MNEME_WRAP(Acquires, bool, Mutex, , "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE",
           LockWhenWithTimeout, (const Condition& c, Duration t),
           (Mutex*, const Condition&, Duration), (this, c, t))
MNEME_WRAP(Acquires, bool, Mutex, , "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE",
           LockWhenWithDeadline, (const Condition& c, Time t), (Mutex*, const Condition&, Time),
           (this, c, t))
MNEME_WRAP(Acquires, void, Mutex, , "5Mutex14ReaderLockWhenERKNS0_9ConditionE", ReaderLockWhen,
           (const Condition& c), (Mutex*, const Condition&), (this, c))

MNEME_WRAP(Releases, void, Notification, , "12Notification6NotifyEv", Notify, (), (Notification*),
           (this))
MNEME_WRAP(Acquires, void, Notification, const, "12Notification19WaitForNotificationEv",
           WaitForNotification, (), (const Notification*), (this))
MNEME_WRAP(Acquires, bool, Notification, const,
           "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
           WaitForNotificationWithTimeout, (Duration t), (const Notification*, Duration), (this, t))
MNEME_WRAP(Acquires, bool, Notification, const,
           "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
           WaitForNotificationWithDeadline, (Time t), (const Notification*, Time), (this, t))

MNEME_WRAP(ReleasesAndAcquires, bool, BlockingCounter, , "15BlockingCounter14DecrementCountEv",
           DecrementCount, (), (BlockingCounter*), (this))
MNEME_WRAP(Acquires, void, BlockingCounter, , "15BlockingCounter4WaitEv", Wait, (),
           (BlockingCounter*), (this))
#undef MNEME_ORDERED_OBJECT

#define MNEME_ORDERED_OBJECT mu
MNEME_WRAP(ReleasesAndAcquires, void, CondVar, , "7CondVar4WaitEPNS0_5MutexE", Wait, (Mutex * mu),
           (CondVar*, Mutex*), (this, mu))
MNEME_WRAP(ReleasesAndAcquires, bool, CondVar, ,
           "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", WaitWithTimeout,
           (Mutex * mu, Duration t), (CondVar*, Mutex*, Duration), (this, mu, t))
MNEME_WRAP(ReleasesAndAcquires, bool, CondVar, ,
           "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", WaitWithDeadline,
           (Mutex * mu, Time t), (CondVar*, Mutex*, Time), (this, mu, t))
#undef MNEME_ORDERED_OBJECT

ABSL_NAMESPACE_END
}  // namespace absl
