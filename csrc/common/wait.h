// Waiting on counters that other threads or processes advance: a short spin, then futex, then an error. Works on
// private and on shared memory. Counters only grow; comparisons survive wrap-around.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace decentcomm {

// A counter in shared memory. Padded by its users: several may share a cache line if one process writes them all.
struct Counter {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  bool reached(uint32_t target) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }

  // Sets the value and wakes whoever sleeps on it. Only the owner calls it.
  void advance(uint32_t to);
};

struct WaitPolicy {
  std::chrono::nanoseconds spin{50'000};
  std::chrono::nanoseconds timeout{std::chrono::minutes(5)};
  // Called every fraction of a second while asleep; may throw, for instance because the user pressed Ctrl-C.
  std::function<void()> poll;
};

// Blocks until the counter reaches the target. False if the timeout passed first.
bool wait(Counter& counter, uint32_t target, const WaitPolicy& policy);

// A number of users, changed by many: pin() and unpin() count up and down, wait_unpinned() blocks until there are none.
// Sequentially consistent, so that whoever pins and then looks at another variable, and whoever sets that variable and
// then waits, cannot both miss each other.
struct Pins {
  Counter users;

  void pin() { users.value.fetch_add(1); }
  void unpin();
};

bool wait_unpinned(Pins& pins, const WaitPolicy& policy);

}  // namespace decentcomm
