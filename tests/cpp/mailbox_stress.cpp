// Random schedules through the mailbox: every rank fills its slots with numbers that tell rank and version, delays
// itself at random, and checks every element that it collects. Ranks are threads (so that ThreadSanitizer sees both
// sides) or processes.
//
//   mailbox_stress threads|processes[-stale] RANKS STEPS SEED BYTES...      one bucket for each BYTES; stale: staleness
//   3
//
// Prints the number of versions checked; exit code 1 and a message at the first wrong element.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "mailbox/mailbox.h"

using namespace decentcomm;

namespace {

struct Setting {
  uint32_t ranks, steps, seed, staleness;
  std::vector<Bucket> buckets;
};

float value(uint32_t rank, uint32_t version) { return static_cast<float>(version % 4096 * 64 + rank); }

// At such a step all ranks average in place instead of collecting.
bool averages(const Setting& setting, uint32_t step) {
  return setting.staleness == 0 && std::mt19937(setting.seed * 104729 + step)() % 6 == 0;
}

// The same graph on every rank: a ring, a permutation, one group, two groups, or a star.
std::vector<StepPlan> plans(const Setting& setting, uint32_t step) {
  std::mt19937 random(setting.seed * 7919 + step);
  const uint32_t n = setting.ranks;
  std::vector<StepPlan> plan(n);
  const auto reads = [&](uint32_t reader, uint32_t owner) {
    plan[reader].direct.push_back({owner, 0.25});
    plan[owner].readers.push_back(reader);
  };
  const auto group = [&](uint32_t begin, uint32_t end) {
    std::vector<uint32_t> members;
    for (uint32_t r = begin; r < end; ++r) members.push_back(r);
    for (const uint32_t r : members) {
      plan[r].own_weight = 0;
      plan[r].means.push_back({members, 1.0});
      for (const uint32_t other : members)
        if (other != r) plan[r].readers.push_back(other);
    }
  };
  const uint32_t kind = averages(setting, step) ? 2 : random() % 5, shift = 1 + random() % (n - 1),
                 cut = 1 + random() % (n - 1);
  if (kind == 0) {
    for (uint32_t r = 0; r < n; ++r) {
      reads(r, (r + 1) % n);
      if (n > 2) reads(r, (r + n - 1) % n);
    }
  } else if (kind == 1) {
    for (uint32_t r = 0; r < n; ++r) reads(r, (r + shift) % n);
  } else if (kind == 2) {
    group(0, n);
  } else if (kind == 3) {
    group(0, cut);
    group(cut, n);
  } else {
    for (uint32_t r = 1; r < n; ++r) reads(r, 0);
  }
  return plan;
}

void check(const void* data, uint64_t bytes, float expected, uint32_t rank, uint32_t step, uint32_t bucket) {
  const float* x = static_cast<const float*>(data);
  for (uint64_t i = 0; i < bytes / sizeof(float); ++i) {
    if (std::abs(x[i] - expected) > 1e-6f * expected + 1e-3f) {
      std::printf("rank %u step %u bucket %u element %lu: %f instead of %f\n", rank, step, bucket, i, x[i], expected);
      std::fflush(stdout);
      std::_Exit(1);
    }
  }
}

void delay(std::mt19937& random) {
  const uint32_t dice = random() % 64;
  if (dice == 0) usleep(random() % 300);
  if (dice < 8) std::this_thread::yield();
}

void fill(std::byte* target, const Bucket& bucket, float with) {
  float* x = reinterpret_cast<float*>(target + bucket.offset);
  for (uint64_t i = 0; i < bucket.bytes / sizeof(float); ++i) x[i] = with;
}

uint64_t run_rank(const Setting& setting, uint32_t rank, const std::vector<std::byte*>& memory) {
  const WaitPolicy policy{std::chrono::microseconds(5), std::chrono::seconds(30), {}};
  Mailbox mailbox(rank, memory, Geometry(setting.buckets), Element::kFloat32, policy);
  std::mt19937 random(setting.seed + 31 * rank);
  uint64_t checked = 0;
  for (uint32_t b = 0; b < setting.buckets.size(); ++b) {
    fill(mailbox.slot(0), setting.buckets[b], value(rank, 0));
    mailbox.publish(b, 0);
  }
  std::vector<uint32_t> everyone;
  std::vector<float> values;  // what each rank's slot of this step's version holds
  for (uint32_t r = 0; r < setting.ranks; ++r) {
    everyone.push_back(r);
    values.push_back(value(r, 0));
  }
  std::vector<StepPlan> previous = plans(setting, 0);
  for (uint32_t step = 0; step < setting.steps; ++step) {
    const std::vector<StepPlan> now = plans(setting, step);
    const bool averaging = averages(setting, step);
    const float mean_of_all = std::accumulate(values.begin(), values.end(), 0.0f) / static_cast<float>(setting.ranks);
    for (uint32_t b = 0; b < setting.buckets.size(); ++b) {
      delay(random);
      if (averaging) {
        mailbox.average(b, step, everyone);
        check(mailbox.slot(step + 1) + setting.buckets[b].offset, setting.buckets[b].bytes, mean_of_all, rank, step, b);
        checked += setting.ranks - 1;
        mailbox.publish(b, step + 1);
        mailbox.release(b, step);
        continue;
      }
      const Incoming in = mailbox.collect(b, step, now[rank], previous[rank], setting.staleness);
      const auto check_all = [&] {
        if (setting.staleness > 0) {
          for (const Source& s : in.sources) {
            if (s.version + setting.staleness < step) {
              std::printf("rank %u step %u: version %u of rank %u is too old\n", rank, step, s.version, s.rank);
              std::_Exit(1);
            }
            check(s.data, in.bytes, value(s.rank, s.version), rank, step, b);
            ++checked;
          }
          return;
        }
        size_t source = now[rank].own_weight != 0 ? 1 : 0;
        for (const auto& direct : now[rank].direct) {
          check(in.sources[source++].data, in.bytes, values[direct.rank], rank, step, b);
          ++checked;
        }
        for (const auto& mean : now[rank].means) {
          float expected = 0;
          for (const uint32_t r : mean.members) expected += values[r] / static_cast<float>(mean.members.size());
          check(in.sources[source++].data, in.bytes, expected, rank, step, b);
          checked += mean.members.size() - 1;
        }
      };
      delay(random);
      check_all();
      fill(mailbox.slot(step + 1), setting.buckets[b], value(rank, step + 1));
      delay(random);
      mailbox.publish(b, step + 1);
      delay(random);
      check_all();  // what was collected stays until it is released, also after publishing
      mailbox.release(b, step);
    }
    for (uint32_t r = 0; r < setting.ranks; ++r) values[r] = averaging ? mean_of_all : value(r, step + 1);
    previous = now;
  }
  return checked;
}

std::byte* shared(uint64_t bytes) {
  return static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const std::string mode = argv[1];
  const auto number = [&](int i) { return static_cast<uint32_t>(atoi(argv[i])); };
  Setting setting{number(2), number(3), number(4), mode.ends_with("-stale") ? 3u : 0u, {}};
  uint64_t offset = 0;
  for (int i = 5; i < argc; ++i) {
    setting.buckets.push_back({offset, number(i)});
    offset += number(i);
  }
  std::vector<std::byte*> memory;
  for (uint32_t r = 0; r < setting.ranks; ++r) memory.push_back(shared(Geometry(setting.buckets).segment_bytes()));
  auto* checked = reinterpret_cast<uint64_t*>(shared(4096));
  if (mode.starts_with("threads")) {
    std::vector<std::thread> ranks;
    for (uint32_t r = 0; r < setting.ranks; ++r)
      ranks.emplace_back([&, r] { checked[r] = run_rank(setting, r, memory); });
    for (std::thread& t : ranks) t.join();
  } else {
    std::vector<pid_t> processes;
    for (uint32_t r = 0; r < setting.ranks; ++r) {
      const pid_t process = fork();
      if (process == 0) {
        checked[r] = run_rank(setting, r, memory);
        std::_Exit(0);
      }
      processes.push_back(process);
    }
    bool failed = false;
    for (int status; wait(&status) > 0;) {
      if (status == 0) continue;
      if (!failed)  // the others would wait for the one that stopped
        for (const pid_t other : processes) kill(other, SIGKILL);
      failed = true;
    }
    if (failed) return 1;
  }
  uint64_t total = 0;
  for (uint32_t r = 0; r < setting.ranks; ++r) total += checked[r];
  std::printf("checked %lu\n", total);
  return 0;
}
