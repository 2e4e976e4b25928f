// Shared memory between the processes of one host: created exclusively under a random name, mode 0600; attached by
// name; the name is removed as soon as everyone is attached, so that nothing is left behind however the processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace decentcomm {

class Segment {
 public:
  // A new segment, all zero, its memory taken; an Error if /dev/shm has too little.
  static Segment create(uint64_t bytes);
  // The segment that another process created; refused if its size is not `bytes`.
  static Segment attach(const std::string& name, uint64_t bytes);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  // Removes the name; the memory stays until the last process unmaps it. Does nothing the second time.
  void unlink();

 private:
  Segment(std::string name, std::byte* data, uint64_t bytes, bool linked);

  std::string name_;
  std::byte* data_;
  uint64_t bytes_;
  bool linked_;
};

}  // namespace decentcomm
