#include "mailbox/geometry.h"

#include "common/error.h"

namespace decentcomm {
namespace {

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

constexpr uint64_t kCountersBegin = 0;
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

Geometry::Geometry(std::vector<Bucket> buckets, bool with_means) : buckets_(std::move(buckets)) {
  for (const Bucket& b : buckets_) {
    if (b.offset != flat_bytes_ || b.bytes == 0 || b.bytes % 64 != 0)
      throw Error("buckets must follow each other without gaps, each a positive multiple of 64 bytes");
    first_chunk_.push_back(total_chunks_);
    total_chunks_ += (b.bytes + kMeanChunk - 1) / kMeanChunk;
    flat_bytes_ += b.bytes;
  }
  const uint64_t states = kCountersBegin + buckets_.size() * sizeof(BucketCounters);
  slots_begin_ = round_up(states + kSlots * total_chunks_ * sizeof(ChunkState), kPage);
  // An odd number of cache lines apart: streams whose addresses agree in the low 12 bits slow each other down.
  slot_stride_ = round_up(flat_bytes_, kPage) + 5 * 64;
  segment_bytes_ = round_up(slots_begin_ + (with_means ? 2 : 1) * kSlots * slot_stride_, kPage);
}

BucketCounters& Geometry::counters(std::byte* segment, uint32_t bucket) const {
  return reinterpret_cast<BucketCounters*>(segment + kCountersBegin)[bucket];
}

ChunkState& Geometry::chunk_state(std::byte* segment, uint32_t step, uint32_t bucket, uint64_t chunk) const {
  auto* states = reinterpret_cast<ChunkState*>(segment + kCountersBegin + buckets_.size() * sizeof(BucketCounters));
  return states[step % kSlots * total_chunks_ + first_chunk_[bucket] + chunk];
}

std::byte* Geometry::mean(std::byte* segment, uint32_t step) const {
  return segment + slots_begin_ + (kSlots + step % kSlots) * slot_stride_;
}

}  // namespace decentcomm
