// How a rank's memory is laid out: a header, counters for each bucket, the states of mean chunks, then two slots for
// parameters and two for group means, page-aligned. The same on every rank; whoever knows the buckets knows all
// addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/wait.h"

namespace decentcomm {

// A range of the flat buffer that is published as a whole. Bytes, both multiples of 64.
struct Bucket {
  uint64_t offset;
  uint64_t bytes;
};

// The counters of one bucket of one rank, written by that rank alone.
struct alignas(64) BucketCounters {
  Counter published;  // versions 0 .. published-1 have been complete
  Counter released;   // what steps 0 .. released-1 read has been read
  Pins pins[2];       // who reads a slot without waiting for a certain version; written by the readers
};

// A chunk of a group's mean: `state` counts through claimed and done of each step; `claimer` made the last claim.
struct ChunkState {
  Counter state;
  std::atomic<uint32_t> claimer{0};
};

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kSlots = 2;               // a fast rank is at most one step ahead: two versions exist
inline constexpr uint64_t kMeanChunk = 256 * 1024;  // bytes: some 50 us of work, so whoever waits for one waits little

class Geometry {
 public:
  // `mean_scale`: bytes of a mean for each byte of the buffer, 0 if there are no groups; 2 if bfloat16 has float32
  // means.
  explicit Geometry(std::vector<Bucket> buckets, uint32_t mean_scale = 1);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  uint64_t flat_bytes() const { return flat_bytes_; }
  uint64_t segment_bytes() const { return segment_bytes_; }

  BucketCounters& counters(std::byte* segment, uint32_t bucket) const;
  // State of mean chunk c of a bucket, for steps of this parity.
  ChunkState& chunk_state(std::byte* segment, uint32_t step, uint32_t bucket, uint64_t chunk) const;
  uint64_t chunks(uint32_t bucket) const { return (buckets_[bucket].bytes + kMeanChunk - 1) / kMeanChunk; }
  // The slot that holds `version` of the parameters, or the mean made at `step`.
  std::byte* slot(std::byte* segment, uint32_t version) const { return segment + slot_offset(version); }
  uint64_t slot_offset(uint32_t version) const { return slots_begin_ + version % kSlots * slot_stride_; }
  std::byte* mean(std::byte* segment, uint32_t step) const;
  uint32_t mean_scale() const { return mean_scale_; }
  // Sets all counters and states of a segment to zero, as a new one has them.
  void clear(std::byte* segment) const;

 private:
  std::vector<Bucket> buckets_;
  uint32_t mean_scale_;
  std::vector<uint64_t> first_chunk_;
  uint64_t total_chunks_ = 0, flat_bytes_ = 0, slot_stride_ = 0, slots_begin_ = 0, segment_bytes_ = 0;
};

}  // namespace decentcomm
