#include "common/cpu.h"

namespace decentcomm {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets{"portable"};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.emplace_back("avx2");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) sets.emplace_back("avx512");
#elif defined(__aarch64__)
  sets.emplace_back("neon");
#endif
  return sets;
}

std::string version() { return DC_VERSION; }

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace decentcomm
