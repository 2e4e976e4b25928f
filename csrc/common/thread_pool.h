// A few threads that sleep between calls (unlike OpenMP's, which spin). run() may be called by one thread at a time; a
// pool inherited through fork() is made anew, since threads do not survive it.
#pragma once

#include <functional>

namespace decentcomm {

// Calls work(i) for i in [0, threads), the caller being one of the threads; returns when all are done. The first
// exception is rethrown.
void run_parallel(int threads, const std::function<void(int)>& work);

}  // namespace decentcomm
