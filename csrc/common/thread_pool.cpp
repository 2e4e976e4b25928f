#include "common/thread_pool.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace decentcomm {
namespace {

class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void run(int threads, const std::function<void(int)>& work) {
    while (static_cast<int>(threads_.size()) < threads - 1) {
      const int index = static_cast<int>(threads_.size()) + 1;
      threads_.emplace_back([this, index, seen = turn_] { serve(index, seen); });
    }
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      active_ = threads;
      left_ = threads - 1;
      ++turn_;
    }
    wake_.notify_all();
    call(work, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return left_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve(int index, unsigned seen) {
    for (;;) {
      const std::function<void(int)>* work = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || turn_ != seen; });
        if (stop_) return;
        seen = turn_;
        if (index >= active_) continue;
        work = work_;
      }
      call(*work, index);
      const std::lock_guard lock(mutex_);
      if (--left_ == 0) done_.notify_one();
    }
  }

  void call(const std::function<void(int)>& work, int index) {
    try {
      work(index);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::exception_ptr error_;
  int active_ = 0, left_ = 0;
  unsigned turn_ = 0;
  bool stop_ = false;
};

}  // namespace

void run_parallel(int threads, const std::function<void(int)>& work) {
  if (threads <= 1) return work(0);
  // Leaked on purpose: joining threads while a process exits or after fork() cannot be done safely.
  static Pool* pool = nullptr;
  static pid_t owner = 0;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (owner != getpid()) {
    pool = new Pool;
    owner = getpid();
  }
  pool->run(threads, work);
}

}  // namespace decentcomm
