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

bool wait(Counter& counter, uint32_t target, const WaitPolicy& policy) {
  if (counter.reached(target)) return true;
  const auto start = Clock::now();
  while (Clock::now() - start < policy.spin) {
    for (int i = 0; i < 64; ++i) {
      if (counter.reached(target)) return true;
      relax();
    }
  }
  const Sleeper sleeper(counter);
  for (;;) {
    const uint32_t seen = counter.value.load();
    if (static_cast<int32_t>(seen - target) >= 0) return true;
    const auto left = policy.timeout - (Clock::now() - start);
    if (left.count() <= 0) return false;
    futex_wait(counter.value, seen, std::min<std::chrono::nanoseconds>(left, kNap));
    if (policy.poll) policy.poll();
  }
}

}  // namespace decentcomm
