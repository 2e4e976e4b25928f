#include "common/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace decentcomm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kNap =
    std::chrono::milliseconds(200);  // how often poll() is called: quick for a person, free for a core

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds timeout) {
  const timespec relative{static_cast<time_t>(timeout.count() / 1'000'000'000),
                          static_cast<long>(timeout.count() % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

// Registers a sleeper for as long as it lives, also when poll() throws.
struct Sleeper {
  explicit Sleeper(Counter& counter) : counter_(counter) { counter_.sleepers.fetch_add(1); }
  ~Sleeper() { counter_.sleepers.fetch_sub(1); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Counter& counter_;
};

}  // namespace

void Counter::advance(uint32_t to) {
  // Sequentially consistent on both sides: either the sleeper sees the new value or we see the sleeper.
  value.store(to);
  if (sleepers.load() != 0) syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Pins::unpin() {
  if (users.value.fetch_sub(1) == 1 && users.sleepers.load() != 0)
    syscall(SYS_futex, &users.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

namespace {

// Waits on a word until ready(its value).
template <class Ready>
bool wait_until(Counter& counter, const WaitPolicy& policy, const Ready& ready) {
  if (ready(counter.value.load())) return true;
  const auto start = Clock::now();
  while (Clock::now() - start < policy.spin) {
    for (int i = 0; i < 64; ++i) {
      if (ready(counter.value.load(std::memory_order_acquire))) return true;
      relax();
    }
  }
  const Sleeper sleeper(counter);
  for (;;) {
    const uint32_t seen = counter.value.load();
    if (ready(seen)) return true;
    const auto left = policy.timeout - (Clock::now() - start);
    if (left.count() <= 0) return false;
    futex_wait(counter.value, seen, std::min<std::chrono::nanoseconds>(left, kNap));
    if (policy.poll) policy.poll();
  }
}

}  // namespace

bool wait(Counter& counter, uint32_t target, const WaitPolicy& policy) {
  return wait_until(counter, policy, [target](uint32_t value) { return static_cast<int32_t>(value - target) >= 0; });
}

bool wait_unpinned(Pins& pins, const WaitPolicy& policy) {
  return wait_until(pins.users, policy, [](uint32_t users) { return users == 0; });
}

}  // namespace decentcomm
