// What the engine was built with and which instruction sets this CPU has; kernels choose by it, `decentcomm info`
// prints it.
#pragma once

#include <string>
#include <vector>

namespace decentcomm {

// The instruction sets that a kernel may be compiled for and that this CPU has, weakest first; "portable" always.
std::vector<std::string> instruction_sets();

std::string version();

// Name and version of the compiler.
std::string compiler();

}  // namespace decentcomm
