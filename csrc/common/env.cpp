#include "common/env.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "common/cpu.h"
#include "common/error.h"

namespace decentcomm {
namespace {

constexpr const char* kLog = "DECENTCOMM_LOG";
constexpr const char* kTimeout = "DECENTCOMM_TIMEOUT";
constexpr const char* kSpin = "DECENTCOMM_SPIN_US";
constexpr const char* kIsa = "DECENTCOMM_ISA";

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  throw ConfigError(std::string(name) + "='" + value + "' must be " + expected + "; correct or unset it");
}

void read_number(const char* name, double lowest, const char* expected, double& target) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(value) || value < lowest) refuse(name, text, expected);
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

void read_instruction_set(const char* name, std::string& target) {
  const char* text = std::getenv(name);
  if (text == nullptr) return;
  std::string expected = "auto";
  for (const std::string& set : instruction_sets()) expected += " or " + set;
  const std::vector<std::string> sets = instruction_sets();
  if (std::string(text) != "auto" && std::find(sets.begin(), sets.end(), text) == sets.end())
    refuse(name, text, (expected + " on this CPU").c_str());
  target = text;
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
  read_number(kTimeout, 1e-3, "a number of seconds of at least 0.001", env.timeout_seconds);
  read_number(kSpin, 0, "a number of microseconds of at least 0", env.spin_microseconds);
  read_instruction_set(kIsa, env.instruction_set);
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
      {kSpin, format(env.spin_microseconds),
       "microseconds that a wait spins before it sleeps; 0 if ranks outnumber cores"},
      {kIsa, env.instruction_set, "instruction set of the CPU kernels: auto, portable, avx2 or avx512"},
  };
}

}  // namespace decentcomm
