// Every exception of the engine. What a user can cause derives from Error and says what was wrong and what to do; the
// bindings map each class to the Python class of the same name in decentcomm.errors.
#pragma once

#include <stdexcept>

namespace decentcomm {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A DECENTCOMM_* variable holds something that it cannot.
struct ConfigError : Error {
  using Error::Error;
};

// A wait for another rank passed its deadline.
struct DeadlineError : Error {
  using Error::Error;
};

}  // namespace decentcomm
