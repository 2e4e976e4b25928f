// Log lines to stderr, one write each, so that lines of several ranks do not mix. Any thread may log.
#pragma once

#include <array>
#include <string_view>

namespace decentcomm {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

inline constexpr std::array kLogLevels{LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError};

std::string_view to_string(LogLevel level);

// Prints "[decentcomm LEVEL] message" if DECENTCOMM_LOG admits the level.
void log(LogLevel level, std::string_view message);

}  // namespace decentcomm
