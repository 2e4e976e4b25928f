#include "mailbox/geometry.h"

#include "common/error.h"

namespace decentcomm {
namespace {

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

constexpr uint64_t kCountersBegin = 0;
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

Geometry::Geometry(std::vector<Bucket> buckets, uint32_t mean_scale)
    : buckets_(std::move(buckets)), mean_scale_(mean_scale) {
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
  segment_bytes_ = round_up(slots_begin_ + (1 + mean_scale_) * kSlots * slot_stride_, kPage);
}

BucketCounters& Geometry::counters(std::byte* segment, uint32_t bucket) const {
  return reinterpret_cast<BucketCounters*>(segment + kCountersBegin)[bucket];
}

ChunkState& Geometry::chunk_state(std::byte* segment, uint32_t step, uint32_t bucket, uint64_t chunk) const {
  auto* states = reinterpret_cast<ChunkState*>(segment + kCountersBegin + buckets_.size() * sizeof(BucketCounters));
  return states[step % kSlots * total_chunks_ + first_chunk_[bucket] + chunk];
}

std::byte* Geometry::mean(std::byte* segment, uint32_t step) const {
  return segment + slots_begin_ + (kSlots + step % kSlots * mean_scale_) * slot_stride_;
}

void Geometry::clear(std::byte* segment) const {
  for (uint32_t b = 0; b < buckets_.size(); ++b) {
    BucketCounters& own = counters(segment, b);
    for (Counter* counter : {&own.published, &own.released}) counter->value.store(0);
    for (uint32_t step = 0; step < kSlots; ++step)
      for (uint64_t chunk = 0; chunk < chunks(b); ++chunk) chunk_state(segment, step, b, chunk).state.value.store(0);
  }
}

}  // namespace decentcomm
