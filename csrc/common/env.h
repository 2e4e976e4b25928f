// Every DECENTCOMM_* variable: typed, defaulted and documented here and nowhere else. Read once, at first use;
// immutable afterwards, so any thread may read it. `decentcomm info` prints describe().
#pragma once

#include <string>
#include <vector>

#include "common/log.h"

namespace decentcomm {

struct Environment {
  LogLevel log_level = LogLevel::kWarning;
  double timeout_seconds = 300.0;
  double spin_microseconds = 50.0;  // more than a wake-up takes, else two ranks that slept once keep each other asleep
  std::string instruction_set = "auto";

  // The process's settings; throws ConfigError on the first call if a variable cannot be parsed.
  static const Environment& get();

  // Reads the variables anew: for get(), and for tests.
  static Environment parse();
};

struct Variable {
  std::string name;
  std::string value;
  std::string help;
};

// All variables with the values in force.
std::vector<Variable> describe(const Environment& env);

}  // namespace decentcomm
