#include "common/env.h"

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "common/error.h"

namespace decentcomm {
namespace {

constexpr const char* kLog = "DECENTCOMM_LOG";
constexpr const char* kTimeout = "DECENTCOMM_TIMEOUT";

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  throw ConfigError(std::string(name) + "='" + value + "' must be " + expected + "; correct or unset it");
}

void read_positive(const char* name, double& target) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(value) || value <= 0) refuse(name, text, "a positive number");
  target = value;
}

void read_level(const char* name, LogLevel& target) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  for (const LogLevel level : kLogLevels) {
    if (to_string(level) == text) {
      target = level;
      return;
    }
  }
  refuse(name, text, "one of debug, info, warning, error");
}

std::string format(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

Environment Environment::parse() {
  Environment env;
  read_level(kLog, env.log_level);
  read_positive(kTimeout, env.timeout_seconds);
  return env;
}

const Environment& Environment::get() {
  static const Environment env = parse();
  return env;
}

std::vector<Variable> describe(const Environment& env) {
  return {
      {kLog, std::string(to_string(env.log_level)), "what is logged to stderr: debug, info, warning or error"},
      {kTimeout, format(env.timeout_seconds), "seconds after which a wait for another rank ends in an error"},
  };
}

}  // namespace decentcomm
