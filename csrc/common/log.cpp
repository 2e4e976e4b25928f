#include "common/log.h"

#include <unistd.h>

#include <string>

#include "common/env.h"

namespace decentcomm {

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "unknown";
}

void log(LogLevel level, std::string_view message) {
  if (level < Environment::get().log_level) return;
  std::string line = "[decentcomm ";
  line += to_string(level);
  line += "] ";
  line += message;
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace decentcomm
