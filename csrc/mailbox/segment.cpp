#include "mailbox/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/error.h"

namespace decentcomm {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(what + ": " + std::strerror(errno)); }

std::string random_name() {
  unsigned char noise[12];
  if (getrandom(noise, sizeof noise, 0) != sizeof noise) fail("cannot draw a random name");
  std::string name = "/decentcomm-";
  for (const unsigned char b : noise) {
    name += "0123456789abcdef"[b >> 4];
    name += "0123456789abcdef"[b & 15];
  }
  return name;
}

std::byte* map(int fd, uint64_t bytes, const std::string& name) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (data == MAP_FAILED) fail("cannot map shared memory " + name);
  madvise(data, bytes, MADV_HUGEPAGE);  // only where the system allows it for shared memory; else nothing happens
  return static_cast<std::byte*>(data);
}

}  // namespace

Segment Segment::create(uint64_t bytes) {
  const std::string name = random_name();
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail("cannot create shared memory " + name);
  // Taken at once: touching memory that /dev/shm turns out not to have would end the process with SIGBUS.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    close(fd);
    shm_unlink(name.c_str());
    throw Error("/dev/shm cannot give this rank the " + std::to_string((bytes >> 20) + 1) + " MiB it needs (" +
                std::strerror(error) +
                "); enlarge it: mount -o remount,size=... /dev/shm, or docker run --shm-size=...");
  }
  return Segment(name, map(fd, bytes, name), bytes, true);
}

Segment Segment::attach(const std::string& name, uint64_t bytes) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) fail("cannot attach to shared memory " + name + " of another rank (is it on this host?)");
  struct stat stat;
  if (fstat(fd, &stat) != 0 || static_cast<uint64_t>(stat.st_size) != bytes) {
    close(fd);
    throw Error("shared memory " + name + " has not the size of this rank's: do all ranks hold the same model?");
  }
  return Segment(name, map(fd, bytes, name), bytes, false);
}

Segment::Segment(std::string name, std::byte* data, uint64_t bytes, bool linked)
    : name_(std::move(name)), data_(data), bytes_(bytes), linked_(linked) {}

Segment::Segment(Segment&& other) noexcept
    : name_(std::move(other.name_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      linked_(std::exchange(other.linked_, false)) {}

Segment::~Segment() {
  unlink();
  if (data_ != nullptr) munmap(data_, bytes_);
}

void Segment::unlink() {
  if (std::exchange(linked_, false)) shm_unlink(name_.c_str());
}

}  // namespace decentcomm
